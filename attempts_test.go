// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func TestTheCodeOfTheLastAttemptCounts(t *testing.T) {
	network := mem.New()
	h := startHooked(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		hookBefore(func(context.Context, *yodel.Call) error {
			return &yodel.Error{Code: yodel.PermissionDenied, ID: "YDL3102", Message: "no", NotProcessed: true}
		}),
	}}, nil)
	for range 4 { // at least one of them begins with the endpoint that cannot be reached
		c := yodel.NewClient(discovery.Static("nobody", "server"), &yodel.ClientOptions{Transport: h.network})
		for range 2 {
			if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); !errors.Is(err, yodel.PermissionDenied) {
				t.Errorf("got %v, want permission_denied", err)
			}
		}
		c.Close()
	}
}

// hookAgain makes n attempts of each call.
func hookAgain(n int) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) (err error) {
			for range n {
				if err = next(ctx, call); err == nil {
					return nil
				}
			}
			return err
		}
	}
}

func TestACallWasNotExecutedWhenNoAttemptWas(t *testing.T) {
	t.Attr("rerun", "never")
	for _, test := range []struct {
		name     string
		executed int // which attempt is executed; 0 is none
		id       string
	}{
		{"none", 0, "YDL3002"},
		{"the first", 1, "YDL3002"},
		{"the fourth", 4, "YDL3002"},
		{"the last", 5, "YDL3002"},
		{"the first, and the last error has no ID", 1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			attempts := 0
			h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
				hookBefore(func(context.Context, *yodel.Call) error {
					if attempts++; attempts != test.executed {
						return &yodel.Error{Code: yodel.ResourceExhausted, ID: test.id, Message: "not now", NotProcessed: true}
					}
					return nil
				}),
			}}, &yodel.ClientOptions{Middleware: []yodel.Middleware{hookAgain(5)}})
			if err := h.server.Handle("Hook.Fail", func() error { return yodel.Errorf(yodel.ResourceExhausted, "half done") }); err != nil {
				t.Fatal(err)
			}
			err := h.client.Call(t.Context(), "Hook.Fail", yodel.Values{}, nil)
			var report *introspect.CallReport
			if !errors.As(err, &report) || len(report.Attempts) != 5 {
				t.Fatalf("got %+v, want an error with a report of 5 attempts", err)
			}
			if want := test.executed == 0; yodel.NotProcessed(err) != want {
				t.Errorf("got %+v, not processed: %t, want %t", err, !want, want)
			}
		})
	}
}

func TestEndpointMiddlewareChangesEveryAttempt(t *testing.T) {
	var log hookLog
	h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
		hookBefore(func(_ context.Context, call *yodel.Call) error {
			log.add(call.Metadata["span"])
			return yodel.Errorf(yodel.Unavailable, "not now")
		}),
	}}, &yodel.ClientOptions{
		Middleware: []yodel.Middleware{hookAgain(3)},
		EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookBefore(func(_ context.Context, call *yodel.Call) error {
			call.Metadata = yodel.Metadata{"span": strings.Repeat("I", call.Attempt+1)}
			return nil
		}))},
	})
	if _, err := h.double(t); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("got %v, want unavailable", err)
	}
	log.is(t, "I", "II", "III")
}

func TestErrorsOfEndpointMiddlewareStayWhatTheyAre(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		code yodel.Code
	}{
		{"an error of yodel's", errHook, yodel.FailedPrecondition},
		{"a wrapped one", fmt.Errorf("breaker: %w", errHook), yodel.FailedPrecondition},
		{"a code", yodel.Aborted, yodel.Aborted},
		{"any error", errors.New("breaker is open"), yodel.Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{
				EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookBefore(func(context.Context, *yodel.Call) error { return test.err }))},
			})
			_, err := h.double(t)
			if !errors.Is(err, test.err) || yodel.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.err.Error()) {
				t.Errorf("got %v, want %v", err, test.err)
			}
		})
	}
}

func TestTheReportOfAnAsynchronousCallSaysHowLongEachAttemptTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, nil)
		if err := h.server.Handle("Hook.Fail", func() error {
			time.Sleep(3 * time.Second)
			return errHook
		}); err != nil {
			t.Fatal(err)
		}
		if err := h.client.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		h.client.Go(t.Context(), &yodel.Call{Method: "Hook.Fail", Args: yodel.Values{}}, func(err error) { ended <- err })
		err := <-ended
		var report *introspect.CallReport
		if !errors.As(err, &report) || len(report.Attempts) != 1 || report.Attempts[0].Took != 3*time.Second {
			t.Errorf("got %+v, want one attempt of 3s", err)
		}
	})
}

