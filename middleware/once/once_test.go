// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const count yodel.Method[string, string] = "Test.Count"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A counter is a server with a method that counts.
type counter struct {
	*testing.T
	*yodel.Client
	server *yodeltest.Server
	n      atomic.Int32
}

// newCounter serves a method that answers with its argument and how often it was executed, after f,
// which may be nil.
func newCounter(t *testing.T, o *once.Options, f func(ctx context.Context, in string) error, above ...yodel.Middleware) *counter {
	t.Helper()
	return newCounterOf(t, once.With(o), f, above...)
}

func newCounterOf(t *testing.T, memory once.KeyMemory, f func(ctx context.Context, in string) error, above ...yodel.Middleware) *counter {
	t.Helper()
	c := &counter{T: t}
	c.server = yodeltest.NewServer(t, &yodel.ServerOptions{
		Middleware: above, Keys: memory, Logger: slog.New(slog.DiscardHandler),
	})
	count.Handle(c.server.Server, func(ctx context.Context, in *string) (*string, error) {
		n := c.n.Add(1)
		if f != nil {
			if err := f(ctx, *in); err != nil {
				return nil, err
			}
		}
		out := fmt.Sprint(*in, " ", n)
		return &out, nil
	})
	c.Client = yodeltest.NewClient(t, nil, c.server)
	return c
}

func (c *counter) try(key, in string) (string, error) {
	return c.with(&yodel.Call{IdempotencyKey: key}, in)
}

func (c *counter) with(call *yodel.Call, in string) (string, error) {
	out, err := count.Do(context.Background(), c.Client, call, &in)
	if err != nil {
		return "", err
	}
	return *out, nil
}

func (c *counter) want(want string, executed int32) func(string, error) {
	return func(got string, err error) {
		c.Helper()
		if err != nil || got != want || c.n.Load() != executed {
			c.Errorf("got %q, %v after %d executions, want %q after %d", got, err, c.n.Load(), want, executed)
		}
	}
}

func (c *counter) wantID(id string, executed int32) func(string, error) *yodel.Error {
	return func(got string, err error) *yodel.Error {
		c.Helper()
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.ID != id || c.n.Load() != executed {
			c.Fatalf("got %q, %v after %d executions, want %s after %d", got, err, c.n.Load(), id, executed)
		}
		return e
	}
}

func TestAKeyIsExecutedOnce(t *testing.T) {
	t.Attr("rerun", "never")
	c := newCounter(t, nil, nil)
	for range 3 {
		c.want("a 1", 1)(c.try("k", "a"))
	}
	c.want("a 2", 2)(c.try("another", "a"))
	c.want("a 3", 3)(c.try("", "a"))
	c.want("a 4", 4)(c.try("", "a"))
	c.want("a 1", 4)(c.try("k", "a"))
}

