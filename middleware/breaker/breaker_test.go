// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[struct{}, struct{}] = "Test.Work"

var errFailed = yodel.Errorf(yodel.Unavailable, "tired")

// endpoint returns one that is never connected to.
func endpoint(t testing.TB) *yodel.Endpoint {
	t.Helper()
	c := yodel.Dial("server")
	t.Cleanup(c.Close)
	return c.Endpoints()[0]
}

// answering is what stands below a breaker: it fails with what it points to.
func answering(err *error) yodel.Handler {
	return func(context.Context, *yodel.Call) error { return *err }
}

func isRefused(err error) bool {
	e, ok := errors.AsType[*yodel.Error](err)
	return ok && e.ID == "YDL1301"
}

func TestConsecutiveFailuresOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := endpoint(t)
		var answer error
		h := breaker.After(3, 10*time.Second)(ep, answering(&answer))
		call := func(err error) error {
			answer = err
			return h(t.Context(), &yodel.Call{Method: string(work)})
		}
		for _, err := range []error{errFailed, errFailed, nil, errFailed, errFailed, yodel.NotFound, errFailed, yodel.Canceled, errFailed} {
			if got := call(err); !errors.Is(got, err) || !ep.Ready() {
				t.Fatalf("got %v and ready %v", got, ep.Ready())
			}
		}
		if err := call(errFailed); !errors.Is(err, errFailed) || ep.Ready() {
			t.Fatalf("after the third failure in a row: got %v and ready %v", err, ep.Ready())
		}
		err := call(nil)
		if !isRefused(err) || !yodel.NotProcessed(err) || !errors.Is(err, yodel.Unavailable) {
			t.Fatalf("got %v, want a refusal", err)
		}
		for _, part := range []string{"Test.Work", "server", "3 calls in a row failed", "tired"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		time.Sleep(12 * time.Second)
		for i := range 3 {
			if !ep.Ready() {
				t.Fatalf("it is not ready for probe %d", i)
			}
			if err := call(nil); err != nil {
				t.Fatal(err)
			}
		}
		if call(errFailed); !ep.Ready() {
			t.Error("it did not close")
		}
	})
}

// A model of the breaker, which keeps every call that it has seen.
type model struct {
	breaker.Options
	born   time.Time
	state  string
	row    int
	events []event
	since  time.Time // of the state
	opened int
	open   [3]time.Duration // how long: from, to, about
	left   int
	passed int
}

type event struct {
	at  time.Time
	bad bool
}

func (m *model) tripped(now time.Time) bool {
	if m.Errors > 0 && m.row >= m.Errors {
		return true
	}
	return m.Share > 0 && m.rate(now)
}

// rate reckons with all calls since the step of the window that was 9 steps ago began. Successes
// are in the time between the looks at the clock.
func (m *model) rate(now time.Time) bool {
	step := m.Window / 10
	from := m.born.Add(now.Sub(m.born).Truncate(step) - 9*step)
	var goods, bads float64
	var looked time.Time
	pending := 0
	for _, e := range m.events {
		if !e.bad {
			pending++
		}
		if e.bad || pending == 64 { // a look
			if pending > 0 && !looked.IsZero() && e.at.After(looked) {
				if e.at.After(from) {
					begin := looked
					if begin.Before(from) {
						begin = from
					}
					goods += float64(pending) * float64(e.at.Sub(begin)) / float64(e.at.Sub(looked))
				}
			} else if !e.at.Before(from) {
				goods += float64(pending)
			}
			pending, looked = 0, e.at
		}
		if e.bad && !e.at.Before(from) {
			bads++
		}
	}
	return goods+bads >= float64(m.MinCalls)-1e-5 && bads >= m.Share*(goods+bads)-1e-5
}

func (m *model) trip(now time.Time) {
	if m.state == "closed" && (m.opened == 0 || now.Sub(m.since) >= m.open[2]) {
		m.opened = 0
	}
	d := time.Duration(math.Min(float64(m.Open)*math.Pow(2, float64(m.opened)), float64(m.MaxOpen)))
	m.opened++
	m.state, m.since, m.open = "open", now, [3]time.Duration{d * 4 / 5, d * 6 / 5, d}
}

