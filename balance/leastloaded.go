// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// LeastLoaded takes the endpoint that has the least to do, by chance if several have: the calls of
// this client that are in flight there, and those of others, as its server says on replies and,
// before the first, the registry does (see yodel.Endpoint.Load).
//
// It looks at all endpoints up to 32 and above that at 16 drawn by chance. That is "least
// connections" as HAProxy and nginx have it, with the load of other clients; the sample is the
// power of d choices (Mitzenmacher 1996), of which 16 find one of the best 25 in 100 in 99 of 100
// picks.
func LeastLoaded(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	return leastLoaded(endpoints)
}

type leastLoaded []*yodel.Endpoint

const (
	maxScanned = 32
	sampled    = 16
)

func (p leastLoaded) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p) > maxScanned {
		if ep := p.sample(call); ep != nil {
			return ep
		}
	}
	var least leader
	for _, ep := range p {
		if !call.Avoids(ep) {
			least.meet(ep)
		}
	}
	return least.ep
}

// sample looks at some of the endpoints. It returns nil when all of them are avoided.
func (p leastLoaded) sample(call *yodel.Call) *yodel.Endpoint {
	var least leader
	for range sampled {
		if ep := p[rand.IntN(len(p))]; ep != least.ep && !call.Avoids(ep) {
			least.meet(ep)
		}
	}
	return least.ep
}

// A leader is the least loaded one of the endpoints that it has met; of several, each with the same
// chance.
type leader struct {
	ep   *yodel.Endpoint
	load int
	ties int
}

func (l *leader) meet(ep *yodel.Endpoint) {
	load := ep.Load()
	switch {
	case l.ep == nil || load < l.load:
		l.ep, l.load, l.ties = ep, load, 1
	case load == l.load:
		if l.ties++; rand.IntN(l.ties) == 0 {
			l.ep = ep
		}
	}
}
