// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const (
	work  yodel.Method[struct{}, struct{}] = "Test.Work"
	other yodel.Method[struct{}, struct{}] = "Test.Other"
	count yodel.Feed[struct{}, int]        = "Test.Count"
)

func limited(ms ...yodel.Middleware) *yodel.ServerOptions {
	return &yodel.ServerOptions{Middleware: ms}
}

// serve serves f as two methods.
func serve(t *testing.T, o *yodel.ServerOptions, f func(ctx context.Context) error) *yodeltest.Server {
	t.Helper()
	s := yodeltest.NewServer(t, o)
	h := func(ctx context.Context, in *struct{}) (*struct{}, error) { return in, f(ctx) }
	work.Handle(s.Server, h)
	other.Handle(s.Server, h)
	return s
}

func call(c yodel.Caller) error {
	_, err := work.Call(context.Background(), c, &struct{}{})
	return err
}

func idOf(err error) string {
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		return e.ID
	}
	return fmt.Sprint(err)
}

func checkRefused(t *testing.T, what string, err error, id string) {
	t.Helper()
	if idOf(err) != id || !yodel.NotProcessed(err) {
		t.Errorf("%s: got %v, not processed %t; want %s", what, err, yodel.NotProcessed(err), id)
	}
}

func TestAtMostThatManyRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most, all atomic.Int64
		s := serve(t, limited(limit.Concurrency(3)), func(context.Context) error {
			for n := running.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			time.Sleep(10 * time.Millisecond)
			running.Add(-1)
			all.Add(1)
			return nil
		})
		c := yodeltest.NewClient(t, nil, s)
		var wg sync.WaitGroup
		var served atomic.Int64
		for range 20 {
			wg.Go(func() {
				switch err := call(c); {
				case err == nil:
					served.Add(1)
				case yodel.CodeOf(err) != yodel.ResourceExhausted || !yodel.NotProcessed(err):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 3 || served.Load() != 7 || all.Load() != 7 { // 3 run, 4 wait
			t.Errorf("at most %d ran, %d were executed and %d served", most.Load(), all.Load(), served.Load())
		}
	})
}

// Whoever finds the queue full of what is less critical takes a place there.
func TestCriticalCallsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []int
		s := serve(t, limited(limit.With(&limit.Options{Limit: 1, Queue: 3})), func(ctx context.Context) error {
			mu.Lock()
			order = append(order, yodel.CallFrom(ctx).Criticality)
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		c := yodeltest.NewClient(t, nil, s)
		var wg sync.WaitGroup
		refused := map[int]int{}
		for _, class := range []int{criticality.Normal, criticality.Batch, criticality.Sheddable, criticality.Batch, criticality.Critical, criticality.Normal} {
			wg.Go(func() {
				if _, err := work.Do(context.Background(), c, &yodel.Call{Criticality: class}, &struct{}{}); err != nil {
					checkRefused(t, "refused", err, "YDL3201")
					mu.Lock()
					refused[class]++
					mu.Unlock()
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if fmt.Sprint(order) != "[0 1 0 -1]" || refused[criticality.Batch] != 2 {
			t.Errorf("they ran in the order %v, refused by class: %v", order, refused)
		}
	})
}

// One tenant sends ten times as much as it gets; the others get what is theirs by max-min fairness,
// and one that wants less gets all of that.
func TestTenantsGetTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const capacity = 1000 // calls in a second
		offered := map[string]int{"greedy": 10_000, "eager": 1000, "normal": 400, "modest": 100}
		want := map[string]float64{"greedy": 300, "eager": 300, "normal": 300, "modest": 100}
		var mu sync.Mutex
		served := map[string]int{}
		rng := rand.New(rand.NewPCG(1, 2))
		var call yodel.Handler = func(_ context.Context, call *yodel.Call) error {
			mu.Lock()
			takes := 5*time.Millisecond + time.Duration(rng.Int64N(int64(10*time.Millisecond)))
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			served[call.Tenant]++
			mu.Unlock()
			return nil
		}
		call = limit.Concurrency(capacity / 100)(call)
		const seconds = 20
		var wg sync.WaitGroup
		for tenant, rate := range offered {
			wg.Go(func() {
				pause := time.Second / time.Duration(rate)
				for range rate * seconds {
					wg.Go(func() { _ = call(context.Background(), &yodel.Call{Method: "Test.Work", Tenant: tenant}) })
					time.Sleep(pause)
				}
			})
		}
		wg.Wait()
		for tenant, want := range want {
			if got := float64(served[tenant]) / seconds; math.Abs(got-want) > want/10 {
				t.Errorf("%s offers %d calls/s and gets %.0f, not %.0f", tenant, offered[tenant], got, want)
			}
		}
		t.Logf("offered %v, served in %d s %v", offered, seconds, served)
	})
}

// A tenant whose calls take long gets as many places as others, and so fewer calls.
func TestTenantsShareThePlacesNotTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := map[string]time.Duration{}
		var mu sync.Mutex
		call := limit.Concurrency(10)(func(_ context.Context, call *yodel.Call) error {
			takes := 10 * time.Millisecond
			if call.Tenant == "slow" {
				takes = 100 * time.Millisecond
			}
			time.Sleep(takes)
			mu.Lock()
			held[call.Tenant] += takes
			mu.Unlock()
			return nil
		})
		var wg sync.WaitGroup
		for _, tenant := range []string{"slow", "fast"} {
			for range 20 {
				wg.Go(func() {
					for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
						if err := call(context.Background(), &yodel.Call{Method: "Test.Work", Tenant: tenant}); err != nil {
							time.Sleep(time.Millisecond)
						}
					}
				})
			}
		}
		wg.Wait()
		if share := held["slow"].Seconds() / (held["slow"] + held["fast"]).Seconds(); share < 0.4 || share > 0.6 {
			t.Errorf("the slow tenant had %.0f %% of the places: %v", 100*share, held)
		}
	})
}

