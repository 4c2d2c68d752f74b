// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/heritage"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/reuse"
)

// An outgoing is the client's state of a call. An outgoing is reused. User code can see only its
// Call, and only in Client.Call and Method.Call. User code must not keep that Call. Under the race
// detector an outgoing is not reused, so that the detector finds code that keeps it.
type outgoing struct {
	// The fields that each call writes come first. The goroutine that makes an asynchronous call
	// writes them, and the goroutine that reads its reply, which may run on another processor.
	from    *requester      // owner of its pool
	peer    *Peer           // the destination; nil for an endpoint
	ctx     context.Context //nolint:containedctx // of the waiting call
	async   *Call
	done    ender
	binding *binding      // set when the request has been encoded
	body    []byte        // memory
	packed  []byte        // memory
	began   time.Duration // when the attempt began, on the clock; 0 before the first one
	arrived time.Duration // when the reply or the acceptance of the stream came, on the clock; 0 before
	req     mux.Out       // the request, encoded once for all attempts

	extra     *extra // nil before the first call that used it, then kept
	received  uint32 // bytes of the reply, or the maximum
	usesExtra bool   // whether this call uses extra
	call      Call   // the Call of Client.Call and Method.Then
}

// An extra is the state of what most calls do not use.
type extra struct {
	record.Progress

	fork     bool                     // see Attempts.Fork
	detached bool                     // see Attempts.Detach
	lent     int32                    // tokens lent to the attempt
	budget   budget.Tokens            // the call's own budget
	trace    string                   // the Trace of the user's call
	at       atomic.Pointer[Endpoint] // for forks: the endpoint of the attempt
	linked   context.Context          //nolint:containedctx // that of Link.Do; nil if replies are not compressed
	metadata []byte                   // memory
	unpacked []byte                   // memory
	group    group                    // memory
}

// noExtra is the extra of all calls that use none. It is never changed.
var noExtra = extra{}

// readExtra returns o's extra for reading.
func (o *outgoing) readExtra() *extra {
	if !o.usesExtra {
		return &noExtra
	}
	return o.extra
}

// useExtra returns o's extra for changes.
func (o *outgoing) useExtra() *extra {
	if o.extra == nil {
		o.extra = new(extra)
	}
	o.usesExtra = true
	return o.extra
}

// reset prepares x for another call, and reports whether it may be reused.
func (x *extra) reset() bool {
	x.Progress = record.Progress{}
	x.fork, x.detached, x.lent, x.trace, x.linked = false, false, 0, "", nil
	x.at.Store(nil)
	x.group.clear()
	return reuse.Small(x.unpacked)
}

// A group is a call and its forks.
type group struct {
	first *Call
	like  any                     // replies of forks have the type of like
	forks atomic.Pointer[[]*Call] // nil before the first fork
	seed  Call                    // the copy of first that forks start with
}

// clear resets the group when its call has ended.
func (g *group) clear() {
	if g.first == nil {
		return
	}
	g.first, g.like, g.seed = nil, nil, Call{}
	if g.forks.Load() != nil {
		g.forks.Store(nil)
	}
}

// going stores the endpoint of an attempt. The other calls of the group avoid that endpoint.
func (c *Call) going(ep *Endpoint) {
	if c.group != nil {
		c.out.extra.at.Store(ep) // Forkable or Fork has made it
	}
}

// besides reports whether another call of the group has sent an attempt to ep.
func (c *Call) besides(ep *Endpoint) bool {
	g := c.group
	if g == nil {
		return false
	}
	if g.first != c && g.first.out.extra.at.Load() == ep {
		return true
	}
	forks := g.forks.Load()
	return forks != nil && slices.ContainsFunc(*forks, func(f *Call) bool { return f != c && f.out.extra.at.Load() == ep })
}

// reset prepares o for another call, and reports whether it may be reused.
func (o *outgoing) reset() bool {
	if reuse.Poison {
		o.call = Call{Method: "a Call was used after its call had ended"}
		return false
	}
	if o.async == nil || o.async == &o.call {
		o.call = Call{}
	}
	o.req.Reset()
	o.began, o.arrived, o.received = 0, 0, 0
	if o.usesExtra {
		if o.usesExtra = false; !o.extra.reset() {
			o.extra = nil
		}
	}
	o.binding, o.peer, o.ctx, o.async, o.done = nil, nil, nil, nil, nil
	return reuse.Small(o.body) && reuse.Small(o.packed)
}

// fill makes o.call the call of a method, for callers that have no Call of their own.
func (o *outgoing) fill(method string, in, out any, oneWay bool) *Call {
	call := &o.call
	call.Method, call.Args, call.Reply, call.OneWay, call.out = method, in, out, oneWay, o
	return call
}

