// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
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
func learner(all []*yodel.Endpoint, took ...time.Duration) yodel.Learner {
	p := balance.EWMA(all, nil).(yodel.Learner)
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
		const Work yodel.Method[yodel.Empty, yodel.Empty] = "Work"
		var mu sync.Mutex
		calls := make([]int, 3)
		servers := make([]*yodeltest.Server, 3)
		for i := range servers {
			servers[i] = yodeltest.NewServer(t, nil)
			takes := time.Millisecond
			if i == 1 {
				takes = 50 * time.Millisecond
			}
			Work.Handle(servers[i].Server, func(context.Context, *yodel.Empty) (*yodel.Empty, error) {
				mu.Lock()
				calls[i]++
				mu.Unlock()
				time.Sleep(takes)
				return &yodel.Empty{}, nil
			})
		}
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Balancer: balance.EWMA}, servers...)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 300 {
					if _, err := Work.Call(t.Context(), c, &yodel.Empty{}); err != nil {
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
