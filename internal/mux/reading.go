// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"runtime"
	"sync/atomic"
)

// reading is the role that reads the connection. Its state says who reads: a reader goroutine, a
// caller that reads for itself, or the parker. The type reader handles the data that arrives.
//
// reading may start the housekeeping of lifetime, and end the connection when a read fails. It
// checks the calls of both sides to see whether the connection is idle.
type reading struct {
	c       *Conn
	reader  atomic.Pointer[reader] // the newest one; parkedReader while the connection is parked
	self    selfReading            // see selfread.go for what guards its fields
	parking parkState              // see park.go for what guards its fields

	state   atomic.Uint32 // a readState
	heard   atomic.Bool   // the peer has sent something since the last keepalive check
	watched atomic.Bool   // the connection is in cfg.Watch
	preface bool          // the peer's preface has arrived; written by the reader with mu held
	holding bool          // the reader waits for room for a one-way request, see awaitRequestRoomRelocking
}

// handOver moves the reading of rd to a new goroutine, if rd is still in this state.
func (re *reading) handOver(rd *reader, state uint64) {
	c := re.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !rd.state.CompareAndSwap(state, state&^(running|completing)|handedOver) {
		return
	}
	rd.lostAt.Store(c.now())
	// the part before rd.r is the message that rd handles
	next := &reader{c: c, input: input{buf: rd.buf[rd.r:], w: rd.w - rd.r}, ready: rd.ready}
	if rd.current != nil {
		// from here on the request no longer belongs to the reader
		c.cfg.Pool.busy.Add(1)
		// the read buffer is shared with the next reader
		rd.current.memory = requestCost + rd.current.bytes
		c.memory.force(rd.current.memory)
		c.callsIn.enterTableLocked(rd.current)
	}
	re.reader.Store(next)
	go next.takeOver()
}

// passOnReadingRelocking is for a caller that is about to wait for the peer's window. The caller
// may be a Completer on the reader goroutine. It would then block the reading on which it waits.
// The connection does not know on which goroutine the caller runs. So passOnReadingRelocking lets
// other goroutines run. If the reader then still runs the same Completer, another reader takes over
// now, and not only at the next tick of the Watch. It unlocks c.mu meanwhile.
func (re *reading) passOnReadingRelocking() {
	c := re.c
	rd := re.reader.Load()
	state := rd.state.Load()
	if state&completing == 0 {
		return
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	const turns = 16
	for range turns {
		runtime.Gosched()
		if rd.state.Load() != state {
			return
		}
	}
	re.handOver(rd, state)
}

// trimLocked drops memory of all roles that only calls need.
func (re *reading) trimLocked() {
	c := re.c
	re.self.timer = nil
	c.writing.trimLocked()
	c.callsIn.trimLocked()
	c.callsOut.trimLocked()
}

// isIdleLocked reports whether only these events can happen next: a new call of either side, the
// end of the connection, or its housekeeping.
func (re *reading) isIdleLocked() bool {
	c := re.c
	written := !c.writing.flushing && len(c.writing.out) == 0 || !c.writing.allowedLocked()
	return c.callsOut.open == 0 && c.callsIn.inOpen == 0 && len(c.callsOut.admission) == 0 && written &&
		c.lifetime.err == nil && c.lifetime.drained == nil && !c.lifetime.draining.Load()
}

// requestCountLocked returns the number of requests of both sides.
func (re *reading) requestCountLocked() uint32 {
	return uint32(re.c.callsOut.opened + re.c.callsIn.received.Load()) //nolint:gosec // it is only to change
}

// lingerAndClose closes the underlying connection. It is the last step of the reader after the
// connection has ended.
func (re *reading) lingerAndClose() {
	c := re.c
	re.drainBelow() // returns when the peer closes, when the read deadline passes, or at once
	c.lifetime.closeBelow()
	c.rt.parker.remove(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	re.mustChange(readState(re.state.Load()), readEnded)
	if c.lifetime.readerEnded != nil {
		close(c.lifetime.readerEnded)
	}
}
