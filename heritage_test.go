// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A relay serves Relay.Go: it does what work says with a client of the next tier.
const relay yodel.Method[int, int] = "Relay.Go"

// again makes up to n attempts of calls that failed with Unavailable, as long as there is budget.
func again(n int) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Budget == 0 {
				call.Budget = n
				defer func() { call.Budget = 0 }()
			}
			err := next(ctx, call)
			for i := 1; i < n && yodel.CodeOf(err) == yodel.Unavailable && call.Attempts().Take(); i++ {
				err = next(ctx, call)
			}
			return err
		}
	}
}

// tiers starts n servers in fake time, each of which calls the next one with what options says, and
// the last of which runs last. It returns a client of the first.
func tiers(t *testing.T, n int, options func() *yodel.ClientOptions, last func(ctx context.Context, in *int) (*int, error)) *yodel.Client {
	t.Helper()
	network := mem.New()
	client := func(tier int) *yodel.Client {
		o := options()
		o.Transport = network
		c := yodel.NewClient(discovery.Static(fmt.Sprint("tier", tier)), o)
		t.Cleanup(c.Close)
		return c
	}
	for tier := n; tier >= 1; tier-- {
		handler := last
		if tier < n {
			below := client(tier + 1)
			handler = func(ctx context.Context, in *int) (*int, error) { return relay.Call(ctx, below, in) }
		}
		s := yodel.NewServer(nil)
		relay.Handle(s, handler)
		l, err := network.Listen(fmt.Sprint("tier", tier))
		must(t, err)
		start(t, s, l)
	}
	return client(1)
}

// start serves l until the test ends.
func start(t *testing.T, s *yodel.Server, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// In a tree of calls nobody makes more attempts than the root was given, whoever retries, and the
// callers nearest to the failure do.
func TestABudgetBoundsTheAttemptsOfATree(t *testing.T) {
	t.Attr("rerun", "never")
	for depth := 1; depth <= 4; depth++ {
		synctest.Test(t, func(t *testing.T) {
			var executed atomic.Int32
			c := tiers(t, depth, func() *yodel.ClientOptions {
				return &yodel.ClientOptions{Middleware: []yodel.Middleware{again(3)}}
			}, func(context.Context, *int) (*int, error) {
				executed.Add(1)
				return nil, yodel.Errorf(yodel.Unavailable, "no")
			})
			for range 10 {
				executed.Store(0)
				if _, err := relay.Call(t.Context(), c, new(int)); yodel.CodeOf(err) != yodel.Unavailable {
					t.Fatalf("got %v", err)
				}
				if n := executed.Load(); n != 3 {
					t.Errorf("the last of %d tiers executed it %d times, want 3", depth, n)
				}
			}
		})
	}
}

// What was not used comes back: a handler may retry each of the calls that it makes one after the
// other.
func TestABudgetThatWasNotUsedComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := tiers(t, 2, func() *yodel.ClientOptions {
			return &yodel.ClientOptions{Middleware: []yodel.Middleware{again(5)}}
		}, func(context.Context, *int) (*int, error) {
			if n++; n%3 != 0 {
				return nil, yodel.Errorf(yodel.Unavailable, "not yet")
			}
			return &n, nil
		})
		for range 4 { // each with a budget of its own, of which two are used
			if _, err := relay.Call(t.Context(), c, new(int)); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call to a peer that was not sent has used nothing.
func TestACallToAPeerThatWasNotSentBringsItsBudgetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := tree{t, mem.New()}
		x.serve("leaf", nil, workKinds[0], func(context.Context) error { return nil })
		leaf := x.client(nil, "leaf")
		own := yodel.NewServer(nil)
		const nest yodel.Method[int, int] = "Nest"
		nest.Handle(own, func(ctx context.Context, in *int) (*int, error) { return relay.Call(ctx, leaf, in) })
		x.serve("server", nil, workKinds[0], func(ctx context.Context) error {
			peer := yodel.CallFrom(ctx).Peer()
			// the first tells that the method makes calls
			for _, deadline := range []time.Time{{}, {}, time.Now().Add(-time.Second), {}} {
				call := &yodel.Call{Deadline: deadline, Explain: true}
				if _, err := nest.Do(ctx, peer, call, new(int)); (err != nil) != !deadline.IsZero() || err != nil && !yodel.NotProcessed(err) {
					t.Errorf("got %v", err)
				}
				if left := call.Report().Budget.Left; left != 4 && yodel.CallFrom(ctx).Budget > 1 {
					t.Errorf("%d attempts are left, want 4", left)
				}
			}
			return nil
		})
		c := x.client(&yodel.ClientOptions{Server: own}, "server")
		for range 4 { // until the client knows that the method makes calls
			must(t, workKinds[0].call(t.Context(), c, &yodel.Call{Budget: 6}))
		}
	})
}

