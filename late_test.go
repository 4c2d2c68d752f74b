// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/once"
)

// An inbox keeps calls that are answered later.
type inbox struct {
	mu      sync.Mutex
	replies []func(any, error)
	in      []int
}

func (x *inbox) put(ctx context.Context, n *int) (*int, error) {
	later := yodel.CallFrom(ctx).Later()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.replies, x.in = append(x.replies, later), append(x.in, *n)
	return nil, nil
}

// take returns what is in the inbox, when it has n calls.
func (x *inbox) take(t *testing.T, n int) (replies []func(any, error), in []int) {
	t.Helper()
	until(t, "all calls have come", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.in) == n
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() { x.replies, x.in = nil, nil }()
	return x.replies, x.in
}

// Calls that wait for a late reply take no goroutine, are open meanwhile, and are answered in any
// order.
func TestALateReplyTakesNoGoroutine(t *testing.T) {
	const calls = 1000
	var x inbox
	var ended atomic.Int64
	s := newServer(t, &yodel.ServerOptions{Observers: []yodel.Observer{{End: func(context.Context, *yodel.Call, error) { ended.Add(1) }}}})
	must(t, s.Handle("Inbox.Put", x.put))
	c := newClient(t, nil, serve(t, s))
	must(t, c.Ready(t.Context()))
	for round := range 3 { // the method is known to be slow after the first one
		var out [calls]int
		outcome := make(chan error, calls)
		before := runtime.NumGoroutine()
		for i := range out {
			c.Go(t.Context(), &yodel.Call{Method: "Inbox.Put", Args: &i, Reply: &out[i]}, func(err error) { outcome <- err })
		}
		replies, in := x.take(t, calls)
		// a pool keeps up to 256 idle goroutines
		until(t, "the goroutines of the handlers have ended", func() bool { return runtime.NumGoroutine() < before+300 })
		if got := ended.Load(); got != int64(round*calls) {
			t.Errorf("%d calls have ended before they were answered", got-int64(round*calls))
		}
		for i := len(replies) - 1; i >= 0; i-- {
			twice := 2 * in[i]
			replies[i](&twice, nil)
			replies[i](&in[i], errors.New("it was answered before")) // no effect
		}
		for range out {
			must(t, <-outcome)
		}
		for i, got := range out {
			if got != 2*i {
				t.Errorf("call %d: got %d", i, got)
			}
		}
		until(t, "observers have seen the end", func() bool { return ended.Load() == int64((round+1)*calls) })
	}
}

// What a handler does after Later decides which reply counts.
func TestOutcomesOfLateReplies(t *testing.T) {
	s := newServer(t, nil)
	var late func(any, error)
	handle := func(name string, f func(later func(any, error)) (*int, error)) {
		must(t, s.Handle(name, func(ctx context.Context, _ *int) (*int, error) {
			late = yodel.CallFrom(ctx).Later()
			return f(late)
		}))
	}
	n := 7
	handle("At once", func(later func(any, error)) (*int, error) { later(&n, nil); return nil, nil })
	handle("Error", func(later func(any, error)) (*int, error) {
		go later(nil, yodel.Errorf(yodel.NotFound, "nobody"))
		return nil, nil
	})
	handle("Nil", func(later func(any, error)) (*int, error) { go later(nil, nil); return nil, nil })
	handle("Failed", func(func(any, error)) (*int, error) { return nil, yodel.Errorf(yodel.Aborted, "no") })
	handle("Panic", func(func(any, error)) (*int, error) { panic("oh") })
	handle("Exit", func(later func(any, error)) (*int, error) { go later(&n, nil); runtime.Goexit(); return nil, nil })
	c := newClient(t, nil, serve(t, s))
	for name, want := range map[string]yodel.Code{
		"At once": 0, "Error": yodel.NotFound, "Nil": yodel.Internal, "Failed": yodel.Aborted, "Panic": yodel.Internal, "Exit": 0,
	} {
		for i := range 20 {
			var got int
			var to yodel.Caller = c
			if i%2 == 1 && name != "Exit" { // as a Protocol calls it, on this goroutine
				to = s
			}
			err := to.Do(t.Context(), &yodel.Call{Method: name, Args: new(int), Reply: &got})
			if yodel.CodeOf(err) != want || want == 0 && got != n {
				t.Errorf("%s: got %d, %v, want %v", name, got, err, want)
			}
			if name == "Failed" || name == "Panic" {
				late(&n, nil) // no effect
			}
		}
	}
	if later := (&yodel.Call{}).Later(); later != nil {
		t.Error("a client's call can be answered later")
	}
}