// TestBreakerIsAsItsModel makes random sequences of calls one after the other.
func TestBreakerIsAsItsModel(t *testing.T) {
	outcomes := []error{
		nil, errFailed, yodel.DeadlineExceeded, yodel.NotFound, errors.New("x"), yodel.Canceled,
		&yodel.Error{Code: yodel.ResourceExhausted, NotProcessed: true}, &yodel.Error{Code: yodel.Internal, ID: "YDL2102"},
	}
	seen := map[string]int{}
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(6, seed))
			o := breaker.Options{
				Window: time.Duration(1+r.IntN(10)) * time.Second, MinCalls: 1 + r.IntN(20), Open: time.Duration(1+r.IntN(3000)) * time.Millisecond,
				MaxOpen: 10 * time.Second, Probes: 1 + r.IntN(4),
			}
			if r.IntN(2) == 0 {
				o.Errors = 2 + r.IntN(6)
			}
			if o.Errors == 0 || r.IntN(2) == 0 {
				o.Share = 0.2 + 0.6*r.Float64()
			}
			ep := endpoint(t)
			var answer error
			h := breaker.With(&o)(ep, answering(&answer))
			m := &model{Options: o, born: time.Now(), state: "closed"}
			failing := r.Float64() / 2
			for range 600 {
				if r.IntN(50) == 0 {
					failing = r.Float64() * r.Float64()
				}
				time.Sleep(time.Duration(r.ExpFloat64() * float64(20*time.Millisecond)))
				if r.IntN(100) == 0 {
					time.Sleep(time.Duration(r.Int64N(int64(12 * time.Second))))
				}
				synctest.Wait()
				answer = outcomes[r.IntN(len(outcomes))]
				if r.Float64() < failing {
					answer = errFailed
				} else if r.IntN(2) == 0 {
					answer = nil
				}
				if r.IntN(300) == 0 {
					h = breaker.With(&o)(ep, answering(&answer)) // a new chain
				}
				now := time.Now()
				if passed := now.Sub(m.since); m.state == "open" && passed >= m.open[0] && (passed > m.open[1] || ep.Ready()) {
					m.state, m.left, m.passed = "half open", o.Probes, 0
				}
				if ready := m.state != "open"; ep.Ready() != ready {
					t.Fatalf("seed %d: %s for %v: ready is %v", seed, m.state, now.Sub(m.since), ep.Ready())
				}
				seen[m.state]++
				err := h(t.Context(), &yodel.Call{Method: string(work)})
				if m.state == "open" {
					if !isRefused(err) {
						t.Fatalf("seed %d: open, and a call ended with %v", seed, err)
					}
					continue
				}
				if !errors.Is(err, answer) || isRefused(err) {
					t.Fatalf("seed %d: %s, and a call ended with %v instead of %v", seed, m.state, err, answer)
				}
				bad := err != nil && breaker.Failed(err)
				neither := yodel.CodeOf(err) == yodel.Canceled || yodel.NotProcessed(err)
				switch {
				case neither:
				case m.state == "closed" && bad:
					m.row++
					m.events = append(m.events, event{now, true})
					if m.tripped(now) {
						m.trip(now)
					}
				case m.state == "closed":
					m.row = 0
					m.events = append(m.events, event{now, false})
				case bad:
					m.trip(now)
				default:
					if m.passed++; m.passed == o.Probes {
						m.state, m.since, m.row, m.events = "closed", now, 0, nil
					}
				}
			}
		})
	}
	if seen["closed"] < 1000 || seen["open"] < 1000 || seen["half open"] < 1000 {
		t.Errorf("the sequences saw %v", seen)
	}
}

func TestProbesAreBoundedAndHungOnesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := endpoint(t)
		var begun atomic.Int32
		release := make(chan error)
		h := breaker.With(&breaker.Options{Errors: 1, Open: time.Second, Probes: 2})(ep, func(context.Context, *yodel.Call) error {
			begun.Add(1)
			return <-release
		})
		call := func() error { return h(t.Context(), &yodel.Call{Method: string(work)}) }
		ended := make(chan error, 100)
		start := func(n int) {
			for range n {
				go func() { ended <- call() }()
			}
			synctest.Wait()
		}
		start(5) // of which four end when the state is another one
		release <- errFailed
		time.Sleep(1300 * time.Millisecond)
		for range 4 {
			release <- errFailed
		}
		for range 5 {
			<-ended
		}
		synctest.Wait()
		if !ep.Ready() {
			t.Fatal("what began before it was half open has opened it")
		}
		begun.Store(0)
		start(20)
		if n := begun.Load(); n != 2 || ep.Ready() {
			t.Fatalf("%d of 20 calls were let through, and ready is %v", n, ep.Ready())
		}
		for range 18 {
			if err := <-ended; !isRefused(err) {
				t.Fatalf("got %v, want a refusal", err)
			}
		}
		time.Sleep(1300 * time.Millisecond)
		synctest.Wait()
		if !ep.Ready() {
			t.Fatal("probes that hang make no room for others")
		}
		release <- yodel.Canceled // which says nothing
		release <- nil            // a late answer counts
		start(2)
		if n := begun.Load(); n != 4 {
			t.Fatalf("%d probes have begun, want 4", n)
		}
		release <- nil
		release <- nil
		synctest.Wait()
		start(10)
		if n := begun.Load(); n != 14 || !ep.Ready() {
			t.Errorf("it did not close: %d calls have begun", n)
		}
		for range 10 {
			release <- nil
		}
		for range 14 {
			if err := <-ended; err != nil && !errors.Is(err, yodel.Canceled) {
				t.Error(err)
			}
		}
	})
}

func TestOpenTimeGrowsAndBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := endpoint(t)
		answer := error(errFailed)
		h := breaker.With(&breaker.Options{Errors: 1, Open: time.Second, MaxOpen: 5 * time.Second, Probes: 1})(ep, answering(&answer))
		isOpenFor := func(d time.Duration) {
			t.Helper()
			began := time.Now()
			h(t.Context(), &yodel.Call{})
			for !ep.Ready() {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took < d*4/5 || took > d*6/5+10*time.Millisecond {
				t.Errorf("it was open for %v, want %v, or a fifth more or less", took, d)
			}
		}
		for _, d := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			isOpenFor(d)
		}
		answer = nil
		if err := h(t.Context(), &yodel.Call{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		answer = errFailed
		isOpenFor(5 * time.Second) // it was not closed for long
		answer = nil
		if err := h(t.Context(), &yodel.Call{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		answer = errFailed
		isOpenFor(time.Second)
	})
}

func TestSlowCallsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := endpoint(t)
		takes := 100 * time.Millisecond
		h := breaker.Rate(0.5, &breaker.Options{Slow: time.Second, MinCalls: 10})(ep, func(context.Context, *yodel.Call) error {
			time.Sleep(takes)
			return nil
		})
		call := func() error { return h(t.Context(), &yodel.Call{Method: string(work)}) }
		for range 4 {
			if err := call(); err != nil {
				t.Fatal(err)
			}
		}
		takes = time.Second
		n := 0
		for ep.Ready() {
			if err := call(); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 6 {
			t.Errorf("it opened after %d slow calls of %d, want 6 of 10", n, n+4)
		}
		if err := call(); !isRefused(err) || !strings.Contains(err.Error(), "it was slow") {
			t.Errorf("got %v", err)
		}
	})
}

func TestWhatCounts(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{yodel.Unavailable, true},
		{yodel.Errorf(yodel.DeadlineExceeded, "x"), true},
		{context.DeadlineExceeded, true},
		{fmt.Errorf("x: %w", yodel.Errorf(yodel.Internal, "x")), true},
		{yodel.DataLoss, true},
		{&yodel.Error{Code: yodel.Internal, ID: "YDL5001"}, true},
		{&yodel.Error{Code: yodel.Internal, ID: "YDL2104"}, false},
		{&yodel.Error{Code: yodel.Unavailable, NotProcessed: true}, false},
		{&yodel.Error{Code: yodel.ResourceExhausted, NotProcessed: true}, false},
		{yodel.ResourceExhausted, false},
		{errors.New("x"), false},
		{yodel.Canceled, false}, {yodel.InvalidArgument, false}, {yodel.NotFound, false}, {yodel.AlreadyExists, false},
		{yodel.PermissionDenied, false}, {yodel.FailedPrecondition, false}, {yodel.Aborted, false}, {yodel.OutOfRange, false},
		{yodel.Unimplemented, false}, {yodel.Unauthenticated, false},
	} {
		if got := breaker.Failed(test.err); got != test.want {
			t.Errorf("%v: got %v", test.err, got)
		}
	}
}

