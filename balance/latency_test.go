// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
)

func TestLowestLatencySharesAmongTheNearest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0, 0, 0, 0)
		trips := make(map[*yodel.Endpoint]time.Duration)
		set := func(ms ...float64) {
			for i, ep := range all {
				trips[ep] = time.Duration(ms[i] * float64(time.Millisecond))
			}
		}
		set(10, 14, 16, 2000, 0)
		p := balance.LowestLatencyBy(func(ep *yodel.Endpoint) time.Duration { return trips[ep] })(all, nil)
		wantShares(t, "within half, and unknown", all, tally(p, 9000), 1, 1, 0, 0, 1)
		wantShares(t, "one is avoided", all, tally(p, 9000, all[0]), 0, 1, 0, 0, 1)
		wantShares(t, "the near ones are avoided", all, tally(p, 100, all[0], all[1], all[4]), 0, 0, 1, 0, 0)

		set(10, 14, 16, 0.1, 0.5) // the first second it does not look
		wantShares(t, "before it looks again", all, tally(p, 9000), 1, 1, 0, 0, 1)
		time.Sleep(time.Second)
		wantShares(t, "within the margin", all, tally(p, 9000), 0, 0, 0, 1, 1)
		set(0, 0, 0, 0, 0)
		time.Sleep(time.Second)
		wantShares(t, "nothing is known", all, tally(p, 9000), 1, 1, 1, 1, 1)
	})
}

// A look at the round trips that lasts until the next one is due must not meet that one: what both
// note together can mean that nobody is near.
func TestLowestLatencyLooksOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0)
		var slow, quick atomic.Bool
		proceed := make(chan struct{})
		p := balance.LowestLatencyBy(func(ep *yodel.Endpoint) time.Duration {
			switch {
			case quick.Load():
				return time.Second
			case slow.Load() && ep == all[1]:
				<-proceed
				return 500 * time.Millisecond
			}
			return time.Millisecond
		})(all, nil)
		time.Sleep(time.Second)
		slow.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() { p.Pick(&yodel.Call{}) })
		synctest.Wait()
		time.Sleep(time.Second)
		quick.Store(true)
		p.Pick(&yodel.Call{})
		quick.Store(false)
		close(proceed)
		wg.Wait()
		wantShares(t, "afterwards", all, tally(p, 100), 1, 0)
	})
}
