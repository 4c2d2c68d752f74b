// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file carries out ordered calls: see Call.Ordered. The server executes the ordered requests
// of one key on one connection in the order in which they come (internal/mux/order.go). What the
// client has to do is to send them in order, on one connection while any is open there, and to know
// of each that came back whether a later one may have been executed: line.go. The place of a call
// in its line is taken outside of all middleware, and kept until its caller has the outcome.

// minUntold is how many outcomes of a key may wait for callbacks at least, whatever the limits: a
// callback that makes calls of its own key, and waits for them, holds up those between.
const minUntold = 1024

// A trip is what a turn sends, and how its outcome is told.
type trip struct {
	client    *Client
	call      *Call
	out       *outgoing
	ep        *Endpoint
	direct    bool // the attempt is nobody's who waits: Complete goes on with the call
	final     bool // a call that was executed is not sent again
	abandoned atomic.Bool
	err       error
	done      func(error) // of an asynchronous call in its own goroutine; else out is told
	kept      *Call       // a one-way call that goes on without its caller, with out
	hold      *keyHold    // of a call with an idempotency key
	resends   int         // of it
}

// conclude tells an asynchronous caller.
func (p *trip) conclude() {
	if p.done != nil {
		p.client.guard.tell(callback(p.done), p.err)
		return
	}
	p.out.tell(p.err)
}

// doOrdered is Do for an ordered call.
func (c *Client) doOrdered(ctx context.Context, call *Call) error {
	if call.stream != nil {
		return refusal("YDL2006", "%s: a call with a stream cannot be ordered", call.Method)
	}
	t, err := c.orders.enter(ctx, call.Key, false)
	if err != nil {
		return c.explain(ctx, call, nil, err)
	}
	o := c.take()
	call.begin(ctx, o)
	call.turn, t.trip.client = t, c
	c.timeout(call)
	defer func() { // also when middleware panics: the key would be blocked for ever
		t.leave(ctx, call.Deadline, gaveUp(ctx, err))
		call.end()
		t.give(o)
	}()
	err = c.conclude(ctx, call, c.handler(ctx, call))
	return err
}

// goOrdered is Go for an ordered call.
func (c *Client) goOrdered(ctx context.Context, call *Call, done func(error)) {
	if c.direct && c.goAtOnce(ctx, call, done) {
		return
	}
	if done == nil {
		done = func(error) {}
	}
	// The token comes first: whoever waits for one must not have a place yet for which others wait
	// that have one.
	token := c.token(ctx)
	t, err := c.orders.enter(ctx, call.Key, true)
	if err != nil {
		if token {
			<-c.async
		}
		done(c.explain(ctx, call, nil, err))
		return
	}
	t.trip.done = done
	if !token {
		c.carryOut(ctx, call, t, false)
		return
	}
	go c.carryOut(ctx, call, t, true)
}

// carryOut makes an asynchronous call on a goroutine that waits for it, and gives back the token
// for that goroutine.
func (c *Client) carryOut(ctx context.Context, call *Call, t *turn, token bool) {
	o := c.take()
	call.begin(ctx, o)
	call.turn = t
	c.timeout(call)
	p := &t.trip
	p.client = c
	known := false
	defer func() {
		if value := recover(); !known {
			p.err = c.guard.interrupted(ctx, call.Method, value)
		}
		call.end()
		t.give(o)
		if token {
			<-c.async
		}
		t.finish(gaveUp(ctx, p.err))
	}()
	p.err = c.conclude(ctx, call, c.handler(ctx, call))
	known = true
}

// goAtOnce sends a call without a goroutine, if its turn is now and there is a connection.
func (c *Client) goAtOnce(ctx context.Context, call *Call, done func(error)) bool {
	var pin *Endpoint
	if call.pinned() {
		pin = call.Endpoint
	}
	t, needsConn := c.orders.embark(call.Key, pin, nil, nil)
	if needsConn {
		call.tried = nil // of its last use
		ep, err := c.pickForGo(ctx, call, done)
		if err != nil {
			return false
		}
		conn := ep.ready(ctx)
		if conn == nil {
			return false
		}
		t, _ = c.orders.embark(call.Key, pin, ep, conn)
	}
	if t == nil {
		return false
	}
	o := c.take()
	call.begin(ctx, o)
	call.turn = t
	c.timeout(call)
	o.client, o.ctx, o.async, o.done = c, ctx, call, callback(done)
	t.trip.client, t.trip.out = c, o
	sent := false
	defer func() {
		if !sent { // an observer or a codec
			t.unsent(true)
			o.finish(c.guard.interrupted(o.ctx, call.Method, recover()))
		}
	}()
	o.ctx = startAll(ctx, c.opts.Observers, call)
	o.began = clock()
	ep := t.line.ep // it does not change while t may be sent
	if pin == nil {
		call.Endpoint, call.picked = ep, ep
	}
	// once it has been sent, the call may have ended, and be the user's again
	oneWay := call.OneWay
	err := c.sendInTurn(o.ctx, ep, call, true) //nolint:contextcheck // it is ctx, with what the observers added
	sent = true
	if err != nil {
		go c.resume(o, err, false)
	} else if oneWay {
		o.finish(nil)
	}
	return true
}

