// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"slices"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/introspect"
)

// maxResends is how often the client sends a call again without retry middleware, if the call was
// certainly not executed.
const maxResends = 8

// staleResends is how many of these attempts may go to the same endpoint when only its connection
// has ended.
const staleResends = 3

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
		if status := ep.status.Load(); status != 0 && c.shuns(ep, status) {
			return true
		}
	case avoidLost:
		if !ep.Ready() {
			return true
		}
	case avoidOffline:
		if !ep.Connected() && ep.client.cluster.connected.Load() > 0 {
			return true
		}
	case avoidNone:
		return false
	}
	return slices.Contains(c.tried, ep) || c.besides(ep)
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

// balance returns the handler between middleware and endpoint middleware. The handler picks the
// endpoint. It sends a call that was certainly not executed to another endpoint, because that is
// always safe.
//
// The handler is a closure and not a method, because a method value would add the stack frame of a
// wrapper: see decodeBody. For the same reason the closure makes the first attempt itself, if it
// can. So the stacks of 1000 callers remain at 4 KiB with any one of the middlewares recovery,
// timeout, retry and token, or with observers. Without this, each of these would double the stacks.
func (c *Client) balance() Handler {
	bare := len(c.opts.EndpointMiddleware) == 0
	return func(ctx context.Context, call *Call) error {
		if call.out == nil || call.Method == "" || call.turn != nil {
			return c.balanceOn(ctx, call, nil)
		}
		ep, err := c.cluster.pick(ctx, call, true)
		if err != nil {
			return call.failed(c.explain(ctx, call, nil, err))
		}
		if !call.pinned() {
			call.Endpoint, call.picked = ep, ep
		}
		call.going(ep)
		call.out.began = clock()
		var conn *dialledConn
		if bare {
			conn = ep.ready(ctx)
		}
		if conn == nil {
			if err = ep.handle(ctx, call); err != nil {
				return c.balanceOn(ctx, call, err)
			}
			return nil
		}
		call.out.req.Now = call.out.began
		if err = c.attempt(ctx, call, conn, ep); err != nil {
			return c.balanceAfter(ctx, call, err)
		}
		return nil
	}
}

// balanceAfter is balance for a call whose first attempt failed with err. Err is nil if no attempt
// was made.
func (c *Client) balanceAfter(ctx context.Context, call *Call, err error) error {
	if err != nil {
		err = c.explain(ctx, call, call.Endpoint, err)
	}
	return c.balanceOn(ctx, call, err)
}

// balanceOn is balanceAfter for an err that has passed explain.
func (c *Client) balanceOn(ctx context.Context, call *Call, err error) error {
	if call.out == nil {
		return Errorf(Internal, "%s: middleware made a call that no client has begun; use Client.Do", call.Method)
	}
	if call.Method == "" {
		return refusal("YDL2001", "a call without a method name")
	}
	began := clock()
	if err != nil {
		began = call.out.began
	} else {
		call.out.began = began
	}
	call.out.req.Now = 0
	for resends := 0; ; {
		if err != nil && !call.broughtBack(err) {
			call.record(err, began)
			if call.out.readExtra().lent > 0 && NotProcessed(err) {
				call.out.repay(call, 0)
			}
			if !c.resend(call, err, resends) {
				return call.failed(err)
			}
			resends++
		}
		again := err != nil
		ep, pickErr := c.choose(ctx, call)
		if pickErr != nil {
			if err == nil || call.turn != nil {
				err = c.explain(ctx, call, nil, pickErr)
			}
			return call.failed(err)
		}
		if !call.pinned() {
			call.Endpoint, call.picked = ep, ep
		}
		call.going(ep)
		if again {
			call.start() // before began is overwritten
			began = clock()
			call.out.began = began
		}
		if err = ep.handle(ctx, call); err == nil {
			return nil
		}
	}
}

// resend reports whether the client sends a failed call again without retry middleware, normally to
// an endpoint that was not tried. If the call found no connection, the client does not try further
// endpoints that are unreachable too. Otherwise every call would try every endpoint while no server
// is up.
func (c *Client) resend(call *Call, err error, resends int) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.NotProcessed || call.stream != nil && call.stream.begun || resends >= maxResends || call.Endpoint == nil {
		return false
	}
	_, absent := errors.AsType[*dialError](e.Cause)
	// a breach of the protocol ends the connection, but another server may still execute the call
	if e.Code != Unavailable && !absent && !e.is(catalogue.Breach) {
		return false
	}
	// The cause was the connection or the order epoch, and not the endpoint. So a new connection
	// may work.
	old := e.Stale() && (!absent || !e.AboutConnection())
	if old {
		call.Endpoint.prune() // prune may run before the connection reports its end
	}
	// With a low MaxAge, the connections of an endpoint drain repeatedly, so draining does not
	// count toward staleResends.
	again := (e.is(catalogue.Draining) || old && (resends < staleResends || !slices.Contains(call.tried, call.Endpoint))) && !call.Endpoint.unreachable()
	call.Attempts().Avoid(call.Endpoint)
	if call.pinned() {
		return again
	}
	all := c.cluster.set.Load().given
	untried := 0
	for _, ep := range all {
		switch {
		// this endpoint was tried, has another attempt of the group, or does not remember the key
		case slices.Contains(call.tried, ep), call.besides(ep), call.holds(ep):
		case !absent || !ep.unreachable():
			return true
		default:
			untried++
		}
	}
	if untried > 0 {
		call.rarely().nowhere = len(all)
	}
	return again
}

// event passes a connection event to the OnConn hook. If the event suggests that instances have
// moved, it also asks the resolver to refresh.
func (c *Client) event(e ConnEvent) {
	if c.refresh != nil && e.Kind != introspect.Connected && e.Kind != introspect.Closed {
		_ = c.guard.Apart("the resolver's Refresh", nil, func() error { // a failure is in the log
			c.refresh()
			return nil
		})
	}
	if c.opts.OnConn != nil {
		_ = c.hooks.Run(c.guard, "the OnConn hook", func() error {
			c.opts.OnConn(e)
			return nil
		})
	}
}
