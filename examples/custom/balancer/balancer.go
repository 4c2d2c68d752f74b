// SPDX-License-Identifier: Apache-2.0

// Package balancer is an example of a balancer of your own: of two random endpoints, it picks the
// one with fewer calls in flight. It counts the calls of its own client only. balance.P2C also
// counts those of other clients.
package balancer

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// region balancer

// TwoChoices is a balancer for ClientOptions.Balancer. It keeps no state of its own, so it ignores
// the previous picker.
func TwoChoices(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	return twoChoices(endpoints)
}

// twoChoices is the picker for one set of endpoints. It is never changed, so it needs no lock.
type twoChoices []*yodel.Endpoint

// Pick implements yodel.Picker.
func (all twoChoices) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(all) > 1 {
		i, j := rand.IntN(len(all)), rand.IntN(len(all)-1)
		if j >= i {
			j++ // so that the two differ
		}
		// Ask about both: Avoids also starts to connect to an endpoint that is not connected.
		if a, b := call.Attempts().Avoids(all[i]), call.Attempts().Avoids(all[j]); !a && !b {
			return idler(all[i], all[j])
		}
	}
	return all.pickOther(call)
}

// pickOther draws two of the endpoints that the call does not avoid. It looks at all endpoints, so
// Pick uses it only when a draw failed. It returns nil if the call avoids all.
func (all twoChoices) pickOther(call *yodel.Call) *yodel.Endpoint {
	var drawn [2]*yodel.Endpoint
	seen := 0
	for _, ep := range all {
		if call.Attempts().Avoids(ep) {
			continue
		}
		// The first two are drawn. A later one, the n-th, replaces either with probability 1/n.
		place := seen
		if seen++; seen > 2 {
			place = rand.IntN(seen)
		}
		if place < 2 {
			drawn[place] = ep
		}
	}
	if seen < 2 {
		return drawn[0]
	}
	return idler(drawn[0], drawn[1])
}

// idler returns the endpoint with fewer calls in flight.
func idler(a, b *yodel.Endpoint) *yodel.Endpoint {
	if b.Inflight() < a.Inflight() {
		return b
	}
	return a
}

// endregion balancer