// pickForGo is pick for a call with a callback, which is told when the Picker ends the goroutine.
// One that panics is asked again, where that is an error of the call.
func (c *Client) pickForGo(ctx context.Context, call *Call, done func(error)) (ep *Endpoint, err error) {
	picked := false
	defer func() {
		if value := recover(); !picked {
			err = c.guard.interrupted(ctx, call.Method, value)
			if value == nil {
				c.guard.tell(callback(done), err)
			}
		}
	}()
	ep, err = c.cluster.pick(ctx, call, false)
	picked = true
	return ep, err
}

// gaveUp reports whether a call ended because its caller would not wait: such a one is told at
// once.
func gaveUp(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.is(catalogue.Impatient)
}

// choose returns the endpoint of the next attempt. An ordered call waits for its turn first, and
// may have to go where those before it went.
func (c *Client) choose(ctx context.Context, call *Call) (*Endpoint, error) {
	t := call.turn
	if t == nil {
		return c.cluster.pick(ctx, call, true)
	}
	var pin *Endpoint
	if call.pinned() {
		pin = call.Endpoint
	}
	ep, err := t.await(ctx, call.Deadline, c.closing, pin)
	if err != nil {
		return nil, call.outOfOrder(err)
	}
	if ep == nil {
		if ep, err = c.cluster.pick(ctx, call, true); err != nil {
			t.unsent(true)
		}
	}
	return ep, err
}

// outOfOrder explains why an ordered call is not sent. Other errors are left as they are.
func (c *Call) outOfOrder(err error) error {
	switch {
	case errors.Is(err, errSevered):
		return refusal("YDL1009", "%s: an earlier call with the key %.60q was interrupted; it may still be executing", c.Method, c.Key)
	case errors.Is(err, errOvertaken):
		return refusal("YDL1009", "%s: a later call with the key %.60q may have been executed, so this one is not sent again", c.Method, c.Key)
	case errors.Is(err, errTwice):
		return refusal("YDL1009", "%s: it is in flight, and ordered calls are not sent twice at once (key %.60q)", c.Method, c.Key)
	}
	return err
}

// broughtBack reports whether an attempt failed only because of the calls before it: they took it
// to this connection, and it was refused with them or could not be sent there. It is no attempt of
// its own then.
func (c *Call) broughtBack(err error) bool {
	if c.turn == nil || !c.turn.follows {
		return false
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.NotProcessed && e.Code == Unavailable
}

// doInTurn makes one attempt of an ordered call on ep.
func (c *Client) doInTurn(ctx context.Context, ep *Endpoint, call *Call) error {
	t := call.turn
	if !t.maySend() { // it was sent already: endpoint middleware sends it again
		if _, err := t.await(ctx, call.Deadline, c.closing, ep); err != nil {
			return call.outOfOrder(err)
		}
	}
	if !t.follows {
		conn, err := ep.connectFor(ctx, call)
		if err != nil {
			t.unsent(true)
			return err
		}
		t.board(ep, conn)
	}
	if err := c.sendInTurn(ctx, ep, call, false); err != nil || call.OneWay {
		return err
	}
	return t.result()
}

// sendInTurn sends an attempt that may be sent. It returns when the request has been queued, so
// that the next call can follow.
func (c *Client) sendInTurn(ctx context.Context, ep *Endpoint, call *Call, direct bool) error {
	t, o := call.turn, call.out
	if err := c.prepare(ctx, o, call); err != nil {
		t.unsent(true)
		return err
	}
	conn, epoch, attempt := t.route(call.OneWay)
	o.req.Fields.Epoch, o.req.Bare = epoch, false
	p := &t.trip
	p.hold = nil
	if call.IdempotencyKey != "" {
		if err := call.claimInOrder(ep, conn); err != nil {
			t.unsent(true)
			return err
		}
		p.hold = call.hold
	}
	p.call, p.ep, p.direct, p.final = call, ep, direct, c.direct
	if p.out != o { // the caller of a one-way call may just be told, by p.out, while it is sent again with the same
		p.out = o
	}
	ep.inflight.begun.Add(1)
	if !call.OneWay {
		if err := conn.Start(ctx, &o.req, t); err != nil {
			ep.inflight.ended.Add(1)
			if ep.learned() {
				ep.learn(ctx, call, 0, nil, err)
			}
			p.hold.release(err)
			t.unsent(spares(ctx, err))
			return err
		}
		t.wasSent(attempt) // the call may be the user's again
		return nil
	}
	err := conn.Follow(ctx, &o.req, (*leftover)(t))
	ep.inflight.ended.Add(1)
	if err != nil {
		p.hold.release(err)
		t.unsent(spares(ctx, err))
		return err
	}
	if p.kept == nil {
		p.kept = call.keep()
	}
	if t.wasSent(attempt) {
		go c.sendAgain(t) //nolint:gosec,contextcheck // the caller's context ends with the caller
	}
	return nil
}

// spares reports whether a connection on which a request could not be sent is not to blame for
// that.
func spares(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, mux.ErrDeadline) || errors.Is(err, mux.ErrWindow)
}

