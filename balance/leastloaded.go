// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// LeastLoaded picks the endpoint with the least load, and a random one if several have it. The load
// is the number of calls in flight at the endpoint: those of this client, and those of other
// clients that the server reports with its replies. Before the first reply, the registry's value
// counts (see yodel.Endpoint.Load).
//
// It compares all endpoints up to 32, and 16 random ones otherwise. This is "least connections" as
// in HAProxy and nginx, with the load of other clients. The sample is the power of d choices
// (Mitzenmacher 1996): 16 of them find one of the best 25 percent in 99 of 100 picks.
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
		if !call.Attempts().Avoids(ep) {
			least.meet(ep)
		}
	}
	return least.ep
}

// sample compares some of the endpoints. It returns nil if the call avoids all of them.
func (p leastLoaded) sample(call *yodel.Call) *yodel.Endpoint {
	var least leader
	for range sampled {
		if ep := p[rand.IntN(len(p))]; ep != least.ep && !call.Attempts().Avoids(ep) {
			least.meet(ep)
		}
	}
	return least.ep
}

// A leader is the least loaded endpoint seen so far. Of several, each is chosen with the same
// probability.
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
