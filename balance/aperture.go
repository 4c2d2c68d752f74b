// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/yodel-rpc/yodel"
)

// Aperture limits a client to a subset of about size endpoints. So a thousand clients of a thousand
// servers do not make a million connections, and together they load all servers evenly. Servers
// stand on a ring in the order of the hashes of their addresses, each on an arc of the same length.
// A client sees the part of the ring that begins at its Place and is as long as size arcs. It draws
// two endpoints there, each with a probability proportional to the visible part of its arc, and
// picks the one with fewer calls of this client in flight. If the call avoids all visible
// endpoints, the client goes on along the ring. It does not use weights.
//
// The algorithm is Finagle's deterministic aperture with power of two choices, for clients that
// know their place by number. Their part is then slightly longer, so that together they see each
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
			if place.of > 0 { // a whole number of steps from one client to the next
				p.width = min(1, math.Ceil(p.width*float64(place.of)-1e-9)/float64(place.of))
			}
		}
		return p
	}
}

// A Place is the position on the ring of servers at which a client begins. See Aperture.
type Place struct {
	at float64 // a fraction of the ring
	of int     // the number of clients; 0 if unknown
}

// Nth is the place of a client that knows its number, from 0, and the number of clients, such as a
// replica of a stateful set. All servers get exactly the same load if all clients make equally many
// calls. A number that is used twice, or not at all, only makes the load less even.
func Nth(number, clients int) Place {
	clients = max(clients, 1)
	number = (number%clients + clients) % clients
	return Place{at: float64(number) / float64(clients), of: clients}
}

// Named is the place of a client that knows only a unique name, such as its host or pod. Clients
// are spread by the hashes of their names. Servers get the same load on average, and more evenly
// with more clients. An empty name gives a random place.
func Named(name string) Place {
	if name == "" { // for example a variable that is unset in all clients
		return Place{at: rand.Float64()}
	}
	return Place{at: float64(hashString(name)>>11) / (1 << 53)}
}

type aperture struct {
	given, ring  []*yodel.Endpoint
	begin, width float64 // fractions of the ring
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

// draw returns a visible endpoint other than one. It returns nil if there is no other that the call
// does not avoid.
func (p *aperture) draw(call *yodel.Call, one *yodel.Endpoint) *yodel.Endpoint {
	for range redraws {
		_, at := math.Modf(p.begin + rand.Float64()*p.width)
		i := min(int(at*float64(len(p.ring))), len(p.ring)-1)
		if ep := p.ring[i]; ep != one && !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return nil
}

// beyond returns any visible endpoint that the call does not avoid, or else the next one on the
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
		if call.Attempts().Avoids(ep) {
			continue
		}
		if left++; rand.IntN(left) == 0 {
			picked = ep
		}
	}
	return picked
}
