// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// ActiveWeight picks, among up to ten consecutive endpoints from a random position, one with the
// fewest calls of this client in flight. It ignores endpoints that the call avoids. Thousands of
// endpoints cost no more than ten. It does not use weights.
//
// The algorithm is that of Motan's default, ActiveWeightLoadBalance ("low concurrency first"), with
// one change. Among endpoints with equally few calls it picks any, while Motan picks the first. So
// an idle client does not send all calls of an endpoint that is not ready to its neighbor.
func ActiveWeight(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	return activeWeight(endpoints)
}

type activeWeight []*yodel.Endpoint

// activeWindow is Motan's MAX_REFERER_COUNT.
const activeWindow = 10

func (p activeWeight) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p) == 0 {
		return nil
	}
	var picked *yodel.Endpoint
	fewest, same, seen := 0, 0, 0
	for i, at := 0, rand.IntN(len(p)); i < len(p) && seen < activeWindow; i, at = i+1, at+1 {
		if at == len(p) {
			at = 0
		}
		ep := p[at]
		if call.Attempts().Avoids(ep) {
			continue
		}
		seen++
		n := ep.Inflight()
		switch {
		case picked == nil || n < fewest:
			picked, fewest, same = ep, n, 1
		case n == fewest:
			if same++; rand.IntN(same) == 0 { // each of them with the same probability
				picked = ep
			}
		}
	}
	return picked
}