func TestAWaitEndsWithTheDeadlineAndTheContext(t *testing.T) {
	for _, where := range []string{"server", "client", "endpoint"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &limit.Options{Limit: 1, Interval: time.Hour}
				var so yodel.ServerOptions
				var co yodel.ClientOptions
				switch where {
				case "server":
					so.Middleware = []yodel.Middleware{limit.With(o)}
				case "client":
					co.Middleware = []yodel.Middleware{limit.With(o)}
				default:
					co.EndpointMiddleware = []yodel.EndpointMiddleware{limit.PerEndpoint(o)}
				}
				var executed atomic.Int64
				s := serve(t, &so, func(context.Context) error {
					executed.Add(1)
					time.Sleep(time.Minute)
					return nil
				})
				c := yodeltest.NewClient(t, &co, s)
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := call(c); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				ends := func(what string, ctx context.Context, deadline time.Time, code yodel.Code) {
					began := time.Now()
					_, err := work.Do(ctx, c, &yodel.Call{Deadline: deadline}, &struct{}{})
					if took := time.Since(began); took != time.Second || yodel.CodeOf(err) != code {
						t.Errorf("%s: got %v after %v", what, err, took)
					}
					if where != "server" && !yodel.NotProcessed(err) {
						t.Errorf("%s: it may have been executed: %v", what, err)
					}
				}
				timed, cancel := context.WithTimeout(t.Context(), time.Second)
				ends("context with deadline", timed, time.Time{}, yodel.DeadlineExceeded)
				cancel()
				ends("deadline", t.Context(), time.Now().Add(time.Second), yodel.DeadlineExceeded)
				canceled, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				ends("cancel", canceled, time.Time{}, yodel.Canceled)
				wg.Wait()
				if n := executed.Load(); n != 1 {
					t.Errorf("%d calls were executed, not 1", n)
				}
				if err := call(c); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// A server that is shut down finishes those who wait, and when its time is over, ends them.
func TestAWaitEndsWithTheServer(t *testing.T) {
	for _, hurry := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var executed atomic.Int64
			s := serve(t, limited(limit.With(&limit.Options{Limit: 1, Interval: time.Hour})), func(ctx context.Context) error {
				executed.Add(1)
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			c := yodeltest.NewClient(t, nil, s)
			var wg sync.WaitGroup
			var failed atomic.Int64
			for range 3 {
				wg.Go(func() {
					if err := call(c); err != nil {
						failed.Add(1)
					}
				})
				synctest.Wait()
			}
			ctx, cancel := context.WithCancel(t.Context())
			if hurry {
				time.AfterFunc(time.Second, cancel)
			}
			began := time.Now()
			err := s.Shutdown(ctx)
			cancel()
			wg.Wait()
			took, n := time.Since(began), executed.Load()
			// The calls are canceled one after the other: the place of the first may be the next
			// one's before that one is.
			if hurry && (err == nil || took > 10*time.Second || failed.Load() != 3) {
				t.Errorf("in a hurry: %v after %v, %d executed, %d failed", err, took, n, failed.Load())
			}
			if !hurry && (err != nil || n != 3 || failed.Load() != 0) {
				t.Errorf("with patience: %v after %v, %d executed, %d failed", err, took, n, failed.Load())
			}
		})
	}
}

func TestWhatIsNotLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		o := &limit.Options{Limit: 1, Queue: -1}
		so := limited(limit.With(o))
		s := serve(t, so, func(context.Context) error { <-release; return nil })
		count.Handle(s.Server, func(_ context.Context, _ *struct{}, send yodel.Send[int]) error { return send(new(7)) })
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{limit.With(o)}}, s)
		var wg sync.WaitGroup
		wg.Go(func() { _ = call(c) })
		synctest.Wait()
		checkRefused(t, "one more", call(c), "YDL3201")
		if _, err := inspect.Health.Call(t.Context(), c, &inspect.Empty{}); err != nil {
			t.Errorf("the server's own method: %v", err)
		}
		n := 0
		for got, err := range count.Call(t.Context(), c, &struct{}{}) {
			if err != nil {
				t.Fatalf("a stream: %v", err)
			}
			n = *got
		}
		if n != 7 {
			t.Errorf("the stream brought %d", n)
		}
		_, err := work.Do(t.Context(), c, &yodel.Call{Ordered: true}, &struct{}{})
		if e, _ := errors.AsType[*yodel.Error](err); e == nil || !strings.Contains(e.Message, "server-1") {
			t.Errorf("an ordered call is not let through to the server: %v", err)
		}
		close(release)
		wg.Wait()
	})
}

func TestStreamsAreLimitedIfWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, limited(limit.With(&limit.Options{Limit: 1, Queue: -1, Streams: true})))
		release := make(chan struct{})
		count.Handle(s.Server, func(context.Context, *struct{}, yodel.Send[int]) error { <-release; return nil })
		c := yodeltest.NewClient(t, nil, s)
		drain := func() (err error) {
			for _, err = range count.Call(context.Background(), c, &struct{}{}) { //nolint:revive // the last error counts
			}
			return err
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := drain(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		checkRefused(t, "a second stream", drain(), "YDL3201")
		close(release)
		wg.Wait()
	})
}

func TestEachMethodHasALimitOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := serve(t, limited(limit.With(&limit.Options{Limit: 1, Queue: -1, PerMethod: true})), func(context.Context) error { <-release; return nil })
		c := yodeltest.NewClient(t, nil, s)
		var wg sync.WaitGroup
		hold := func(m yodel.Method[struct{}, struct{}]) {
			wg.Go(func() {
				if _, err := m.Call(context.Background(), c, &struct{}{}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		hold(work)
		checkRefused(t, "work", call(c), "YDL3201")
		hold(other)
		_, err := other.Call(t.Context(), c, &struct{}{})
		checkRefused(t, "other", err, "YDL3201")
		close(release)
		wg.Wait()
	})
}

func TestOnlyTheseMethodsAreLimited(t *testing.T) {
	h := limit.With(&limit.Options{Limit: 1, Queue: -1, Methods: []string{"A", "B"}})
	var inner yodel.Handler
	outer := h(func(ctx context.Context, call *yodel.Call) error {
		if call.Method != "C" {
			return inner(ctx, &yodel.Call{Method: "C"})
		}
		return nil
	})
	inner = outer
	if err := outer(t.Context(), &yodel.Call{Method: "A"}); err != nil {
		t.Error(err)
	}
	inner = func(ctx context.Context, _ *yodel.Call) error { return outer(ctx, &yodel.Call{Method: "B"}) }
	checkRefused(t, "another of the two", outer(t.Context(), &yodel.Call{Method: "A"}), "YDL3201")
}

func TestUnknownMethodsDoNotFillTheMemory(t *testing.T) {
	s := yodeltest.NewServer(t, limited(limit.With(&limit.Options{Limit: 1, PerMethod: true})))
	if err := s.Handle("Limits.Report", limit.Report); err != nil {
		t.Fatal(err)
	}
	c := yodeltest.NewClient(t, nil, s)
	for n := range 900 { // as many as a connection may name
		if err := c.Call(t.Context(), fmt.Sprint("Unknown.", n), &struct{}{}, nil); !errors.Is(err, yodel.Unimplemented) {
			t.Fatal(err)
		}
	}
	c = yodeltest.NewClient(t, nil, s)
	for n := range 900 {
		if err := c.Call(t.Context(), fmt.Sprint("Unknown2.", n), &struct{}{}, nil); !errors.Is(err, yodel.Unimplemented) {
			t.Fatal(err)
		}
	}
	var stats []limit.Stats
	if err := c.Call(t.Context(), "Limits.Report", &struct{}{}, &stats); err != nil || len(stats) != 1025 {
		t.Errorf("there are %d limiters (%v)", len(stats), err)
	}
}

// What was learned, and who holds places, outlives the chain.
func TestAChainIsSwapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		first := limit.With(&limit.Options{Limit: 1, Queue: -1, Name: "all"})
		second := limit.With(&limit.Options{Limit: 2, Queue: -1, Name: "all"})
		var chain atomic.Pointer[yodel.Handler]
		s := serve(t, limited(func(next yodel.Handler) yodel.Handler {
			h := first(next)
			chain.Store(&h)
			swapped := second(next)
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Metadata["swap"] != "" {
					chain.Store(&swapped)
				}
				return (*chain.Load())(ctx, call)
			}
		}), func(context.Context) error { <-release; return nil })
		c := yodeltest.NewClient(t, nil, s)
		var wg sync.WaitGroup
		hold := func(md yodel.Metadata) {
			wg.Go(func() {
				if _, err := work.Do(context.Background(), c, &yodel.Call{Metadata: md}, &struct{}{}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		hold(nil)
		checkRefused(t, "before", call(c), "YDL3201")
		hold(yodel.Metadata{"swap": "now"})
		checkRefused(t, "after", call(c), "YDL3201") // the first one counts
		close(release)
		wg.Wait()
	})
}

func TestAPanicGivesThePlaceBack(t *testing.T) {
	for _, m := range []yodel.Middleware{limit.Concurrency(1), limit.Adaptive(&limit.Options{Initial: 1, Max: 1})} {
		h := m(func(context.Context, *yodel.Call) error { panic("on purpose") })
		for range 20 {
			func() {
				defer func() {
					if recover() == nil {
						t.Error("there was no panic")
					}
				}()
				_ = h(t.Context(), &yodel.Call{Method: "Test.Work"})
			}()
		}
	}
}

func TestOddOptionsAreMended(t *testing.T) {
	for _, m := range []yodel.Middleware{
		limit.Concurrency(-1), limit.With(nil), limit.Adaptive(nil), limit.With(&limit.Options{Limit: math.MaxInt}),
		limit.Adaptive(&limit.Options{Limit: 5, Min: 10, Max: 3, Initial: -4, Queue: -9, Interval: -1, Target: -1}),
	} {
		if err := m(func(context.Context, *yodel.Call) error { return nil })(t.Context(), &yodel.Call{Method: "Test.Work"}); err != nil {
			t.Error(err)
		}
	}
}

// A refusal is no sign of a short method: one that blocks must not run where the connection is
// read.
func TestRefusalsDoNotMakeAMethodShort(t *testing.T) {
	s := yodeltest.NewServer(t, limited(limit.With(&limit.Options{Limit: 1, Queue: -1})))
	begun, release := make(chan struct{}, 1), make(chan struct{})
	work.Handle(s.Server, func(_ context.Context, in *struct{}) (*struct{}, error) {
		begun <- struct{}{}
		<-release
		return in, nil
	})
	c := yodeltest.NewClient(t, nil, s)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := call(c); err != nil {
			t.Error(err)
		}
	})
	<-begun
	for range 1000 {
		checkRefused(t, "while it runs", call(c), "YDL3201")
	}
	close(release)
	wg.Wait()
}

