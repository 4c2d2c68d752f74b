// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"time"

	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/mux"
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
		if conn, err = call.claimKey(ep, conn); err != nil {
			return nil, err
		}
	}
	o.req.Deadline, o.req.NoWait = expiry.Earliest(ctx, call.Deadline), q.noWait || call.NoWait
	call.Attempt++
	if call.Budget > 0 || call.budget != nil || call.group != nil || call.Trailer != nil || call.ReplyAttachment != nil || call.rare != nil {
		call.renew()
	}
	return conn, nil
}

// renew lends tokens to a new attempt, and resets the fields of the call that the previous attempt
// has set.
func (c *Call) renew() {
	if (c.Budget > 0 || c.budget != nil) && c.out.binding != nil { // otherwise a Wire sends the call
		c.out.lend(c)
	}
	if g := c.group; g != nil && g.like != nil && c.Reply == nil {
		c.Reply = another(g.like)
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
	call.failedOn(ep, err)
	call.out.measured(ctx, call, ep, call.out.binding, err)
	if q.watches {
		q.watchAttempt(ctx, call, err)
	}
}

// failedOn counts a failed attempt on ep, which is nil for a peer.
func (c *Call) failedOn(ep *Endpoint, err error) {
	if ep != nil {
		ep.failed.Add(1)
		c.unclaimKey(ep, err)
	}
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
			call.failedOn(ep, err)
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
		call.failedOn(ep, err)
	}
	call.out.measured(ctx, call, ep, call.out.binding, err)
	if q.watches {
		q.watchAttempt(ctx, call, err)
	}
	return err
}
