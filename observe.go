// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/samples"
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
func (c *Call) Took() time.Duration {
	if c.watch == watching {
		return clock() - c.began
	}
	return c.took
}

// startAll runs the Start functions of the observers. It is not inlined, so that its stack frame is
// gone while the call runs: see Decode of package body.
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
	return len(w.notable) > 0 && (err != nil || call.Trace != "" && samples.Sampled(call.Trace))
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
func (q *requester) endWatched(ctx context.Context, w *watchers, o *outgoing, call *Call, err error) {
	endAll(ctx, q.guard, w.calls, call, err)
	q.count(o, call, err)
	if w.wants(call, err) {
		call.took = q.tookFor(o, call, err)
		w.tellNotable(ctx, q.guard, call, err)
	}
}

// A messageWatch runs the Message functions of observers for one stream.
type messageWatch struct {
	observers []Observer
	guard     *guard.Guard
	call      *Call
}

// Message runs them for a message.
func (w *messageWatch) Message(ctx context.Context, sent bool, bytes int) {
	for i := range w.observers {
		func() {
			defer w.guard.Rescue("an Observer's Message")
			w.observers[i].Message(ctx, w.call, sent, bytes)
		}()
	}
}

// ending returns the event for a connection that ended with err.
func ending(addr string, err error) introspect.ConnEvent {
	e := introspect.ConnEvent{Addr: addr, Err: err}
	op, _ := errors.AsType[*mux.IOError](err)
	switch {
	case errors.Is(err, mux.ErrClosed), errors.Is(err, mux.ErrRetired), errors.Is(err, mux.ErrAged):
		e.Kind, e.Err = introspect.Closed, nil
	case errors.Is(err, mux.ErrDrained), op != nil && op.Op == mux.EndOfStream:
		e.Kind, e.Err = introspect.Disconnected, nil
	case op != nil && op.Op == mux.Write:
		e.Kind = introspect.WriteFailed
	default:
		e.Kind = introspect.ReadFailed
	}
	return e
}

// event passes a connection event to the OnConn hook. If the event suggests that instances have
// moved, it also asks the resolver to refresh.
func (c *Client) event(e introspect.ConnEvent) {
	if c.refresh != nil && e.Kind != introspect.Connected && e.Kind != introspect.Closed {
		_ = c.guard.Apart("the resolver's Refresh", nil, func() error { // a failure is in the log
			c.refresh()
			return nil
		})
	}
	if c.opts.OnConn != nil {
		_ = c.hooks.Run(c.guard, "the OnConn hook", func() error {
			c.opts.OnConn(e)
			return nil
		})
	}
}