// Middleware can answer a call later whose method the server does not have. Without a reply it
// fails.
func TestLateReplyOfAnUnknownMethod(t *testing.T) {
	var reply any
	s := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
		return func(_ context.Context, call *yodel.Call) error {
			go call.Later()(reply, nil)
			return nil
		}
	}}})
	c := newClient(t, nil, serve(t, s))
	n := 7
	for _, test := range []struct {
		reply any
		want  yodel.Code
	}{{nil, yodel.Internal}, {&n, 0}} {
		var got int
		reply = test.reply
		err := c.Do(t.Context(), &yodel.Call{Method: "No.Such", Args: new(int), Reply: &got})
		if yodel.CodeOf(err) != test.want || test.want == 0 && got != n {
			t.Errorf("with the late reply %v: got %d, %v, want %v", test.reply, got, err, test.want)
		}
	}
}

// A shutdown waits for late replies, and one that comes after its caller has left does no harm.
func TestShutdownWaitsForLateReplies(t *testing.T) {
	var x inbox
	s := newServer(t, nil)
	must(t, s.Handle("Inbox.Put", x.put))
	c := newClient(t, nil, serve(t, s))
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- c.Call(ctx, "Inbox.Put", new(int), new(int)) }()
	replies, in := x.take(t, 1)
	cancel()
	if err := <-left; yodel.CodeOf(err) != yodel.Canceled {
		t.Errorf("got %v, want that the caller has left", err)
	}
	replies[0](&in[0], nil)

	outcome := make(chan error, 1)
	var got int
	n := 21
	c.Go(t.Context(), &yodel.Call{Method: "Inbox.Put", Args: &n, Reply: &got}, func(err error) { outcome <- err })
	replies, in = x.take(t, 1)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context()) }()
	select {
	case err := <-stopped:
		t.Errorf("Shutdown has not waited: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	replies[0](&in[0], nil)
	if err := <-outcome; err != nil || got != 21 {
		t.Errorf("got %d, %v", got, err)
	}
	must(t, <-stopped)
}

// A late reply is remembered for its idempotency key, and middleware can ask for it.
func TestLateRepliesAreRemembered(t *testing.T) {
	var x inbox
	var encoded atomic.Int64
	s := newServer(t, &yodel.ServerOptions{
		Keys: once.With(nil),
		Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				err := next(ctx, call)
				if e, encErr := call.Encode(); err == nil && encErr == nil {
					encoded.Add(int64(len(e.Body)))
				}
				return err
			}
		}},
	})
	must(t, s.Handle("Inbox.Put", x.put))
	c := newClient(t, nil, serve(t, s))
	for i, key := range []string{"a", "a", ""} {
		outcome := make(chan error, 1)
		n, got := 7, 0
		c.Go(t.Context(), &yodel.Call{Method: "Inbox.Put", Args: &n, Reply: &got, IdempotencyKey: key}, func(err error) { outcome <- err })
		if i != 1 { // the second call is answered from memory
			replies, in := x.take(t, 1)
			replies[0](&in[0], nil)
		}
		if err := <-outcome; err != nil || got != 7 {
			t.Errorf("call %d: got %d, %v", i, got, err)
		}
	}
	if got := encoded.Load(); got != 3 {
		t.Errorf("middleware has seen %d bytes of replies, want 3", got)
	}
}
