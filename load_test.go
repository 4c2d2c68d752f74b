// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A student is a round robin that notes how attempts end.
type student struct {
	yodel.Picker
	notes *notes
}

type notes struct {
	mu   sync.Mutex
	ends []end
}

type end struct {
	ep   *yodel.Endpoint
	took time.Duration
	err  error
}

func (s *student) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	s.notes.ends = append(s.notes.ends, end{ep, took, err})
}

func (n *notes) balancer(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
	if s, ok := last.(*student); ok {
		last = s.Picker
	}
	return &student{yodel.RoundRobin(all, last), n}
}

func (n *notes) take() []end {
	n.mu.Lock()
	defer n.mu.Unlock()
	ends := n.ends
	n.ends = nil
	return ends
}

func TestALearnerIsToldOfEachAttempt(t *testing.T) {
	const Count yodel.Feed[int, int] = "Count"
	s := newServer(t, nil)
	handle(t, s, "Fail", func(context.Context, *Empty) (*Empty, error) {
		return nil, yodel.Errorf(yodel.NotFound, "there is none")
	})
	handle(t, s, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) { <-ctx.Done(); return nil, ctx.Err() })
	Count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	told := &notes{}
	c := connect(t, s, &yodel.ClientOptions{Balancer: told.balancer})
	must(t, c.Ready(t.Context()))
	async := func(call *yodel.Call) error {
		done := make(chan error, 1)
		c.Go(t.Context(), call, func(err error) { done <- err })
		return receive(t, done, "the call ends")
	}
	mul := func(call yodel.Call) *yodel.Call {
		call.Method, call.Args, call.Reply = string(Mul), &Args{6, 7}, &Reply{}
		return &call
	}
	for _, kind := range []struct {
		name  string
		make  func() error
		code  yodel.Code
		timed bool
	}{
		{"a call", func() error { return c.Do(t.Context(), mul(yodel.Call{})) }, 0, true},
		{"a call that is pinned", func() error { return c.Do(t.Context(), mul(yodel.Call{Endpoint: c.Endpoints()[0]})) }, 0, true},
		{"an error", func() error { return c.Call(t.Context(), "Fail", &Empty{}, nil) }, yodel.NotFound, true},
		{"asynchronous", func() error { return async(mul(yodel.Call{})) }, 0, true},
		{"an asynchronous error", func() error { return async(&yodel.Call{Method: "Fail", Args: &Empty{}}) }, yodel.NotFound, true},
		{"ordered", func() error { return c.Do(t.Context(), mul(yodel.Call{Ordered: true})) }, 0, true},
		{"ordered and asynchronous", func() error { return async(mul(yodel.Call{Ordered: true})) }, 0, true},
		{"an ordered error", func() error { return async(&yodel.Call{Method: "Fail", Args: &Empty{}, Ordered: true}) }, yodel.NotFound, true},
		{"too late", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return c.Call(ctx, "Wait", &Empty{}, nil)
		}, yodel.DeadlineExceeded, true},
		{"a stream", func() error {
			n := 3
			for _, err := range Count.Call(t.Context(), c, &n) {
				if err != nil {
					return err
				}
			}
			return nil
		}, 0, false},
		{"a stream that is not served", func() error {
			_, err := yodel.Feed[int, int]("None").Call(t.Context(), c, new(int)).Next()
			return err
		}, yodel.Unimplemented, false},
	} {
		t.Run(kind.name, func(t *testing.T) {
			if err := kind.make(); yodel.CodeOf(err) != kind.code {
				t.Fatalf("got %v, want the code %v", err, kind.code)
			}
			ends := told.take()
			if len(ends) != 1 {
				t.Fatalf("it was told %v, want one end", ends)
			}
			e := ends[0]
			if e.ep != c.Endpoints()[0] || yodel.CodeOf(e.err) != kind.code || e.took > 0 != kind.timed {
				t.Errorf("it was told %+v, want the code %v", e, kind.code)
			}
			if _, ok := errors.AsType[*yodel.Error](e.err); e.err != nil && !ok {
				t.Errorf("the error is a %T", e.err)
			}
		})
	}
	must(t, c.Notify(t.Context(), string(Mul), &Args{}))
	must(t, async(mul(yodel.Call{OneWay: true})))
	if ends := told.take(); len(ends) > 0 {
		t.Errorf("it was told %v of one-way calls", ends)
	}
}

func TestALearnerCostsNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newServer(t, nil)
	const calls = 5000
	cost := func(b yodel.Balancer) float64 {
		c := connect(t, s, &yodel.ClientOptions{Balancer: b})
		in, out := Args{6, 7}, Reply{}
		work := func() {
			for range calls {
				must(t, c.Call(t.Context(), string(Mul), &in, &out))
			}
		}
		work()
		least := float64(mallocs(work)) / calls
		for range 4 {
			least = min(least, float64(mallocs(work))/calls)
		}
		return least
	}
	without := cost(nil)
	with := cost(func(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker { return deaf{yodel.RoundRobin(all, last)} })
	if with > without+allocSlack {
		t.Errorf("a call makes %.3f allocations, and without a learner %.3f", with, without)
	}
}