func TestWhichErrorsAreRecorded(t *testing.T) {
	t.Attr("rerun", "never")
	for _, test := range []struct {
		err      error
		recorded bool
	}{
		{yodel.Errorf(yodel.NotFound, "no such order"), true},
		{yodel.Errorf(yodel.InvalidArgument, "no"), true},
		{errors.New("disk full"), true},
		{yodel.Errorf(yodel.Internal, "broken"), true},
		{context.DeadlineExceeded, true},
		{yodel.Canceled, true},
		{&yodel.Error{Code: yodel.FailedPrecondition, Message: "x", Details: []yodel.Detail{{Type: "t", Value: []byte("\x00y")}, {Type: "u"}}, RetryAfter: time.Second}, true},
		// of a call that the method made
		{&yodel.Error{Code: yodel.NotFound, Message: "behind it", ID: "YDL2002", NotProcessed: true}, true},
		{yodel.Errorf(yodel.Unavailable, "not yet"), false},
		{fmt.Errorf("x: %w", yodel.ResourceExhausted), false},
		{yodel.Aborted, false},
	} {
		t.Run(fmt.Sprint(test.err), func(t *testing.T) {
			c := newCounter(t, nil, func(context.Context, string) error { return test.err })
			_, first := c.try("k", "a")
			_, second := c.try("k", "a")
			if yodel.CodeOf(first) != yodel.CodeOf(test.err) || fmt.Sprint(first) != fmt.Sprint(second) {
				t.Errorf("got %v and then %v", first, second)
			}
			a, _ := errors.AsType[*yodel.Error](first)
			b, _ := errors.AsType[*yodel.Error](second)
			if !reflect.DeepEqual(a.Details, b.Details) || a.RetryAfter != b.RetryAfter || b.NotProcessed {
				t.Errorf("got %+v and then %+v", a, b)
			}
			if n := c.n.Load(); (n == 1) != test.recorded {
				t.Errorf("executed %d times", n)
			}
		})
	}
	t.Run("as the user says", func(t *testing.T) {
		c := newCounter(t, &once.Options{Final: func(err error) bool { return errors.Is(err, yodel.Unavailable) }},
			func(_ context.Context, in string) error { return yodel.Errorf(yodel.Unavailable, "%s", in) })
		for range 2 {
			if _, err := c.try("k", "a"); !errors.Is(err, yodel.Unavailable) || c.n.Load() != 1 {
				t.Errorf("got %v after %d executions", err, c.n.Load())
			}
		}
	})
}

// What fails before the method is not an outcome.
func TestACallThatDidNotReachTheMethodIsNotRecorded(t *testing.T) {
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Keys: once.With(&once.Options{Inner: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		refuse := true
		return func(ctx context.Context, call *yodel.Call) error {
			if refuse {
				refuse = false
				return yodel.Errorf(yodel.NotFound, "not today")
			}
			return next(ctx, call)
		}
	}}})})
	s.Handle("Now", func() string { return "now" })
	c := yodeltest.NewClient(t, nil, s)
	for i := range 3 {
		var out string
		err := c.Do(t.Context(), &yodel.Call{Method: "Now", Args: yodel.Values{}, Reply: yodel.Values{&out}, IdempotencyKey: "k"})
		if (err == nil) != (i > 0) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	for range 2 {
		if err := c.Do(t.Context(), &yodel.Call{Method: "Now", Args: 7, IdempotencyKey: "other"}); err == nil || !yodel.NotProcessed(err) {
			t.Errorf("a call of the wrong shape: %v", err)
		}
		if err := c.Do(t.Context(), &yodel.Call{Method: "Never", IdempotencyKey: "other"}); !errors.Is(err, yodel.Unimplemented) {
			t.Errorf("a call of a method that does not exist: %v", err)
		}
	}
}

