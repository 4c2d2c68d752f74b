// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is the part of callsOut that knows the open calls: their slots, and who waits for them.

// A slot is an entry in the table of calls that this side opened. A slot is in use from the request
// until the final frame has arrived, even if the caller no longer waits. So an id is not reused too
// early. Conn.mu guards it.
//
// A slot fills one cache line, because a search for passed deadlines looks at many slots.
type slot struct {
	id       uint32 // of the current call; of the previous call while the slot is free
	taken    bool
	nested   bool // the request was sent beyond the window, see nested.go
	oneWay   bool
	deadline int64   // on the connection's clock; 0 for none
	waiter   *waiter // nil when the caller no longer waits
	bytes    int     // counted in the window
	end      uint64  // offset behind the last byte of the request in the connection's output
	nth      uint64  // the number of the request among all that the connection sent
	part     *collect.Message
	stream   *Stream
}

// A waiter waits for a call to end. It represents a goroutine that waits on a channel, or a
// Completer.
//
// The fields that a Completer needs are in the first 64 bytes. This memory moves between the
// processor of the caller and the processor of the reader.
type waiter struct {
	// id is the id of the call that is waited for. The goroutine that swaps it to 0 decides how the
	// call ends: the reader with the reply, the caller that cancels, the housekeeping timer with
	// the deadline, or endAndUnlock.
	id atomic.Uint32
	// the caller has canceled, and to receives only the end of the call, see Follower
	late   bool
	bound  bool          // the call's context can end
	to     Completer     // receives the outcome in place of wake
	stop   func() bool   // stops the context.AfterFunc of an asynchronous call; nil for none
	wake   chan struct{} // capacity 1: one signal per call
	conn   *Conn
	nth    uint64 // as in slot; set while a halt.Context may call Halt
	buf    []byte // the reply's frame
	answer Answer
	err    error
}

func newWaiter() any {
	w := &waiter{wake: make(chan struct{}, 1)}
	w.answer.waiter = w
	return w
}

// Halt implements halt.Conn.
func (w *waiter) Halt(id uint32) {
	w.conn.callsOut.giveUp(id, w.nth, context.Canceled, context.Canceled)
}

// wait waits for the end of the call. It returns false if the call's context ends first.
func (w *waiter) wait(done <-chan struct{}) bool {
	if done == nil {
		<-w.wake // faster than a select
		return true
	}
	select {
	case <-w.wake:
		return true
	case <-done:
		return false
	}
}

// fail ends the wait with an error. The caller must have swapped w.id to 0. A Completer may block,
// so it runs on its own goroutine.
func (w *waiter) fail(err error) {
	if w.to == nil {
		w.err = err
		w.conn.reading.wakeSleeper(w)
		w.wake <- struct{}{}
		return
	}
	go func() {
		if w.stop != nil {
			w.stop()
		}
		w.to.Complete(nil, err)
	}()
}

// wanted reports whether a caller waits for the reply itself, and not only for the end.
func (s *slot) wanted() bool { return s.waiter != nil && !s.waiter.late }

func (co *callsOut) takeSlotLocked(w *waiter, size int) uint32 {
	co.lazyLocked()
	var i uint32
	if n := len(co.free); n > 0 {
		i = co.free[n-1]
		co.free = co.free[:n-1]
	} else {
		i = uint32(len(co.slots)) //nolint:gosec // below MaxSlots: window.Slots is
		co.slots = append(co.slots, slot{id: i})
	}
	s := &co.slots[i]
	s.id = wire.NextID(s.id)
	s.taken, s.waiter, s.bytes, s.deadline = true, w, size, 0
	w.id.Store(s.id)
	return s.id
}

// freeSlotLocked frees the slot of a call that has ended, and its room in the window.
func (co *callsOut) freeSlotLocked(s *slot) {
	s.part.DropLocked()
	s.taken, s.waiter, s.part = false, nil, nil
	co.dropStreamLocked(s)
	co.free = append(co.free, wire.Slot(s.id))
	co.leaveLocked(s.bytes, s.nested)
}

