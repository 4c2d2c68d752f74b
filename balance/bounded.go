// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"

	"github.com/yodel-rpc/yodel"
)

// Bounded is Ketama with a bound on the load of popular keys. An endpoint with more than load times
// its share of this client's calls in flight gets no more. Its keys go on along the ring to the
// first endpoint that has room, until it has room again. With a load of 1.25, no endpoint has more
// than 1.25 times the mean, rounded up to whole calls. So with fewer calls than endpoints, no
// endpoint has two. A load of 1 or less allows none above the mean. A larger load moves fewer keys.
//
// The algorithm is that of "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup and
// Zadimoghaddam, 2016), with the calls in flight as the balls. Each client bounds only its own
// calls. Callers that pick at the same moment may exceed the bound by their number. With more than
// 32 endpoints the total number of calls is an estimate, so that a pick stays fast.
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
		if call.Attempts().Avoids(m.ep) {
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
	if first != nil { // all endpoints have more than the estimate allows
		return first
	}
	return r.members.other(call, key)
}
