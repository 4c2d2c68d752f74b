// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// An outgoing is the client's state of a call. It is reused. Users can see only its Call, the one
// of Client.Call and Method.Call, and must not keep that. Under the race detector an outgoing is
// not reused, so that the detector finds such a use.
type outgoing struct {
	// For asynchronous calls. These fields come first, because one processor writes them and
	// another reads them.
	client *Client         // owner of its pool; nil on a server
	peer   *Peer           // the destination; nil for an endpoint
	ctx    context.Context //nolint:containedctx // of the waiting call
	async  *Call
	done   ender

	binding *binding // set when the request has been encoded
	req     mux.Out  // the request, encoded once for all attempts
	body    []byte   // memory
	packed  []byte
	md      []byte
	unpack  []byte

	call  Call          // the Call of Client.Call and Method.Then
	began time.Duration // when the attempt began, on the clock; 0 before the first one

	// About the attempt, for the call's record.
	arrived    time.Duration // when the reply or stream acceptance came, on the clock; else 0
	received   int           // bytes
	serverTime time.Duration // as the server reported; 0 if it did not
	serverWait time.Duration
	connecting time.Duration
	// About the call. Opened is when the server accepted or answered the stream of the last attempt
	// in the record; 0 if it did neither.
	opened    time.Duration
	counted   int           // the number of attempts in the record
	resolving time.Duration // how long it waited for the first set of instances
	fork      bool
	concluded bool // the record is made

	from   *requester
	budget budget                   // the call's own budget
	lent   int32                    // tokens lent to the attempt
	at     atomic.Pointer[Endpoint] // for forks: the endpoint of the attempt
	group  group                    // memory
}

// keepScratch is the largest buffer that is kept for another call, in bytes.
const keepScratch = 64 << 10

// reset prepares o for another call, and reports whether it may be reused.
func (o *outgoing) reset() bool {
	if poison {
		o.call = Call{Method: "a Call was used after its call had ended"}
		return false
	}
	if o.async == nil || o.async == &o.call {
		o.call = Call{}
	}
	o.req.Reset()
	o.began, o.arrived, o.opened = 0, 0, 0
	if o.serverTime != 0 {
		o.serverTime, o.serverWait = 0, 0
	}
	if o.connecting != 0 || o.resolving != 0 || o.counted != 0 || o.fork || o.concluded {
		o.connecting, o.resolving, o.counted, o.fork, o.concluded = 0, 0, 0, false, false
	}
	if o.lent != 0 {
		o.lent = 0
	}
	if o.at.Load() != nil {
		o.at.Store(nil)
	}
	o.group.clear()
	o.binding, o.peer, o.ctx, o.async, o.done = nil, nil, nil, nil, nil // the client stays
	return cap(o.body) <= keepScratch && cap(o.packed) <= keepScratch && cap(o.unpack) <= keepScratch
}

// start makes the first attempt of an asynchronous call on the caller's goroutine, if that is
// possible.
func (c *Client) start(ctx context.Context, o *outgoing, call *Call, done ender) {
	o.ctx, o.async, o.done = ctx, call, done
	away := false // other code will finish the call
	defer func() {
		if !away {
			o.finish(o.client.guard.interrupted(o.ctx, o.async.Method, recover()))
		}
	}()
	c.timeout(call)
	if len(c.opts.Observers) > 0 {
		ctx = startAll(ctx, c.opts.Observers, call)
		o.ctx = ctx
	}
	ep, err := c.cluster.pick(ctx, call, false)
	if err == nil {
		if conn := ep.ready(ctx); conn != nil {
			call.Endpoint, call.picked = ep, ep
			if call.IdempotencyKey == "" {
				err = c.prepare(ctx, o, call)
			} else if conn, err = call.claimKey(ep, conn); err == nil {
				if err = c.prepareKeyed(ctx, call, conn); err != nil {
					call.hold.release(err)
				}
			}
			away = true
			c.startOn(o, ep, conn, err)
			return
		}
	}
	token := c.token(ctx)
	away = true
	if token {
		go c.resume(o, nil, true)
		return
	}
	c.resume(o, nil, false)
}

