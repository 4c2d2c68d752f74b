// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/yodel-rpc/yodel"
)

// Aperture keeps a client to at least size of the endpoints, so that a thousand clients of a
// thousand servers do not make a million connections, and so that together the clients load every
// server evenly. Servers stand on a ring, in the order of the hashes of their addresses, each on an
// arc of the same length; a client looks at the arc of the ring that begins at its place and is as
// long as size servers' arcs. It takes two endpoints there, each with a chance in proportion to how
// much of its arc is in view, and of these the one that works on fewer of its calls. When it avoids
// all in view, it goes on along the ring. Weights are not looked at.
//
// The algorithm is Finagle's deterministic aperture with power of two choices, for clients that
// know their place by number: what they see is then a little longer, so that together they see each
// piece of the ring equally often.
func Aperture(size int, place Place) yodel.Balancer {
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		if old, ok := last.(*aperture); ok && slices.Equal(old.given, endpoints) {
			return old
		}
		p := &aperture{given: endpoints, ring: make([]*yodel.Endpoint, len(endpoints)), begin: place.at}
		members := membersOf(endpoints)
		slices.SortFunc(members, func(a, b member) int {
			if a.hash != b.hash {
				return cmp.Compare(a.hash, b.hash)
			}
			return cmp.Compare(a.addr, b.addr)
		})
		for i, m := range members {
			p.ring[i] = m.ep
		}
		p.width = 1
		if n := len(endpoints); size < n {
			p.width = float64(max(size, 1)) / float64(n)
			if place.of > 0 { // whole steps from one client to the next
				p.width = min(1, math.Ceil(p.width*float64(place.of)-1e-9)/float64(place.of))
			}
		}
		return p
	}
}

// A Place is where on the ring of servers a client begins to look; see Aperture.
type Place struct {
	at float64 // of the ring
	of int     // clients; 0 is unknown
}

// Nth is the place of a client that knows its number, from 0, and how many clients there are:
// replicas of a stateful set do. All servers then get the same load, exactly, when all clients make
// as many calls. A number that two clients have, or none, costs evenness and nothing else.
func Nth(number, clients int) Place {
	clients = max(clients, 1)
	number = (number%clients + clients) % clients
	return Place{at: float64(number) / float64(clients), of: clients}
}

// Named is the place of a client that knows only its name, which no other one has: its host's, its
// pod's. Clients are spread by the hashes of their names, and servers get the same load on average,
// more evenly the more clients there are. Without a name it is any place.
func Named(name string) Place {
	if name == "" { // a variable that is not set, in all clients
		return Place{at: rand.Float64()}
	}
	return Place{at: float64(hashString(name)>>11) / (1 << 53)}
}

type aperture struct {
	given, ring  []*yodel.Endpoint
	begin, width float64 // of the ring
}

func (p *aperture) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p.ring) == 0 {
		return nil
	}
	a := p.draw(call, nil)
	b := p.draw(call, a)
	switch {
	case a == nil && b == nil:
		return p.beyond(call)
	case a == nil || b != nil && b.Inflight() < a.Inflight():
		return b
	}
	return a
}

// draw returns an endpoint in view other than one, or nil when it finds only that and those that
// the call avoids.
func (p *aperture) draw(call *yodel.Call, one *yodel.Endpoint) *yodel.Endpoint {
	for range redraws {
		_, at := math.Modf(p.begin + rand.Float64()*p.width)
		i := min(int(at*float64(len(p.ring))), len(p.ring)-1)
		if ep := p.ring[i]; ep != one && !call.Avoids(ep) {
			return ep
		}
	}
	return nil
}

// beyond returns any endpoint in view that the call does not avoid, or else the next one on the
// ring.
func (p *aperture) beyond(call *yodel.Call) *yodel.Endpoint {
	n := len(p.ring)
	first := min(int(p.begin*float64(n)), n-1)
	inView := int(math.Ceil((p.begin+p.width)*float64(n)-1e-9)) - first
	var picked *yodel.Endpoint
	left := 0
	for i := range n {
		if i >= inView && picked != nil {
			break
		}
		ep := p.ring[(first+i)%n]
		if call.Avoids(ep) {
			continue
		}
		if left++; rand.IntN(left) == 0 {
			picked = ep
		}
	}
	return picked
}
