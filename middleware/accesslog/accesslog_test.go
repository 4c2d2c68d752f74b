// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/accesslog"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A record is what was logged, one line for each call, without times of day.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(line)
}

// lines returns what was logged so far.
func (r *record) lines() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.TrimSpace(r.text.String())
}

func (r *record) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.MessageKey && a.Value.String() == "yodel: call") {
			return slog.Attr{}
		}
		return a
	}}))
}

const work yodel.Method[struct{}, struct{}] = "Test.Work"

// dial connects a client to a server with one method, for the length of the test.
func dial(t *testing.T, so *yodel.ServerOptions, co *yodel.ClientOptions, f func(ctx context.Context) error) *yodel.Client {
	t.Helper()
	network := mem.New()
	l, err := network.Listen("server")
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(so)
	work.Handle(s, func(ctx context.Context, _ *struct{}) (*struct{}, error) { return nil, f(ctx) })
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	if co == nil {
		co = &yodel.ClientOptions{}
	}
	co.Transport = network
	c := yodel.NewClient(discovery.Static("server"), co)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

func TestOneLineForEachCall(t *testing.T) {
	for _, test := range []struct {
		name           string
		call           yodel.Call
		f              func(ctx context.Context) error
		client, server string
	}{
		{
			name:   "success",
			f:      func(context.Context) error { return nil },
			client: "level=INFO method=Test.Work endpoint=server code=ok took=0s attempt=1",
			server: "level=INFO method=Test.Work peer=server/1 code=ok took=0s attempt=1",
		},
		{
			name:   "took a while",
			f:      func(context.Context) error { time.Sleep(3 * time.Second); return nil },
			client: "level=INFO method=Test.Work endpoint=server code=ok took=3s attempt=1",
			server: "level=INFO method=Test.Work peer=server/1 code=ok took=3s attempt=1",
		},
		{
			name:   "error of the method's",
			f:      func(context.Context) error { return yodel.Errorf(yodel.NotFound, "no account 1234") },
			client: "level=INFO method=Test.Work endpoint=server code=not_found took=0s attempt=1",
			server: "level=INFO method=Test.Work peer=server/1 code=not_found took=0s attempt=1",
		},
		{
			name:   "error without a code",
			f:      func(context.Context) error { return errors.New("no account 1234") },
			client: "level=ERROR method=Test.Work endpoint=server code=unknown took=0s attempt=1",
			server: "level=ERROR method=Test.Work peer=server/1 code=unknown took=0s attempt=1",
		},
		{
			name:   "error with an ID",
			call:   yodel.Call{Method: "Test.None"},
			client: "level=ERROR method=Test.None endpoint=server code=unimplemented took=0s attempt=1 id=YDL2002",
			server: "level=ERROR method=Test.None peer=server/1 code=unimplemented took=0s attempt=1 id=YDL2002",
		},
		{
			name: "deadline",
			// two seconds after a bubble begins
			call:   yodel.Call{Deadline: time.Date(2000, 1, 1, 0, 0, 2, 0, time.UTC)},
			f:      func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return ctx.Err() },
			client: "level=WARN method=Test.Work endpoint=server code=deadline_exceeded took=2s attempt=1 id=YDL1004",
			server: "level=WARN method=Test.Work peer=server/1 code=deadline_exceeded took=3s attempt=1",
		},
		{
			name:   "metadata and arguments are not logged",
			call:   yodel.Call{Metadata: yodel.Metadata{"authorization": "1234"}},
			f:      func(context.Context) error { return nil },
			client: "level=INFO method=Test.Work endpoint=server code=ok took=0s attempt=1",
			server: "level=INFO method=Test.Work peer=server/1 code=ok took=0s attempt=1",
		},
		{
			name:   "one way",
			call:   yodel.Call{OneWay: true},
			f:      func(context.Context) error { return nil },
			client: "level=INFO method=Test.Work endpoint=server code=ok took=0s attempt=1 oneway=true",
			server: "level=INFO method=Test.Work peer=server/1 code=ok took=0s attempt=1 oneway=true",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var client, server record
				c := dial(t,
					&yodel.ServerOptions{Observers: []yodel.Observer{accesslog.To(server.logger(slog.LevelInfo), nil)}},
					&yodel.ClientOptions{Observers: []yodel.Observer{accesslog.To(client.logger(slog.LevelInfo), nil)}},
					test.f)
				call := test.call
				call.Args, call.Reply = &struct{}{}, &struct{}{}
				if call.Method == "" {
					call.Method = string(work)
				}
				_ = c.Do(t.Context(), &call) // the log says how it ended
				time.Sleep(5 * time.Second)
				if got := client.lines(); got != test.client {
					t.Errorf("client: got  %s\nwant %s", got, test.client)
				}
				if got := server.lines(); got != test.server {
					t.Errorf("server: got  %s\nwant %s", got, test.server)
				}
			})
		})
	}
}

func TestAsynchronousCallsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var client record
		c := dial(t, nil, &yodel.ClientOptions{Observers: []yodel.Observer{accesslog.To(client.logger(slog.LevelInfo), nil)}},
			func(context.Context) error { time.Sleep(time.Second); return nil })
		for range 2 { // the first one connects, the second one finds a connection
			if _, err := work.Go(t.Context(), c, &struct{}{}).Get(); err != nil {
				t.Fatal(err)
			}
		}
		const line = "level=INFO method=Test.Work endpoint=server code=ok took=1s attempt=1"
		if got := client.lines(); got != line+"\n"+line {
			t.Errorf("got\n%s", got)
		}
	})
}

func TestACallThatReachedNobodyIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var client record
		c := yodel.NewClient(discovery.Static(), &yodel.ClientOptions{
			Transport: mem.New(), Observers: []yodel.Observer{accesslog.To(client.logger(slog.LevelInfo), nil)},
		})
		defer c.Close()
		if _, err := work.Call(t.Context(), c, &struct{}{}); err == nil {
			t.Error("the call succeeded")
		}
		const want = "level=WARN method=Test.Work code=unavailable took=0s attempt=0 id=YDL1001"
		if got := client.lines(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

func TestAttemptsAreOneLineOnTheClientAndCountedOnTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var client, server record
		executed := 0
		c := dial(t,
			&yodel.ServerOptions{Observers: []yodel.Observer{accesslog.To(server.logger(slog.LevelInfo), nil)}},
			&yodel.ClientOptions{
				Observers:  []yodel.Observer{accesslog.To(client.logger(slog.LevelInfo), nil)},
				Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: 2, Backoff: time.Second})},
				Idempotent: []string{string(work)},
			},
			func(context.Context) error {
				if executed++; executed == 1 {
					return yodel.Unavailable
				}
				return nil
			})
		if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := client.lines(); !strings.Contains(got, "attempt=2") || strings.Contains(got, "\n") {
			t.Errorf("got %s, want one line of attempt 2", got)
		}
		first, second, _ := strings.Cut(server.lines(), "\n")
		if !strings.Contains(first, "code=unavailable took=0s attempt=1") || !strings.Contains(second, "code=ok took=0s attempt=2") {
			t.Errorf("got\n%s\n%s", first, second)
		}
	})
}

func TestOptions(t *testing.T) {
	const ok = "level=INFO method=Test.Work endpoint=server code=ok took=1s attempt=1"
	for _, test := range []struct {
		name  string
		opts  accesslog.Options
		level slog.Level
		err   error
		want  string
	}{
		{name: "none", want: ok},
		{name: "fast enough", opts: accesslog.Options{Slow: 2 * time.Second}, want: ok},
		{
			name: "slow", opts: accesslog.Options{Slow: time.Second},
			want: "level=WARN method=Test.Work endpoint=server code=ok took=1s attempt=1 slow=true",
		},
		{
			name: "slow and broken", opts: accesslog.Options{Slow: time.Second}, err: yodel.Errorf(yodel.DataLoss, "oh"),
			want: "level=ERROR method=Test.Work endpoint=server code=data_loss took=1s attempt=1 slow=true",
		},
		{name: "skipped", opts: accesslog.Options{Skip: []string{"Test.Work"}}},
		{name: "another one skipped", opts: accesslog.Options{Skip: []string{"Test.Wor"}}, want: ok},
		{
			name: "skipped but failed", opts: accesslog.Options{Skip: []string{"Test.Work"}}, err: yodel.Errorf(yodel.Aborted, "oh"),
			want: "level=WARN method=Test.Work endpoint=server code=aborted took=1s attempt=1",
		},
		{
			name: "skipped but slow", opts: accesslog.Options{Skip: []string{"Test.Work"}, Slow: time.Second},
			want: "level=WARN method=Test.Work endpoint=server code=ok took=1s attempt=1 slow=true",
		},
		{name: "below the level of the logger", level: slog.LevelWarn},
		{
			name: "named metadata", opts: accesslog.Options{Metadata: []string{"tenant", "absent"}},
			want: ok + " metadata.tenant=blue",
		},
		{
			name: "text of errors", opts: accesslog.Options{ErrorText: true}, err: yodel.Errorf(yodel.Aborted, "oh\nlevel=INFO"),
			want: `level=WARN method=Test.Work endpoint=server code=aborted took=1s attempt=1 err="aborted: oh level=INFO"`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var client record
				c := dial(t, nil, &yodel.ClientOptions{Observers: []yodel.Observer{accesslog.To(client.logger(test.level), &test.opts)}},
					func(context.Context) error { time.Sleep(time.Second); return test.err })
				call := &yodel.Call{
					Method: string(work), Args: &struct{}{}, Reply: &struct{}{},
					Metadata: yodel.Metadata{"authorization": "1234", "tenant": "blue"},
				}
				if err := c.Do(t.Context(), call); yodel.CodeOf(err) != yodel.CodeOf(test.err) {
					t.Fatalf("got %v", err)
				}
				if got := client.lines(); got != test.want {
					t.Errorf("got  %s\nwant %s", got, test.want)
				}
			})
		})
	}
}

func TestTwoLogsSayTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outer, inner record
		observers := []yodel.Observer{
			accesslog.To(outer.logger(slog.LevelInfo), nil),
			{Start: func(ctx context.Context, _ *yodel.Call) context.Context { time.Sleep(time.Second); return ctx }},
			accesslog.To(inner.logger(slog.LevelInfo), nil),
		}
		c := dial(t, nil, &yodel.ClientOptions{Observers: observers}, func(context.Context) error { return nil })
		if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(outer.lines(), "took=1s") || !strings.Contains(inner.lines(), "took=1s") {
			t.Errorf("got\n%s\n%s", outer.lines(), inner.lines())
		}
	})
}

func TestTheMethodsContextIsStillTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server record
		ended := make(chan error, 2)
		c := dial(t, &yodel.ServerOptions{Observers: []yodel.Observer{accesslog.To(server.logger(slog.LevelInfo), nil)}}, nil,
			func(ctx context.Context) error {
				derived, cancel := context.WithCancel(ctx)
				defer cancel()
				<-derived.Done()
				ended <- derived.Err()
				if yodel.CallFrom(ctx) == nil {
					t.Error("the call is not in the context")
				}
				return derived.Err()
			})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := work.Call(ctx, c, &struct{}{}); !errors.Is(err, yodel.DeadlineExceeded) {
			t.Errorf("got %v, want deadline_exceeded", err)
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the context of the method ended with %v", err)
		}
	})
}

func TestContextsDerivedOnAServerCostNoGoroutine(t *testing.T) {
	var server record
	o := &yodel.ServerOptions{Observers: []yodel.Observer{accesslog.To(server.logger(slog.LevelInfo), nil)}}
	c := dial(t, o, nil, func(ctx context.Context) error {
		const derived = 1000
		before := runtime.NumGoroutine()
		for range derived {
			_, cancel := context.WithCancel(ctx)
			defer cancel()
		}
		if more := runtime.NumGoroutine() - before; more > derived/2 {
			t.Errorf("%d derived contexts started %d goroutines", derived, more)
		}
		return nil
	})
	if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil {
		t.Error(err)
	}
}

// TestAllocations counts what an observer adds to a call, with a logger that discards everything.
func TestAllocations(t *testing.T) {
	discard := slog.New(slog.DiscardHandler)
	kept := slog.New(noop{})
	ctx, call := context.Background(), &yodel.Call{Method: "Test.Work"}
	for _, test := range []struct {
		name   string
		logger *slog.Logger
	}{{"nothing logged", discard}, {"logged", kept}} {
		o := accesslog.To(test.logger, nil)
		if n := testing.AllocsPerRun(100, func() { o.End(ctx, call, nil) }); n > 0 {
			t.Errorf("%s: got %v allocations for each call, want none", test.name, n)
		}
	}
}

// noop is a handler that takes every record and does nothing.
type noop struct{}

func (noop) Enabled(context.Context, slog.Level) bool  { return true }
func (noop) Handle(context.Context, slog.Record) error { return nil }
func (h noop) WithAttrs([]slog.Attr) slog.Handler      { return h }
func (h noop) WithGroup(string) slog.Handler           { return h }

func TestALongStreamIsNotSlow(t *testing.T) {
	const ticks yodel.Feed[struct{}, int] = "Test.Ticks"
	synctest.Test(t, func(t *testing.T) {
		var server, client record
		o := &accesslog.Options{Slow: time.Second}
		s := yodeltest.NewServer(t, &yodel.ServerOptions{Observers: []yodel.Observer{accesslog.To(server.logger(slog.LevelInfo), o)}})
		ticks.Handle(s.Server, func(_ context.Context, _ *struct{}, send yodel.Send[int]) error {
			time.Sleep(2 * time.Second)
			return send(new(int))
		})
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Observers: []yodel.Observer{accesslog.To(client.logger(slog.LevelInfo), o)}}, s)
		for _, err := range ticks.Call(t.Context(), c, &struct{}{}) {
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for _, log := range []*record{&server, &client} {
			if got := log.lines(); !strings.Contains(got, "level=INFO method=Test.Ticks") || !strings.Contains(got, "took=2s") || strings.Contains(got, "slow") {
				t.Errorf("got %s", got)
			}
		}
	})
}

func TestTheLineNamesTheTenantAndHasAttributesOfTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got record
		identify := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				call.Tenant = "acme" // as a check of tokens does
				return next(ctx, call)
			}
		}
		o := &accesslog.Options{Attrs: func(_ context.Context, call *yodel.Call) []slog.Attr {
			return []slog.Attr{slog.String("user", call.Metadata["user"])}
		}}
		c := dial(t, &yodel.ServerOptions{
			Observers: []yodel.Observer{accesslog.To(got.logger(slog.LevelInfo), o)}, Middleware: []yodel.Middleware{identify},
		}, nil, func(context.Context) error { return nil })
		if _, err := work.Do(t.Context(), c, &yodel.Call{Metadata: yodel.Metadata{"user": "ann"}}, &struct{}{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if line := got.lines(); !strings.Contains(line, " tenant=acme code=ok ") || !strings.HasSuffix(line, " user=ann") {
			t.Errorf("got %s", line)
		}
	})
}