// The error of several attempts tells each reason once and whole, with the addresses it applies to.
// Only what does not fit into the line is shortened, the longest reason first.
func TestEachReasonOfSeveralAttemptsIsToldOnce(t *testing.T) {
	const expired = "TLS: the server's certificate expired on 2026-11-21"
	long := "a reason that " + strings.Repeat("goes on and ", 30) + "ends"
	for name, test := range map[string]struct {
		retries int
		reasons map[string]string // by address
		want    string
	}{
		"one server, one reason": {
			3, map[string]string{"a": expired},
			"unavailable: Try: 3 attempts at a failed, all: " + expired + " [YDL1003]",
		},
		"two servers, one reason": {
			1, map[string]string{"a": expired, "b": expired},
			"unavailable: Try: 2 attempts at a and b failed, both: " + expired + " [YDL1003]",
		},
		"five servers, one reason": {
			1, map[string]string{"a": expired, "b": expired, "c": expired, "d": expired, "e": expired},
			"unavailable: Try: 5 attempts at a, b, c and 2 more failed, all: " + expired + " [YDL1003]",
		},
		"two reasons": {
			1, map[string]string{"a": "connection refused", "b": expired, "c": "connection refused"},
			"unavailable: Try: 3 attempts failed: a and c: connection refused; b: " + expired + " [YDL1003]",
		},
		"more reasons than are shown": {
			1, map[string]string{"a": "one", "b": "two", "c": "three", "d": "four", "e": "five"},
			"unavailable: Try: 5 attempts failed: a: one; b: two; c: three; and 2 more [YDL1003]",
		},
		"a reason that is too long beside one that is short": {
			1, map[string]string{"a": long, "b": expired},
			"unavailable: Try: 2 attempts failed: a: " + long[:128] + "…" + long[len(long)-63:] + "; b: " + expired + " [YDL1003]",
		},
		"a reason that is too long": {
			2, map[string]string{"a": long},
			"unavailable: Try: 2 attempts at a failed, both: " + long[:160] + "…" + long[len(long)-79:] + " [YDL1003]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			failing := func(ep *yodel.Endpoint, _ yodel.Handler) yodel.Handler {
				return func(context.Context, *yodel.Call) error {
					return &yodel.Error{
						Code: yodel.Unavailable, ID: "YDL1108", NotProcessed: true,
						Message: fmt.Sprintf("Try: %s: %s", ep.Addr(), test.reasons[ep.Addr()]),
					}
				}
			}
			addrs := strings.Split("a b c d e", " ")[:len(test.reasons)]
			c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
				Transport: mem.New(), Balancer: inOrder, EndpointMiddleware: []yodel.EndpointMiddleware{failing},
				Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: test.retries, Backoff: 1})},
			})
			defer c.Close()
			err := c.Call(t.Context(), "Try", &Empty{}, nil)
			if err == nil || err.Error() != test.want {
				t.Errorf("got\n%v\nwant\n%s", err, test.want)
			}
			if line := err.Error(); len(line) > 300 {
				t.Errorf("the line has %d bytes", len(line))
			}
			if long := fmt.Sprintf("%+v", err); !strings.Contains(long, "\n  next  compare the certificates") {
				t.Errorf("the next step is not that of the reason: %s", long)
			}
		})
	}
}

// Attempts on endpoints that have left are not forgotten, or what comes after them would not count.
func TestAClientCountsItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		addrs := []string{"a", "b", "c"}
		for _, addr := range addrs {
			s := yodel.NewServer(nil)
			relay.Handle(s, func(_ context.Context, in *int) (*int, error) { return in, nil })
			l, err := network.Listen(addr)
			must(t, err)
			start(t, s, l)
		}
		updates := make(chan []discovery.Instance)
		c := yodel.NewClient(changing(updates), &yodel.ClientOptions{Transport: network})
		defer c.Close()
		for i := range 12 {
			updates <- []discovery.Instance{{Addr: addrs[i%3]}, {Addr: addrs[(i+1)%3]}}
			synctest.Wait()
			for range 10 {
				_, err := relay.Call(t.Context(), c, new(int))
				must(t, err)
			}
			if n := yodel.AttemptsOf(c); n != int64(10*(i+1)) {
				t.Errorf("after %d calls it counts %d", 10*(i+1), n)
			}
		}
	})
}

// A changing resolver names what is sent to it.
type changing <-chan []discovery.Instance

func (r changing) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case set := <-r:
			update(set)
		case <-ctx.Done():
			return nil
		}
	}
}

// A worker pool is what limits many servers: so many at once, each for a while. It counts what
// waits for it too.
type workers struct {
	slots      chan struct{}
	took       time.Duration
	open, most atomic.Int64
}

