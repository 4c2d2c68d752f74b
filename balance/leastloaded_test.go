// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
	"math"
	"net"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
)

func TestLeastLoadedTakesTheLeastLoaded(t *testing.T) {
	all := withLoads(t, 5, 2, 9, 2, 2, 3)
	p := balance.LeastLoaded(all, nil)
	wantShares(t, "ties", all, tally(p, 3000), 0, 1, 0, 1, 1, 0)
	wantShares(t, "one of them is avoided", all, tally(p, 3000, all[1]), 0, 0, 0, 1, 1, 0)
	wantShares(t, "all of them are avoided", all, tally(p, 300, all[1], all[3], all[4]), 0, 0, 0, 0, 0, 1)
	all[3].SetReady("test", false)
	wantShares(t, "one is not ready", all, tally(p, 3000), 0, 1, 0, 0, 1, 0)
}

func TestLeastLoadedSamplesMany(t *testing.T) {
	loads := make([]int, 100)
	for i := range loads {
		loads[i] = i
	}
	all := withLoads(t, loads...)
	const picks = 5000
	counts := tally(balance.LeastLoaded(all, nil), picks)
	sum, busier := 0, 0
	for ep, n := range counts {
		sum += ep.Load() * n
		if ep.Load() >= 50 {
			busier += n
		}
	}
	// The least of 16 of 0 to 99 is 5.4 on average, with a deviation of 5.4; one of the busier half
	// with a chance of 1 in 65,536.
	if mean := float64(sum) / picks; mean < 4.9 || mean > 6 {
		t.Errorf("the mean load of those picked is %.2f, want about 5.4", mean)
	}
	if busier > 6 {
		t.Errorf("%d of %d picks went to the busier half", busier, picks)
	}
}

// What a registry says of the load may be nonsense.
func TestALoadThatCannotBe(t *testing.T) {
	f := newFleetOn(t, newWorks(t), balance.LeastLoaded)
	records := instances(3)
	records[0].Inflight, records[1].Inflight, records[2].Inflight = math.MinInt, math.MaxInt, 1
	all := f.become(records...)
	newWorkload(t, f).add(all[1], "")
	if n := all[0].Load(); n != 0 {
		t.Errorf("a negative load counts as %d", n)
	}
	if n := all[1].Load(); n <= math.MaxInt32 {
		t.Errorf("the largest load and a call count as %d", n)
	}
}

// An endpoint that lets nobody connect gets its share of the calls until that is certain, and not
// all of them.
func TestCallsThatWaitForAConnectionCount(t *testing.T) {
	for name, b := range map[string]yodel.Balancer{
		"LeastLoaded": balance.LeastLoaded, "P2C": balance.P2C, "ActiveWeight": balance.ActiveWeight, "EWMA": balance.EWMA,
	} {
		t.Run(name, func(t *testing.T) {
			const calls = 20
			w := hangsFirst{newWorks(t)}
			f := newFleetWith(t, &yodel.ClientOptions{Transport: w, Balancer: b, DialTimeout: time.Minute})
			f.stays = w.stays
			all := f.become(instances(2)...)
			work := newWorkload(t, f)
			work.add(all[1], "") // that one is connected
			inflight := func() int { return all[0].Inflight() + all[1].Inflight() }
			for n := 2; n <= calls; n++ {
				in := 0
				work.wg.Go(func() { f.client.Do(work.ctx, &yodel.Call{Method: string(stay), Args: &in, Reply: new(int)}) })
				work.until("the call waits, or is in flight", func() bool { return inflight() == n })
			}
			if n := all[1].Inflight(); n < calls/2 {
				t.Errorf("the one that is connected has %d calls of %d", n, calls)
			}
			work.cancel()
			work.until("no call is open", func() bool { return inflight() == 0 })
		})
	}
}

// hangsFirst is a works to whose first address nobody can connect, which takes a while to find out.
type hangsFirst struct{ works }

func (h hangsFirst) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if addr == "cart-1:8972" {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return h.works.Dial(ctx, addr)
}
