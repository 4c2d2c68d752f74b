// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// LowestLatency picks an endpoint with a short network round trip: at most half longer than the
// shortest, or 0.5 ms longer. It picks among these with equal probability. If the call avoids all
// of them, it picks the nearest of the others. An endpoint without a measurement counts as near,
// because it is measured only when calls have connected to it.
//
// The round trip is that of pings on the client's own connections (see yodel.Endpoint.RTT), so slow
// handlers do not increase it. It replaces rpcx's WeightedICMP, which needs the right to send ICMP
// packets and measures once.
func LowestLatency(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	return newLowestLatency(endpoints, (*yodel.Endpoint).RTT)
}

const (
	nearMargin = 500 * time.Microsecond
	nearEvery  = time.Second // how often the near endpoints are determined
)

type lowestLatency struct {
	endpoints []*yodel.Endpoint
	rtt       func(*yodel.Endpoint) time.Duration
	began     time.Time
	due       atomic.Int64 // when near is computed next, since began
	trips     []atomic.Int64
	near      []atomic.Int32 // indices of the near endpoints; the first count of them are valid
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

// look determines which endpoints are near. A concurrent pick may see some old and some new ones.
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
	// Two concurrent calls of look could find that no endpoint is near.
	if now >= p.due.Load() && p.looking.TryLock() {
		p.due.Store(now + int64(nearEvery))
		p.look()
		p.looking.Unlock()
	}
	n := int(p.count.Load())
	if ep := p.endpoints[p.near[rand.IntN(n)].Load()]; !call.Attempts().Avoids(ep) {
		return ep
	}
	var picked *yodel.Endpoint
	left := 0
	for i := range n {
		if ep := p.endpoints[p.near[i].Load()]; !call.Attempts().Avoids(ep) {
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

// nearest returns the nearest endpoint that the call does not avoid.
func (p *lowestLatency) nearest(call *yodel.Call) *yodel.Endpoint {
	var picked *yodel.Endpoint
	least := int64(0)
	for i, ep := range p.endpoints {
		if trip := p.trips[i].Load(); (picked == nil || trip < least) && !call.Attempts().Avoids(ep) {
			picked, least = ep, trip
		}
	}
	return picked
}
