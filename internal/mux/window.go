// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"context"
	"time"

	"github.com/yodel-rpc/yodel/internal/window"
)

// This file is the part of callsOut that waits for the peer's window, see package window.

// setWindowLocked sets the peer's newest limits. A value of 0 leaves that limit unchanged.
func (co *callsOut) setWindowLocked(open, bytes uint64) {
	cfg := co.c.cfg
	co.window.Set(int(min(open, uint64(cfg.ownOpen()))), int(min(bytes, uint64(cfg.ownOpenBytes())))) //nolint:gosec // bounded
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

// mayEnterLocked reports whether a request of size bytes may be sent now.
func (co *callsOut) mayEnterLocked(size int) bool {
	return co.c.lifetime.drained == nil && !co.flooded && co.window.HasRoom(size)
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
	began := c.rt.clock()
	err := co.queueRelocking(ctx, co.window.Wait(size), out.Deadline)
	out.Waited += c.rt.clock() - began
	return err
}

// nestLocked sends a request beyond the peer's window. The peer accepts it because this side is
// working on the peer's own call, parent. nestLocked fails instead of waiting, so that an endless
// recursion of calls ends.
func (co *callsOut) nestLocked(out *Out, size int, parent uint32) error {
	if !co.window.EnterBeyond(size) {
		return &CallError{Cause: ErrWindow, NotProcessed: true}
	}
	co.openedLocked(co.window.Open() - 1)
	out.Fields.Parent, out.sent = uint64(parent), true
	return nil
}

// queueRelocking waits until t is admitted. It unlocks c.mu while it waits.
func (co *callsOut) queueRelocking(ctx context.Context, t *window.Ticket, deadline time.Time) error {
	c := co.c
	c.reading.passOnReadingRelocking()
	err := c.lifetime.waitRelocking(ctx, deadline, t.Wake)
	for t.Admitted() && err == nil && c.lifetime.err == nil && c.lifetime.drained == nil {
		if co.window.Confirm(t) {
			return nil
		}
		err = c.lifetime.waitRelocking(ctx, deadline, t.Wake) // the window has shrunk meanwhile
	}
	if why := t.Dismissed(); why != nil && err == nil && c.lifetime.err == nil {
		return &CallError{Cause: why, NotProcessed: true}
	}
	left := co.window.Cancel(t)
	co.admitNextLocked()
	if left {
		c.lifetime.endDrainedLocked()
	}
	return co.notSentLocked(err, AwaitedWindow)
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
	return &CallError{Cause: cmp.Or(co.c.lifetime.err, co.c.lifetime.drained), NotProcessed: true}
}

func (co *callsOut) enterLocked(size int) {
	before := co.window.Open()
	co.window.Enter(size)
	co.openedLocked(before)
}

// openedLocked is called when calls were opened. Before is how many were open before. The first
// open call gives a waiting reader something to read: see endBatch and awaitRequestRoomRelocking.
func (co *callsOut) openedLocked(before int) {
	if before == 0 && co.window.Open() > 0 {
		co.c.writing.spaceChangedLocked()
		co.c.callsIn.roomChangedLocked()
	}
}

func (co *callsOut) leaveLocked(size int, nested bool) {
	co.window.Leave(size, nested)
	if co.window.Waiting() > 0 {
		co.admitNextLocked()
	}
}

// admitNextLocked admits queued callers while the window has room. Once this side sends no more
// requests, admitNextLocked wakes all queued callers.
func (co *callsOut) admitNextLocked() {
	c := co.c
	switch {
	case co.flooded:
	case c.lifetime.drained != nil || c.lifetime.err != nil:
		co.window.Dismiss(nil)
	default:
		before := co.window.Open()
		co.window.Admit()
		co.openedLocked(before)
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
	co.window.Dismiss(ErrFlooded)
	c.writing.flushLaterAndUnlock()
	c.mu.Lock()
}
