// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"slices"

	"github.com/yodel-rpc/yodel"
)

// Maglev sends calls for which by returns the same number to the same endpoint in every client, as
// Ketama does, because endpoints are placed by their addresses. A pick is a single table lookup and
// so faster than Ketama's. Shares are much more even: they follow the weights to within one slot of
// the table's 65,537. In return, one or two percent of the other keys move too when an endpoint
// comes or goes. A weight below a hundredth of the largest counts as a hundredth. If the call
// avoids the endpoint of its key, the endpoint of the next slot gets it, in all clients.
//
// The algorithm is that of "Maglev: A Fast and Reliable Software Network Load Balancer" (Eisenbud
// and others, 2016), section 3.4, with weights as in Envoy: an endpoint takes a turn in a part of
// the rounds that is its weight divided by the largest. The table is rebuilt when the set or the
// weights change.
func Maglev(by func(*yodel.Call) uint64) yodel.Balancer {
	if by == nil {
		panic("balance: Maglev with a nil function")
	}
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		weights := weightsOf(endpoints)
		if old, ok := last.(*maglev); ok && old.is(endpoints, weights) {
			return old
		}
		p := &maglev{by: by, set: set{endpoints, weights}, members: membersOf(endpoints)}
		for i := range p.members {
			p.members[i].weight = weights[i]
		}
		slices.SortFunc(p.members, func(a, b member) int { return cmp.Compare(a.addr, b.addr) })
		if len(endpoints) > 0 {
			p.fill()
		}
		return p
	}
}

type maglev struct {
	set

	by      func(*yodel.Call) uint64
	members members
	table   []int32 // indices of members
}

// maglevSize is a prime number, the smaller one of the paper.
const maglevSize = 65537

// fill fills the table: in turn, each member takes the first free slot of its own permutation.
func (p *maglev) fill() {
	type turn struct{ slot, skip, weight, credit int64 }
	turns := make([]turn, len(p.members))
	largest := slices.Max(p.weights)
	for i, m := range p.members {
		turns[i] = turn{
			slot:   int64(m.hash % maglevSize),
			skip:   int64(mix(m.hash)%(maglevSize-1)) + 1,
			weight: max(m.weight, (largest+99)/100),
		}
	}
	p.table = slices.Repeat([]int32{-1}, maglevSize)
	for taken := 0; taken < maglevSize; {
		for i := range turns {
			t := &turns[i]
			if t.credit += t.weight; t.credit < largest {
				continue
			}
			t.credit -= largest
			for p.table[t.slot] >= 0 {
				t.slot = (t.slot + t.skip) % maglevSize
			}
			p.table[t.slot] = int32(i)
			if taken++; taken == maglevSize {
				return
			}
		}
	}
}

func (p *maglev) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p.table) == 0 {
		return nil
	}
	key := mix(p.by(call))
	at := int(key % maglevSize)
	for range farthest {
		if ep := p.members[p.table[at]].ep; !call.Attempts().Avoids(ep) {
			return ep
		}
		if at++; at == maglevSize {
			at = 0
		}
	}
	return p.members.other(call, key)
}