func newWorkers(n int, took time.Duration) *workers {
	return &workers{slots: make(chan struct{}, n), took: took}
}

func (w *workers) work(context.Context, *struct{}) (*struct{}, error) {
	n := w.open.Add(1)
	defer w.open.Add(-1)
	raise(&w.most, n)
	w.slots <- struct{}{}
	<-time.After(w.took)
	<-w.slots
	return &struct{}{}, nil
}

// raise makes most at least n.
func raise(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old; old = most.Load() {
		if most.CompareAndSwap(old, n) {
			return
		}
	}
}

const Work yodel.Method[struct{}, struct{}] = "Work"

// jain is Jain's index of fairness: 1 when all are equal, 1/n when one has everything.
func jain(shares []int64) float64 {
	var sum, squares float64
	for _, n := range shares {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// flood makes each client begin calls as fast as it can until so many have ended since the first of
// each client has. It returns how many of them ended well, and how many calls did not.
func flood(t *testing.T, clients []*yodel.Client, calls int64) (done []int64, failed int64) {
	t.Helper()
	counts := make([]atomic.Int64, len(clients))
	var begun, all, failures atomic.Int64 // begun: clients of which a call has ended
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			var open sync.WaitGroup
			var first sync.Once
			for all.Load() < calls {
				open.Add(1)
				c.Go(t.Context(), &yodel.Call{Method: string(Work), Args: &struct{}{}}, func(err error) {
					defer open.Done()
					first.Do(func() { begun.Add(1) })
					if err != nil && failures.Add(1) < 10 {
						t.Errorf("client %d: %v", i, err)
					}
					if begun.Load() < int64(len(clients)) {
						return // a client that begins late is not one that gets less
					}
					all.Add(1)
					if err == nil {
						counts[i].Add(1)
					}
				})
			}
			open.Wait()
		})
	}
	wg.Wait()
	for i := range counts {
		done = append(done, counts[i].Load())
	}
	return done, failures.Load()
}

// Thirty clients offer all the load that they can to a server that is the bottleneck. It has no
// more requests open than it allows, none fails, and each client has as much done as any other.
func TestClientsShareTheServersBudget(t *testing.T) {
	for _, test := range []struct{ clients, budget int }{{30, 600}, {30, 100}, {30, 45}} {
		w := newWorkers(10, time.Millisecond)
		s := newServer(t, &yodel.ServerOptions{MaxOpen: test.budget})
		Work.Handle(s, w.work)
		addr := serve(t, s)
		var clients []*yodel.Client
		for range test.clients {
			c := newClient(t, &yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: 2000}}, addr)
			must(t, c.Ready(t.Context()))
			clients = append(clients, c)
		}
		done, failed := flood(t, clients, int64(fewer(400, 2)*test.clients))
		var sum int64
		for _, n := range done {
			sum += n
		}
		stats, err := inspect.Stats.Call(t.Context(), clients[0], &inspect.Empty{})
		if err != nil || stats.Granted < test.budget/4 || stats.Granted > test.budget || stats.Open > 1 {
			t.Errorf("afterwards %d of %d are granted, and %d open: %v", stats.Granted, test.budget, stats.Open, err)
		}
		index := jain(done)
		t.Logf("%d clients, a budget of %d: %d calls, %d failed, at most %d open, Jain index %.3f %v", test.clients, test.budget, sum, failed, w.most.Load(), index, done)
		if failed > 0 || w.most.Load() > int64(test.budget) || index < 0.95 {
			t.Errorf("want 0 failures, at most %d open, and an index of 0.95", test.budget)
		}
	}
}

// A server's middleware sees the request as it came, and can answer it without the method.
func TestMiddlewareOfAServerAnswers(t *testing.T) {
	for _, compressor := range []compress.Compressor{nil, flate.Compressor} {
		var request yodel.Encoded
		answer := &yodel.Encoded{Body: []byte(`"from middleware"`)}
		s := newServer(t, &yodel.ServerOptions{
			Compressors: []compress.Compressor{flate.Compressor},
			Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if err := call.Request(&request); err != nil {
						return err
					}
					if call.Args != nil || call.Streams() || call.Encoding().Name() != "json" {
						t.Errorf("got arguments %v, unary %v, codec %v", call.Args, !call.Streams(), call.Encoding())
					}
					if call.Method == "Same" {
						return next(ctx, call)
					}
					return call.Answer(answer)
				}
			}},
		})
		handle(t, s, "Upper", func(context.Context, *string) (*string, error) {
			t.Error("the method was executed")
			return nil, nil
		})
		handle(t, s, "Same", echo)
		handle(t, s, "Pair", func(a, b string) (string, string) { return a, b })
		c := connect(t, s, &yodel.ClientOptions{Compressor: compressor, CompressAbove: 10})
		long, reply := strings.Repeat("x", 1000), ""
		must(t, c.Call(t.Context(), "Upper", &long, &reply))
		if reply != "from middleware" || string(request.Body) != `"`+long+`"` || request.Several {
			t.Errorf("got %q to %q", reply, request.Body)
		}
		must(t, c.Call(t.Context(), "Same", &long, &reply)) // what was looked at is decoded all the same
		if reply != long {
			t.Errorf("got %q", reply)
		}
		if err := c.Call(t.Context(), "Pair", yodel.Values{"a", "b"}, yodel.Values{&long, &long}); !errors.Is(err, yodel.Internal) || !request.Several {
			t.Errorf("one value for two: got %v", err)
		}
		for _, wrong := range []*yodel.Call{{Method: "Nobody", Args: "x"}, {Method: "Upper", Args: yodel.Values{"x"}}} {
			if err := c.Do(t.Context(), wrong); err == nil {
				t.Errorf("%s: middleware answered a call that cannot succeed", wrong.Method)
			}
		}
	}
}

