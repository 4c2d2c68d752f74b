// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"time"

	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file delivers replies: the reader frees the slots of all replies of a batch under one lock,
// and wakes their callers.

// A delivery is a final frame whose waiter has not been woken. TakeWaiterLocked frees the slot of
// the call.
type delivery struct {
	w     *waiter   // nil when no goroutine waits
	to    Completer // receives the outcome in place of w
	stop  func() bool
	id    uint32
	frame []byte
	part  *collect.Message // in place of frame, for a message that arrived in pieces
}

// maxDeliveries is how many replies are delivered together. It is large enough to make the cost of
// the lock negligible. It is small enough that no caller waits long, and that all frames stay in
// the processor's nearest cache.
const maxDeliveries = 64

// queueDelivery appends a final frame to the frames that deliver will pass to their waiters.
func (rd *reader) queueDelivery(h wire.Header, frame []byte) {
	rd.deliveries = append(rd.deliveries, delivery{id: h.ID, frame: frame})
}

// deliver wakes the waiters of the replies in deliveries. It takes the lock once for all replies
// and wakes the waiters one by one. Then it makes one write for the requests that the woken callers
// send next. It returns false when another reader has taken over. That reader wakes the remaining
// waiters.
func (rd *reader) deliver() bool {
	if len(rd.deliveries) == 0 {
		return true
	}
	c := rd.c
	c.mu.Lock()
	callers := 0
	for i := rd.delivered; i < len(rd.deliveries); i++ {
		e := &rd.deliveries[i]
		if e.id != 0 { // otherwise the previous reader has taken its waiter
			e.takeWaiterLocked(c)
		}
		if e.w != nil {
			callers++
		}
	}
	// only if no waiter is a Completer: then the reader runs no user code before it flushes
	gathers := callers == len(rd.deliveries) && c.writing.gatherLocked(callers)
	c.lifetime.endDrainedLocked()
	c.mu.Unlock()
	for rd.delivered < len(rd.deliveries) {
		e := &rd.deliveries[rd.delivered]
		rd.delivered++
		if !rd.wake(e) {
			return false
		}
	}
	clear(rd.deliveries)
	rd.deliveries, rd.delivered = rd.deliveries[:0], 0
	if gathers {
		c.writing.flushGathered()
	}
	return true
}

// takeWaiterLocked frees the slot of the call, and stores the call's waiter in e.
func (e *delivery) takeWaiterLocked(c *Conn) {
	id := e.id
	e.id = 0
	s := c.callsOut.slotLocked(id)
	if s == nil {
		// This side never made the call. The frame is skipped, because breach needs c.mu, which is
		// held here.
		return
	}
	w := s.waiter
	c.callsOut.freeSlotLocked(s)
	if w == nil || !w.id.CompareAndSwap(id, 0) {
		return // the caller no longer waits
	}
	if w.to == nil {
		e.w = w
		return
	}
	e.to, e.stop = w.to, w.stop
	c.callsOut.idleWaiterLocked(w)
}

// wake passes one reply to its waiter.
func (rd *reader) wake(e *delivery) bool {
	w := e.w
	if w != nil {
		w.err = broken(e.part)
		if w.answer.own = e.part != nil && w.err == nil; w.answer.own {
			w.buf = e.part.Buf
		} else {
			w.buf = append(w.buf[:0], e.frame...)
		}
		w.answer.At = time.Duration(rd.arrival())
		rd.c.reading.self.sawCaller(w)
		w.wake <- struct{}{}
		return true
	}
	if e.to == nil {
		return true
	}
	frame := e.frame
	if rd.answer.own = e.part != nil; rd.answer.own {
		frame = e.part.Buf
	}
	rd.answer.At = time.Duration(rd.arrival())
	return rd.complete(e.to, e.stop, frame, broken(e.part))
}

// complete runs a Completer on the reader goroutine. It returns false when another reader has taken
// over.
func (rd *reader) complete(to Completer, stop func() bool, frame []byte, err error) bool {
	if stop != nil {
		stop()
	}
	a := &rd.answer
	if err == nil {
		err = a.parse(frame)
	}
	state := rd.beginUserCode(true)
	rd.clock = 0
	own, normal := a.own, false
	defer func() {
		if !normal {
			rd.c.reading.handOver(rd, state)
		}
	}()
	if err != nil {
		to.Complete(nil, err)
	} else {
		to.Complete(a, nil)
	}
	normal = true
	if a.own { // otherwise the Completer keeps the memory
		rd.c.rt.spares.Give(frame)
	}
	if own {
		*a = Answer{} // so that an idle connection does not keep a large reply in memory
	}
	return rd.state.End(state)
}