func TestWhoGetsWhoseReply(t *testing.T) {
	token := func(token string) *yodel.Call {
		return &yodel.Call{IdempotencyKey: "k", Metadata: yodel.Metadata{"authorization": token}}
	}
	t.Run("other arguments", func(t *testing.T) {
		c := newCounter(t, nil, nil)
		c.want("a 1", 1)(c.try("k", "a"))
		if e := c.wantID("YDL3401", 1)(c.try("k", "b")); e.Code != yodel.InvalidArgument {
			t.Errorf("got %v", e)
		}
		c.wantID("YDL3401", 1)(c.with(&yodel.Call{IdempotencyKey: "k", Attachment: []byte("x")}, "a"))
		c.want("a 1", 1)(c.try("k", "a"))
	})
	t.Run("arguments are not compared", func(t *testing.T) {
		c := newCounter(t, &once.Options{AnyRequest: true}, nil)
		c.want("a 1", 1)(c.try("k", "a"))
		c.want("a 1", 1)(c.try("k", "b"))
		c.wantID("YDL3401", 1)(c.with(token("another"), "a"))
	})
	t.Run("tenants", func(t *testing.T) {
		c := newCounter(t, nil, nil)
		c.want("a 1", 1)(c.with(&yodel.Call{IdempotencyKey: "k", Tenant: "x"}, "a"))
		c.want("a 2", 2)(c.with(&yodel.Call{IdempotencyKey: "k", Tenant: "y"}, "a"))
		c.want("a 3", 3)(c.with(&yodel.Call{IdempotencyKey: "k"}, "a"))
		c.want("a 1", 3)(c.with(&yodel.Call{IdempotencyKey: "k", Tenant: "x"}, "a"))
	})
	t.Run("tokens", func(t *testing.T) {
		c := newCounter(t, nil, nil)
		c.want("a 1", 1)(c.with(token("ali"), "a"))
		c.wantID("YDL3401", 1)(c.with(token("eve"), "a"))
		c.wantID("YDL3401", 1)(c.try("k", "a"))
		c.want("a 1", 1)(c.with(token("ali"), "a"))
	})
	t.Run("tokens of connections", func(t *testing.T) {
		c := newCounter(t, nil, nil)
		dial := func(token string) { // as another client
			c.Client = yodeltest.NewClient(t, &yodel.ClientOptions{ConnMetadata: yodel.Metadata{"authorization": token}}, c.server)
		}
		dial("ali")
		c.want("a 1", 1)(c.try("k", "a"))
		dial("eve")
		c.wantID("YDL3401", 1)(c.try("k", "a"))
		dial("ali")
		c.want("a 1", 1)(c.try("k", "a"))
	})
	t.Run("callers that the server knows", func(t *testing.T) {
		who := func(_ context.Context, call *yodel.Call) string {
			name, _, _ := strings.Cut(call.Metadata["authorization"], " ")
			return name
		}
		c := newCounter(t, &once.Options{Caller: who}, nil)
		c.want("a 1", 1)(c.with(token("ali 1"), "a"))
		c.want("a 1", 1)(c.with(token("ali 2"), "a")) // renewed
		c.want("a 2", 2)(c.with(token("eve 1"), "a"))
	})
}

func TestConcurrentCallsWaitForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, nil, func(context.Context, string) error { time.Sleep(time.Second); return nil })
		began := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { c.want("a 1", 1)(c.try("k", "a")) })
		}
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			c.wantID("YDL3401", 1)(c.try("k", "b"))
		})
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			e := c.wantID("YDL1004", 1)(c.with(&yodel.Call{IdempotencyKey: "k", Deadline: time.Now().Add(time.Millisecond)}, "a"))
			if e.NotProcessed {
				t.Error("it says that it was not executed")
			}
		})
		wg.Wait()
		if took := time.Since(began); took < time.Second || took > 1010*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// When the first one fails in a way that is not recorded, the next one executes it.
func TestTheNextOneTriesAgain(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		var c *counter
		c = newCounter(t, nil, func(context.Context, string) error {
			time.Sleep(time.Second)
			if c.n.Load() < 3 {
				return yodel.Unavailable
			}
			return nil
		})
		var failed atomic.Int32
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, err := c.try("k", "a"); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		if c.n.Load() != 3 || failed.Load() != 2 {
			t.Errorf("executed %d times, %d failed; want 3 and 2", c.n.Load(), failed.Load())
		}
	})
}

func TestAPanicLeavesAnUnknownOutcome(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			c := newCounter(t, nil, func(context.Context, string) error { end(); return nil })
			if _, err := c.try("k", "a"); !errors.Is(err, yodel.Internal) {
				t.Errorf("got %v, want internal", err)
			}
			for range 2 {
				if e := c.wantID("YDL3402", 1)(c.try("k", "a")); e.NotProcessed || e.Code != yodel.Aborted {
					t.Errorf("got %+v", e)
				}
			}
		})
	}
}

// The connection of the first attempt is lost in the middle: the method goes on, and the second
// attempt gets its reply.
func TestAMethodOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, nil, func(ctx context.Context, _ string) error {
			select {
			case <-time.After(2 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		first := yodeltest.NewClient(t, nil, c.server)
		go func() {
			time.Sleep(time.Second)
			first.Close()
		}()
		in := "a"
		if _, err := count.Do(t.Context(), first, &yodel.Call{IdempotencyKey: "k"}, &in); err == nil {
			t.Error("the first attempt succeeded")
		}
		c.want("a 1", 1)(c.try("k", "a"))
	})
}

