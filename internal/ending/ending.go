// SPDX-License-Identifier: Apache-2.0

// Package ending ends the contexts of calls. A protocol creates a context for each call, and most
// of these contexts end without any goroutine that waits for the end. So an End is one word until a
// goroutine asks for its channel, or until it ends before the call has returned.
package ending

import (
	"context"
	"sync"
	"sync/atomic"
)

// An End is the end of one context. The zero End has not ended. Its methods may be called
// concurrently. They have the meaning that the context package gives to methods of the same names.
type End struct{ state atomic.Pointer[state] } // nil until it has ended or a goroutine waits for it

// A state says how a context ended, and holds the functions to call. Its mu guards all other
// fields.
type state struct {
	mu    sync.Mutex
	done  chan struct{}
	err   error // nil until the context ends
	cause error
	after []*afterFunc
}

type afterFunc struct{ f func() }

// returned is the state of contexts whose calls have returned while no goroutine waited.
var returned = &state{err: context.Canceled, done: closedChan()}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// make returns the state, and creates it if necessary.
func (e *End) make() *state {
	if e.state.Load() == nil {
		e.state.CompareAndSwap(nil, new(state))
	}
	return e.state.Load()
}

// Done returns a channel that is closed when the context ends.
func (e *End) Done() <-chan struct{} {
	s := e.make()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
		if s.err != nil {
			close(s.done)
		}
	}
	return s.done
}

// Err returns why the context has ended, or nil.
func (e *End) Err() error {
	s := e.state.Load()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Cause returns the cause that was given to Cancel. It is nil before the context has ended, and if
// Return has ended it.
func (e *End) Cause() error {
	s := e.state.Load()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// AfterFunc calls f on its own goroutine when the context has ended. With this method, contexts are
// derived from this one without a goroutine. Stop reports whether it has prevented the call of f.
func (e *End) AfterFunc(f func()) (stop func() bool) {
	s := e.make()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		go f()
		return func() bool { return false }
	}
	entry := &afterFunc{f: f}
	s.after = append(s.after, entry)
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, other := range s.after {
			if other == entry {
				s.after = append(s.after[:i], s.after[i+1:]...)
				return true
			}
		}
		return false
	}
}

// Return ends the context because its call has returned.
func (e *End) Return() {
	if !e.state.CompareAndSwap(nil, returned) {
		e.Cancel(context.Canceled, nil)
	}
}

// Cancel ends the context with err and cause, unless it has ended.
func (e *End) Cancel(err, cause error) {
	s := e.make()
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err, s.cause = err, cause
	if s.done != nil {
		close(s.done)
	}
	after := s.after
	s.after = nil
	s.mu.Unlock()
	for _, entry := range after {
		go entry.f()
	}
}
