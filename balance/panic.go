// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Panic makes b ignore readiness while the share of ready endpoints is less than below, a number
// between 0 and 1. So many failures at once usually have a common cause, and the few ready
// endpoints would break down under the whole load. Calls still avoid the endpoints that they have
// already tried.
//
// This is Envoy's panic threshold, whose default is 0.5.
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
		if l, ok := p.Picker.(Learner); ok {
			return &panickingLearner{panicking: p, learner: l}
		}
		return p
	}
}

type panicking struct {
	yodel.Picker
	endpoints []*yodel.Endpoint
	below     float64
	few       atomic.Bool // too few endpoints were ready at the last count
}

// counted is how many endpoints a pick looks at, on average. With more endpoints, not every pick
// counts them.
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
		call.Attempts().AllowUnready()
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
	learner Learner
}

func (p *panickingLearner) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	p.learner.Ended(ep, took, err)
}
