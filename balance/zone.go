// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Zone keeps calls among the endpoints of one zone, the client's own, as long as enough of them are
// ready, and has b choose there; beyond that b chooses among all other endpoints.
//
// The rule is Envoy's for priority levels, with its overprovisioning factor of 1.4: of the calls,
// 1.4 times the ready share of the zone's weight stays in the zone. So while at least 72% of the
// zone is ready all calls stay; when half of it is ready, 70% do; and when none is, or the zone has
// no endpoint, none does. A call that avoids all endpoints on its side goes to the other one. How
// many clients there are in the zone is not known, and not looked at: a zone that has many clients
// and few servers should have more servers.
//
// The share is an estimate where the zone has more than 32 endpoints, so that a pick stays short.
func Zone(name string, b yodel.Balancer) yodel.Balancer {
	if b == nil {
		panic("balance: Zone with a nil Balancer")
	}
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		var own, others []*yodel.Endpoint
		for _, ep := range endpoints {
			if ep.Instance().Zone == name {
				own = append(own, ep)
			} else {
				others = append(others, ep)
			}
		}
		p := &zone{census: newCensus(own, weightsOf(own))}
		for _, w := range p.census.weights {
			p.weight += w
		}
		old := &zone{}
		switch last := last.(type) {
		case *zone:
			old = last
		case *zoneLearner:
			old = last.zone
		}
		p.own, p.others = b(own, old.own), b(others, old.others)
		p.alone = len(others) == 0
		// a filter that nobody passes in one of them does not learn
		for _, side := range []yodel.Picker{p.own, p.others} {
			if l, ok := side.(yodel.Learner); ok {
				return &zoneLearner{zone: p, learner: l}
			}
		}
		return p
	}
}

type zone struct {
	own, others yodel.Picker
	alone       bool // there are no others
	census      *census
	weight      int64 // of the own zone
}

func (p *zone) Pick(call *yodel.Call) *yodel.Endpoint {
	first, second := p.own, p.others
	if !p.alone && !p.stays() {
		first, second = second, first
	}
	if ep := first.Pick(call); ep != nil {
		return ep
	}
	return second.Pick(call)
}

// stays reports whether the next call stays in the zone.
func (p *zone) stays() bool {
	_, ready := p.census.count()
	return ready*14 >= p.weight*10 || rand.Int64N(p.weight*10) < ready*14
}

type zoneLearner struct {
	*zone
	learner yodel.Learner // one for both, see there
}

func (p *zoneLearner) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	p.learner.Ended(ep, took, err)
}
