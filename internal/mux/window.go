// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is the part of callsOut that waits for the peer's window. Callers are admitted in the
// order of their arrival.

// A ticket is an entry in the queue of callers that wait for the peer's window. Conn.mu guards it.
type ticket struct {
	nth      uint64 // the ticket's number among all tickets
	wake     chan struct{}
	bytes    int
	admitted bool // space in the window is taken for it
	flooded  bool // failFloodedRelocking removed it from the queue
}

// setWindowLocked sets the peer's newest limits. A value of 0 leaves that limit unchanged.
func (co *callsOut) setWindowLocked(open, bytes uint64) {
	c := co.c
	if open > 0 {
		co.maxOpen = int(min(open, uint64(c.cfg.ownOpen()), wire.MaxSlots))
	}
	if bytes > 0 {
		co.maxBytes = int(min(bytes, uint64(c.cfg.ownOpenBytes()))) //nolint:gosec // bounded
	}
}

// setUpperBoundsLocked sets the upper bounds of the limits that the peer will ever grant.
func (co *callsOut) setUpperBoundsLocked(l *wire.Limits) {
	if open := max(l.MaxOpen, l.MostOpen); open > 0 {
		n := int(min(open, wire.MaxSlots))
		co.mostOpen = n
	}
	if bytes := max(l.MaxOpenBytes, l.MostOpenBytes); bytes > 0 {
		co.mostBytes = int(min(bytes, math.MaxInt/4))
	}
}

// admitRelocking waits until the peer's window has room for a request of size bytes, and takes that
// room. Requests are admitted in order of arrival. admitRelocking may unlock c.mu while it waits,
// and returns with c.mu held.
func (co *callsOut) admitRelocking(ctx context.Context, out *Out, size int, async, alone bool) error {
	c := co.c
	switch {
	case c.lifetime.err != nil, c.lifetime.drained != nil && alone:
		return co.refusedLocked()
	case c.lifetime.drained != nil, out.Nest && !alone:
		return co.admitSlowlyRelocking(ctx, out, size)
	}
	limit := c.cfg.MaxUnsent
	if async && !out.NoWait { // streams keep the output near highWater, so that mark must not fail calls
		limit = c.writing.highWater()
	}
	if len(c.writing.out) >= limit {
		out.Now = 0 // after a wait, this reading of the clock is too old
		if out.NoWait {
			return &CallError{Cause: ErrWindow, NotProcessed: true, Awaited: AwaitedOutput}
		}
		began := c.rt.clock()
		err := c.writing.awaitSpaceRelocking(ctx, out.Deadline, limit)
		out.Waited += c.rt.clock() - began
		if err != nil {
			return co.notSentLocked(err, AwaitedOutput)
		}
		if c.lifetime.drained != nil && alone {
			return co.refusedLocked()
		}
	}
	if alone {
		return nil
	}
	if co.mayEnterLocked(size) {
		co.enterLocked(size)
		return nil
	}
	return co.admitSlowlyRelocking(ctx, out, size)
}

// mayEnterLocked reports whether a request of size bytes may be sent now, with an empty queue.
func (co *callsOut) mayEnterLocked(size int) bool {
	return len(co.admission) == 0 && co.c.lifetime.drained == nil && !co.flooded && co.fitsLocked(size)
}

// admitSlowlyRelocking is admitRelocking for a request that may have to wait. It unlocks c.mu
// meanwhile. A request that serves a call of the peer must not wait for earlier requests. Those may
// be the calls that it serves, and they end only after it.
func (co *callsOut) admitSlowlyRelocking(ctx context.Context, out *Out, size int) error {
	c := co.c
	out.Now = 0 // after a wait, this reading of the clock is too old
	c.mu.Unlock()
	serving := c.callsIn.serving(ctx) // it may run code that needs c.mu
	c.mu.Lock()
	nested := serving != nil && c.callsIn.isOpenLocked(serving)
	switch {
	case c.lifetime.err != nil:
		return co.refusedLocked()
	case co.mayEnterLocked(size) && (!out.Nest || !nested):
		co.enterLocked(size)
		return nil
	case co.flooded:
		return &CallError{Cause: ErrFlooded, NotProcessed: true}
	case nested:
		return co.nestLocked(out, size, serving.id)
	case c.lifetime.drained != nil:
		return co.refusedLocked()
	case out.NoWait:
		return &CallError{Cause: ErrWindow, NotProcessed: true, Awaited: AwaitedWindow}
	}
	co.lazyLocked().tickets++
	t := &ticket{nth: co.tickets, wake: make(chan struct{}, 1), bytes: size}
	co.admission = append(co.admission, t)
	began := c.rt.clock()
	err := co.queueRelocking(ctx, t, out.Deadline)
	out.Waited += c.rt.clock() - began
	return err
}

