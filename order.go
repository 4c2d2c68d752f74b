// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/keyed"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file sends ordered calls: see Call.Ordered. The server executes the ordered requests of one
// key on one connection in the order of their arrival (internal/mux/order.go). The client sends the
// requests of a key in order. While any of them is open on a connection, it sends the next ones
// over the same connection. When a request fails, the client must know whether a later request may
// have been executed. Package keyed keeps track of that. A call enters the queue of its key before
// all middleware, and remains in the queue until its caller has the outcome.

// minUntold is the smallest limit on the outcomes of a key whose callbacks have not run yet. If a
// callback makes calls with its own key and waits for them, it delays the callbacks of the calls
// between.
const minUntold = 1024

// A trip is the request of a turn, together with the way in which its outcome reaches the caller.
type trip struct {
	client    *Client
	call      *Call
	out       *outgoing
	ep        *Endpoint
	direct    bool // no goroutine waits for the attempt: Complete continues the call
	final     bool // after the call was executed, the client does not repeat it
	abandoned atomic.Bool
	err       error
	done      func(error) // of an asynchronous call on its own goroutine; else nil
	kept      *Call       // the copy of a one-way call that outlives its caller
	hold      *keyHold    // for a call with an idempotency key
	resends   int         // how often kept was sent again
}

// conclude reports the outcome to an asynchronous caller.
func (p *trip) conclude() {
	if p.done != nil {
		p.client.guard.Tell(callback(p.done), p.err)
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
	defer func() { // also if middleware panics: otherwise the key would be blocked for ever
		t.Leave(ctx, call.Deadline, gaveUp(ctx, err))
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
	// Take the token before the call enters the queue of its key. A call that waited for a token
	// while it is in the queue could block the calls that hold the tokens.
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

// carryOut makes an asynchronous ordered call on this goroutine. If token is set, it gives back the
// token for the goroutine.
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
			p.err = c.guard.Interrupted(ctx, call.Method, value)
		}
		call.end()
		t.give(o)
		if token {
			<-c.async
		}
		t.Finish(gaveUp(ctx, p.err))
	}()
	p.err = c.conclude(ctx, call, c.handler(ctx, call))
	known = true
}

// goAtOnce sends a call on the caller's goroutine if all earlier calls of its key have been sent
// and there is a connection. It reports whether the call has begun. The callback of a call that has
// begun gets its outcome, also if user code panicked before the call was sent.
func (c *Client) goAtOnce(ctx context.Context, call *Call, done func(error)) (begun bool) {
	var pin *Endpoint
	if call.pinned() {
		pin = call.Endpoint
	}
	t, needsConn := c.orders.embark(call.Key, pin, nil, nil)
	if needsConn {
		call.tried = nil // from an earlier use
		ep, err := c.pickForGo(ctx, call, done)
		if err != nil {
			return false
		}
		conn := ep.ready(ctx)
		if conn == nil || conn.link != nil {
			return false
		}
		t, _ = c.orders.embark(call.Key, pin, ep, conn.mux)
	}
	if t == nil {
		return false
	}
	o := c.take()
	call.begin(ctx, o)
	call.turn = t
	c.timeout(call)
	o.ctx, o.async, o.done = ctx, call, callback(done)
	t.trip.client, t.trip.out = c, o
	sent := false
	defer func() {
		if !sent { // an observer or a codec panicked
			begun = true
			t.Unsent(true)
			o.finish(c.guard.Interrupted(o.ctx, call.Method, recover()))
		}
	}()
	o.ctx = startAll(ctx, c.watchers.calls, call)
	o.began = clock()
	ep := t.Endpoint()
	if pin == nil {
		call.Endpoint, call.picked = ep, ep
	}
	// once the call has been sent, it may end and then belongs to the user again
	oneWay := call.OneWay
	err := c.sendInTurn(o.ctx, ep, call, true) //nolint:contextcheck // it extends ctx
	sent = true
	if err != nil {
		go c.resume(o, err, false)
	} else if oneWay {
		o.finish(nil)
	}
	return true
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
			t.Unsent(true)
		}
	}
	return ep, err
}

// outOfOrder turns the reason why an ordered call is not sent into an Error. It does not change
// other errors.
func (c *Call) outOfOrder(err error) error {
	switch {
	case errors.Is(err, keyed.ErrSevered):
		return refusal("YDL1009", "%s: an earlier call with the key %.60q was interrupted; it may still be executing", c.Method, c.Key)
	case errors.Is(err, keyed.ErrOvertaken):
		return refusal("YDL1009", "%s: a later call with the key %.60q may have been executed, so this one is not sent again", c.Method, c.Key)
	case errors.Is(err, keyed.ErrTwice):
		return refusal("YDL1009", "%s: it is in flight, and ordered calls are not sent twice at once (key %.60q)", c.Method, c.Key)
	}
	return err
}

