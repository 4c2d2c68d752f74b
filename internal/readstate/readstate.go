// SPDX-License-Identifier: Apache-2.0

// Package readstate says who reads a connection.
package readstate

import "sync/atomic"

// A State says who reads a connection. The goroutine that changes it to ByCaller or ByGoroutine
// decides who reads next.
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
type State uint32

// The states.
const (
	ByGoroutine State = iota // a reader goroutine reads
	Interrupted              // a reader goroutine reads, and is to park the connection
	Offered                  // the next caller may take the token, and read for itself
	ByCaller                 // a caller has the token, and reads for itself
	Parked                   // the parker watches the socket; a caller may take the token
	Ended                    // the connection has ended, and its reader too
	states
)

// transitions has the states that may follow each state, as bits.
var transitions = [states]uint8{
	ByGoroutine: 1<<Offered | 1<<Interrupted | 1<<Parked | 1<<Ended,
	Interrupted: 1<<ByGoroutine | 1<<Ended,
	Offered:     1<<ByCaller | 1<<ByGoroutine,
	ByCaller:    1<<Offered | 1<<ByGoroutine,
	Parked:      1<<ByCaller | 1<<ByGoroutine,
}

// MayBecome reports whether to may follow s.
func (s State) MayBecome(to State) bool { return transitions[s]&(1<<to) != 0 }

// String returns the name of the state.
func (s State) String() string {
	return [states]string{"ByGoroutine", "Interrupted", "Offered", "ByCaller", "Parked", "Ended"}[s]
}

// A Word is the State of one connection. The zero Word is ByGoroutine. Its methods may be called
// concurrently.
type Word struct{ word atomic.Uint32 }

// Load returns the state.
func (w *Word) Load() State { return State(w.word.Load()) }

// Is reports whether the connection is in state s.
func (w *Word) Is(s State) bool { return w.Load() == s }

// Change changes the state. It returns false if another goroutine has changed it first, or if there
// is no such transition.
func (w *Word) Change(from, to State) bool {
	return from.MayBecome(to) && w.word.CompareAndSwap(uint32(from), uint32(to))
}
