// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
)

func TestPanicIgnoresReadinessWhenFewAreReady(t *testing.T) {
	all := withLoads(t, make([]int, 6)...)
	p := balance.Panic(0.5, balance.Random)(all, nil)
	for _, ep := range all[3:] {
		ep.SetReady("test", false)
	}
	wantShares(t, "half is ready", all, tally(p, 6000), 1, 1, 1, 0, 0, 0)
	all[2].SetReady("test", false)
	wantShares(t, "a third is ready", all, tally(p, 6000), 1, 1, 1, 1, 1, 1)
	wantShares(t, "and two are avoided", all, tally(p, 6000, all[0], all[5]), 0, 1, 1, 1, 1, 0)
	next := balance.Panic(0.5, balance.Random)(all[:5], p)
	wantShares(t, "two of five are ready", all[:5], tally(next, 6000), 1, 1, 1, 1, 1)
	all[5].SetReady("test", true)
	wantShares(t, "half is ready again", all, tally(p, 6000), 1, 1, 0, 0, 0, 1)
}

// Of many endpoints not every pick counts.
func TestPanicOfManyEndpoints(t *testing.T) {
	all := withLoads(t, make([]int, 200)...)
	p := balance.Panic(0.5, balance.Random)(all, nil)
	for _, ep := range all[40:] {
		ep.SetReady("test", false)
	}
	picks := func() (unready int) {
		for range 1000 { // a pick counts with a chance of 0.16
			if !p.Pick(&yodel.Call{}).Ready() {
				unready++
			}
		}
		return unready
	}
	if n := picks(); n < 500 {
		t.Errorf("%d of 1000 picks took one of the 160 of 200 that are not ready", n)
	}
	for _, ep := range all[40:] {
		ep.SetReady("test", true)
	}
	picks()
	all[0].SetReady("test", false)
	if n := picks(); n > 0 {
		t.Errorf("%d picks took the only one that is not ready", n)
	}
}

func TestPanicHandsOnWhatItsBalancerLearns(t *testing.T) {
	all := withLoads(t, 0, 0)
	if _, ok := balance.Panic(0.5, balance.Random)(all, nil).(balance.Learner); ok {
		t.Error("it wants to learn, and Random does not")
	}
	p, ok := balance.Panic(0.5, balance.EWMA)(all, nil).(balance.Learner)
	if !ok {
		t.Fatal("it does not want to learn, and EWMA does")
	}
	p.Ended(all[0], hour, nil)
	p.Ended(all[1], 1, nil)
	wantShares(t, "after a slow reply", all, tally(p, 100), 0, 1)
}