// give ends the use of o, unless the call goes on with it.
func (t *turn) give(o *outgoing) {
	if t.trip.kept == nil {
		t.trip.client.give(o)
	}
}

// keep returns what is needed to send a one-way call again when its caller has gone: nothing in it
// is the caller's.
func (c *Call) keep() *Call {
	kept := *c
	kept.Args, kept.Reply, kept.Attachment, kept.rare, kept.Explain = nil, nil, nil, nil, false
	kept.Metadata, kept.tried = maps.Clone(c.Metadata), slices.Clone(c.tried)
	c.out.req.Attachment = bytes.Clone(c.out.req.Attachment)
	return &kept
}

// sendAgain sends a one-way call again, in its place, that was refused after its caller had been
// told that it was sent. No middleware sees that.
func (c *Client) sendAgain(t *turn) {
	ctx, p := context.Background(), &t.trip
	call := p.kept
	defer func() {
		if value := recover(); value != nil {
			_ = c.guard.interrupted(ctx, call.Method, value) // it is logged: nobody waits for the call
			t.drop()
		}
	}()
	pinned := call.pinned()
	for {
		if !t.follows {
			p.resends++
			call.Avoid(call.Endpoint)
		}
		ep, err := c.choose(ctx, call)
		if err == nil {
			if !pinned {
				call.Endpoint, call.picked = ep, ep
			}
			err = c.doInTurn(ctx, ep, call)
		}
		if err == nil {
			return
		}
		err = c.explain(ctx, call, ep, err)
		if !NotProcessed(err) || CodeOf(err) != Unavailable || p.resends > maxResends {
			t.drop()
			if !gaveUp(ctx, err) { // whose time has passed is late anywhere
				c.opts.Logger.Warn("yodel: a one-way call was lost", "method", call.Method, "err", err)
			}
			return
		}
	}
}

// result waits for the end of an attempt that was sent.
func (t *turn) result() error {
	o := t.line.of
	o.mu.Lock()
	defer o.mu.Unlock()
	for !t.landed {
		o.waitLocked(&t.sender, nil, nil, nil) // the connection ends it when its caller gives up
	}
	return t.trip.err
}

// Complete implements mux.Completer.
func (t *turn) Complete(a *mux.Answer, err error) {
	p := &t.trip
	how, direct, o := landingOf(a, err), p.direct, p.out
	p.hold.landed(how)
	p.ep.inflight.ended.Add(1)
	known := false
	defer func() {
		if value := recover(); !known { // a codec, or the Learner
			err = p.client.guard.interrupted(context.Background(), p.call.Method, value)
		}
		t.completed(o, how, direct, err)
	}()
	if p.ep.learned() {
		p.ep.learn(context.Background(), p.call, o.req.Began, a, err) // the caller's context may be gone with it
	}
	if err == nil {
		err = p.client.decode(o, p.call, a)
	}
	known = true
}

// completed takes note of how a request ended. With direct it goes on with the call.
func (t *turn) completed(o *outgoing, how landing, direct bool, err error) {
	p, orders := &t.trip, t.line.of
	orders.mu.Lock()
	defer orders.mu.Unlock()
	p.err = err
	if p.abandoned.Swap(false) {
		t.abandonLocked()
	} else {
		t.landLocked(how, p.final)
	}
	switch {
	case !direct:
		t.sender.ring()
	case err != nil:
		go o.client.resume(o, err, false)
	default:
		t.finishLocked(false)
	}
}

// landingOf tells what became of a request.
func landingOf(a *mux.Answer, err error) landing {
	if err != nil {
		failed, ok := errors.AsType[*mux.CallError](err)
		switch {
		case !ok: // its reply came, and could not be read
			return executed
		case failed.NotProcessed:
			return refused
		}
		return lost
	}
	switch {
	case a.Flags&wire.NotProcessed != 0:
		return refused
	case a.Code != 0:
		return executed
	}
	return succeeded
}

// Abandoned implements mux.Follower.
func (t *turn) Abandoned() mux.Completer {
	t.trip.abandoned.Store(true)
	return (*leftover)(t)
}

// A leftover is a turn whose request nobody waits for.
type leftover turn

// Complete implements mux.Completer.
func (l *leftover) Complete(a *mux.Answer, err error) {
	t := (*turn)(l)
	again := err != nil || a.Code == uint16(Unavailable)
	t.trip.hold.landed(landingOf(a, err))
	t.line.of.mu.Lock()
	defer t.line.of.mu.Unlock()
	if t.goneLocked(landingOf(a, err), again) {
		go t.trip.client.sendAgain(t)
	}
}
