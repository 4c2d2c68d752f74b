// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"slices"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// maxResends bounds how often a call that was certainly not processed is sent again without anybody
// asking.
const maxResends = 8

// staleResends bounds how often one of them goes to the endpoint on which it was, because only the
// connection had ended.
const staleResends = 3

// Which endpoints a call avoids, relaxed pass by pass. While no endpoint is connected, those that
// are not count as the others.
const (
	avoidUnready = iota // those that are not ready, not connected, or were tried before
	avoidLost           // those that are not ready, or were tried before
	avoidOffline        // those that are not connected, or were tried before
	avoidTried          // those tried before
	avoidNone
)

// Avoids reports whether the call should not go to ep, for a Picker to ask: ep was tried before, is
// not ready while others are, is not connected while others are, or does not remember the call's
// idempotency key, which another endpoint does. An endpoint that is not connected is connected to
// in the background, so that a later call can go there.
func (c *Call) Avoids(ep *Endpoint) bool {
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
		if ep.offline() && ep.client.cluster.connected.Load() > 0 {
			return true
		}
	case avoidNone:
		return false
	}
	return slices.Contains(c.tried, ep) || c.besides(ep)
}

// Tolerate makes the call not avoid endpoints that are not ready, for a Picker that asks another
// one: until the pick ends.
func (c *Call) Tolerate() { c.pass = max(c.pass, avoidOffline) }

// Avoid makes later attempts of the call go to other endpoints, while there are any.
func (c *Call) Avoid(ep *Endpoint) {
	if !slices.Contains(c.tried, ep) {
		c.tried = append(c.tried, ep)
	}
}

// Stay makes all attempts of the call go to the endpoint that the balancer picks for the first one.
func (c *Call) Stay() { c.stays = true }

// pinned reports whether the endpoint is chosen already, by the user or for good.
func (c *Call) pinned() bool { return c.Endpoint != nil && (c.Endpoint != c.picked || c.stays) }

// balance returns the handler between middleware and endpoint middleware: it chooses the endpoint.
// It sends a call that was certainly not processed to another one, because that is always right.
// The handler is no method, which would have a wrapper below it on the stack: see decodeBody. For
// the same reason it makes the first attempt itself, if it can: each of recovery, timeout, retry,
// token and observers leaves 1000 callers' stacks at 4 KiB, which any of them doubled before.
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
		var conn *mux.Conn
		if bare {
			conn = ep.ready(ctx)
		}
		if conn == nil {
			if err = ep.handler(ctx, call); err != nil {
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

// balanceAfter is balance for a call whose first attempt, if there was one, failed with err.
func (c *Client) balanceAfter(ctx context.Context, call *Call, err error) error {
	if err != nil {
		err = c.explain(ctx, call, call.Endpoint, err)
	}
	return c.balanceOn(ctx, call, err)
}

// balanceOn is balanceAfter with an error that is explained.
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
			if call.out.lent > 0 && NotProcessed(err) {
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
			call.start() // before that is forgotten
			began = clock()
			call.out.began = began
		}
		if err = ep.handler(ctx, call); err == nil {
			return nil
		}
	}
}

// resend reports whether a failed call is sent again here, to an endpoint that was not tried. One
// that could not be connected to is not sent on to others that could not be either: while no server
// is there, that would be an attempt with each of them for every call.
func (c *Client) resend(call *Call, err error, resends int) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.NotProcessed || call.stream != nil && call.stream.begun || resends >= maxResends || call.Endpoint == nil {
		return false
	}
	_, absent := errors.AsType[*dialError](e.Cause)
	// a breach, which ended the connection, says nothing of other servers
	if e.Code != Unavailable && !absent && !e.is(catalogue.Breach) {
		return false
	}
	// The connection was at fault, or the epoch, not the endpoint: a new one may do.
	old := e.Stale() && (!absent || !e.AboutConnection())
	if old {
		call.Endpoint.prune() // this may come before the connection's own news of its end
	}
	// That a connection drains happens again and again when none may become old.
	again := (e.is(catalogue.Draining) || old && (resends < staleResends || !slices.Contains(call.tried, call.Endpoint))) && !call.Endpoint.unreachable()
	call.Avoid(call.Endpoint)
	if call.pinned() {
		return again
	}
	all := c.cluster.set.Load().given
	untried := 0
	for _, ep := range all {
		switch {
		// the picker would rather take one that was tried
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

// event tells the user of a connection event, and the resolver that its instances are perhaps
// elsewhere.
func (c *Client) event(e ConnEvent) {
	if c.refresh != nil && e.Kind != introspect.Connected && e.Kind != introspect.Closed {
		_ = c.guard.apart("the resolver's Refresh", nil, func() error { // that it failed is in the log
			c.refresh()
			return nil
		})
	}
	if c.opts.OnConn != nil {
		_ = c.hooks.run(c.guard, "the OnConn hook", func() error {
			c.opts.OnConn(e)
			return nil
		})
	}
}
