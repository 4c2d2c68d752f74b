// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"

	"github.com/yodel-rpc/yodel"
)

// Bounded is Ketama with a bound to what a popular key does: an endpoint that works on more than
// load times its share of this client's calls gets no more, and its keys go on along the ring to
// the first one that has room, until there is room again. With a load of 1.25 nobody works on more
// than a quarter above the mean, rounded up to whole calls, so that with fewer calls than endpoints
// nobody works on two; 1 and less mean none above it. Large loads keep keys in their places.
//
// The algorithm is that of "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup and
// Zadimoghaddam, 2016), with the calls in flight as the balls. Each client bounds its own calls: it
// does not know of others'. Callers that pick at the same moment may pass the bound by as many. How
// many calls there are in all is an estimate where there are more than 32 endpoints, so that a pick
// stays short.
func Bounded(load float64, by func(*yodel.Call) uint64) yodel.Balancer {
	if by == nil {
		panic("balance: Bounded with a nil function")
	}
	ring := Ketama(by)
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		old, ok := last.(*bounded)
		var lastRing yodel.Picker
		if ok {
			lastRing = old.ring
		}
		p := &bounded{load: max(load, 1), ring: ring(endpoints, lastRing).(*ketama)} //nolint:forcetypeassert // it is one
		if ok && p.ring == old.ring {
			return old
		}
		p.census = newCensus(p.ring.endpoints, p.ring.weights)
		return p
	}
}

type bounded struct {
	load   float64
	ring   *ketama
	census *census
}

func (p *bounded) Pick(call *yodel.Call) *yodel.Endpoint {
	r := p.ring
	if len(r.hashes) == 0 {
		return nil
	}
	inflight, ready := p.census.count()
	key := mix(r.by(call))
	at := r.after(key)
	var first *yodel.Endpoint
	for range min(len(r.hashes), farthest) {
		if at == len(r.hashes) {
			at = 0
		}
		m := &r.members[r.owners[at]]
		at++
		if call.Avoids(m.ep) {
			continue
		}
		room := math.Ceil(p.load * float64((inflight+1)*m.weight) / float64(max(1, ready)))
		if float64(m.ep.Inflight()) < room {
			return m.ep
		}
		if first == nil {
			first = m.ep
		}
	}
	if first != nil { // all have more than the estimate allows
		return first
	}
	return r.members.other(call, key)
}
