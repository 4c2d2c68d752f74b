// SPDX-License-Identifier: Apache-2.0

package mux

// A readState says who reads a connection. The goroutine that changes it to readByCaller or
// readByGoroutine decides who reads next.
//
//	ByGoroutine → Offered      single callers make one call after another
//	ByGoroutine → Interrupted  the connection has been idle for a while
//	ByGoroutine → Parked       the interrupted or woken reader goroutine finds the connection idle
//	ByGoroutine → Ended        the connection has ended
//	Interrupted → ByGoroutine  the interrupted read has returned
//	Interrupted → Ended        the connection has ended
//	Offered     → ByCaller     a caller takes the token
//	Offered     → ByGoroutine  no call came, or not only single callers need a reader
//	ByCaller    → Offered      the caller has its reply
//	ByCaller    → ByGoroutine  something else arrived, or the caller may not wait
//	Parked      → ByCaller     a caller takes the token
//	Parked      → ByGoroutine  data arrived, or an asynchronous call, a ping or the end needs a reader
//
// docs/locks.md describes each state.
//
// While a reader goroutine runs a short handler, reader.state says whether the reading can be
// handed over to another reader goroutine, see inline.go. The connection remains ByGoroutine.
//
// The states change with Conn.mu held, except that the token of an Offered or Parked connection is
// taken without a lock, and that a caller passes the reading on without a lock.
type readState uint32

const (
	readByGoroutine readState = iota // a reader goroutine reads
	readInterrupted                  // a reader goroutine reads, and is to park the connection
	readOffered                      // the next caller may take the token, and read for itself
	readByCaller                     // a caller has the token, and reads for itself
	readParked                       // the parker watches the socket; a caller may take the token
	readEnded                        // the connection has ended, and its reader too
	readStates
)

// readTransitions has the states that may follow each state, as bits.
var readTransitions = [readStates]uint8{
	readByGoroutine: 1<<readOffered | 1<<readInterrupted | 1<<readParked | 1<<readEnded,
	readInterrupted: 1<<readByGoroutine | 1<<readEnded,
	readOffered:     1<<readByCaller | 1<<readByGoroutine,
	readByCaller:    1<<readOffered | 1<<readByGoroutine,
	readParked:      1<<readByCaller | 1<<readByGoroutine,
}

// mayBecome reports whether to may follow s.
func (s readState) mayBecome(to readState) bool { return readTransitions[s]&(1<<to) != 0 }

// impossible is called for a transition that is not in the table. Tests set it to a function that
// panics.
var impossible = func(from, to readState) {}

// is reports whether the connection is in state s.
func (re *reading) is(s readState) bool { return readState(re.state.Load()) == s }

// change changes the state of the reading. It returns false if another goroutine changed it first,
// or if there is no such transition.
func (re *reading) change(from, to readState) bool {
	if !from.mayBecome(to) {
		impossible(from, to)
		return false
	}
	return re.state.CompareAndSwap(uint32(from), uint32(to))
}

// mustChange is change for the goroutine that reads, while no other goroutine may change the state.
func (re *reading) mustChange(from, to readState) {
	if !re.change(from, to) {
		impossible(readState(re.state.Load()), to)
	}
}

// takeToken takes the right to read an Offered or Parked connection, and returns the reader to read
// with. It returns nil if the connection is in another state. To is readByCaller if the calling
// goroutine reads, and readByGoroutine if it starts a reader goroutine.
func (re *reading) takeToken(to readState) *reader {
	switch {
	case re.is(readOffered) && re.change(readOffered, to):
		return re.reader.Load()
	case re.is(readParked) && re.change(readParked, to):
		rd := getReader(re.c)
		re.reader.Store(rd)
		return rd
	}
	return nil
}

// startReader starts a reader goroutine if the connection is Offered or Parked.
func (re *reading) startReader() {
	if rd := re.takeToken(readByGoroutine); rd != nil {
		rd.goRead()
	}
}

// passOn ends the reading of a caller: a new goroutine reads on.
func (rd *reader) passOn() {
	rd.c.reading.mustChange(readByCaller, readByGoroutine)
	rd.goRead()
}

// goRead starts the reader goroutine.
func (rd *reader) goRead() {
	re := &rd.c.reading
	re.self.quick, re.self.inRow, rd.clock, rd.arrived = 0, 0, 0, 0
	rd.c.rt.parker.add(rd.c)
	go rd.loop()
}