func TestAMethodDoesNotOutliveItsCallerForEver(t *testing.T) {
	for name, end := range map[string]func(c *counter){
		"outlive": func(*counter) { time.Sleep(10 * time.Second) },
		"draining": func(c *counter) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := c.server.Shutdown(ctx); err != nil {
				c.Errorf("Shutdown: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan time.Time, 1)
				c := newCounter(t, &once.Options{Outlive: 10 * time.Second}, func(ctx context.Context, _ string) error {
					<-ctx.Done()
					ended <- time.Now()
					return ctx.Err()
				})
				ctx, cancel := context.WithCancel(t.Context())
				in := "a"
				go func() { _, _ = count.Do(ctx, c.Client, &yodel.Call{IdempotencyKey: "k"}, &in) }()
				synctest.Wait()
				cancel()
				synctest.Wait()
				select {
				case <-ended:
					t.Error("it ended with its caller")
				default:
				}
				end(c)
				<-ended
			})
		})
	}
}

func TestTheDeadlineStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, nil, func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
		began := time.Now()
		for range 2 {
			if _, err := c.with(&yodel.Call{IdempotencyKey: "k", Deadline: time.Now().Add(time.Second)}, "a"); !errors.Is(err, yodel.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took != time.Second || c.n.Load() != 1 {
			t.Errorf("%d executions took %v, want 1 and 1s", c.n.Load(), took)
		}
	})
}

func TestWhatTravelsBesideTheReplyIsRecorded(t *testing.T) {
	t.Attr("rerun", "never")
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Keys: once.With(nil)})
	n := 0
	s.Handle("Two", func(ctx context.Context, fail bool) (int, string, error) {
		n++
		call := yodel.CallFrom(ctx)
		call.Trailer = yodel.Metadata{"a": "1", "": "\x00"}
		call.ReplyAttachment = []byte("attached")
		call.SetHeader(yodel.Metadata{"served-by": "desk 3"})
		if fail {
			return 0, "", yodel.Errorf(yodel.NotFound, "x")
		}
		return n, "two", nil
	})
	c := yodeltest.NewClient(t, nil, s)
	for _, fail := range []bool{false, true} {
		for range 3 {
			var one int
			var two string
			call := &yodel.Call{Method: "Two", Args: yodel.Values{fail}, Reply: yodel.Values{&one, &two}, IdempotencyKey: strconv.FormatBool(fail)}
			err := c.Do(t.Context(), call)
			if fail != errors.Is(err, yodel.NotFound) || !fail && (one != 1 || two != "two") {
				t.Errorf("got %d, %q, %v", one, two, err)
			}
			if call.Trailer["a"] != "1" || call.Trailer[""] != "\x00" || string(call.ReplyAttachment) != "attached" {
				t.Errorf("beside it came %v and %q", call.Trailer, call.ReplyAttachment)
			}
			if got := call.Header()["served-by"]; got != "desk 3" {
				t.Errorf("the header says that it was served by %q", got)
			}
		}
	}
	if n != 2 {
		t.Errorf("executed %d times, want 2", n)
	}
}

func TestAMethodWithoutAReply(t *testing.T) {
	t.Attr("rerun", "never")
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Keys: once.With(nil)})
	executed := make(chan struct{}, 10)
	s.Handle("Do", func(context.Context) error { executed <- struct{}{}; return nil })
	c := yodeltest.NewClient(t, nil, s)
	for i := range 4 {
		must(t, c.Do(t.Context(), &yodel.Call{Method: "Do", Args: yodel.Values{}, Reply: yodel.Values{}, IdempotencyKey: "k", OneWay: i < 2}))
	}
	<-executed
	if len(executed) > 0 {
		t.Error("executed twice")
	}
}