// dropStreamLocked ends the stream of a call that is closed or canceled.
func (co *callsOut) dropStreamLocked(s *slot) {
	if s.stream != nil {
		s.stream.endLocked(errStreamEnded)
		s.stream = nil
	}
}

// slotLocked returns the slot of a call that this side has open, or nil.
func (co *callsOut) slotLocked(id uint32) *slot {
	if i := int(wire.Slot(id)); i < len(co.slots) && co.slots[i].taken && co.slots[i].id == id {
		return &co.slots[i]
	}
	return nil
}

// callLocked returns the slot of the nth request that this side sent, or nil if that call is
// closed. Callers that released c.mu since they saw the call open use it in place of slotLocked,
// because an id is reused after 4095 calls in the same slot.
func (co *callsOut) callLocked(id uint32, nth uint64) *slot {
	if s := co.slotLocked(id); s != nil && s.nth == nth {
		return s
	}
	return nil
}

// abandon removes the waiter of a call that its caller has canceled, and sends a Cancel frame to
// the peer. The slot stays taken until the final frame arrives.
func (co *callsOut) abandon(id uint32, nth uint64, why error) {
	c := co.c
	c.mu.Lock()
	if co.callLocked(id, nth) != nil {
		co.abandonLocked(id, why)
	}
	c.writing.flushAndUnlock(co.window.Open() > 1)
}

func (co *callsOut) abandonLocked(id uint32, why error) {
	c := co.c
	s := co.slotLocked(id)
	if s == nil || c.lifetime.err != nil {
		return
	}
	s.waiter, s.deadline = nil, 0
	if s.part != nil {
		s.part.DropLocked()
		s.part = unwanted
	}
	co.dropStreamLocked(s)
	code := catalogue.Canceled
	if isDeadline(why) {
		code = catalogue.DeadlineExceeded
	}
	start := c.writing.beginLocked(wire.Header{Type: wire.Cancel, Arg: code, ID: id})
	c.writing.finishLocked(start)
}

// giveUp ends a call with err for its waiter. Why determines the code in the Cancel frame.
func (co *callsOut) giveUp(id uint32, nth uint64, why, err error) {
	c := co.c
	c.mu.Lock()
	s := co.callLocked(id, nth)
	if s == nil || !s.wanted() || !s.waiter.id.CompareAndSwap(id, 0) {
		c.mu.Unlock()
		return
	}
	w := s.waiter
	co.abandonLocked(id, why)
	co.followLocked(id, w.to)
	c.writing.flushAndUnlock(co.window.Open() > 1)
	w.fail(err)
}

// followLocked puts a Follower's second Completer in the slot of a call that was just canceled.
func (co *callsOut) followLocked(id uint32, to Completer) {
	f, ok := to.(Follower)
	s := co.slotLocked(id)
	if !ok || s == nil {
		return
	}
	w := co.waiterLocked()
	w.to, w.late = f.Abandoned(), true
	w.id.Store(id)
	s.waiter = w
}

// waiterLocked returns a waiter for a Completer. These waiters are on a free list that c.mu guards.
// Using it costs nothing extra, because c.mu is held anyway. One goroutine sends an asynchronous
// call and another one completes it. A sync.Pool would be slow here, because it is slow at moving
// objects from one processor to another.
func (co *callsOut) waiterLocked() *waiter {
	n := len(co.idleWaiters)
	if n == 0 {
		return new(waiter)
	}
	w := co.idleWaiters[n-1]
	co.idleWaiters = co.idleWaiters[:n-1]
	return w
}

// maxIdleWaiters bounds the free list of waiters.
const maxIdleWaiters = 1024

// idleWaiterLocked puts a waiter on the free list. Its id must have been swapped to 0.
func (co *callsOut) idleWaiterLocked(w *waiter) {
	w.to, w.stop, w.late = nil, nil, false
	if len(co.idleWaiters) < maxIdleWaiters {
		co.idleWaiters = append(co.idleWaiters, w)
	}
}
