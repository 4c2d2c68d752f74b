// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// held returns n servers whose calls last until release is closed, and how many each has begun.
func held(t *testing.T, n int, release <-chan struct{}) ([]*yodeltest.Server, []atomic.Int32) {
	t.Helper()
	begun := make([]atomic.Int32, n)
	var servers []*yodeltest.Server
	for i := range n {
		servers = append(servers, serve(t, nil, func(context.Context) error { begun[i].Add(1); <-release; return nil }))
	}
	return servers, begun
}

// Each endpoint has its own places; what finds none there goes to another one, at once.
func TestEachEndpointHasPlacesOfItsOwn(t *testing.T) {
	for _, n := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			servers, begun := held(t, n, release)
			c := yodeltest.NewClient(t, &yodel.ClientOptions{
				Balancer:           retry.Any, // the first, as long as it is well
				Middleware:         []yodel.Middleware{retry.With(&retry.Options{Times: 3, Share: 1})},
				EndpointMiddleware: []yodel.EndpointMiddleware{limit.PerEndpoint(&limit.Options{Limit: 2, Queue: -1})},
			}, servers...)
			if err := c.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 2 * n {
				wg.Go(func() {
					if err := call(c); err != nil {
						t.Error(err)
					}
				})
				time.Sleep(time.Second) // until it has found its place
			}
			for i := range begun {
				if got := begun[i].Load(); got != 2 {
					t.Errorf("server %d works on %d calls, want 2", i, got)
				}
			}
			_, err := work.Do(t.Context(), c, &yodel.Call{Endpoint: c.Endpoints()[0]}, &struct{}{})
			checkRefused(t, "one more", err, "YDL3201")
			if e, ok := errors.AsType[*yodel.Error](err); !ok || n > 1 && e.RetryAfter != 0 {
				t.Errorf("of %d endpoints one says to come back in %v", n, e.RetryAfter)
			}
			close(release)
			wg.Wait()
		})
	}
}

// Who holds places on an endpoint outlives the chain.
func TestAChainOfAnEndpointIsSwapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		servers, _ := held(t, 1, release)
		var swapped atomic.Bool
		c := yodeltest.NewClient(t, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			before := limit.PerEndpoint(&limit.Options{Limit: 2, Queue: -1})(ep, next)
			after := limit.PerEndpoint(&limit.Options{Limit: 2, Queue: -1})(ep, next)
			return func(ctx context.Context, call *yodel.Call) error {
				if swapped.Load() {
					return after(ctx, call)
				}
				return before(ctx, call)
			}
		}}}, servers...)
		var wg sync.WaitGroup
		hold := func() {
			wg.Go(func() {
				if err := call(c); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		hold()
		swapped.Store(true)
		hold()
		checkRefused(t, "a third", call(c), "YDL3201")
		close(release)
		wg.Wait()
	})
}

// A stream that has to wait for its place has the class of its call.
func TestCriticalStreamsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, limited(limit.With(&limit.Options{Limit: 1, Queue: 2, Interval: time.Hour, Streams: true})))
		var mu sync.Mutex
		var order []int
		count.Handle(s.Server, func(ctx context.Context, _ *struct{}, send yodel.Send[int]) error {
			mu.Lock()
			order = append(order, yodel.CallFrom(ctx).Criticality)
			mu.Unlock()
			err := send(new(int))
			time.Sleep(time.Minute)
			return err
		})
		c := yodeltest.NewClient(t, nil, s)
		var wg sync.WaitGroup
		for _, class := range []int{criticality.Normal, criticality.Batch, criticality.Sheddable, criticality.Critical} {
			wg.Go(func() {
				var last error
				for _, err := range count.Do(context.Background(), c, &yodel.Call{Criticality: class}, &struct{}{}) {
					last = err
				}
				if class == criticality.Batch {
					checkRefused(t, "what makes room", last, "YDL3201")
				} else if last != nil {
					t.Error(last)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if fmt.Sprint(order) != "[0 1 -1]" {
			t.Errorf("they ran in the order %v", order)
		}
	})
}

func TestAPassOnAnEndpointAllocatesNothing(t *testing.T) {
	servers, _ := held(t, 1, nil)
	c := yodeltest.NewClient(t, nil, servers...)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]*limit.Options{"fixed": {Limit: 10}, "adaptive": nil, "per method": {Limit: 10, PerMethod: true}} {
		h := limit.PerEndpoint(o)(c.Endpoints()[0], func(context.Context, *yodel.Call) error { return nil })
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