// begin prepares a call that the user made. The user may have used the call before.
func (o *outgoing) begin(ctx context.Context, c *Call) {
	c.out, c.Attempt = o, 0
	if c.Trace != "" {
		o.useExtra().trace = c.Trace
	}
	// begin does not write fields that are already correct, because they are in the cache of the
	// processor on which the reader goroutine runs.
	if c.tried != nil {
		c.tried = nil
	}
	if c.watch != unwatched || c.began != 0 {
		c.watch, c.began, c.took = unwatched, 0, 0
	}
	if c.rare != nil || c.group != nil || c.hold != c.resumed {
		c.rare, c.group, c.hold = nil, nil, c.resumed
	}
	if c.picked != nil { // the endpoint of the call's earlier use
		if c.Endpoint == c.picked {
			c.Endpoint = nil
		}
		c.picked = nil
	}
	c.inherit(ctx)
}

// tokens returns the call's budget, or nil if it has none. The memory of the call's own budget is
// in its outgoing.
func (c *Call) tokens() *budget.Tokens {
	if c.budget == nil && c.Budget > 0 && c.out != nil {
		c.budget = &c.out.useExtra().budget
		c.budget.Set(budget.Of(c.Budget))
	}
	return c.budget
}

// end undoes the changes that the client made to a user's call while the call ran.
func (o *outgoing) end(c *Call) {
	if trace := o.readExtra().trace; c.Trace != trace { // an observer has set it
		c.Trace = trace
	}
	c.out = nil
	if c.turn != nil {
		c.turn = nil
	}
	if c.limited {
		c.Deadline, c.limited = time.Time{}, false
	}
	if c.stays {
		c.stays = false
	}
	if c.budget != nil {
		c.budget = nil
	}
	if c.inherited != (heritage.Inherited{}) {
		c.inherited.Reset(c.heritable())
	}
}

// start begins an asynchronous call. It makes the first attempt on the caller's goroutine, if that
// is possible.
func (q *requester) start(ctx context.Context, o *outgoing, call *Call, done ender) {
	o.ctx, o.async, o.done = ctx, call, done
	known := false // true once other code will finish the call
	defer func() {
		if !known {
			o.finish(q.guard.Interrupted(o.ctx, o.async.Method, recover()))
		}
	}()
	if w := o.watchers(); len(w.calls) > 0 {
		ctx = startAll(ctx, w.calls, call)
		o.ctx = ctx
	}
	conn, ep, err := (*mux.Conn)(nil), (*Endpoint)(nil), error(nil)
	if t := call.turn; t != nil {
		ended, err := t.sendAtOnce(ctx, call)
		if known = true; ended {
			o.ended(err)
		}
		return
	}
	if o.peer != nil {
		conn, err = o.peer.begin(ctx, call)
	} else if picked, pickErr := q.client.cluster.pick(ctx, call, false); pickErr == nil {
		if d := picked.ready(ctx); d != nil && d.Foreign == nil {
			ep = picked
			call.Endpoint, call.picked = ep, ep
			if d, err = q.begin(ctx, call, d, ep); err == nil {
				conn = d.Mux
			}
		}
	}
	known = true
	switch {
	case err != nil:
		o.ended(err)
	case conn == nil: // it has to wait
		q.async.Run(ctx, call.Method, q.async.Take(ctx), func() error { return o.proceed(nil) }, o.finish)
	case call.OneWay:
		o.ended(q.send(ctx, call, conn, ep, nil))
	default:
		if err = q.send(ctx, call, conn, ep, o); err != nil {
			o.ended(err)
		}
	}
}

// Complete implements mux.Completer.
func (o *outgoing) Complete(a *mux.Answer, err error) {
	known := false
	defer func() {
		if !known { // a codec or the Learner has panicked
			err = o.from.guard.Interrupted(o.ctx, o.async.Method, recover())
		}
		o.ended(err)
	}()
	ep := o.async.Endpoint
	err = o.from.land(o.ctx, o.async, ep, o.beganOn(ep), a, err)
	known = true
}

// beganOn returns when the attempt began, on the clock, or 0 if ep has no Learner.
func (o *outgoing) beganOn(ep *Endpoint) time.Duration {
	if ep == nil || !ep.learned() {
		return 0
	}
	return o.req.Began
}

// ended ends an attempt of an asynchronous call. If the attempt failed, the call continues like a
// synchronous one.
func (o *outgoing) ended(err error) {
	if err == nil {
		o.finish(nil)
		return
	}
	go o.resume(err)
}