func TestAPassAllocatesNothing(t *testing.T) {
	for name, m := range middlewares() {
		h := m(func(context.Context, *yodel.Call) error { return nil })
		ctx, call := context.Background(), &yodel.Call{Method: "Test.Work"}
		if n := testing.AllocsPerRun(1000, func() {
			if err := h(ctx, call); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: got %v allocations for each call, want 0", name, n)
		}
	}
}

func middlewares() map[string]yodel.Middleware {
	return map[string]yodel.Middleware{
		"fixed":      limit.Concurrency(10),
		"adaptive":   limit.Adaptive(nil),
		"per method": limit.With(&limit.Options{Limit: 10, PerMethod: true}),
	}
}

func BenchmarkPass(b *testing.B) {
	for name, m := range middlewares() {
		h := m(func(context.Context, *yodel.Call) error { return nil })
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx, call := context.Background(), &yodel.Call{Method: "Test.Work"}
			for b.Loop() {
				if err := h(ctx, call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What it costs to wait: two callers for one place.
func BenchmarkWait(b *testing.B) {
	b.ReportAllocs()
	h := limit.With(&limit.Options{Limit: 1, Target: time.Second})(func(context.Context, *yodel.Call) error { return nil })
	b.SetParallelism(2)
	b.RunParallel(func(pb *testing.PB) {
		ctx, call := context.Background(), &yodel.Call{Method: "Test.Work", Criticality: criticality.Normal}
		for pb.Next() {
			if err := h(ctx, call); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// Limiters that are told apart by PerMethod alone are two, also in one chain.
func TestTheDefaultNameSaysWhetherEachMethodHasItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limited(limit.Concurrency(1), limit.With(&limit.Options{Limit: 1, PerMethod: true})), func(context.Context) error { return nil })
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Timeout: time.Second}, s)
		for range 3 {
			if err := call(c); err != nil {
				t.Error(err) // it waits for the place that it has
			}
		}
	})
}

// Times that are meant to be for ever are.
func TestTimesWithoutEnd(t *testing.T) {
	for name, o := range map[string]limit.Options{
		"interval": {Limit: 1, Interval: math.MaxInt64},
		"target":   {Limit: 1, Target: math.MaxInt64},
		"deadline": {Limit: 1, Interval: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, nil, func(context.Context) error {
					time.Sleep(50 * time.Millisecond)
					return nil
				})
				c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{limit.With(&o)}}, s)
				if err := call(c); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // the limiter is older than what follows
				ctx, cancel := context.WithTimeout(t.Context(), math.MaxInt64)
				defer cancel()
				var wg sync.WaitGroup
				for range 5 {
					wg.Go(func() {
						if _, err := work.Call(ctx, c, &struct{}{}); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// A chain may be built anew, with other options for the same name, while calls of the old one
// begin.
func TestPerMethodMayChange(t *testing.T) {
	for range 1000 {
		var chains [2]yodel.Handler
		c := yodel.NewClient(discovery.Static("nobody"), &yodel.ClientOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
			pass := func(context.Context, *yodel.Call) error { return nil }
			for i := range chains {
				chains[i] = limit.With(&limit.Options{Limit: 1000, Name: "the one", PerMethod: i == 0})(pass)
			}
			return func(ctx context.Context, call *yodel.Call) error {
				return chains[call.Metadata["chain"][0]-'0'](ctx, call)
			}
		}}})
		do := func(chain string) {
			if err := c.Do(t.Context(), &yodel.Call{Method: "Test.Work", Metadata: yodel.Metadata{"chain": chain}}); err != nil {
				t.Error(err)
			}
		}
		do("0")
		var swapped atomic.Bool
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for !swapped.Load() {
					do("0")
				}
			})
		}
		do("1")
		swapped.Store(true)
		wg.Wait()
		c.Close()
	}
}