// Callers that give a healthy server less time than it needs do not open the breaker for others. A
// server that hangs does, whatever callers have seen before.
func TestImpatientCallersDoNotOpen(t *testing.T) {
	for _, o := range []*breaker.Options{{Errors: 5}, {Share: 0.5, MinCalls: 5}} {
		for _, warm := range []bool{false, true} {
			t.Run(fmt.Sprintf("errors %d, warm %t", o.Errors, warm), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := yodeltest.NewServer(t, nil)
					hangs := atomic.Bool{}
					work.Handle(s.Server, func(ctx context.Context, _ *struct{}) (*struct{}, error) {
						takes := 20 * time.Millisecond
						if hangs.Load() {
							takes = time.Hour
						}
						select {
						case <-time.After(takes):
							return &struct{}{}, nil
						case <-ctx.Done():
							return nil, ctx.Err()
						}
					})
					c := yodeltest.NewClient(t, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{breaker.With(o)}}, s)
					call := func(limit time.Duration, byCall bool) error {
						if byCall {
							_, err := work.Do(t.Context(), c, &yodel.Call{Deadline: time.Now().Add(limit)}, &struct{}{})
							return err
						}
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						defer cancel()
						_, err := work.Call(ctx, c, &struct{}{})
						return err
					}
					if warm {
						if err := call(time.Second, false); err != nil {
							t.Fatal(err)
						}
					}
					for i := range 50 {
						if err := call(2*time.Millisecond, i%2 == 0); !errors.Is(err, yodel.DeadlineExceeded) {
							t.Fatalf("call %d: got %v", i, err)
						}
					}
					if err := call(time.Second, false); err != nil {
						t.Fatalf("a patient caller: %v", err)
					}
					hangs.Store(true)
					for i := range 200 { // 30 ms is more than the usual 20 ms
						if err := call(30*time.Millisecond, i%2 == 0); isRefused(err) {
							return
						}
					}
					t.Error("a server that hangs has not opened it")
				})
			})
		}
	}
}

