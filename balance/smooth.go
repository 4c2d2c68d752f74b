// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
)

// Smooth picks the endpoints in turn, each as often as its weight says (weighted round robin). It
// spreads the turns of a heavy endpoint over the cycle: weights 5, 1 and 1 give abaaaca, never
// aaaaabc. The length of a cycle is the sum of the weights divided by their greatest common
// divisor, and the counts in each cycle are exact. If a cycle would be longer than 65,536 turns,
// weights are rounded to fit.
//
// The algorithm is nginx's smooth weighted round robin (src/http/ngx_http_upstream_round_robin.c,
// 2012). There, each pick raises the current weight of every endpoint by its own weight, and lowers
// the largest by the sum, under a lock. Here the cycle is computed when weights change, so that a
// pick is one atomic addition. Endpoints of the same weight share one place in the cycle, so that
// 5,000 of them cost no more than a few. If the call avoids an endpoint, its turn passes to the
// next in the cycle.
func Smooth(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
	p := &smooth{endpoints: endpoints, weights: weightsOf(endpoints)}
	old, ok := last.(*smooth)
	switch {
	case !ok: // so that many new clients do not begin at the same endpoint
		p.next = new(atomic.Uint64)
		p.next.Store(rand.Uint64())
		p.turns = cycle(p.weights)
	case slices.Equal(old.weights, p.weights):
		p.next, p.turns = old.next, old.turns
	default:
		p.next, p.turns = old.next, cycle(p.weights)
	}
	return p
}

type smooth struct {
	endpoints []*yodel.Endpoint
	weights   []int64
	turns     []int32        // indices of endpoints
	next      *atomic.Uint64 // survives a change of the set
}

func (p *smooth) Pick(call *yodel.Call) *yodel.Endpoint {
	switch len(p.endpoints) {
	case 0:
		return nil
	case 1: // no counter, which all callers would write to
		return random(p.endpoints).Pick(call)
	}
	for range redraws {
		turn := p.turns[p.next.Add(1)%uint64(len(p.turns))]
		if ep := p.endpoints[turn]; !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return anyByWeight(call, p.endpoints, p.weights)
}

// longestCycle bounds the turns of a cycle. A cycle can be longer only because each endpoint has at
// least one turn.
const longestCycle = 1 << 16

// A class holds the endpoints of one weight.
type class struct {
	share   int64 // turns in a cycle, for each endpoint
	members []int32
	next    int
	current int64
}

// cycle returns the index of the endpoint for each turn of a cycle.
func cycle(weights []int64) []int32 {
	shares := sharesOf(weights)
	byShare := make(map[int64]*class)
	var classes []*class
	total := int64(0)
	for i, share := range shares {
		c := byShare[share]
		if c == nil {
			c = &class{share: share}
			byShare[share] = c
			classes = append(classes, c)
		}
		c.members = append(c.members, int32(i))
		total += share
	}
	slices.SortFunc(classes, func(a, b *class) int { return cmp.Compare(b.share, a.share) })
	turns := make([]int32, 0, total)
	for range total {
		largest := classes[0]
		for _, c := range classes {
			c.current += c.share * int64(len(c.members))
			if c.current > largest.current {
				largest = c
			}
		}
		largest.current -= total
		turns = append(turns, largest.members[largest.next])
		largest.next = (largest.next + 1) % len(largest.members)
	}
	return turns
}

// sharesOf returns how many turns of a cycle each weight gets.
func sharesOf(weights []int64) []int64 {
	divisor, total := int64(0), int64(0)
	for _, w := range weights {
		total += w
		for a := w; a != 0; {
			divisor, a = a, divisor%a
		}
	}
	shares := make([]int64, len(weights))
	for i, w := range weights {
		if total/divisor <= longestCycle {
			shares[i] = w / divisor
		} else {
			shares[i] = max(1, (w*longestCycle+total/2)/total)
		}
	}
	return shares
}
