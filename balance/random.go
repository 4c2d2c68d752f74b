// SPDX-License-Identifier: Apache-2.0

// Package balance has the balancers, which choose among the instances of a service. Each function
// is a yodel.Balancer, or returns one.
package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// Random picks any endpoint, each with the same probability.
func Random(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return random(endpoints) }

type random []*yodel.Endpoint

func (p random) Pick(call *yodel.Call) *yodel.Endpoint {
	var picked *yodel.Endpoint
	if len(p) > 0 {
		picked = p[rand.IntN(len(p))]
	}
	if picked == nil || !call.Attempts().Avoids(picked) {
		return picked
	}
	picked = nil
	left := 0
	for _, ep := range p {
		if !call.Attempts().Avoids(ep) {
			left++
			if rand.IntN(left) == 0 { // each remaining endpoint is picked with the same probability
				picked = ep
			}
		}
	}
	return picked
}
