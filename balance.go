// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"slices"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/reason"
)

// balance returns the handler between middleware and endpoint middleware. The handler picks the
// endpoint. It sends a call that was certainly not executed to another endpoint, because that is
// always safe.
//
// The handler is a closure and not a method, because a method value would add the stack frame of a
// wrapper: see Decode of package body. For the same reason the closure makes the first attempt
// itself, if it can. So the stacks of 1000 callers remain at 4 KiB with any one of the middlewares
// recovery, timeout, retry and token, or with observers. Without this, each of these would double
// the stacks.
func (c *Client) balance() Handler {
	bare := len(c.opts.EndpointMiddleware) == 0
	return func(ctx context.Context, call *Call) error {
		if call.out == nil || call.Method == "" || call.turn != nil {
			return c.balanceOn(ctx, call, nil)
		}
		ep, err := c.cluster.pick(ctx, call, true)
		if err != nil {
			return c.failed(call, c.explain(ctx, call, nil, err))
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
		if err != nil && !broughtBack(call.turn, err) {
			call.out.record(call, err, began)
			if call.out.readExtra().lent > 0 && NotProcessed(err) {
				call.out.repay(call, 0)
			}
			if !c.resend(call, err, resends) {
				return c.failed(call, err)
			}
			resends++
		}
		again := err != nil
		ep, pickErr := c.choose(ctx, call)
		if pickErr != nil {
			if err == nil || call.turn != nil {
				err = c.explain(ctx, call, nil, pickErr)
			}
			return c.failed(call, err)
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

// maxResends is how often the client sends a call again without retry middleware, if the call was
// certainly not executed.
const maxResends = 8

// staleResends is how many of these attempts may go to the same endpoint when only its connection
// has ended.
const staleResends = 3

// resend reports whether the client sends a failed call again without retry middleware, normally to
// an endpoint that was not tried. If the call found no connection, the client does not try further
// endpoints that are unreachable too. Otherwise every call would try every endpoint while no server
// is up.
func (c *Client) resend(call *Call, err error, resends int) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.NotProcessed || call.stream != nil && call.stream.Begun || resends >= maxResends || call.Endpoint == nil {
		return false
	}
	_, absent := errors.AsType[*reason.DialError](e.Cause)
	// a breach of the protocol ends the connection, but another server may still execute the call
	if e.Code != Unavailable && !absent && !e.is(catalogue.Breach) {
		return false
	}
	// The cause was the connection or the order epoch, and not the endpoint. So a new connection
	// may work.
	old := e.Stale() && (!absent || !e.AboutConnection())
	if old {
		call.Endpoint.core.Prune() // prune may run before the connection reports its end
	}
	// With a low MaxAge, the connections of an endpoint drain repeatedly, so draining does not
	// count toward staleResends.
	again := (e.is(catalogue.Draining) || old && (resends < staleResends || !slices.Contains(call.tried, call.Endpoint))) && !call.Endpoint.core.Unreachable()
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
		case !absent || !ep.core.Unreachable():
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
