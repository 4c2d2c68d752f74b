// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Panic makes b ignore which endpoints are ready while fewer than this share of them is, between 0
// and 1: what makes so many unready at once is rather something else than they, and the few that
// are left would break down under the load of all. Endpoints that a call was tried on are still
// avoided.
//
// That is Envoy's panic threshold, whose default is 0.5.
func Panic(below float64, b yodel.Balancer) yodel.Balancer {
	if b == nil {
		panic("balance: Panic with a nil Balancer")
	}
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		var inner yodel.Picker
		switch last := last.(type) {
		case *panicking:
			inner = last.Picker
		case *panickingLearner:
			inner = last.Picker
		}
		p := &panicking{Picker: b(endpoints, inner), endpoints: endpoints, below: below}
		p.few.Store(p.count())
		if l, ok := p.Picker.(yodel.Learner); ok {
			return &panickingLearner{panicking: p, learner: l}
		}
		return p
	}
}

type panicking struct {
	yodel.Picker
	endpoints []*yodel.Endpoint
	below     float64
	few       atomic.Bool // too few were ready at the last count
}

// counted is how many endpoints are looked at for a pick, on average: of more, not every pick
// counts.
const counted = 32

func (p *panicking) Pick(call *yodel.Call) *yodel.Endpoint {
	few := p.few.Load()
	if n := len(p.endpoints); n <= counted || rand.IntN(n) < counted {
		if now := p.count(); now != few {
			few = now
			p.few.Store(few)
		}
	}
	if few {
		call.Tolerate()
	}
	return p.Picker.Pick(call)
}

// count reports whether too few endpoints are ready.
func (p *panicking) count() bool {
	ready, enough := 0, p.below*float64(len(p.endpoints))
	for _, ep := range p.endpoints {
		if float64(ready) >= enough {
			return false
		}
		if ep.Ready() {
			ready++
		}
	}
	return float64(ready) < enough
}

type panickingLearner struct {
	*panicking
	learner yodel.Learner
}

func (p *panickingLearner) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	p.learner.Ended(ep, took, err)
}