// A handler that fails twice and then makes two calls which fail once each uses four tokens in all.
func TestCallsOfOneHandlerShareItsBudget(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var executed atomic.Int32
		leaf := yodel.NewServer(nil)
		relay.Handle(leaf, func(context.Context, *int) (*int, error) {
			executed.Add(1)
			return nil, yodel.Errorf(yodel.Unavailable, "no")
		})
		l, err := network.Listen("leaf")
		must(t, err)
		start(t, leaf, l)
		options := &yodel.ClientOptions{Transport: network, Middleware: []yodel.Middleware{again(4)}}
		below := yodel.NewClient(discovery.Static("leaf"), options)
		defer below.Close()
		s := yodel.NewServer(nil)
		relay.Handle(s, func(ctx context.Context, in *int) (*int, error) {
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { _, _ = relay.Call(ctx, below, in) })
			}
			wg.Wait()
			return in, nil
		})
		l, err = network.Listen("root")
		must(t, err)
		start(t, s, l)
		c := yodel.NewClient(discovery.Static("root"), options)
		defer c.Close()
		if _, err := relay.Call(t.Context(), c, new(int)); err != nil {
			t.Error(err)
		}
		if n := executed.Load(); n < 3 || n > 3+3 {
			t.Errorf("three calls were executed %d times, want at most 3 and the 3 of the budget", n)
		}
	})
}

// Class and tenant go down the tree with the handler's context, and no further than the call.
func TestCriticalityAndTenantTravelDownTheTree(t *testing.T) {
	for _, class := range []int{criticality.Critical, criticality.Normal, criticality.Sheddable, criticality.Batch} {
		synctest.Test(t, func(t *testing.T) {
			got := ""
			c := tiers(t, 3, func() *yodel.ClientOptions { return &yodel.ClientOptions{} }, func(ctx context.Context, in *int) (*int, error) {
				call := yodel.CallFrom(ctx)
				got = fmt.Sprint(call.Criticality, " ", call.Tenant)
				return in, nil
			})
			call := &yodel.Call{Criticality: class, Tenant: "acme"}
			if _, err := relay.Do(t.Context(), c, call, new(int)); err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint(class, " acme"); got != want {
				t.Errorf("the last tier has %q, want %q", got, want)
			}
			if _, err := relay.Call(t.Context(), c, new(int)); err != nil || got != "0 " {
				t.Errorf("the next call has %q, %v", got, err)
			}
		})
	}
}

// What a call inherits is taken back from it, because the user may use it again.
func TestACallGivesBackWhatItInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		s := yodel.NewServer(nil)
		var below *yodel.Client
		used := &yodel.Call{}
		relay.Handle(s, func(ctx context.Context, in *int) (*int, error) {
			if *in == 0 {
				return in, nil
			}
			return relay.Do(ctx, below, used, new(int))
		})
		l, err := network.Listen("server")
		must(t, err)
		start(t, s, l)
		below = yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
		defer below.Close()
		one := 1
		_, err = relay.Do(t.Context(), below, &yodel.Call{Criticality: criticality.Batch, Tenant: "acme", Budget: 3}, &one)
		must(t, err)
		if used.Criticality != 0 || used.Tenant != "" || used.Budget != 0 {
			t.Errorf("the call was left with class %d, tenant %q, budget %d", used.Criticality, used.Tenant, used.Budget)
		}
	})
}

func TestAnErrorSaysWhenToComeBack(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Busy", func(context.Context, *Empty) (*Empty, error) {
		return nil, &yodel.Error{Code: yodel.ResourceExhausted, Message: "busy", RetryAfter: 1500 * time.Millisecond}
	})
	err := connect(t, s, nil).Call(t.Context(), "Busy", &Empty{}, nil)
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || e.RetryAfter != 1500*time.Millisecond {
		t.Errorf("got %#v", err)
	}
}

