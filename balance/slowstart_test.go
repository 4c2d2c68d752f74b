// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
)

func TestSlowStartGivesANewEndpointAGrowingShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0, 0, 0)
		b := balance.SlowStart(10*time.Second, balance.Random)
		p := b(all[:3], nil)
		wantShares(t, "of a client that begins", all, tally(p, 9000), 1, 1, 1, 0)
		p = b(all, p)
		share := func(s float64) []float64 { // what the new one does not get the others share
			rest := (1 - s/4) / 3
			return []float64{rest, rest, rest, s / 4}
		}
		wantShares(t, "at once", all, tally(p, 20_000), share(0.1)...)
		time.Sleep(5 * time.Second)
		wantShares(t, "after half of the time", all, tally(p, 20_000), share(0.5)...)
		p = b(all, p)
		wantShares(t, "with the next picker", all, tally(p, 20_000), share(0.5)...)
		time.Sleep(4 * time.Second)
		wantShares(t, "after most of the time", all, tally(p, 20_000), share(0.9)...)
		wantShares(t, "the others are avoided", all, tally(p, 100, all[:3]...), 0, 0, 0, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		wantShares(t, "afterwards", all, tally(p, 20_000), 1, 1, 1, 1)
	})
}

// firstOf takes the first endpoint that the call does not avoid.
func firstOf(all []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return inOrder(all) }

type inOrder []*yodel.Endpoint

func (p inOrder) Pick(call *yodel.Call) *yodel.Endpoint {
	for _, ep := range p {
		if !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return nil
}

func TestSlowStartWorksAroundBalancersWithoutChance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0, 0)
		b := balance.SlowStart(10*time.Second, firstOf)
		p := b(all, b(all[1:], nil))
		time.Sleep(3 * time.Second)
		wantShares(t, "the first one is new", all, tally(p, 9000), 0.3, 0.7, 0)
		p = b(all[:2], p)
		wantShares(t, "the last one goes", all, tally(p, 9000), 0.3, 0.7, 0)
		p = b(all[:1], p)
		wantShares(t, "only the new one is left", all, tally(p, 100), 1, 0, 0)
	})
}

func TestSlowStartGoesByWhenServersWereStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		all := enrolled(t,
			discovery.Instance{Addr: "old:1", Started: now.Add(-hour)},
			discovery.Instance{Addr: "new:1", Started: now.Add(-4 * time.Second)},
			discovery.Instance{Addr: "ahead:1", Started: now.Add(hour)}, // its clock is
		)
		p := balance.SlowStart(10*time.Second, balance.Random)(all, nil)
		wantShares(t, "of a client that begins", all, tally(p, 20_000), 1+0.3, 0.4, 1+0.3)
	})
}

func TestSlowStartHoldsNothingBackWhileAllAreNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := withLoads(t, 0, 0, 0)
		b := balance.SlowStart(10*time.Second, balance.Random)
		p := b(all, b(nil, nil))
		wantShares(t, "all are new", all, tally(p, 9000), 1, 1, 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantShares(t, "all are old", all, tally(p, 9000), 1, 1, 1)
	})
}

func TestSlowStartHandsOnWhatItsBalancerLearns(t *testing.T) {
	all := withLoads(t, 0, 0)
	if _, ok := balance.SlowStart(hour, balance.Random)(all, nil).(balance.Learner); ok {
		t.Error("it wants to learn, and Random does not")
	}
	p, ok := balance.SlowStart(hour, balance.EWMA)(all, nil).(balance.Learner)
	if !ok {
		t.Fatal("it does not want to learn, and EWMA does")
	}
	p.Ended(all[0], hour, nil)
	p.Ended(all[1], 1, nil)
	wantShares(t, "after a slow reply", all, tally(p, 100), 0, 1)
}
