// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/reply"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file makes attempts, for clients and for peers. In an attempt, the request of a call is sent
// once on one connection: begin prepares the request, send sends it, and land ends the attempt. The
// kinds of calls differ only in where they wait for the answer. A synchronous call and a stream
// wait in send. An asynchronous or ordered call gives send a Completer, which passes the answer on
// to land. A one-way call has no answer.

// attempt makes one attempt of call on a connection of ep, and waits for its end.
func (q *requester) attempt(ctx context.Context, call *Call, conn *dialledConn, ep *Endpoint) error {
	if conn.link != nil {
		return q.client.attemptLink(ctx, call, conn, ep)
	}
	conn, err := q.begin(ctx, call, conn, ep)
	if err != nil {
		return err
	}
	return q.send(ctx, call, conn.mux, ep, nil)
}

// begin prepares the request for the next attempt, normally on conn. It returns the connection to
// use: conn, or another connection of ep if only the other one leads to a server that remembers the
// call's idempotency key. If begin succeeds, the caller must call send. Conn and ep are nil for a
// call to a peer.
func (q *requester) begin(ctx context.Context, call *Call, conn *dialledConn, ep *Endpoint) (*dialledConn, error) {
	o := call.out
	if ctx.Err() != nil {
		return nil, &mux.CallError{Cause: context.Cause(ctx), NotProcessed: true}
	}
	if err := q.encode(o, call); err != nil {
		return nil, err
	}
	if err := q.encodeFields(o, call); err != nil {
		return nil, err
	}
	if call.IdempotencyKey != "" {
		var err error
		if conn, err = o.claimKey(call, ep, conn); err != nil {
			return nil, err
		}
	}
	o.req.Deadline, o.req.NoWait = expiry.Earliest(ctx, call.Deadline), q.noWait || call.NoWait
	call.Attempt++
	if call.Budget > 0 || call.budget != nil || call.group != nil || call.Trailer != nil || call.ReplyAttachment != nil || call.rare != nil {
		o.renew(call)
	}
	return conn, nil
}

// renew lends tokens to a new attempt, and resets the fields of the call that the previous attempt
// has set.
func (o *outgoing) renew(c *Call) {
	if (c.Budget > 0 || c.budget != nil) && o.binding != nil { // otherwise a Wire sends the call
		o.lend(c)
	}
	if g := c.group; g != nil && g.like != nil && c.Reply == nil {
		c.Reply = reply.New(g.like)
	}
	if c.Trailer != nil || c.ReplyAttachment != nil {
		c.Trailer, c.ReplyAttachment = nil, nil
	}
	if c.rare != nil {
		c.rare.header = nil
	}
}

// send sends a request that begin has prepared. If later is nil, send waits for the end of the
// attempt. Otherwise send returns when the request is in the output, and later gets the answer. If
// send returns an error, later gets no answer. The attempt counts as in flight only while no user
// code runs that may panic, such as a codec.
func (q *requester) send(ctx context.Context, call *Call, conn *mux.Conn, ep *Endpoint, later mux.Completer) error {
	switch {
	case call.OneWay || call.stream != nil:
		return q.sendOther(ctx, call, conn, ep, later)
	case later != nil:
		return q.sendLater(ctx, call, conn, ep, later)
	}
	at := ep.started()
	a, err := conn.Call(ctx, &call.out.req, ep.starts())
	err = q.land(ctx, call, ep, at, a, err)
	if a != nil {
		a.Release()
	}
	return err
}

// sendLater is send for a call whose answer goes to later. When sendLater has succeeded, the call
// may already have ended and be in use again.
func (q *requester) sendLater(ctx context.Context, call *Call, conn *mux.Conn, ep *Endpoint, later mux.Completer) error {
	err := conn.Start(ctx, &call.out.req, later, ep.starts())
	if err != nil {
		q.unstarted(ctx, call, ep, err)
	}
	return err
}

// unstarted ends an attempt that could not be sent.
func (q *requester) unstarted(ctx context.Context, call *Call, ep *Endpoint, err error) {
	if ep.ended(); ep != nil && ep.learned() {
		ep.learn(ctx, call, 0, nil, err)
	}
	ep.failedOn(call, err)
	call.out.measured(ctx, call, ep, call.out.binding, err)
	if q.watches {
		q.watchAttempt(ctx, call, err)
	}
}

// failedOn counts a failed attempt on ep, which is nil for a peer. A canceled attempt did not fail.
func (ep *Endpoint) failedOn(call *Call, err error) {
	if ep == nil {
		return
	}
	if CodeOf(err) != Canceled {
		ep.failed.Add(1)
	}
	unclaimKey(call, err)
}

// sendOther is send for a one-way call or a stream.
func (q *requester) sendOther(ctx context.Context, call *Call, conn *mux.Conn, ep *Endpoint, later mux.Completer) (err error) {
	at, streams := ep.begun(), call.stream != nil
	err = errGone
	defer func() { // also if the caller's stream function panics
		ep.ended()
		if at != 0 && streams {
			ep.learn(ctx, call, 0, nil, err)
		}
		if err != nil {
			ep.failedOn(call, err)
		}
		call.out.measured(ctx, call, ep, call.out.binding, err)
		if q.watches {
			q.watchAttempt(ctx, call, err)
		}
	}()
	switch {
	case streams:
		err = q.converse(ctx, call, conn)
	case later != nil:
		err = conn.Follow(ctx, &call.out.req, later)
	default:
		err = conn.Notify(ctx, &call.out.req)
	}
	return err
}

