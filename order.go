// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bytes"
	"context"
	"errors"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/ordered"
)

// This file makes ordered calls: see Call.Ordered. Package ordered decides when they are sent and
// repeated. The server executes the ordered requests of one key on one connection in the order of
// their arrival (internal/mux/order.go). A call enters the queue of its key before all middleware,
// and remains in the queue until its caller has the outcome.

// A turn is an ordered call: its place in the queue of its key, and what it needs of the client.
type turn struct {
	ordered.Turn[*Endpoint, *mux.Conn]

	client *Client
	call   *Call     // of the last attempt
	ep     *Endpoint // of the last attempt
	out    *outgoing
	ctx    context.Context //nolint:containedctx // of the waiting call
	done   ender           // of an asynchronous call on its own goroutine; else nil
	kept   *Call           // the copy of a one-way call that outlives its caller
}

// doOrdered is Do for an ordered call.
func (c *Client) doOrdered(ctx context.Context, call *Call) error {
	if call.stream != nil {
		return refusal("YDL2006", "%s: a call with a stream cannot be ordered", call.Method)
	}
	t := &turn{client: c}
	if err := c.orders.Enter(ctx, &t.Turn, t, call.Key, false); err != nil {
		return c.explain(ctx, call, nil, err)
	}
	return t.Do(ctx, call)
}

// Do implements Caller. It makes a call that is in the queue of its key.
func (t *turn) Do(ctx context.Context, call *Call) (err error) {
	c, o := t.client, t.client.take()
	t.ctx, t.out = ctx, o
	defer func() { // also if middleware or ctx panics: otherwise the key would be blocked for ever
		if t.done == nil {
			t.Leave(ctx, call.Deadline, gaveUp(ctx, err))
		}
		o.end(call)
		t.give(o)
	}()
	o.begin(ctx, call)
	call.turn = t
	c.timeout(call)
	return c.conclude(ctx, call, c.handler(ctx, call))
}

// ended ends an asynchronous call that Do has made.
func (t *turn) ended(err error) { t.Finish(err, gaveUp(t.ctx, err)) }

// goOrdered is Go for an ordered call.
func (c *Client) goOrdered(ctx context.Context, call *Call, done func(error)) {
	t := &turn{client: c, ctx: ctx}
	if c.direct && c.goAtOnce(ctx, call, t, done) {
		return
	}
	t.done = callback(done)
	// Take the token before the call enters the queue of its key. A call that waited for a token
	// while it is in the queue could block the calls that hold the tokens.
	token := c.async.Take(ctx)
	if err := c.orders.Enter(ctx, &t.Turn, t, call.Key, true); err != nil {
		c.async.Give(token)
		t.done.Ended(c.explain(ctx, call, nil, err))
		return
	}
	c.async.Run(ctx, call.Method, token, func() error { return t.Do(ctx, call) }, t.ended)
}

// goAtOnce sends a call on the caller's goroutine if all earlier calls of its key have been sent
// and there is a connection. It reports whether the call has begun.
func (c *Client) goAtOnce(ctx context.Context, call *Call, t *turn, done func(error)) (begun bool) {
	o := c.take()
	t.out = o
	o.begin(ctx, call) // it calls methods of ctx, which may panic, so the call enters its queue later
	pin := (*orderedCall)(call).pin()
	begun, needsConn := c.orders.EnterAtOnce(&t.Turn, t, call.Method, call.Key, pin, nil, nil)
	if needsConn {
		if ep, err := c.pickForGo(ctx, call, done); err == nil {
			if conn := ep.ready(ctx); conn != nil && conn.Foreign == nil {
				begun, _ = c.orders.EnterAtOnce(&t.Turn, t, call.Method, call.Key, pin, ep, conn.Mux)
			}
		}
	}
	if !begun {
		o.end(call)
		c.give(o)
		return false
	}
	call.turn = t
	c.timeout(call)
	c.start(ctx, o, call, callback(done))
	return true
}

// sendAtOnce makes the first attempt of a call that goAtOnce has begun. It reports whether the call
// has ended.
func (t *turn) sendAtOnce(ctx context.Context, call *Call) (ended bool, err error) {
	t.out.req.Began = clock()
	if ep := t.Endpoint(); !call.pinned() {
		call.Endpoint, call.picked = ep, ep
	}
	oneWay := call.OneWay // once the call has been sent, it may end and then belongs to the user again
	err = t.SendAtOnce(ctx, (*orderedCall)(call), oneWay)
	return err != nil || oneWay, err
}

// pickForGo is pick for a call with a callback. If the Picker ends the goroutine, the callback gets
// the error. If the Picker panics, the caller asks it again on the usual path, where the panic
// becomes the error of the call.
func (c *Client) pickForGo(ctx context.Context, call *Call, done func(error)) (ep *Endpoint, err error) {
	picked := false
	defer func() {
		if value := recover(); !picked {
			err = c.guard.Interrupted(ctx, call.Method, value)
			if value == nil {
				call.out.end(call)
				c.guard.Tell(callback(done), err)
			}
		}
	}()
	ep, err = c.cluster.pick(ctx, call, false)
	picked = true
	return ep, err
}

