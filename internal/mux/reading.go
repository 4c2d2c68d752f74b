// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"runtime"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/readstate"
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

	state   readstate.Word
	heard   atomic.Bool // the peer has sent something since the last keepalive check
	watched inline.Watched
	preface bool // the peer's preface has arrived; written by the reader with mu held
	holding bool // the reader waits for room for a one-way request, see awaitRequestRoomRelocking
}

// State returns the state of the newest reader, for the Watch.
func (re *reading) State() *inline.State { return &re.reader.Load().state }

// HandOver is handOver for the Watch.
func (re *reading) HandOver(of *inline.State, run uint64) {
	if rd := re.reader.Load(); &rd.state == of {
		re.handOver(rd, run)
	}
}

// handOver moves the reading of rd to a new goroutine, if rd is still in this run.
func (re *reading) handOver(rd *reader, run uint64) {
	c := re.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !rd.state.Take(run) {
		return
	}
	rd.lostAt.Store(c.now())
	// the part before rd.r is the message that rd handles
	next := &reader{c: c, input: input{buf: rd.buf[rd.r:], w: rd.w - rd.r}, ready: rd.ready}
	if rd.current != nil {
		// from here on the request no longer belongs to the reader
		c.cfg.Pool.running.Begin()
		// the read buffer is shared with the next reader
		rd.current.memory = requestCost + rd.current.bytes
		c.memory.Force(rd.current.memory)
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
	run, runs := rd.state.InCallback()
	if !runs {
		return
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	const turns = 16
	for range turns {
		runtime.Gosched()
		if rd.state.Load() != run {
			return
		}
	}
	re.handOver(rd, run)
}

// trimLocked drops memory of all roles that only calls need.
func (re *reading) trimLocked() {
	c := re.c
	re.self.timer = nil
	c.writing.trimLocked()
	c.callsIn.trimLocked()
	c.callsOut.trimLocked()
	if c.streams.reserved == 0 { // so partial is 0 too, and no stream waits
		c.streams.lazyStreams = noStreams
	}
}

// isIdleLocked reports whether only these events can happen next: a new call of either side, the
// end of the connection, or its housekeeping.
func (re *reading) isIdleLocked() bool {
	c := re.c
	written := !c.writing.flushing && len(c.writing.out) == 0 || !c.writing.allowedLocked()
	return c.callsOut.window.Open() == 0 && c.callsIn.inOpen == 0 && c.callsOut.window.Waiting() == 0 && written &&
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
	c.rt.parker.Remove(&c.reading)
	c.mu.Lock()
	defer c.mu.Unlock()
	re.mustChange(re.state.Load(), readstate.Ended)
	if c.lifetime.readerEnded != nil {
		close(c.lifetime.readerEnded)
	}
}
