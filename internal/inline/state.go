// SPDX-License-Identifier: Apache-2.0

// Package inline lets short user code run on the goroutine that reads a connection. If the code
// blocks, another goroutine takes over the reading. The package knows neither connections nor
// frames.
package inline

import "sync/atomic"

// A State says whether the reader of a connection runs user code. The goroutine that changes it
// first decides whether that reader goes on, or another one takes over. The zero State is that of a
// reader that runs no user code.
type State struct{ word atomic.Uint64 } // a counter of inline calls, shifted by stateBits, and bits

const (
	running    = 1 // user code runs
	handedOver = 2 // another reader has taken over; final
	completing = 4 // with running: the user code is a callback
	stateBits  = 3
)

// Begin says that user code begins to run. It returns the new state, which identifies this run.
// Only the reader calls it.
func (s *State) Begin(callback bool) (run uint64) {
	run = (s.word.Load()>>stateBits+1)<<stateBits | running
	if callback {
		run |= completing
	}
	s.word.Store(run)
	return run
}

// End says that the user code of a run has returned. It returns false if another reader has taken
// over.
func (s *State) End(run uint64) bool {
	return s.word.CompareAndSwap(run, run&^(running|completing))
}

// Take takes the reading from a reader that is still in a run. It returns false if the run has
// ended, or if another goroutine has taken the reading.
func (s *State) Take(run uint64) bool {
	return s.word.CompareAndSwap(run, run&^(running|completing)|handedOver)
}

// Load returns the state. It changes with each run, so a goroutine that sees the same state again
// knows that the reader is in the same run, or that no run has begun meanwhile.
func (s *State) Load() uint64 { return s.word.Load() }

// Run returns the run that the reader is in. It returns false if the reader runs no user code.
func (s *State) Run() (run uint64, runs bool) {
	run = s.word.Load()
	return run, run&running != 0
}

// InCallback is Run for a run of a callback.
func (s *State) InCallback() (run uint64, runs bool) {
	run = s.word.Load()
	return run, run&completing != 0
}

// Taken reports whether another reader has taken over.
func (s *State) Taken() bool { return s.word.Load()&handedOver != 0 }