// A deaf learner forgets at once.
type deaf struct{ yodel.Picker }

func (deaf) Ended(*yodel.Endpoint, time.Duration, error) {}

// A client hears on its replies how many calls of others its server is working on, and that there
// are none any more.
func TestAServerSaysHowBusyItIs(t *testing.T) {
	s := newServer(t, nil)
	release := make(chan struct{})
	begun := make(chan struct{})
	handle(t, s, "Wait", func(context.Context, *Empty) (*Empty, error) { begun <- struct{}{}; <-release; return &Empty{}, nil })
	addr := serve(t, s)
	busy, other := newClient(t, nil, addr), newClient(t, nil, addr)
	must(t, other.Ready(t.Context()))
	ep := other.Endpoints()[0]
	heard := func(want int) func() bool {
		return func() bool {
			_, err := Mul.Call(t.Context(), other, &Args{})
			must(t, err)
			return ep.Load() == want
		}
	}
	const n = 20
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := busy.Call(context.Background(), "Wait", &Empty{}, nil); err != nil {
				t.Error(err)
			}
		})
		receive(t, begun, "a call begins")
	}
	until(t, "the other client has heard of them", heard(n))
	if got := busy.Endpoints()[0].Load(); got != n {
		t.Errorf("the client that makes the calls takes the load for %d, want its own %d", got, n)
	}
	close(release)
	wg.Wait()
	until(t, "it has heard that they have ended", heard(0))
}

// A pingCounter counts the pings that are written by themselves, as they are on an idle connection.
type pingCounter struct {
	net.Conn
	pings *atomic.Int64
}

func (c pingCounter) Write(b []byte) (int, error) {
	if len(b) == wire.HeaderSize+8 && b[4] == byte(wire.Ping) {
		c.pings.Add(1)
	}
	return c.Conn.Write(b)
}

func TestRTTIsMeasuredWhenItIsAskedFor(t *testing.T) {
	var dials, pings atomic.Int64
	transport := transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		dials.Add(1)
		conn, err := yodel.TCP.Dial(ctx, addr)
		return pingCounter{conn, &pings}, err
	})
	c := newClient(t, &yodel.ClientOptions{Transport: transport}, serve(t, newServer(t, nil)))
	until(t, "the endpoint is known", func() bool { return len(c.Endpoints()) == 1 })
	ep := c.Endpoints()[0]
	if got := ep.RTT(); got != 0 || dials.Load() != 0 {
		t.Errorf("without a connection it is %v, and there were %d attempts to connect", got, dials.Load())
	}
	_, err := Mul.Call(t.Context(), c, &Args{})
	must(t, err)
	if pings.Load() != 0 {
		t.Error("there was a ping, and nobody has asked")
	}
	until(t, "it has been measured", func() bool { return ep.RTT() > 0 })
	first := ep.RTT()
	for range 1000 {
		if got := ep.RTT(); got != first {
			t.Fatalf("it was measured again at once: %v, then %v", first, got)
		}
	}
	if n := pings.Load(); n > 1 {
		t.Errorf("%d pings were written, want 1", n)
	}
}

// A tolerantPicker ignores readiness, and notes whether it would have mattered.
type tolerantPicker struct {
	ep      *yodel.Endpoint
	avoided *[]bool
}

func (p tolerantPicker) Pick(call *yodel.Call) *yodel.Endpoint {
	*p.avoided = append(*p.avoided, call.Attempts().Avoids(p.ep))
	call.Attempts().AllowUnready()
	if call.Attempts().Avoids(p.ep) {
		return nil
	}
	return p.ep
}

func TestAPickerCanIgnoreReadiness(t *testing.T) {
	var avoided []bool
	c := connect(t, newServer(t, nil), &yodel.ClientOptions{Balancer: func(all []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
		return tolerantPicker{all[0], &avoided}
	}})
	must(t, c.Ready(t.Context()))
	ep := c.Endpoints()[0]
	ep.SetReady("test", false)
	call := &yodel.Call{Method: string(Mul), Args: &Args{}, Reply: &Reply{}}
	for range 2 { // each pick begins anew
		must(t, c.Do(t.Context(), call))
	}
	if !slices.Equal(avoided, []bool{true, true}) {
		t.Errorf("the calls avoided the endpoint in their picks: %v, want that of both", avoided)
	}
	call.Attempts().AllowUnready()
	if call.Attempts().Avoids(ep) {
		t.Error("a tolerant call avoids what is not ready")
	}
	call.Attempts().Avoid(ep)
	if !call.Attempts().Avoids(ep) {
		t.Error("a tolerant call does not avoid what it was tried on")
	}
}
