// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// ActiveWeight takes, of up to ten neighbours that begin anywhere in the set and that the call does
// not avoid, one that is working on the fewest calls of this client. It is as cheap for thousands
// of endpoints as for ten. Weights are not looked at.
//
// The algorithm is that of Motan's default, ActiveWeightLoadBalance ("low concurrency first"), with
// one change: of several that work on equally few calls any is taken, where Motan takes the first,
// so that an idle client does not send what an endpoint that is not ready would get to its
// neighbour.
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
		if call.Avoids(ep) {
			continue
		}
		seen++
		n := ep.Inflight()
		switch {
		case picked == nil || n < fewest:
			picked, fewest, same = ep, n, 1
		case n == fewest:
			if same++; rand.IntN(same) == 0 { // each of them with the same chance
				picked = ep
			}
		}
	}
	return picked
}