// land ends an attempt with the answer to it, or with the error of the connection. It returns the
// error of the attempt. At is the reading of the clock when the attempt began, or 0 if there is no
// Learner.
func (q *requester) land(ctx context.Context, call *Call, ep *Endpoint, at time.Duration, a *mux.Answer, err error) error {
	ep.ended()
	if at != 0 {
		ep.learn(ctx, call, at, a, err)
	}
	if err == nil {
		err = q.decode(ctx, call.out, call, a)
	}
	if err != nil {
		ep.failedOn(call, err)
	}
	call.out.measured(ctx, call, ep, call.out.binding, err)
	if q.watches {
		q.watchAttempt(ctx, call, err)
	}
	return err
}

// converse makes one attempt of a call with a stream, on conn.
func (q *requester) converse(ctx context.Context, call *Call, conn *mux.Conn) error {
	o, s := call.out, call.stream
	if err := s.Again(call.Method); err != nil {
		return errorOf(err)
	}
	st := mux.NewStream()
	o.req.Stream = st
	err := conn.Start(ctx, &o.req, o.lender(ctx, call, st))
	o.req.Stream = nil
	if err != nil {
		return err
	}
	a, err := s.Native(ctx, st, q.pipe(ctx, call, o.binding, st), &o.arrived, errGone)
	if err == nil {
		opened := o.arrived
		if err = q.decode(ctx, o, call, a); opened != 0 {
			o.arrived = opened
		} else if o.arrived == 0 {
			o.arrived = clock()
		}
	}
	return errorOf(s.Outcome(call.Method, err))
}

// pipe returns the pipe of a call with a stream. It reads nothing of the call later, because the
// caller may send and receive after the call has ended.
func (q *requester) pipe(ctx context.Context, call *Call, b *binding, st pipe.Stream) *pipe.Pipe {
	to, method, part := &call.stream.to, call.Method, failedPart{call.out.req.Waited, true}
	to.set(call)
	p := &pipe.Pipe{
		Stream: st, Context: ctx, Method: method, Where: to, Each: call.rare.checks(), Torn: "YDL2205", Unfit: "YDL2102", Codec: b.Format.Codec, Raw: b.Format.Raw(), Pack: &b.Format.Pack, MaxMessage: q.limits.MaxMessage,
		Fail: func(err error) error {
			switch err := err.(type) { //nolint:errorlint // they are passed bare
			case *fault.Fault:
				return errorOf(err)
			case finalError: // carry got it
				return err.error
			}
			return q.explainPart(ctx, method, to.String(), part, unsentByLink(err))
		},
	}
	if w := call.out.watchers().messages; len(w) > 0 {
		p.Watch = &messageWatch{w, q.guard, call}
	}
	if s := call.stream; s.Kind == wire.Feed {
		p.Begun, p.Opened = &s.Begun, &call.out.arrived
	}
	return p
}

// attemptLink makes one attempt of a call on a link.
func (c *Client) attemptLink(ctx context.Context, call *Call, d *dialledConn, ep *Endpoint) error {
	o, ctx := call.out, isolate.Context(ctx)
	if ctx.Err() != nil {
		return &mux.CallError{Cause: context.Cause(ctx), NotProcessed: true}
	}
	b := c.binding(call)
	if b == nil {
		return tooLongName(call)
	}
	if err := unsendable(call, b, d.link.codec(call)); err != nil {
		return err
	}
	if call.IdempotencyKey != "" {
		if _, err := o.claimKey(call, ep, d); err != nil {
			return err
		}
	}
	call.Attempt++
	o.renew(call)
	if o.readExtra().lent > 0 { // replies of this protocol do not return tokens
		o.repay(call, 0)
	}
	if own, ok := ctx.Deadline(); !call.Deadline.IsZero() && (!ok || call.Deadline.Before(own)) { // otherwise ctx ends with its cause
		limited, cancel := context.WithDeadline(ctx, call.Deadline)
		defer cancel()
		ctx = limited
	}
	at := ep.begun()
	d.link.open.Add(1)
	err := error(errGone) // remains if Do does not return
	defer func() {
		d.link.open.Add(-1)
		if ep.ended(); at != 0 {
			ep.learn(ctx, call, at, nil, err)
		}
		if err != nil {
			ep.failedOn(call, err)
		}
		o.measured(ctx, call, ep, b, err)
		if c.watches {
			c.watchAttempt(ctx, call, err)
		}
	}()
	s := call.stream
	if s != nil {
		at = 0
	}
	if call.Compressing() != nil {
		o.useExtra().linked = ctx
	}
	err = d.link.failure(ctx, ep, unsentByLink(d.link.Do(ctx, call)))
	if s != nil && !s.Rewind(err, reason.Unsent(err) || NotProcessed(err)) {
		err = errorOf(s.Outcome(call.Method, err))
	}
	o.arrived = clock()
	if e, ok := errors.AsType[*Error](err); err == nil || ok && !e.NotProcessed {
		d.link.replied.Store(true)
	}
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapper is the Link's
		relayed := *e
		relayed.relayed = true
		err = &relayed
	}
	return err
}

// linkContext returns the context of the Link.Do that makes an attempt of a call, or the background
// context in another function.
func linkContext(call *Call) context.Context {
	if ctx := call.out.readExtra().linked; ctx != nil {
		return ctx
	}
	return context.Background()
}
