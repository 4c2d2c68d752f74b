// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const hour = time.Hour

// learner returns an EWMA of endpoints whose replies have taken this long.
func learner(all []*yodel.Endpoint, took ...time.Duration) balance.Learner {
	p := balance.EWMA(all, nil).(balance.Learner)
	for i, d := range took {
		p.Ended(all[i], d, nil)
	}
	return p
}

func TestEWMATakesTheFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0, 0)
		p := learner(all, time.Millisecond, 4*time.Millisecond, 2*time.Millisecond)
		wantShares(t, "by their times", all, tally(p, 9000), 2, 0, 1)
		next := balance.EWMA(all[:2], p)
		wantShares(t, "the next picker", all[:2], tally(next, 100), 1, 0)
		wantShares(t, "the faster is avoided", all, tally(p, 100, all[0]), 0, 0, 1)
	})
}

func TestEWMATriesTheUnmeasuredFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0, 0)
		p := learner(all, time.Millisecond, time.Millisecond)
		wantShares(t, "one of three was not measured", all, tally(p, 9000), 1, 1, 4)
	})
}

func TestEWMAFollowsAPeakAtOnceAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0)
		p := learner(all, time.Millisecond, time.Millisecond)
		p.Ended(all[1], 100*time.Millisecond, nil)
		wantShares(t, "after a slow reply", all, tally(p, 100), 1, 0)
		for range 40 { // 0.1 s is 1 ms after 46 s
			time.Sleep(time.Second)
			p.Ended(all[0], time.Millisecond, nil)
		}
		wantShares(t, "after 40 s", all, tally(p, 100), 1, 0)
		for range 10 {
			time.Sleep(time.Second)
			p.Ended(all[0], time.Millisecond, nil)
		}
		wantShares(t, "after 50 s", all, tally(p, 100), 0, 1)
		for range 40 { // it is measured again, and as fast as the other
			time.Sleep(time.Second)
			for _, ep := range all {
				p.Ended(ep, time.Millisecond, nil)
			}
		}
		p.Ended(all[0], 1010*time.Microsecond, nil)
		p.Ended(all[1], 1010*time.Microsecond, nil)
		wantShares(t, "when both are fast", all, tally(p, 1000), 1, 1)
	})
}

func TestEWMATakesFailuresForSlow(t *testing.T) {
	for code, shares := range map[yodel.Code][]float64{
		yodel.Unavailable:       {1, 0},
		yodel.ResourceExhausted: {1, 0},
		yodel.Internal:          {1, 0},
		yodel.NotFound:          {0, 1}, // the handler's answer, and a fast one
		yodel.Canceled:          {1, 1}, // nobody waited: that says nothing
	} {
		synctest.Test(t, func(t *testing.T) {
			all := withLoads(t, 0, 0)
			p := learner(all, time.Millisecond, time.Millisecond)
			time.Sleep(time.Second)
			p.Ended(all[0], time.Millisecond, nil)
			if code == yodel.Canceled {
				p.Ended(all[1], time.Millisecond, nil)
			}
			p.Ended(all[1], time.Microsecond, yodel.Errorf(code, "failed at once"))
			wantShares(t, code.String(), all, tally(p, 1000), shares...)
			p.Ended(all[1], time.Minute, yodel.Errorf(yodel.Canceled, "given up after a minute"))
			wantShares(t, code.String()+", and given up", all, tally(p, 100), 1, 0)
		})
	}
}

// A server that becomes slow keeps few of the calls, whoever makes them.
func TestEWMALeavesASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const Work yodel.Method[struct{}, struct{}] = "Work"
		var mu sync.Mutex
		calls := make([]int, 3)
		servers := make([]*yodeltest.Server, 3)
		for i := range servers {
			servers[i] = yodeltest.NewServer(t, nil)
			takes := time.Millisecond
			if i == 1 {
				takes = 50 * time.Millisecond
			}
			Work.Handle(servers[i].Server, func(context.Context, *struct{}) (*struct{}, error) {
				mu.Lock()
				calls[i]++
				mu.Unlock()
				time.Sleep(takes)
				return &struct{}{}, nil
			})
		}
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Balancer: balance.EWMA}, servers...)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 300 {
					if _, err := Work.Call(t.Context(), c, &struct{}{}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if calls[1] > 300 || calls[0] < 1000 || calls[2] < 1000 {
			t.Errorf("the calls went %v, want few to the second one, which is slow", calls)
		}
	})
}

// One that was not measured yet and works on a call gets no other, however slow the rest is.
func TestEWMAWaitsForTheFirstReply(t *testing.T) {
	f := newFleetOn(t, newWorks(t), balance.Random) // which does not learn from what connects it
	all := f.become(instances(3)...)
	connect(t, f.client)
	p := learner(all, 2*time.Second, 3*time.Second)
	newWorkload(t, f).add(all[2], "")
	if n := tally(p, 1000)[all[2]]; n > 1 { // it may be tried once, when nobody has for long
		t.Errorf("it gets %d calls of 1000 beside its first", n)
	}
}

// A stream has no reply: an endpoint that has nothing but streams open is tried all the same.
func TestEWMATriesAnEndpointThatHasStreamsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const Watch yodel.Method[struct{}, struct{}] = "Watch"
		servers := make([]*yodeltest.Server, 2)
		for i := range servers {
			servers[i] = yodeltest.NewServer(t, nil)
			Watch.Handle(servers[i].Server, func(ctx context.Context, _ *struct{}) (*struct{}, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})
		}
		c := yodeltest.NewClient(t, nil, servers...)
		synctest.Wait()
		connect(t, c)
		all := c.Endpoints()
		p := learner(all, time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { Watch.Do(ctx, c, &yodel.Call{Endpoint: all[1]}, &struct{}{}) })
		synctest.Wait()
		if all[1].Inflight() != 1 {
			t.Fatal("nothing is in flight")
		}
		for range 3 {
			time.Sleep(11 * time.Second)
			p.Ended(all[0], time.Millisecond, nil)
			if n := tally(p, 100)[all[1]]; n != 1 {
				t.Errorf("within 11 s it is tried %d times, want once", n)
			}
		}
		p.Ended(all[1], time.Microsecond, nil)
		wantShares(t, "when it has been measured", all, tally(p, 100), 0, 1)
	})
}

func TestEWMAForgetsAlsoWhenNothingHappensForWeeks(t *testing.T) {
	for _, days := range []int{1, 20, 25, 30, 49} {
		synctest.Test(t, func(t *testing.T) {
			all := withLoads(t, 0, 0)
			p := learner(all, time.Millisecond, 10*time.Second)
			time.Sleep(time.Duration(days) * 24 * time.Hour)
			wantShares(t, fmt.Sprintf("after %d days", days), all, tally(p, 1000), 1, 1)
			p.Ended(all[0], 2*time.Millisecond, nil)
			p.Ended(all[1], time.Millisecond, nil)
			wantShares(t, fmt.Sprintf("measured again after %d days", days), all, tally(p, 100), 0, 1)
		})
	}
}
