// SPDX-License-Identifier: Apache-2.0

package rate_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A fleet is servers that count what they execute, and a client of them.
type fleet struct {
	*yodel.Client

	executed []atomic.Int32
}

func newFleet(t *testing.T, n int, o *yodel.ClientOptions) *fleet {
	t.Helper()
	f := &fleet{executed: make([]atomic.Int32, n)}
	var servers []*yodeltest.Server
	for i := range n {
		s := yodeltest.NewServer(t, nil)
		work.Handle(s.Server, func(context.Context, *struct{}) (*struct{}, error) { f.executed[i].Add(1); return nil, nil })
		servers = append(servers, s)
	}
	f.Client = yodeltest.NewClient(t, o, servers...)
	must(t, f.Ready(t.Context()))
	return f
}

// on makes a call on an endpoint.
func (f *fleet) on(t *testing.T, i int, call *yodel.Call) error {
	t.Helper()
	call.Endpoint = f.Endpoints()[i]
	_, err := work.Do(t.Context(), f, call, &struct{}{})
	return err
}

// passed counts the calls on an endpoint until one is refused.
func (f *fleet) passed(t *testing.T, i int, tenant string) int {
	t.Helper()
	for n := range 100 {
		if err := f.on(t, i, &yodel.Call{Tenant: tenant}); err != nil {
			if !errors.Is(err, yodel.ResourceExhausted) {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("nothing was refused")
	return 0
}

func endpoints(ms ...yodel.EndpointMiddleware) *yodel.ClientOptions {
	return &yodel.ClientOptions{EndpointMiddleware: ms}
}

func TestEachEndpointHasALimitOfItsOwn(t *testing.T) {
	for _, n := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			l := rate.PerEndpoint(&rate.Limit{PerSecond: 2, Burst: 4})
			f, other := newFleet(t, n, endpoints(l)), newFleet(t, 1, endpoints(l))
			for i := range n {
				if got := f.passed(t, i, ""); got != 4 {
					t.Errorf("%d calls passed on endpoint %d, want 4", got, i)
				}
				err := f.on(t, i, &yodel.Call{})
				e, ok := errors.AsType[*yodel.Error](err)
				if !ok || e.ID != "YDL3301" || !e.NotProcessed || !strings.Contains(e.Message, " at "+f.Endpoints()[i].Addr()+" is used up") {
					t.Errorf("got %v", err)
				}
				if want := 500 * time.Millisecond; n == 1 && e.RetryAfter != want || n > 1 && e.RetryAfter != 0 {
					t.Errorf("of %d endpoints one says to come back in %v", n, e.RetryAfter)
				}
			}
			if got := other.passed(t, 0, ""); got != 4 {
				t.Errorf("%d calls of another client passed, want 4", got)
			}
			time.Sleep(time.Second)
			if got := f.passed(t, n-1, ""); got != 2 {
				t.Errorf("%d calls passed after a second, want 2", got)
			}
			if got := f.executed[0].Load(); n > 1 && got != 4 {
				t.Errorf("the first server has executed %d calls, want 4", got)
			}
		})
	}
}

func TestWhatOneEndpointMayNotTakeGoesToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := endpoints(rate.PerEndpoint(&rate.Limit{PerSecond: 0.001, Burst: 5}))
		o.Balancer = retry.Any // the first, as long as it is well
		o.Middleware = []yodel.Middleware{retry.With(&retry.Options{Times: 3, Share: 1})}
		f := newFleet(t, 3, o)
		began := time.Now()
		for range 15 {
			_, err := work.Call(t.Context(), f, &struct{}{})
			must(t, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("15 calls took %v: somebody has waited for a limit", took)
		}
		for i := range f.executed {
			if n := f.executed[i].Load(); n != 5 {
				t.Errorf("server %d has executed %d calls, want 5", i, n)
			}
		}
		_, err := work.Call(t.Context(), f, &struct{}{})
		if !errors.Is(err, yodel.ResourceExhausted) || !yodel.NotProcessed(err) {
			t.Errorf("got %v", err)
		}
	})
}

