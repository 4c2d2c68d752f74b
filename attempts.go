// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"slices"

	"github.com/yodel-rpc/yodel/internal/endpoints"
)

// Attempts is a view of a Call that controls how a client sends it. It is for middleware that sends
// a call several times, and for pickers. Call.Attempts returns it. An Attempts has no state of its
// own.
//
//   - To send a call again: NoRepeat and Take.
//   - To choose endpoints: Avoids, Avoid, AllowUnready and Pin.
//   - To make attempts at the same time: Forkable, Fork and Join.
//   - To make a call that may continue after this one has ended: Detach and Join.
//   - To replace a call by a new one: Resume.
//
// Like its Call, it belongs to one goroutine at a time.
type Attempts Call

// Attempts returns the methods that control how a client sends c. The result is valid as long as c.
func (c *Call) Attempts() *Attempts { return (*Attempts)(c) }

// The passes of a pick. Each pass avoids fewer endpoints than the pass before it. While no endpoint
// is connected, a pass does not avoid an endpoint because it is unconnected.
const (
	avoidUnready = iota // endpoints that are not ready, not connected, or tried before
	avoidLost           // endpoints that are not ready, or tried before
	avoidOffline        // endpoints that are not connected, or tried before
	avoidTried          // endpoints tried before
	avoidNone
)

// Avoids reports whether the call should not go to ep. Pickers call it for every endpoint they
// consider. It is true if the call has already tried ep, if ep is not ready while others are, if ep
// is not connected while others are, or if another endpoint remembers the call's idempotency key
// and ep does not. Avoids also starts to connect to an endpoint that is not connected, so that
// later calls can use it.
func (a *Attempts) Avoids(ep *Endpoint) bool {
	c := (*Call)(a)
	if c.hold != nil && c.holds(ep) {
		return true
	}
	switch c.pass {
	case avoidUnready:
		if status := ep.core.Status(); status != 0 && c.shuns(ep, status) {
			return true
		}
	case avoidLost:
		if !ep.Ready() {
			return true
		}
	case avoidOffline:
		if !ep.Connected() && ep.client.cluster.list.Connected() > 0 {
			return true
		}
	case avoidNone:
		return false
	}
	return slices.Contains(c.tried, ep) || c.besides(ep)
}

// shuns reports whether a call avoids an endpoint with this status, which is not 0, while there are
// better endpoints. If the endpoint is merely unconnected, shuns starts to dial it.
func (c *Call) shuns(ep *Endpoint, status int32) bool {
	if status != endpoints.Offline {
		return true
	}
	if ep.client.cluster.list.Connected() == 0 {
		return false
	}
	ep.demand(c)
	return true
}

// AllowUnready makes the current pick accept endpoints that are not ready. It is for a Picker that
// wraps another one.
func (a *Attempts) AllowUnready() { a.pass = max(a.pass, avoidOffline) }

// Avoid makes later attempts of the call go to endpoints other than ep, if there are other
// endpoints.
func (a *Attempts) Avoid(ep *Endpoint) {
	if !slices.Contains(a.tried, ep) {
		a.tried = append(a.tried, ep)
	}
}

// Pin makes all attempts of the call go to the endpoint that the balancer picks for the first
// attempt.
func (a *Attempts) Pin() { a.stays = true }

// pinned reports whether the endpoint is fixed, by the user or by Attempts.Pin.
func (c *Call) pinned() bool { return c.Endpoint != nil && (c.Endpoint != c.picked || c.stays) }

// demand dials the endpoint in the background, because the balancer of call would choose it.
func (ep *Endpoint) demand(call *Call) {
	if call.demands < maxDemands && ep.core.Demand() {
		call.demands++
	}
}

// maxDemands is how many endpoints the client starts to dial in the background because of a single
// pick.
const maxDemands = 2
