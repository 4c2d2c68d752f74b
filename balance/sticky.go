// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
)

// Sticky picks one random endpoint for all calls, until it is not ready or has gone. Then it picks
// another and stays with that. If a call has tried the endpoint already, only that call goes
// elsewhere. It does not use weights.
//
// It is rpcx's option Sticky, which keeps a server until its connection fails, and gRPC's pick
// first with a random start, so that many clients spread.
func Sticky(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
	p := &sticky{endpoints: endpoints}
	old, ok := last.(*sticky)
	if !ok {
		return p
	}
	held := old.held.Load()
	for _, ep := range endpoints {
		if ep == held {
			p.held.Store(held)
		}
	}
	return p
}

type sticky struct {
	endpoints []*yodel.Endpoint
	held      atomic.Pointer[yodel.Endpoint] // nil until the first call
}

func (p *sticky) Pick(call *yodel.Call) *yodel.Endpoint {
	for {
		held := p.held.Load()
		if held != nil && !call.Attempts().Avoids(held) {
			return held
		}
		other := random(p.endpoints).Pick(call)
		if other == nil || held != nil && held.Ready() || p.held.CompareAndSwap(held, other) {
			return other
		}
		// Another goroutine has just found an endpoint, and all calls go there. The loop ends,
		// because there is a new one each time.
	}
}
