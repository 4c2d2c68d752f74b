// SPDX-License-Identifier: Apache-2.0

package mux

import "github.com/yodel-rpc/yodel/internal/readstate"

// This file changes who reads the connection, see package readstate.
//
// While a reader goroutine runs a short handler, reader.state says whether the reading can be
// handed over to another reader goroutine, see inline.go. The connection remains ByGoroutine.
//
// The states change with Conn.mu held, except that the token of an Offered or Parked connection is
// taken without a lock, and that a caller passes the reading on without a lock.

// impossible is called for a transition that is not in the table. Tests set it to a function that
// panics.
var impossible = func(from, to readstate.State) {}

// change changes the state of the reading. It returns false if another goroutine changed it first,
// or if there is no such transition.
func (re *reading) change(from, to readstate.State) bool {
	if !from.MayBecome(to) {
		impossible(from, to)
	}
	return re.state.Change(from, to)
}

// mustChange is change for the goroutine that reads, while no other goroutine may change the state.
func (re *reading) mustChange(from, to readstate.State) {
	if !re.change(from, to) {
		impossible(re.state.Load(), to)
	}
}

// takeToken takes the right to read an Offered or Parked connection, and returns the reader to read
// with. It returns nil if the connection is in another state. To is readstate.ByCaller if the
// calling goroutine reads, and readstate.ByGoroutine if it starts a reader goroutine.
func (re *reading) takeToken(to readstate.State) *reader {
	switch {
	case re.state.Is(readstate.Offered) && re.change(readstate.Offered, to):
		return re.reader.Load()
	case re.state.Is(readstate.Parked) && re.change(readstate.Parked, to):
		rd := getReader(re.c)
		re.reader.Store(rd)
		return rd
	}
	return nil
}

// startReader starts a reader goroutine if the connection is Offered or Parked.
func (re *reading) startReader() {
	if rd := re.takeToken(readstate.ByGoroutine); rd != nil {
		rd.goRead()
	}
}

// passOn ends the reading of a caller: a new goroutine reads on.
func (rd *reader) passOn() {
	rd.c.reading.mustChange(readstate.ByCaller, readstate.ByGoroutine)
	rd.goRead()
}

// goRead starts the reader goroutine.
func (rd *reader) goRead() {
	re := &rd.c.reading
	re.self.Quick, re.self.inRow, rd.clock, rd.arrived = 0, 0, 0, 0
	rd.c.rt.parker.Add(re)
	go rd.loop()
}