// nestLocked sends a request beyond the peer's window. The peer accepts it because this side is
// working on the peer's own call, parent. nestLocked fails instead of waiting, so that an endless
// recursion of calls ends.
func (co *callsOut) nestLocked(out *Out, size int, parent uint32) error {
	if int(co.nested) >= extraOpen(co.mostOpen) || co.open >= maxSlots(co.mostOpen) || co.nested > 0 && co.nestedBytes+size > extraBytes(co.mostBytes) {
		return &CallError{Cause: ErrWindow, NotProcessed: true}
	}
	co.enterLocked(size)
	calls := co.lazyLocked()
	calls.nested++
	calls.nestedBytes += size
	out.Fields.Parent, out.sent = uint64(parent), true
	return nil
}

// queueRelocking waits until t is admitted. It unlocks c.mu while it waits.
func (co *callsOut) queueRelocking(ctx context.Context, t *ticket, deadline time.Time) error {
	c := co.c
	c.reading.passOnReadingRelocking()
	err := c.lifetime.waitRelocking(ctx, deadline, t.wake)
	for t.admitted && !t.flooded && err == nil && c.lifetime.err == nil && c.lifetime.drained == nil {
		if bytes := co.openBytes - co.nestedBytes; co.open-int(co.nested) <= co.maxOpen && (bytes <= co.maxBytes || bytes == t.bytes) {
			return nil
		}
		co.requeueLocked(t) // the window has shrunk meanwhile
		err = c.lifetime.waitRelocking(ctx, deadline, t.wake)
	}
	if t.flooded && err == nil && c.lifetime.err == nil {
		return &CallError{Cause: ErrFlooded, NotProcessed: true}
	}
	if t.admitted {
		co.leaveLocked(t.bytes, false)
		c.lifetime.endDrainedLocked()
	}
	for i, other := range co.admission {
		if other == t {
			co.admission = append(co.admission[:i], co.admission[i+1:]...)
			co.admitNextLocked()
			break
		}
	}
	return co.notSentLocked(err, AwaitedWindow)
}

// requeueLocked gives back t's room in the window, and puts t back in its place in the queue.
func (co *callsOut) requeueLocked(t *ticket) {
	t.admitted = false
	co.open--
	co.openBytes -= t.bytes
	i := 0
	for i < len(co.admission) && co.admission[i].nth < t.nth {
		i++
	}
	co.admission = slices.Insert(co.admission, i, t)
	co.admitNextLocked()
}

// notSentLocked returns the error for a request that was not sent: err, or the end of the
// connection.
func (co *callsOut) notSentLocked(err error, awaited Awaited) error {
	if err == nil || co.c.lifetime.err != nil {
		return co.refusedLocked()
	}
	return &CallError{Cause: err, NotProcessed: true, Awaited: awaited}
}

func (co *callsOut) refusedLocked() error {
	c := co.c
	err := c.lifetime.err
	if err == nil {
		err = c.lifetime.drained
	}
	return &CallError{Cause: err, NotProcessed: true}
}

// fitsLocked reports whether a request of size bytes may be sent now. A request that is larger than
// the whole window may be sent when no other request has bytes in the window.
func (co *callsOut) fitsLocked(size int) bool {
	open, bytes := co.open-int(co.nested), co.openBytes-co.nestedBytes
	return open < co.maxOpen && co.open < maxSlots(co.mostOpen) && (bytes+size <= co.maxBytes || bytes == 0)
}

func (co *callsOut) enterLocked(size int) {
	c := co.c
	co.open++
	co.openBytes += size
	// The first open call gives a waiting reader something to read: see endBatch and
	// awaitRequestRoomRelocking.
	if co.open > 1 {
		return
	}
	c.writing.spaceChangedLocked()
	c.callsIn.roomChangedLocked()
}

func (co *callsOut) leaveLocked(size int, nested bool) {
	co.open--
	co.openBytes -= size
	if nested {
		co.nested--
		co.nestedBytes -= size
	}
	if len(co.admission) > 0 {
		co.admitNextLocked()
	}
}

// admitNextLocked admits queued callers while the window has room. Once this side sends no more
// requests, admitNextLocked wakes all queued callers.
func (co *callsOut) admitNextLocked() {
	c := co.c
	for len(co.admission) > 0 {
		t := co.admission[0]
		if co.flooded {
			return
		}
		if c.lifetime.drained == nil && c.lifetime.err == nil {
			if !co.fitsLocked(t.bytes) {
				return
			}
			co.enterLocked(t.bytes)
			t.admitted = true
		}
		co.admission = co.admission[1:]
		t.wake <- struct{}{}
	}
}

// failFloodedRelocking fails the calls of this side. The reader waits for room in the table and
// does not read their replies, while the one-way handlers that occupy the table may be waiting for
// these replies. failFloodedRelocking unlocks c.mu meanwhile.
func (co *callsOut) failFloodedRelocking() {
	c := co.c
	co.flooded = true
	for i := range co.slots {
		if w := co.slots[i].waiter; w != nil && !w.late && w.id.CompareAndSwap(co.slots[i].id, 0) {
			co.abandonLocked(co.slots[i].id, context.Canceled)
			co.followLocked(co.slots[i].id, w.to)
			w.fail(&CallError{Cause: ErrFlooded})
		}
	}
	for _, t := range co.admission {
		t.flooded = true
		t.wake <- struct{}{}
	}
	co.lazyLocked().admission = nil
	c.writing.flushLaterAndUnlock()
	c.mu.Lock()
}