// gaveUp reports whether a call ended because its caller stopped waiting. Such a caller gets this
// outcome at once.
func gaveUp(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.is(catalogue.Impatient)
}

// choose returns the endpoint for the next attempt. An ordered call first waits until the earlier
// calls of its key are sent. It may then have to go to the same endpoint as these calls.
func (c *Client) choose(ctx context.Context, call *Call) (*Endpoint, error) {
	t := call.turn
	if t == nil {
		return c.cluster.pick(ctx, call, true)
	}
	ep, err := t.Await(ctx, call.Method, call.Deadline, (*orderedCall)(call).pin())
	if err != nil {
		return nil, errorOf(err)
	}
	if ep == nil {
		if ep, err = c.cluster.pick(ctx, call, true); err != nil {
			t.Unsent()
		}
	}
	return ep, err
}

// broughtBack reports whether an attempt failed only because it had to use the connection of
// earlier calls, and that connection was lost or refused all of these calls. Such an attempt does
// not count.
func broughtBack(t *turn, err error) bool {
	return t != nil && t.Follows() && NotProcessed(err) && CodeOf(err) == Unavailable
}

// An orderedCall is a Call with a turn.
type orderedCall Call

// attempt makes one attempt on ep.
func (s *orderedCall) attempt(ctx context.Context, ep *Endpoint) error {
	return errorOf(s.turn.Attempt(ctx, s, s.Method, s.Deadline, ep, s.OneWay))
}

// pin returns the endpoint to which the call is pinned, or nil.
func (s *orderedCall) pin() *Endpoint {
	if (*Call)(s).pinned() {
		return s.Endpoint
	}
	return nil
}

// Connect implements ordered.Sender.
func (s *orderedCall) Connect(ctx context.Context, ep *Endpoint) (*mux.Conn, error) {
	conn, err := ep.connectFor(ctx, (*Call)(s))
	if err == nil && conn.Foreign != nil {
		err = refusal("YDL2009", "%s: %s speaks %s, which keeps no order of calls", s.Method, ep.Addr(), ep.protocol)
	}
	if err != nil {
		return nil, err
	}
	return conn.Mux, nil
}

// Send implements ordered.Sender.
func (s *orderedCall) Send(ctx context.Context, ep *Endpoint, conn *mux.Conn, epoch uint64, to mux.Completer) error {
	c, call, t, o := s.turn.client, (*Call)(s), s.turn, s.out
	if _, err := c.begin(ctx, call, whose(conn), ep); err != nil {
		return err
	}
	o.req.Fields.Epoch, o.req.Bare = epoch, false
	t.call, t.ep = call, ep
	var hold *keyscope.Hold
	if call.IdempotencyKey != "" {
		hold = call.hold
	}
	t.Hold.Store(hold)
	oneWay := call.OneWay // once the call has been sent, it may belong to the user again
	err := c.send(ctx, call, conn, ep, to)
	if err == nil && oneWay && t.kept == nil {
		t.kept = o.keep(call)
	}
	return err
}

// keep returns a copy of a one-way call. The client can send the copy again after Do has returned,
// because it shares no memory with the caller.
func (o *outgoing) keep(call *Call) *Call {
	kept := new(Call)
	call.copyFor(forResend, kept)
	o.req.Attachment = bytes.Clone(o.req.Attachment)
	return kept
}

// give returns o to the pool, unless a one-way call still needs it.
func (t *turn) give(o *outgoing) {
	if t.kept == nil {
		t.client.give(o)
	}
}

// Land implements ordered.Owner. The caller's context may have ended.
func (t *turn) Land(a *mux.Answer, err error) error {
	return t.client.land(context.Background(), t.call, t.ep, t.out.beganOn(t.ep), a, err)
}

// Resume implements ordered.Owner.
func (t *turn) Resume(err error) { go t.out.resume(err) }

// Conclude implements ordered.Owner.
func (t *turn) Conclude(err error) {
	if t.done != nil {
		t.client.guard.Tell(t.done, err)
		return
	}
	t.out.tell(err)
}

// Repeat implements ordered.Owner. These attempts do not go through middleware.
func (t *turn) Repeat(elsewhere bool) (again bool, err error) {
	ctx, call := context.Background(), t.kept
	if elsewhere {
		call.Attempts().Avoid(call.Endpoint)
	}
	ep, err := t.client.choose(ctx, call)
	if err == nil {
		if !call.pinned() {
			call.Endpoint, call.picked = ep, ep
		}
		err = (*orderedCall)(call).attempt(ctx, ep)
	}
	if err == nil {
		return false, nil
	}
	err = t.client.explain(ctx, call, ep, err)
	return NotProcessed(err) && CodeOf(err) == Unavailable, err
}

// Dropped implements ordered.Owner.
func (t *turn) Dropped(err error) {
	if !gaveUp(context.Background(), err) { // a call whose time is over is not sent to another endpoint
		t.client.opts.Logger.Warn("yodel: a one-way call was lost", "method", t.kept.Method, "err", err)
	}
}