// broughtBack reports whether an attempt failed only because it had to use the connection of
// earlier calls, and that connection was lost or refused all of these calls. Such an attempt does
// not count.
func (c *Call) broughtBack(err error) bool {
	if c.turn == nil || !c.turn.Follows() {
		return false
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.NotProcessed && e.Code == Unavailable
}

// doInTurn makes one attempt of an ordered call on ep.
func (c *Client) doInTurn(ctx context.Context, ep *Endpoint, call *Call) error {
	t := call.turn
	if !t.MaySend() { // endpoint middleware sends it again
		if _, err := t.await(ctx, call.Deadline, c.closing, ep); err != nil {
			return call.outOfOrder(err)
		}
	}
	if !t.Follows() {
		conn, err := ep.connectFor(ctx, call)
		if err != nil {
			t.Unsent(true)
			return err
		}
		if conn.link != nil {
			t.Unsent(true)
			return unordered(call, ep)
		}
		t.Board(ep, conn.mux)
	}
	if err := c.sendInTurn(ctx, ep, call, false); err != nil || call.OneWay {
		return err
	}
	return t.result()
}

// sendInTurn sends an attempt after all earlier calls of its key have been sent. It returns when
// the request is in the output, so that the next call can follow.
func (c *Client) sendInTurn(ctx context.Context, ep *Endpoint, call *Call, direct bool) error {
	t, o := call.turn, call.out
	conn, epoch, attempt := t.Route(call.OneWay)
	if _, err := c.begin(ctx, call, whose(conn), ep); err != nil {
		t.Unsent(true)
		return err
	}
	o.req.Fields.Epoch, o.req.Bare = epoch, false
	p := &t.trip
	p.hold = nil
	if call.IdempotencyKey != "" {
		p.hold = call.hold
	}
	p.call, p.ep, p.direct, p.final = call, ep, direct, c.direct
	if p.out != o { // a one-way call may still use p.out to tell its caller the outcome
		p.out = o
	}
	oneWay, later := call.OneWay, mux.Completer(t)
	if oneWay {
		later = (*leftover)(t)
	}
	if err := c.send(ctx, call, conn, ep, later); err != nil {
		t.Unsent(spares(ctx, err))
		return err
	}
	if !oneWay { // the call may belong to the user again
		t.WasSent(attempt)
		return nil
	}
	if p.kept == nil {
		p.kept = call.keep()
	}
	if t.WasSent(attempt) {
		go c.sendAgain(t) //nolint:gosec,contextcheck // the call outlives the caller's context
	}
	return nil
}

// spares is called when a request could not be sent. It reports whether the connection is still
// usable.
func spares(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, mux.ErrDeadline) || errors.Is(err, mux.ErrWindow)
}

// give returns o to the pool, unless a one-way call still needs it.
func (t *turn) give(o *outgoing) {
	if t.trip.kept == nil {
		t.trip.client.give(o)
	}
}

// keep returns a copy of a one-way call. The client can send the copy again after Do has returned,
// because it shares no memory with the caller.
func (c *Call) keep() *Call {
	kept := new(Call)
	c.copyFor(forResend, kept)
	c.out.req.Attachment = bytes.Clone(c.out.req.Attachment)
	return kept
}

// sendAgain sends a one-way call again that was refused after Do had returned. The call keeps its
// place among the calls of its key. These attempts do not go through middleware.
func (c *Client) sendAgain(t *turn) {
	ctx, p := context.Background(), &t.trip
	call := p.kept
	defer func() {
		if value := recover(); value != nil {
			_ = c.guard.Interrupted(ctx, call.Method, value) // the error is in the log, and no caller waits for it
			t.Drop()
		}
	}()
	pinned := call.pinned()
	for {
		if !t.Follows() {
			p.resends++
			call.Attempts().Avoid(call.Endpoint)
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
			t.Drop()
			if !gaveUp(ctx, err) { // a call whose time is over is not sent to another endpoint
				c.opts.Logger.Warn("yodel: a one-way call was lost", "method", call.Method, "err", err)
			}
			return
		}
	}
}

// Complete implements mux.Completer.
func (t *turn) Complete(a *mux.Answer, err error) {
	p := &t.trip
	how, direct, o := landingOf(a, err), p.direct, p.out
	known := false
	defer func() {
		if value := recover(); !known { // a codec or the Learner has panicked
			err = p.client.guard.Interrupted(context.Background(), p.call.Method, value)
		}
		t.completed(o, how, direct, err)
	}()
	// the caller's context may have ended
	err = p.client.land(context.Background(), p.call, p.ep, o.beganOn(p.ep), a, err)
	known = true
}

// completed stores how a request ended. If direct is set, it also continues the call, because no
// goroutine waits for it.
func (t *turn) completed(o *outgoing, how landing, direct bool, err error) {
	p := &t.trip
	p.err = err
	next := keyed.Nobody
	switch {
	case !direct:
		next = keyed.Sender
	case err != nil:
		next = keyed.Caller
	}
	t.Land(how, p.abandoned.Swap(false), p.final, next)
	if next == keyed.Caller {
		go o.from.resume(o, err, false)
	}
}

// landingOf returns how a request ended.
func landingOf(a *mux.Answer, err error) landing {
	if err != nil {
		failed, ok := errors.AsType[*mux.CallError](err)
		switch {
		case !ok: // the reply arrived but could not be decoded
			return keyed.Executed
		case failed.NotProcessed:
			return keyed.Refused
		}
		return keyed.Lost
	}
	switch {
	case a.Flags&wire.NotProcessed != 0:
		return keyed.Refused
	case a.Code != 0:
		return keyed.Executed
	}
	return keyed.Succeeded
}

// Abandoned implements mux.Follower.
func (t *turn) Abandoned() mux.Completer {
	t.trip.abandoned.Store(true)
	return (*leftover)(t)
}

// A leftover is a turn whose request is in flight without a waiting caller.
type leftover turn

// Complete implements mux.Completer.
func (l *leftover) Complete(a *mux.Answer, err error) {
	t := (*turn)(l)
	again := err != nil || a.Code == uint16(Unavailable)
	how := landingOf(a, err)
	if how == keyed.Refused {
		t.trip.hold.release()
	}
	if t.Gone(how, again) {
		go t.trip.client.sendAgain(t)
	}
}
