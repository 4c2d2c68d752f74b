// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// An Observer watches calls without changing them. Unlike with a Middleware, an asynchronous call
// with an Observer needs no goroutine of its own. Each function may be nil. Several goroutines may
// call the functions at the same time. The functions must return soon.
type Observer struct {
	// Start runs before the call is sent or its handler is called. The context that Start returns
	// becomes the context of the call.
	Start func(ctx context.Context, call *Call) context.Context
	// Attempt runs when an attempt of the call has ended, on the side that sends it. The record is
	// valid until Attempt returns. One-way attempts end when they are sent.
	Attempt func(ctx context.Context, call *Call, attempt *introspect.Attempt)
	// Message runs when a message of a stream was sent or received, on both sides. Bytes is its
	// size when encoded, before compression.
	Message func(ctx context.Context, call *Call, sent bool, bytes int)
	// End runs when the call has ended: on the client before the caller gets the result, on the
	// server after the connection has taken the reply.
	End func(ctx context.Context, call *Call, err error)
	// Notable runs after End for calls that failed, and for calls whose Trace is sampled, on both
	// sides. All other calls cost nothing for an Observer that has only Notable. Call.Took is then
	// the time since the server began to execute the call, or since the client made it. It is 0 for
	// a call that could not be sent or that the server has not timed.
	Notable func(ctx context.Context, call *Call, err error)
}

// Took returns how long the call has taken so far, for its observers. This is the time from just
// before the first observer starts until the call has ended, so all observers see the same
// duration. It is zero for a call without observers.
//
// It is a method of Call because keeping the time in a context would cost each observer an
// allocation and two readings of the clock.
func (c *Call) Took() time.Duration {
	if c.watch == watching {
		return clock() - c.began
	}
	return c.took
}

// Queued returns, for observers, how long the call has waited so far: on the server from the
// arrival of the request until a goroutine began to work on it, and on the client for the first set
// of instances, for connections, and for room in the windows of servers. It is zero where the time
// is unknown.
func (c *Call) Queued() time.Duration {
	switch {
	case c.in != nil:
		return c.in.queued()
	case c.out == nil:
		return 0
	}
	x := c.out.readExtra()
	waited := x.resolving + x.connecting + c.out.req.Waited
	if c.rare != nil {
		for i := range c.rare.attempts {
			waited += c.rare.attempts[i].Connecting + c.rare.attempts[i].Credit
		}
	}
	return waited
}

// Traffic returns, for observers and handlers, how much was sent and received for the call so far,
// in all its attempts. It counts the bytes of bodies, attachments and metadata in the form in which
// they travel.
func (c *Call) Traffic() (t introspect.Traffic) {
	switch {
	case c.in != nil:
		in := c.in
		t.BytesIn, t.BytesOut = in.protocol.sizes()
		if in.stream != nil {
			s := in.stream.Traffic()
			t.Received, t.Sent = s.Received, s.Sent
			t.BytesIn += s.ReceivedBytes
			t.BytesOut += s.SentBytes
		}
	case c.out != nil:
		if c.rare != nil {
			for i := range c.rare.attempts {
				t.Add(&c.rare.attempts[i])
			}
		}
		if c.Attempt > c.out.readExtra().counted { // the last attempt is not in the record
			a := c.describeAttempt(0, 0)
			t.Add(&a)
		}
	}
	return t
}

// Now returns the time for middleware. On the client, Now returns the time at which the call was
// made until the call's first attempt goes to an endpoint. All middleware and observers share this
// one reading of the clock, because a reading costs as much as three middlewares.
func (c *Call) Now() time.Time {
	if c.in != nil || c.out == nil || c.out.began != 0 {
		return time.Now()
	}
	return mux.TimeOf(c.made())
}

// made returns approximately when the call was made. The first use reads the clock.
func (c *Call) made() time.Duration {
	if c.began == 0 {
		c.began = clock()
	}
	return c.began
}

// startAll runs the Start functions of the observers. It is not inlined, so that its stack frame is
// gone while the call runs: see decodeBody.
//
//go:noinline
func startAll(ctx context.Context, observers []Observer, call *Call) context.Context {
	if len(observers) == 0 {
		return ctx
	}
	call.watch = watching
	call.made()
	for i := range observers {
		if start := observers[i].Start; start != nil {
			ctx = start(ctx, call) //nolint:fatcontext // each observer adds to it
		}
	}
	return ctx
}

// endAll runs the End functions of the observers, in reverse order.
//
//go:noinline
func endAll(ctx context.Context, g *guard.Guard, observers []Observer, call *Call, err error) {
	if len(observers) == 0 {
		return
	}
	call.stopWatch()
	for _, o := range slices.Backward(observers) {
		if o.End != nil {
			o.end(ctx, g, call, err)
		}
	}
}