// A few answers that take long do not make a method slow, so that a server that hangs opens the
// breaker for callers that give it more time than most answers take.
func TestFewSlowAnswersAreNotUsual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		calls, hangs := 0, false
		work.Handle(s.Server, func(ctx context.Context, _ *struct{}) (*struct{}, error) {
			takes := 20 * time.Millisecond
			if calls++; hangs {
				takes = time.Hour
			} else if calls%7 == 0 {
				takes = 30 * time.Second
			}
			select {
			case <-time.After(takes):
				return &struct{}{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		c := yodeltest.NewClient(t, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{breaker.With(&breaker.Options{Errors: 5})}}, s)
		call := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := work.Call(ctx, c, &struct{}{})
			return err
		}
		for range 2000 {
			if err := call(time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		hangs = true
		for range 100 {
			if isRefused(call(time.Second)) {
				return
			}
		}
		t.Error("a server that hangs has not opened it")
	})
}

func TestTheUsersFunctionDecides(t *testing.T) {
	ep := endpoint(t)
	answer := error(yodel.NotFound)
	h := breaker.With(&breaker.Options{Errors: 2, Failure: func(err error) bool { return errors.Is(err, yodel.NotFound) }})(ep, answering(&answer))
	for range 2 {
		if err := h(t.Context(), &yodel.Call{}); !errors.Is(err, yodel.NotFound) {
			t.Fatal(err)
		}
	}
	if err := h(t.Context(), &yodel.Call{}); !isRefused(err) {
		t.Errorf("got %v", err)
	}
}

func TestBadOptionsAreCorrected(t *testing.T) {
	for name, o := range map[string]*breaker.Options{
		"nil": nil,
		"negative": {
			Errors: -1, Share: -1, Window: -1, MinCalls: -1, Slow: -1, Open: -1, MaxOpen: -1, Probes: -1,
		},
		"not a number":  {Share: math.NaN()},
		"too much":      {Share: 7, Window: 1},
		"a short limit": {Open: time.Minute, MaxOpen: 1},
	} {
		ep := endpoint(t)
		answer := error(errFailed)
		h := breaker.With(o)(ep, answering(&answer))
		for i := range 20 {
			if !ep.Ready() {
				t.Errorf("%s: it is open after %d failures, want 20", name, i)
			}
			if err := h(t.Context(), &yodel.Call{}); !errors.Is(err, errFailed) {
				t.Fatal(err)
			}
		}
		if ep.Ready() {
			t.Errorf("%s: it is closed after 20 failures", name)
		}
	}
	ep := endpoint(t)
	h := breaker.After(-5, -1)(ep, answering(new(error)))
	if err := h(t.Context(), &yodel.Call{}); err != nil || !ep.Ready() {
		t.Errorf("After(-5, -1): %v", err)
	}
	if h = breaker.Rate(math.NaN(), nil)(ep, answering(new(error))); h(t.Context(), &yodel.Call{}) != nil {
		t.Error("Rate(NaN)")
	}
}

// Two breakers of one chain, and the state of each, with other options.
func TestNamesTellBreakersApart(t *testing.T) {
	ep := endpoint(t)
	answer := error(errFailed)
	rate := breaker.Rate(0.5, &breaker.Options{Name: "rate", MinCalls: 4})
	h := breaker.After(3, time.Minute)(ep, rate(ep, answering(&answer)))
	for range 3 {
		if err := h(t.Context(), &yodel.Call{}); !errors.Is(err, errFailed) {
			t.Fatal(err)
		}
	}
	if err := h(t.Context(), &yodel.Call{}); !isRefused(err) {
		t.Errorf("got %v", err)
	}
	h = rate(ep, answering(&answer)) // a new chain; three of its four calls have been
	if err := h(t.Context(), &yodel.Call{}); !errors.Is(err, errFailed) {
		t.Errorf("got %v", err)
	}
	if err := h(t.Context(), &yodel.Call{}); !isRefused(err) || !strings.Contains(err.Error(), "4 of 4 calls") {
		t.Errorf("got %v", err)
	}
}

func TestCallsGoElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers []*yodeltest.Server
		var executed [3]atomic.Int32
		var sick atomic.Bool
		sick.Store(true)
		for i := range executed {
			s := yodeltest.NewServer(t, nil)
			work.Handle(s.Server, func(context.Context, *struct{}) (*struct{}, error) {
				executed[i].Add(1)
				if i == 0 && sick.Load() {
					return nil, errFailed
				}
				return &struct{}{}, nil
			})
			servers = append(servers, s)
		}
		c := yodeltest.NewClient(t, &yodel.ClientOptions{
			EndpointMiddleware: []yodel.EndpointMiddleware{breaker.After(5, time.Second)},
		}, servers...)
		failed := 0
		for range 100 {
			if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil {
				failed++
			}
		}
		if n := executed[0].Load(); failed != 5 || n != 5 {
			t.Errorf("%d calls failed, and the sick server executed %d; want 5", failed, n)
		}
		ep := c.Endpoints()[0]
		_, err := work.Do(t.Context(), c, &yodel.Call{Endpoint: ep}, &struct{}{})
		if !isRefused(err) {
			t.Errorf("a pinned call: got %v", err)
		}
		if _, err = inspect.Ping.Do(t.Context(), c, &yodel.Call{Endpoint: ep}, &inspect.Empty{}); err != nil {
			t.Errorf("a ping: %v", err)
		}
		if err = c.Do(t.Context(), &yodel.Call{Method: string(work), Args: &struct{}{}, Endpoint: ep, OneWay: true}); !isRefused(err) {
			t.Errorf("a one-way call: got %v", err)
		}
		sick.Store(false)
		time.Sleep(1300 * time.Millisecond)
		for range 100 {
			if _, err := work.Call(t.Context(), c, &struct{}{}); err != nil {
				t.Errorf("after it is well again: %v", err)
			}
		}
		if n := executed[0].Load(); n < 30 {
			t.Errorf("the server that is well again has executed %d calls of 300", n)
		}
	})
}