func TestStreamsHaveNoKey(t *testing.T) {
	const feed yodel.Feed[string, string] = "Test.Feed"
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Keys: once.With(nil)})
	feed.Handle(s.Server, func(_ context.Context, in *string, send yodel.Send[string]) error { return send(in) })
	in := "a"
	for _, call := range []*yodel.Call{{IdempotencyKey: "k"}, {}} {
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{once.Keys()}}, s)
		var last error
		for _, err := range feed.Do(t.Context(), c, call, &in) {
			last = err
		}
		if (call.IdempotencyKey != "") != errors.Is(last, yodel.InvalidArgument) {
			t.Errorf("with the key %q: %v", call.IdempotencyKey, last)
		}
	}
}

func TestKeysOfAClient(t *testing.T) {
	c := newCounter(t, nil, nil)
	var keys []string
	twice := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			keys = append(keys, call.IdempotencyKey)
			if err := next(ctx, call); err != nil {
				return err
			}
			return next(ctx, call)
		}
	}
	c.Client = yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{once.Keys(string(count)), twice}}, c.server)
	c.want("a 1", 1)(c.try("", "a"))
	call := &yodel.Call{}
	c.want("a 2", 2)(c.with(call, "a"))
	if call.IdempotencyKey != "" || call.Args != nil && fmt.Sprintf("%T", call.Args) != "*string" {
		t.Errorf("the call was left as %+v", call)
	}
	c.want("a 3", 3)(c.try("own", "a"))
	if len(keys) != 3 || keys[0] == keys[1] || len(keys[0]) < 20 || keys[2] != "own" {
		t.Errorf("the keys are %q", keys)
	}
	must(t, c.Do(t.Context(), &yodel.Call{Method: string(inspect.Ping), Args: &struct{}{}}))
	if keys[3] != "" {
		t.Errorf("another method has the key %q", keys[3])
	}
}

// Random calls against a model in which nothing is ever forgotten too early.
func TestAgainstAModel(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 36))
			const keep = time.Second
			c := newCounter(t, &once.Options{Keep: keep}, func(_ context.Context, in string) error {
				if strings.HasPrefix(in, "fail") {
					return yodel.Errorf(yodel.NotFound, "%s", in)
				}
				return nil
			})
			type known struct {
				in, out string
				until   time.Time
			}
			model, executed := map[string]known{}, int32(0)
			for range 1000 {
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				key, in := fmt.Sprint(random.IntN(20)), []string{"a", "b", "fail"}[min(random.IntN(10), 2)]
				was, ok := model[key]
				ok = ok && time.Now().Before(was.until)
				out, err := c.try(key, in)
				switch {
				case ok && was.in != in:
					c.wantID("YDL3401", executed)(out, err)
					continue
				case !ok:
					executed++
					was = known{in, fmt.Sprint(in, " ", executed), time.Now().Add(keep)}
					model[key] = was
				}
				if in != "fail" {
					c.want(was.out, executed)(out, err)
				} else if !errors.Is(err, yodel.NotFound) || c.n.Load() != executed {
					t.Fatalf("seed %d: got %q, %v after %d executions, want %d", seed, out, err, c.n.Load(), executed)
				}
			}
		})
	}
}

func TestACallWithoutAKeyAllocatesNothing(t *testing.T) {
	h := once.With(nil).Guard(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{Method: "A"}
	if n := testing.AllocsPerRun(1000, func() { must(t, h(ctx, call)) }); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}

func BenchmarkOnce(b *testing.B) {
	for _, key := range []string{"without", "new", "known"} {
		b.Run(key, func(b *testing.B) {
			s := yodeltest.NewServer(b, &yodel.ServerOptions{Keys: once.With(nil)})
			count.Handle(s.Server, func(_ context.Context, in *string) (*string, error) { return in, nil })
			c := yodeltest.NewClient(b, nil, s)
			in, n := "hello", 0
			b.ReportAllocs()
			for b.Loop() {
				call := yodel.Call{}
				switch key {
				case "new":
					n++
					call.IdempotencyKey = fmt.Sprint(n)
				case "known":
					call.IdempotencyKey = "k"
				}
				if _, err := count.Do(b.Context(), c, &call, &in); err != nil && !errors.Is(err, yodel.ResourceExhausted) {
					b.Fatal(err)
				}
			}
		})
	}
}