// resume continues an asynchronous call like a synchronous one, after its first attempt failed.
func (o *outgoing) resume(failed error) {
	o.began = o.req.Began // for the record of the attempt
	o.from.guard.Run(o.ctx, o.async.Method, func() error { return o.proceed(failed) }, o.finish)
}

// proceed makes the attempts that are left after one that failed, or all of them if failed is nil.
func (o *outgoing) proceed(failed error) error {
	if o.peer != nil {
		return o.peer.after(o.ctx, o.async, failed)
	}
	return o.from.proceed(o.ctx, o.async, failed)
}

// finish ends an asynchronous call.
func (o *outgoing) finish(err error) {
	if t := o.async.turn; t != nil {
		t.Finish(err, gaveUp(o.ctx, err))
		return
	}
	o.tell(err)
}

// watchers returns the observers of the call.
func (o *outgoing) watchers() *watchers {
	if o.peer != nil {
		return &o.from.peers.watchers
	}
	return &o.from.watchers
}

// tell reports the outcome to the observers and the caller, and returns o to the pool.
func (o *outgoing) tell(err error) {
	q := o.from
	if w := o.watchers(); len(w.calls) == 0 && !w.wants(o.async, err) && !q.remarkable(o.async, err) {
		q.count(o, o.async, err)
		o.deliver(err)
		return
	}
	o.tellObservers(err)
}

func (o *outgoing) tellObservers(err error) {
	q, ctx, call := o.from, o.ctx, o.async
	known := false
	defer func() { // also if an observer ends the goroutine
		if !known {
			if value := recover(); value != nil {
				err = q.guard.Interrupted(ctx, call.Method, value)
			}
		}
		o.deliver(err)
	}()
	call.stopWatch()
	err = q.concludeOnce(ctx, call, err)
	q.endWatched(ctx, o.watchers(), o, call, err) // before deliver, because the call may be in o
	known = true
}

// deliver returns o to the pool and calls the callback.
func (o *outgoing) deliver(err error) {
	q, done, t := o.from, o.done, o.async.turn
	o.end(o.async)
	if t == nil {
		q.give(o)
	} else {
		t.give(o)
	}
	q.guard.Tell(done, err)
}

// doElsewhere makes an asynchronous call as a synchronous one, on another goroutine.
func (q *requester) doElsewhere(ctx context.Context, to Caller, call *Call, done ender) {
	do := func() error { return to.Do(ctx, call) }
	q.async.Run(ctx, call.Method, q.async.Take(ctx), do, func(err error) { q.guard.Tell(done, err) })
}

// observe wraps a handler in observers, and counts its calls if counts is set. The error that
// observers see has the record of the call.
func (q *requester) observe(w *watchers, counts bool, next Handler) Handler {
	switch {
	case len(w.calls) > 0:
		return func(ctx context.Context, call *Call) (err error) {
			watched := startAll(ctx, w.calls, call)
			err = errGone // remains if next does not return
			defer func() {
				call.stopWatch()
				err = q.concludeOnce(watched, call, err)
				q.endWatched(watched, w, call.out, call, err)
			}()
			return next(watched, call)
		}
	case len(w.notable) > 0 || counts:
		return func(ctx context.Context, call *Call) (err error) {
			err = errGone
			defer func() {
				if err != nil {
					err = q.concludeOnce(ctx, call, err)
				}
				q.endWatched(ctx, w, call.out, call, err)
			}()
			return next(ctx, call)
		}
	}
	return next
}

// A destination is the address to which a stream was sent. Unlike a Call, it may be read after the
// call has ended, and while another attempt begins.
type destination struct {
	endpoint atomic.Pointer[Endpoint] // nil for a peer
	peer     net.Addr
}

// set stores the address of an attempt.
func (d *destination) set(call *Call) {
	if d.endpoint.Store(call.Endpoint); call.Endpoint == nil {
		d.peer = call.out.peer.Addr
	}
}

// String implements fmt.Stringer.
func (d *destination) String() string {
	if ep := d.endpoint.Load(); ep != nil {
		return ep.Addr()
	}
	return d.peer.String()
}

// addrOf returns the address to which a call was sent.
func addrOf(call *Call) string {
	switch {
	case call.Endpoint != nil:
		return call.Endpoint.Addr()
	case call.out != nil && call.out.peer != nil:
		return call.out.peer.Addr.String()
	}
	return "the server"
}

// An ender is notified when an asynchronous call has ended.
type ender interface{ Ended(err error) }

// A callback is an ender that calls a function, which may be nil.
type callback func(error)

func (f callback) Ended(err error) {
	if f != nil {
		f(err)
	}
}