// Encoded messages go through both sides as they are, and are what the codec makes.
func TestEncodedMessagesAreSentAsTheyAre(t *testing.T) {
	recorded := 0
	s := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			err := next(ctx, call)
			if err == nil {
				var e *yodel.Encoded
				if e, err = call.Encode(); err == nil && call.Reply == any(e) {
					recorded += len(e.Body)
				}
			}
			return err
		}
	}}})
	handle(t, s, "Join", func(a, b string) (string, int) { return a + b, len(a + b) })
	handle(t, s, "Upper", func(_ context.Context, in *string) (*string, error) {
		out := strings.ToUpper(*in)
		return &out, nil
	})
	c := connect(t, s, nil)

	text := "hello"
	var reply yodel.Encoded
	call := &yodel.Call{Method: "Upper", Args: &yodel.Encoded{Body: []byte(`"hello"`)}, Reply: &reply}
	must(t, c.Do(t.Context(), call))
	if string(reply.Body) != `"HELLO"` || reply.Several {
		t.Errorf("got %q, several %v", reply.Body, reply.Several)
	}
	must(t, c.Call(t.Context(), "Upper", &text, &text))
	if text != "HELLO" {
		t.Errorf("got %q", text)
	}

	var joined string
	var n int
	must(t, c.Call(t.Context(), "Join", yodel.Values{"a", "bc"}, &reply))
	must(t, c.Call(t.Context(), "Join", yodel.Values{"a", "bc"}, yodel.Values{&joined, &n}))
	if !reply.Several || joined != "abc" || n != 3 {
		t.Errorf("got %q of several %v, %q, %d", reply.Body, reply.Several, joined, n)
	}
	if recorded == 0 {
		t.Error("the server recorded nothing")
	}
}

// twice makes each call on two endpoints at a time, and takes the outcome of the fork.
func twice(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if !call.Attempts().Forkable() {
			return next(ctx, call)
		}
		fork := call.Attempts().Fork()
		forked := make(chan error, 1)
		go func() { forked <- next(ctx, fork) }()
		err := next(ctx, call)
		ferr := <-forked
		fork.Attempts().Join(ferr == nil)
		if ferr == nil {
			return nil
		}
		return err
	}
}

func TestAForkGoesElsewhereAndHasItsOwnReply(t *testing.T) {
	t.Attr("rerun", "never")
	var addrs []string
	for i := range 3 {
		s := newServer(t, nil)
		handle(t, s, "Which", func(_ context.Context, in *[]int) (*[]int, error) {
			out := append(*in, i)
			return &out, nil
		})
		addrs = append(addrs, serve(t, s))
	}
	c := newClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{twice}}, addrs...)
	for range 200 {
		var out []int
		call := &yodel.Call{Method: "Which", Args: []int{7}, Reply: &out}
		must(t, c.Do(t.Context(), call))
		if len(out) != 2 || out[0] != 7 || call.Endpoint.Addr() != addrs[out[1]] || call.Attempt != 2 {
			t.Fatalf("got %v from %s, attempts %d", out, call.Endpoint.Addr(), call.Attempt)
		}
	}
	total := uint64(0)
	for _, addr := range addrs {
		stats, err := inspect.Stats.Call(t.Context(), newClient(t, nil, addr), &inspect.Empty{})
		must(t, err)
		for _, m := range stats.Methods {
			if m.Name == "Which" {
				total += m.Calls
				if m.Calls > 200 {
					t.Errorf("%s has executed %d of 200 calls: both attempts of some", addr, m.Calls)
				}
			}
		}
	}
	if total != 400 {
		t.Errorf("400 attempts were executed %d times", total)
	}
}

// A reply that nothing can be decoded into is an error, and no panic, also of a call that would be
// made twice.
func TestACallWithAnImpossibleReplyIsNotForked(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "One", func(_ context.Context, in *int) (*int, error) { return in, nil })
	handle(t, s, "Two", func(a int) (int, int) { return a, a })
	addrs := []string{serve(t, s), serve(t, s)}
	c := newClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{twice}}, addrs...)
	one := 1
	for _, reply := range []any{7, "text", map[string]int{}, (*int)(nil)} {
		if err := c.Call(t.Context(), "One", &one, reply); err == nil {
			t.Errorf("a reply of %T was taken", reply)
		}
	}
	for _, reply := range []yodel.Values{{nil, nil}, {&one, 7}} {
		if err := c.Call(t.Context(), "Two", yodel.Values{1}, reply); err == nil {
			t.Errorf("a reply of %v was taken", reply)
		}
	}
}

// An endpoint's goroutine ends with it, and Close waits for it.
func TestAnEndpointsGoroutineEndsWithIt(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "A", func(context.Context, *Empty) (*Empty, error) { return nil, nil })
	running := atomic.Int32{}
	begun := make(chan struct{})
	c := yodel.NewClient(discovery.Static(serve(t, s)), &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{
		func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				ep.State("once", func() any {
					ep.Go(func(ctx context.Context) {
						running.Add(1)
						close(begun)
						<-ctx.Done()
						running.Add(-1)
					})
					return nil
				})
				if ep.Client() != call.Client() {
					t.Error("call and endpoint have different clients")
				}
				return next(ctx, call)
			}
		},
	}})
	must(t, c.Call(t.Context(), "A", &Empty{}, nil))
	receive(t, begun, "the goroutine")
	c.Close()
	if n := running.Load(); n != 0 {
		t.Errorf("%d goroutines run after Close", n)
	}
}