// The counts are the endpoint's: a chain that is built anew finds them, by the PerEndpoint or by
// the name.
func TestTheCountsOfAnEndpointOutliveItsChain(t *testing.T) {
	plain := rate.PerEndpoint(&rate.Limit{PerSecond: 1, Burst: 4})
	named := func(l rate.Limit) yodel.EndpointMiddleware {
		l.Name, l.PerSecond, l.Burst = "all", 1, 4
		return rate.PerEndpoint(&l)
	}
	for _, test := range []struct {
		name          string
		before, after yodel.EndpointMiddleware
		want          int // calls that pass after three have
	}{
		{"the same", plain, plain, 1},
		{"another one", plain, rate.PerEndpoint(&rate.Limit{PerSecond: 1, Burst: 4}), 4},
		{"the same name", named(rate.Limit{}), named(rate.Limit{Wait: time.Millisecond}), 1},
		{"the same name, with keys", named(rate.Limit{}), named(rate.Limit{By: rate.Tenant}), 1},
		{"the same name, without keys", named(rate.Limit{By: rate.Tenant}), named(rate.Limit{}), 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var swapped atomic.Bool
				f := newFleet(t, 1, endpoints(func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
					before, after := test.before(ep, next), test.after(ep, next)
					return func(ctx context.Context, call *yodel.Call) error {
						if swapped.Load() {
							return after(ctx, call)
						}
						return before(ctx, call)
					}
				}))
				for range 3 {
					must(t, f.on(t, 0, &yodel.Call{}))
				}
				swapped.Store(true)
				if got := f.passed(t, 0, ""); got != test.want {
					t.Errorf("%d calls passed, want %d", got, test.want)
				}
			})
		})
	}
}

func TestAnEndpointsLimitMayHaveKeysAndAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, endpoints(rate.PerEndpoint(&rate.Limit{PerSecond: 0.001, Burst: 3, By: rate.Tenant})))
		for i := range 2 {
			for _, tenant := range []string{"blue", "green"} {
				if got := f.passed(t, i, tenant); got != 3 {
					t.Errorf("%d calls of %s passed on endpoint %d, want 3", got, tenant, i)
				}
			}
		}

		// Two processes with two endpoints each, and a store.
		store := rate.NewMemory(0)
		o := func() *yodel.ClientOptions {
			return endpoints(rate.PerEndpoint(&rate.Limit{Name: "all", PerSecond: 0.001, Burst: 6, Batch: 1, Store: store}))
		}
		server := yodeltest.NewServer(t, nil)
		work.Handle(server.Server, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
		another := yodeltest.NewServer(t, nil)
		work.Handle(another.Server, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
		a, b := &fleet{Client: yodeltest.NewClient(t, o(), server, another)}, &fleet{Client: yodeltest.NewClient(t, o(), server, another)}
		must(t, errors.Join(a.Ready(t.Context()), b.Ready(t.Context())))
		for range 2 {
			must(t, a.on(t, 0, &yodel.Call{}))
		}
		if got := b.passed(t, 0, ""); got != 4 {
			t.Errorf("%d calls of the second process passed on the first endpoint, want 4", got)
		}
		if got := b.passed(t, 1, ""); got != 6 {
			t.Errorf("%d calls passed on the second endpoint, want 6", got)
		}
	})
}

func TestNoLimitPerEndpoint(t *testing.T) {
	f := newFleet(t, 1, endpoints(rate.PerEndpoint(nil), rate.PerEndpoint(&rate.Limit{PerSecond: -1})))
	for range 100 {
		must(t, f.on(t, 0, &yodel.Call{}))
	}
}

func TestPassingOnAnEndpointAllocatesNothing(t *testing.T) {
	ep := newFleet(t, 1, nil).Endpoints()[0]
	for name, l := range limits() {
		h := rate.PerEndpoint(l)(ep, pass)
		ctx, call := context.Background(), &yodel.Call{Method: "Test.Work", Tenant: "acme", Metadata: yodel.Metadata{"user": "x"}}
		if n := testing.AllocsPerRun(1000, func() { must(t, h(ctx, call)) }); n >= 1 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// A stream counts once, against the limit of its tenant, and sends nothing when it is refused.
func TestAStreamCountsOnce(t *testing.T) {
	const upload yodel.Upload[int, int] = "Test.Upload"
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{rate.With(&rate.Limit{PerSecond: 0.001, Burst: 2, By: rate.Tenant})}})
		upload.Handle(s.Server, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
			n := 0
			for _, err := range recv {
				if err != nil {
					return nil, err
				}
				n++
			}
			return &n, nil
		})
		c := yodeltest.NewClient(t, nil, s)
		for _, tenant := range []string{"blue", "green"} {
			for i := range 3 {
				ran := false
				n, err := upload.Do(t.Context(), c, &yodel.Call{Tenant: tenant}, func(send yodel.Send[int]) error {
					ran = true
					for i := range 50 {
						if err := send(&i); err != nil {
							return err
						}
					}
					return nil
				})
				if i < 2 {
					must(t, err)
					if *n != 50 {
						t.Errorf("%d messages have come, want 50", *n)
					}
					continue
				}
				if refusal(t, err); ran {
					t.Errorf("the third stream of %s has begun", tenant)
				}
			}
		}
	})
}
