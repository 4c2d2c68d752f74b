// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Zone keeps calls among the endpoints of one zone, usually the client's own, as long as enough of
// them are ready. b chooses among these endpoints. For the other calls, b chooses among the
// endpoints of all other zones.
//
// The rule is Envoy's for priority levels, with its overprovisioning factor of 1.4: the share of
// the calls that stays in the zone is 1.4 times the ready share of the zone's weight. So while at
// least 72% of the zone is ready, all calls stay. If half of it is ready, 70% stay. If no endpoint
// of the zone is ready, or the zone has none, no call stays. A call that avoids all endpoints on
// its side goes to the other side. Zone does not consider how many clients the zone has: a zone
// with many clients and few servers should have more servers.
//
// If the zone has more than 32 endpoints, the share is an estimate, so that a pick stays fast.
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
		// A filter that accepts no endpoint on one side does not learn.
		for _, side := range []yodel.Picker{p.own, p.others} {
			if l, ok := side.(Learner); ok {
				return &zoneLearner{zone: p, learner: l}
			}
		}
		return p
	}
}

type zone struct {
	own, others yodel.Picker
	alone       bool // whether there are no other endpoints
	census      *census
	weight      int64 // of the zone
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
	learner Learner // serves both sides, see Zone
}

func (p *zoneLearner) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	p.learner.Ended(ep, took, err)
}