// end calls End. If End panics, the other observers still run.
func (o *Observer) end(ctx context.Context, g *guard.Guard, call *Call, err error) {
	defer g.Rescue("an Observer's End")
	o.End(ctx, call, err)
}

// stopWatch stores the duration of an observed call.
func (c *Call) stopWatch() {
	if c.watch == watching {
		c.took, c.watch = c.Took(), watched
	}
}

// watchers is the observers of one kind of calls, by their functions.
type watchers struct {
	calls    []Observer // those with a function for all calls
	attempts []Observer // those with Attempt
	messages []Observer // those with Message
	notable  []Observer // those with Notable
}

func watchersOf(observers []Observer) watchers {
	with := func(wanted func(o *Observer) bool) []Observer {
		return slices.DeleteFunc(slices.Clone(observers), func(o Observer) bool { return !wanted(&o) })
	}
	return watchers{
		calls:    with(func(o *Observer) bool { return o.Start != nil || o.Attempt != nil || o.Message != nil || o.End != nil }),
		attempts: with(func(o *Observer) bool { return o.Attempt != nil }),
		messages: with(func(o *Observer) bool { return o.Message != nil }),
		notable:  with(func(o *Observer) bool { return o.Notable != nil }),
	}
}

// wants reports whether Notable must run for a call that has ended with err.
func (w *watchers) wants(call *Call, err error) bool {
	return len(w.notable) > 0 && (err != nil || call.Trace != "" && sampled(call.Trace))
}

// sampled reports whether a Call.Trace says that the trace is recorded.
func sampled(trace string) bool {
	// 00-TRACE_ID-PARENT_ID-FLAGS: 2, 32, 16 and 2 hexadecimal digits
	if len(trace) < 55 || trace[52] != '-' {
		return false
	}
	flags, err := strconv.ParseUint(trace[53:55], 16, 8)
	return err == nil && flags&1 != 0
}

// tellNotable runs the Notable functions for a call that has ended.
func (w *watchers) tellNotable(ctx context.Context, g *guard.Guard, call *Call, err error) {
	for i := range w.notable {
		func() {
			defer g.Rescue("an Observer's Notable")
			w.notable[i].Notable(ctx, call, err)
		}()
	}
}

// tellNotable runs the Notable functions for a call that the server has executed. Took is the time
// since execution began, or mux.Untimed.
func (c *serverCall) tellNotable(took time.Duration) {
	call := &c.call
	if call.watch != watched {
		if took == mux.Untimed {
			took = 0
			if call.began != 0 {
				took = clock() - call.began
			}
		}
		call.took = took
	}
	c.server.watchers.tellNotable(c.ctx, c.server.guard, call, c.err)
	if call.watch != watched {
		call.took = 0 // the memory may be used for another call
	}
}

// endWatched runs the End and Notable functions for a call that this side has made, and counts the
// call.
//
//go:noinline
func (q *requester) endWatched(ctx context.Context, w *watchers, call *Call, err error) {
	endAll(ctx, q.guard, w.calls, call, err)
	q.count(call, err)
	if w.wants(call, err) {
		call.took = q.tookFor(call, err)
		w.tellNotable(ctx, q.guard, call, err)
	}
}

// watchAttempt runs the Attempt functions of the observers for an attempt that ended with err.
//
//go:noinline
func (q *requester) watchAttempt(ctx context.Context, call *Call, err error) {
	o := call.out
	watchers := o.watchers().attempts
	if len(watchers) == 0 {
		return
	}
	began := cmp.Or(max(o.req.Began, o.began), call.start())
	a := call.describeAttempt(began, clock())
	if err != nil {
		failAttempt(&a, q.explainAt(ctx, call, addrOf(call), err))
	}
	for i := range watchers {
		func() {
			defer q.guard.Rescue("an Observer's Attempt")
			watchers[i].Attempt(ctx, call, &a)
		}()
	}
}

// A messageWatch runs the Message functions of observers for one stream.
type messageWatch struct {
	observers []Observer
	guard     *guard.Guard
	call      *Call
}

// watchMessages returns nil if no observer has a Message function.
func (c *Call) watchMessages(g *guard.Guard, observers []Observer) *messageWatch {
	if len(observers) == 0 {
		return nil
	}
	return &messageWatch{observers, g, c}
}

func (w *messageWatch) message(ctx context.Context, sent bool, bytes int) {
	for i := range w.observers {
		func() {
			defer w.guard.Rescue("an Observer's Message")
			w.observers[i].Message(ctx, w.call, sent, bytes)
		}()
	}
}
