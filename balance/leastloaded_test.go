// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"testing"

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
	// The least of 16 of 0 to 99 is 5.4 on average, with a deviation of 5.4; one of the busier half with a chance of 1 in 65,536.
	if mean := float64(sum) / picks; mean < 4.9 || mean > 6 {
		t.Errorf("the mean load of those picked is %.2f, want about 5.4", mean)
	}
	if busier > 6 {
		t.Errorf("%d of %d picks went to the busier half", busier, picks)
	}
}
