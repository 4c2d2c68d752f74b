// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/balance"
)

// The k-th least loaded of n is taken when the other one drawn is one of the n-k that have more to
// do.
func TestP2CTakesTheLessLoadedOfTwo(t *testing.T) {
	all := withLoads(t, 40, 10, 30, 0, 20)
	p := balance.P2C(all, nil)
	wantShares(t, "of five", all, tally(p, 20_000), 0, 3, 1, 4, 2)
	wantShares(t, "of four", all, tally(p, 20_000, all[3]), 0, 3, 1, 0, 2)
	wantShares(t, "of one", all, tally(p, 100, all[1], all[2], all[3], all[4]), 1, 0, 0, 0, 0)
	all[1].SetReady("test", false)
	wantShares(t, "one is not ready", all, tally(p, 20_000), 0, 0, 1, 3, 2)
}
