// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"time"

	"github.com/yodel-rpc/yodel/internal/ending"
	"github.com/yodel-rpc/yodel/internal/monotime"
)

// A Context is the context of a request's handler. It ends when the peer cancels, when the deadline
// passes, when the connection ends, or when the handler has returned. A Context is small, because
// every request needs a new one: handlers may keep their contexts, so contexts are never reused.
type Context struct {
	conn     *Conn
	id       uint32 // of the request; 0 if it has none
	deadline int64  // on the connection's clock; 0 for none

	rd      *reader // the reader that runs the handler inline, or nil
	running uint64  // the state of rd while the handler runs

	end ending.End
}

// Conn returns the connection of the request.
func (x *Context) Conn() *Conn { return x.conn }

// alone reports whether the request is one-way and so small that it has no id. The peer gets no
// final frame for such a request.
func (x *Context) alone() bool { return x.id == 0 }

// Expired reports whether the deadline has passed.
func (x *Context) Expired() bool { return x.deadline != 0 && x.conn.now() >= x.deadline }

// Fresh reports whether the handler runs on the reader goroutine. The request has then just been
// read, so its deadline has not passed, and the caller need not read the clock.
func (x *Context) Fresh() bool { return x.rd != nil }

// Deadline implements context.Context.
func (x *Context) Deadline() (time.Time, bool) {
	if x.deadline == 0 {
		return time.Time{}, false
	}
	at := x.conn.rt.time() // with the current wall clock, which may have been set since the program began
	return at.Add(time.Duration(x.deadline - int64(monotime.Of(at)))), true
}

// Done implements context.Context. A caller of Done is about to wait. So if the handler runs on the
// reader goroutine, another goroutine takes over the reading at once. Otherwise no goroutine could
// read the cancellation.
func (x *Context) Done() <-chan struct{} {
	x.Blocking()
	return x.end.Done()
}

// Trusted says that no method runs user code, see isolate.Context.
func (x *Context) Trusted() {}

// Blocking says that the handler is about to wait. If it runs on the reader goroutine, another
// goroutine takes over the reading.
func (x *Context) Blocking() {
	if x.rd != nil {
		x.conn.reading.handOver(x.rd, x.running)
	}
}

// Err implements context.Context.
func (x *Context) Err() error { return x.end.Err() }

// Cause returns what context.Cause would return: the reason of the cancellation, or nil before it.
func (x *Context) Cause() error { return x.end.Cause() }

// Value implements context.Context. The owner adds its own values. A call that is made with this
// context, or with one derived from it, serves the request: see Conn.serving.
func (x *Context) Value(key any) any {
	if _, ok := key.(requestKey); ok {
		return x
	}
	return nil
}

// AfterFunc lets contexts be derived from this one without a goroutine: see context.AfterFunc.
func (x *Context) AfterFunc(f func()) (stop func() bool) {
	x.Blocking()
	return x.end.AfterFunc(f)
}

// Draining returns a channel that is closed when this side begins to drain the connection. A
// handler that would otherwise run for ever should then return.
func (x *Context) Draining() <-chan struct{} {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lifetime.drainBegun == nil {
		c.lifetime.lazyLocked().drainBegun = make(chan struct{})
		if c.lifetime.draining.Load() || c.callsIn.refusing.Load() {
			close(c.lifetime.drainBegun)
		}
	}
	return c.lifetime.drainBegun
}
