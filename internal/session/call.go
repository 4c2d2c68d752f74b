// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/opencalls"
)

// A Call is an open call of a Conn. It takes room and memory for the request and the expected
// reply, and says when a protocol uses it in a wrong way. The memory of a call that has ended may
// serve another one. A Call is for one goroutine at a time, except for Take and Give.
type Call struct {
	opencalls.Entry // Running says that the call was started

	conn     *Conn
	first    *admission.FirstCalls // of which it is one; nil if it is none
	room     int                   // bytes of the rooms
	held     int                   // bytes that Take has counted; guarded by Conn.mu
	admitted bool
	stopped  bool
}

// Terms are what a protocol says about a call before it begins.
type Terms struct {
	Deadline time.Time // zero for none
	OneWay   bool
	Refused  bool // the call fails in any case, with an error that the protocol has chosen
}

// requestCost is how many bytes a call counts beside its request: its state and its stack.
const requestCost = 7 << 10

// Begin begins a call of a method. The call must be zero, or have been freed.
func (c *Conn) Begin(call *Call, method string) {
	call.conn, call.Method, call.stopped = c, method, false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.Add(&call.Entry)
	c.countLocked(1)
}

// Admittable returns what is wrong if a protocol admits the call with a request of n bytes, or "".
func (call *Call) Admittable(n int) (misuse string) {
	switch {
	case call.admitted:
		return "admitted the call twice"
	case call.stopped:
		return "ended the call before it admitted it"
	case n < 0:
		return "admitted a request of negative size"
	}
	return ""
}

// Admit takes room for the call. Its request has n bytes. Of is what the server knows about replies
// of the method, or nil. If there is no room and wait is set, Admit waits until ctx, the context of
// the call, ends or the deadline passes. When there is room, it releases the bytes that reserved
// says, and clears reserved.
func (call *Call) Admit(ctx context.Context, is Terms, n int, wait bool, of *admission.Replies, reserved *int) *fault.Fault {
	c := call.conn
	if most := c.o.MaxMessage; n > most {
		return call.refused(catalogue.RequestTooLarge, "the request has %d bytes, the server's limit is %d", n, most)
	}
	if of != nil {
		if wait && of.First.Begin(ctx) {
			call.first = &of.First
		}
		n += of.Expected()
	}
	where := admission.Enter(ctx, &c.room, c.o.Room, n, false)
	if where != "" && wait {
		where = call.enterLater(ctx, is, n)
	}
	if where != "" {
		if late := call.Late(ctx, is); late != nil {
			return late
		}
		return call.refused(catalogue.TooManyOpen, "too many requests are open on this %s", where)
	}
	call.release(reserved)
	if !call.Take(n + requestCost) {
		admission.Leave(&c.room, c.o.Room, n)
		return call.refused(catalogue.NoMemory, "the server has no memory left for what its peers make it hold")
	}
	call.room, call.admitted = n, true
	return nil
}

// enterLater waits until there is room, the call is canceled, or its deadline passes.
func (call *Call) enterLater(ctx context.Context, is Terms, n int) (where string) {
	c := call.conn
	defer c.readAhead(!is.OneWay)()
	if !is.Deadline.IsZero() {
		limited, cancel := context.WithDeadline(ctx, is.Deadline)
		defer cancel()
		ctx = limited
	}
	return admission.Enter(ctx, &c.room, c.o.Room, n, true)
}

// Late returns why the call can no longer begin, or nil. Ctx is the context of the call.
func (call *Call) Late(ctx context.Context, is Terms) *fault.Fault {
	if is.Refused { // a connection that fails ends the context too, and the protocol's error has the reason
		return nil
	}
	ended := ctx.Err()
	if ended == nil && !is.OneWay {
		ended = call.conn.ctx.Err() // a context that ends is done a moment before those made from it
	}
	switch {
	case errors.Is(ended, context.DeadlineExceeded), ended == nil && !is.Deadline.IsZero() && time.Until(is.Deadline) <= 0:
		return call.refused(catalogue.DeadlinePassed, "the deadline passed before the server could begin")
	case ended != nil:
		return call.refused(catalogue.CallCanceled, "the caller canceled it before the server could begin")
	}
	return nil
}

// refused returns the fault of a call that was not executed.
func (call *Call) refused(id, format string, args ...any) *fault.Fault {
	return fault.Of(id, call.Method, format, args...).NotProcessed()
}

// Admitted reports whether the call was admitted.
func (call *Call) Admitted() bool { return call.admitted }

// Start notes that the call begins to run. It returns what is wrong if it must not, or "".
func (call *Call) Start() (misuse string) {
	switch {
	case !call.admitted:
		return "ran the call without admitting it"
	case call.stopped:
		return "ran the call after it ended it"
	case call.Running.Swap(true):
		return "ran the call twice"
	}
	return ""
}

// Stop notes that the protocol ends the call. It reports whether this is the first time. Ran says
// that the call has run. Other first calls of its method then do not wait any longer.
func (call *Call) Stop(ran bool) (first bool) {
	if call.stopped {
		return false
	}
	call.stopped = true
	if call.first != nil {
		if ran {
			call.first.Known()
		}
		call.first.End()
	}
	return true
}

// End removes a call that was stopped from its Conn, and gives back what the call has taken, and
// the bytes that reserved says.
func (call *Call) End(reserved *int) {
	c := call.conn
	c.remove(call)
	call.release(reserved)
	if call.admitted {
		admission.Leave(&c.room, c.o.Room, call.room)
	}
}

// Free makes the memory of a call that has ended ready for another one. Until that begins, Stop
// still reports that the call has ended.
func (call *Call) Free() {
	call.conn, call.Method, call.first, call.room, call.held, call.admitted = nil, "", nil, 0, 0, false
	call.Running.Store(false)
}

func (c *Conn) remove(call *Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.Remove(&call.Entry)
	c.countLocked(-1)
	c.giveLocked(call.held)
}

// release releases reserved bytes of the Conn, and clears reserved.
func (call *Call) release(reserved *int) {
	if *reserved != 0 {
		call.conn.Release(*reserved)
		*reserved = 0
	}
}

// Take counts n bytes that the server is about to hold for the call, until Give or End. If it
// returns false, there is no memory for them.
func (call *Call) Take(n int) bool {
	c := call.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.takeLocked(n) {
		return false
	}
	call.held += n
	return true
}

// Give uncounts n bytes that Take counted.
func (call *Call) Give(n int) {
	c := call.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	call.held -= n
	c.giveLocked(n)
}