// A call that Detach has made goes on when the call that it was made from has ended.
func TestACallApartOutlastsItsOwn(t *testing.T) {
	release, executed := make(chan struct{}), make(chan yodel.Metadata, 2)
	s := newServer(t, nil)
	handle(t, s, "Slow", func(ctx context.Context, in *string) (*string, error) {
		call := yodel.CallFrom(ctx)
		if call.Metadata["apart"] != "" {
			<-release
		}
		executed <- yodel.Metadata{"tenant": call.Tenant, "attachment": string(call.Attachment), "user": call.Metadata["user"]}
		return in, nil
	})
	replies := make(chan string, 1)
	c := connect(t, s, &yodel.ClientOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			var request, reply yodel.Encoded
			must(t, call.Request(&request))
			apart := call.Attempts().Detach()
			if apart == nil {
				return next(ctx, call)
			}
			apart.Args, apart.Reply = &request, &reply
			apart.Metadata["apart"] = "1"
			if !call.Client().Background(func(closing context.Context) {
				if err := next(closing, apart); err != nil {
					t.Error(err)
				}
				apart.Attempts().Join(false)
				replies <- string(reply.Body)
			}) {
				t.Error("the client is not closed")
			}
			return next(ctx, call)
		}
	}}})
	text, reply := "hello", ""
	call := &yodel.Call{
		Method: "Slow", Args: &text, Reply: &reply, Tenant: "acme", Attachment: []byte("attached"), Metadata: yodel.Metadata{"user": "ali"},
		Deadline: time.Now().Add(time.Hour),
	}
	must(t, c.Do(t.Context(), call))
	text, call.Attachment[0], call.Metadata["user"] = "changed", '!', "bob" // which are the user's again
	close(release)
	if got := receive(t, replies, "the call apart has ended"); got != `"hello"` || reply != "hello" {
		t.Errorf("got %s and %q", got, reply)
	}
	for range 2 {
		if got := <-executed; got["tenant"] != "acme" || got["attachment"] != "attached" || got["user"] != "ali" {
			t.Errorf("executed with %v", got)
		}
	}
	must(t, c.Do(t.Context(), &yodel.Call{Method: "Slow", Args: "x", OneWay: true})) // there is none apart
	<-executed
	c.Close()
	if c.Background(func(context.Context) { t.Error("it runs") }) {
		t.Error("a closed client has goroutines")
	}
}

func TestAClientsGoroutineEndsWithIt(t *testing.T) {
	c := yodel.Dial()
	ended := false
	c.Background(func(ctx context.Context) {
		<-ctx.Done()
		ended = true
	})
	c.Close()
	if !ended {
		t.Error("Close did not wait")
	}
}

func TestACallOfNobodysHasNoCodec(t *testing.T) {
	call := &yodel.Call{Method: "A", Args: 1, Reply: new(int)}
	if err := call.Request(new(yodel.Encoded)); !errors.Is(err, yodel.Internal) {
		t.Errorf("got %v", err)
	}
	if err := call.Answer(new(yodel.Encoded)); !errors.Is(err, yodel.Internal) || call.Encoding() != nil || call.Attempts().Detach() != nil {
		t.Errorf("got %v", err)
	}
	call.Codec = yodel.JSON
	e := &yodel.Encoded{Body: bytes.Repeat([]byte{1}, 10)}
	must(t, call.Request(e))
	if string(e.Body) != "1" {
		t.Errorf("got %s", e.Body)
	}
	must(t, call.Answer(&yodel.Encoded{Body: []byte("7")}))
	if *call.Reply.(*int) != 7 {
		t.Errorf("got %v", *call.Reply.(*int))
	}
}
