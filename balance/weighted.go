// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"
	"slices"

	"github.com/yodel-rpc/yodel"
)

// Weighted picks any endpoint with a probability proportional to its weight. A pick takes the same
// short time for any number of endpoints. New weights apply from the next pick.
//
// The algorithm is the alias method as M. D. Vose builds it: "A linear algorithm for generating
// random numbers with a given distribution" (1991). Its table consists of integers, so the
// probabilities are exact.
func Weighted(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
	p := &weighted{endpoints: endpoints, weights: weightsOf(endpoints)}
	if old, ok := last.(*weighted); ok && slices.Equal(old.weights, p.weights) {
		p.total, p.aliases = old.total, old.aliases
	} else {
		p.makeAliases()
	}
	return p
}

type weighted struct {
	endpoints []*yodel.Endpoint
	weights   []int64
	total     int64
	aliases   []alias
}

// An alias is one of n columns of equal height, for n endpoints. The lower part of column i belongs
// to endpoint i, and the rest to one other endpoint.
type alias struct {
	height int64 // of the lower part, of total
	other  int
}

// makeAliases fills the columns of small endpoints with the excess of large ones.
func (p *weighted) makeAliases() {
	n := int64(len(p.weights))
	p.aliases = make([]alias, n)
	for _, w := range p.weights {
		p.total += w
	}
	var small, large []int
	for i, w := range p.weights {
		p.aliases[i] = alias{height: w * n, other: i}
		if w*n < p.total {
			small = append(small, i)
		} else {
			large = append(large, i)
		}
	}
	for len(small) > 0 { // then there is a large one, because the average height is total
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		p.aliases[s].other = l
		p.aliases[l].height -= p.total - p.aliases[s].height
		if p.aliases[l].height < p.total {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
}

func (p *weighted) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p.endpoints) == 0 {
		return nil
	}
	for range redraws {
		i := rand.IntN(len(p.aliases))
		if a := p.aliases[i]; rand.Int64N(p.total) >= a.height {
			i = a.other
		}
		if ep := p.endpoints[i]; !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return anyByWeight(call, p.endpoints, p.weights)
}

// redraws is how many draws a picker makes before it scans all endpoints for one that the call does
// not avoid.
const redraws = 4

// anyByWeight picks any endpoint that the call does not avoid, with a probability proportional to
// its weight.
func anyByWeight(call *yodel.Call, endpoints []*yodel.Endpoint, weights []int64) *yodel.Endpoint {
	var picked *yodel.Endpoint
	total := int64(0)
	for i, ep := range endpoints {
		if call.Attempts().Avoids(ep) {
			continue
		}
		total += weights[i]
		if rand.Int64N(total) < weights[i] {
			picked = ep
		}
	}
	return picked
}

// weightsOf returns the weights of endpoints: at least 1, and so small that sums and products of
// many do not overflow.
func weightsOf(endpoints []*yodel.Endpoint) []int64 {
	const largest = 1 << 30
	weights := make([]int64, len(endpoints))
	for i, ep := range endpoints {
		weights[i] = int64(min(max(ep.Instance().Weight, 1), largest))
	}
	return weights
}