// Of one-way calls nobody knows how they end, so they cannot close a breaker. They must not be
// refused for ever for that.
func TestOneWayCallsPassWhereProbesMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := endpoint(t)
		answer := error(errFailed)
		h := breaker.With(&breaker.Options{Errors: 1, Open: time.Second, Probes: 2})(ep, answering(&answer))
		call := func(oneWay bool) error { return h(t.Context(), &yodel.Call{Method: string(work), OneWay: oneWay}) }
		if err := call(false); !errors.Is(err, errFailed) {
			t.Fatal(err)
		}
		if err := call(true); !isRefused(err) {
			t.Errorf("while it is open: got %v", err)
		}
		answer = nil
		time.Sleep(2 * time.Second)
		for range 10 {
			if err := call(true); err != nil || !ep.Ready() {
				t.Fatalf("while it is half open: got %v, ready %t", err, ep.Ready())
			}
		}
		answer = errFailed
		if err := call(false); !errors.Is(err, errFailed) || ep.Ready() {
			t.Errorf("the first probe: got %v, ready %t", err, ep.Ready())
		}
	})
}

// When all are open, the balancer asks all of them, and says so.
func TestAllAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers []*yodeltest.Server
		for range 3 {
			s := yodeltest.NewServer(t, nil)
			work.Handle(s.Server, func(context.Context, *struct{}) (*struct{}, error) { return nil, errFailed })
			servers = append(servers, s)
		}
		c := yodeltest.NewClient(t, &yodel.ClientOptions{
			EndpointMiddleware: []yodel.EndpointMiddleware{breaker.After(1, time.Second)},
		}, servers...)
		var err error
		for range 4 {
			_, err = work.Call(t.Context(), c, &struct{}{})
		}
		var report *introspect.CallReport
		other := func(a introspect.Attempt) bool { return a.ID != "YDL1301" }
		if !errors.As(err, &report) || len(report.Attempts) != 3 || !yodel.NotProcessed(err) || slices.ContainsFunc(report.Attempts, other) {
			t.Errorf("got %+v, want three refusals", err)
		}
	})
}

func TestConcurrentCalls(t *testing.T) {
	ep := endpoint(t)
	var n atomic.Int64
	h := breaker.With(&breaker.Options{Errors: 3, Share: 0.3, MinCalls: 10, Open: time.Microsecond, MaxOpen: time.Millisecond, Probes: 2})(ep,
		func(context.Context, *yodel.Call) error {
			if n.Add(1)%5 < 2 {
				return errFailed
			}
			return nil
		})
	ended := make(chan int)
	for range 8 {
		go func() {
			refused := 0
			for range 2000 {
				if isRefused(h(t.Context(), &yodel.Call{})) {
					refused++
				}
			}
			ended <- refused
		}()
	}
	refused := 0
	for range 8 {
		refused += <-ended
	}
	if refused == 0 || refused == 8*2000 {
		t.Errorf("%d of %d calls were refused", refused, 8*2000)
	}
}

func TestSuccessAllocatesNothing(t *testing.T) {
	for name, o := range map[string]*breaker.Options{"errors": {Errors: 5}, "share": {Share: 0.5}, "slow": {Slow: time.Minute}} {
		h := breaker.With(o)(endpoint(t), answering(new(error)))
		ctx, call := context.Background(), &yodel.Call{}
		if n := testing.AllocsPerRun(1000, func() {
			if err := h(ctx, call); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: got %v allocations for each call, want 0", name, n)
		}
	}
}

func BenchmarkSuccess(b *testing.B) {
	for name, o := range map[string]*breaker.Options{"errors": {Errors: 5}, "share": {Share: 0.5}, "slow": {Slow: time.Minute}} {
		b.Run(name, func(b *testing.B) {
			h := breaker.With(o)(endpoint(b), answering(new(error)))
			ctx, call := context.Background(), &yodel.Call{Method: string(work)}
			b.ReportAllocs()
			for b.Loop() {
				if err := h(ctx, call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A breaker that is to be open for ever is.
func TestOpenWithoutEnd(t *testing.T) {
	for _, o := range []breaker.Options{{Errors: 1, Open: math.MaxInt64}, {Errors: 1, Open: math.MaxInt64 / 3, MaxOpen: math.MaxInt64}} {
		synctest.Test(t, func(t *testing.T) {
			ep := endpoint(t)
			answer := error(errFailed)
			h := breaker.With(&o)(ep, answering(&answer))
			_ = h(t.Context(), &yodel.Call{Method: string(work)})
			time.Sleep(1000 * time.Hour)
			if err := h(t.Context(), &yodel.Call{Method: string(work)}); !isRefused(err) || ep.Ready() {
				t.Errorf("got %v, ready: %v", err, ep.Ready())
			}
		})
	}
}
