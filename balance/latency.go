// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// LowestLatency takes an endpoint to which the network is the shortest: one whose round trip is
// that of the shortest and half of it more, or 0.5 ms more, each of these with the same chance.
// When the call avoids all of them it takes the nearest one that is left. One that was not measured
// yet counts as near, for it is measured when calls have connected to it.
//
// The time is that of pings on the client's own connections (see yodel.Endpoint.RTT), which no
// handler makes longer. It has the role of rpcx's WeightedICMP, which needs the right to send ICMP
// packets, and looks once.
func LowestLatency(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	return newLowestLatency(endpoints, (*yodel.Endpoint).RTT)
}

const (
	nearMargin = 500 * time.Microsecond
	nearEvery  = time.Second // how often it is seen which ones are near
)

type lowestLatency struct {
	endpoints []*yodel.Endpoint
	rtt       func(*yodel.Endpoint) time.Duration
	began     time.Time
	due       atomic.Int64 // when the rest is made again, since began
	trips     []atomic.Int64
	near      []atomic.Int32 // indices of those that are near, the first count ones
	count     atomic.Int32
	looking   sync.Mutex // only tried: a pick does not wait
}

func newLowestLatency(endpoints []*yodel.Endpoint, rtt func(*yodel.Endpoint) time.Duration) *lowestLatency {
	p := &lowestLatency{
		endpoints: endpoints, rtt: rtt, began: time.Now(),
		trips: make([]atomic.Int64, len(endpoints)), near: make([]atomic.Int32, len(endpoints)),
	}
	p.look()
	p.due.Store(int64(nearEvery))
	return p
}

// look finds out which endpoints are near. A pick at the same time may see some of the ones before
// and some of the new ones.
func (p *lowestLatency) look() {
	nearest := time.Duration(0)
	for i, ep := range p.endpoints {
		trip := p.rtt(ep)
		p.trips[i].Store(int64(trip))
		if trip > 0 && (nearest == 0 || trip < nearest) {
			nearest = trip
		}
	}
	limit := int64(nearest + max(nearest/2, nearMargin))
	n := int32(0)
	for i := range p.endpoints {
		if p.trips[i].Load() <= limit {
			p.near[n].Store(int32(i))
			n++
		}
	}
	p.count.Store(n)
}

func (p *lowestLatency) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p.endpoints) == 0 {
		return nil
	}
	now := int64(time.Since(p.began))
	if now >= p.due.Load() && p.looking.TryLock() { // two at once might find that nobody is near
		p.due.Store(now + int64(nearEvery))
		p.look()
		p.looking.Unlock()
	}
	n := int(p.count.Load())
	if ep := p.endpoints[p.near[rand.IntN(n)].Load()]; !call.Avoids(ep) {
		return ep
	}
	var picked *yodel.Endpoint
	left := 0
	for i := range n {
		if ep := p.endpoints[p.near[i].Load()]; !call.Avoids(ep) {
			if left++; rand.IntN(left) == 0 {
				picked = ep
			}
		}
	}
	if picked == nil {
		return p.nearest(call)
	}
	return picked
}

// nearest returns the nearest endpoint that is not avoided.
func (p *lowestLatency) nearest(call *yodel.Call) *yodel.Endpoint {
	var picked *yodel.Endpoint
	least := int64(0)
	for i, ep := range p.endpoints {
		if trip := p.trips[i].Load(); (picked == nil || trip < least) && !call.Avoids(ep) {
			picked, least = ep, trip
		}
	}
	return picked
}