// startOn sends a prepared request, or finishes the call if preparing it failed with err.
func (c *Client) startOn(o *outgoing, ep *Endpoint, conn *mux.Conn, err error) {
	call := o.async
	if err != nil {
		o.finish(c.explain(o.ctx, call, ep, err))
		return
	}
	if call.OneWay {
		o.ended(conn.Notify(o.ctx, &o.req))
		return
	}
	ep.inflight.begun.Add(1)
	if err := conn.Start(o.ctx, &o.req, o); err != nil {
		o.Complete(nil, err)
	}
}

// Complete implements mux.Completer.
func (o *outgoing) Complete(a *mux.Answer, err error) {
	if o.peer != nil {
		o.peer.complete(o, a, err)
		return
	}
	ep := o.async.Endpoint
	ep.inflight.ended.Add(1)
	known := false
	defer func() {
		if !known { // a codec or the Learner has panicked
			o.ended(o.client.guard.interrupted(o.ctx, o.async.Method, recover()))
		}
	}()
	if ep.learned() {
		ep.learn(o.ctx, o.async, o.req.Began, a, err)
	}
	if err == nil {
		err = o.client.decode(o, o.async, a)
	}
	known = true
	o.ended(err)
}

// ended ends an attempt of an asynchronous call. If the attempt failed, the call continues like a
// synchronous one.
func (o *outgoing) ended(err error) {
	if err == nil {
		o.finish(nil)
		return
	}
	if h := o.async.hold; h != nil {
		h.release(err)
	}
	o.began = o.req.Began
	go o.client.resume(o, err, false)
}

// resume continues an asynchronous call like a synchronous one, after its first attempt failed or
// could not be made at once. With token, it returns the token for its goroutine.
func (c *Client) resume(o *outgoing, failed error, token bool) {
	known, err := false, error(nil)
	defer func() {
		if !known {
			err = c.guard.interrupted(o.ctx, o.async.Method, recover())
		}
		if token {
			<-c.async // before the callback, which may begin another call
		}
		o.finish(err)
	}()
	err = c.balanceAfter(o.ctx, o.async, failed)
	known = true
}

// finish ends an asynchronous call.
func (o *outgoing) finish(err error) {
	if t := o.async.turn; t != nil {
		t.trip.err = err
		t.Finish(gaveUp(o.ctx, err))
		return
	}
	o.tell(err)
}

// tell reports the outcome to the observers and the caller, and returns o to the pool.
func (o *outgoing) tell(err error) {
	if c := o.client; len(c.opts.Observers) == 0 && !c.remarkable(o.async, err) {
		o.deliver(err)
		return
	}
	o.tellObservers(err)
}

func (o *outgoing) tellObservers(err error) {
	c, ctx, call := o.client, o.ctx, o.async
	known := false
	defer func() { // also if an observer ends the goroutine
		if !known {
			if value := recover(); value != nil {
				err = c.guard.interrupted(ctx, call.Method, value)
			}
		}
		o.deliver(err)
	}()
	call.stopWatch()
	err = c.concludeOnce(ctx, call, err)
	endAll(ctx, c.guard, c.opts.Observers, call, err) // before deliver, because the call may be in o
	known = true
}

// deliver returns o to the pool and calls the callback.
func (o *outgoing) deliver(err error) {
	c, done, t := o.client, o.done, o.async.turn
	o.async.end()
	if t == nil {
		c.give(o)
	} else {
		t.give(o)
	}
	c.guard.tell(done, err)
}

// observe wraps a handler in observers. They see an error that has the record of its call.
func (q *requester) observe(observers []Observer, next Handler) Handler {
	if len(observers) == 0 {
		return next
	}
	all := &observers // one word of the stack instead of three
	return func(ctx context.Context, call *Call) (err error) {
		watched := startAll(ctx, *all, call)
		err = errGone // unless next returns
		defer func() {
			call.stopWatch()
			err = q.concludeOnce(watched, call, err)
			endAll(watched, q.guard, *all, call, err)
		}()
		return next(watched, call)
	}
}
