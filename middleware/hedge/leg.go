// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"context"
	"sync"
	"sync/atomic"
)

// A leg is the context of an attempt: it ends with the call's context, or when the attempt has lost. It costs a call nothing but its memory. A
// connection knows how to wait for either of two channels (see Halted); for everybody else it makes a context of the standard library when somebody
// wants to wait.
type leg struct {
	context.Context //nolint:containedctx // it is one, around the call's

	halt  chan struct{}
	ended atomic.Bool
	inner atomic.Pointer[inner] // nil until somebody waits

	mu     sync.Mutex
	halted bool // halt is closed
}

// An inner context is the same with a channel of its own.
type inner struct {
	context.Context //nolint:containedctx // it is one

	stop context.CancelFunc
}

// Halted returns two channels: when either is closed, the context has ended. Yodel's connections ask for it.
func (l *leg) Halted() (done, halt <-chan struct{}) { return l.Context.Done(), l.halt }

func (l *leg) Done() <-chan struct{} { return l.waited().Done() }

// AfterFunc makes contexts that are derived from this one cost no goroutine: see context.AfterFunc.
func (l *leg) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(l.waited(), f) }

func (l *leg) Err() error {
	if err := l.Context.Err(); err != nil {
		return err
	}
	if l.ended.Load() {
		return context.Canceled
	}
	return nil
}

// waited returns a context of the standard library that ends as this one does.
func (l *leg) waited() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.inner.Load()
	if in == nil {
		ctx, stop := context.WithCancel(l.Context)
		in = &inner{ctx, stop}
		l.inner.Store(in)
		if l.ended.Load() { // asked when it can be seen: see end
			stop()
		}
	}
	return in
}

// cancel ends an attempt that has lost.
func (l *leg) cancel() {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.halted {
		l.halted = true
		close(l.halt)
	}
}

// end ends the context with its attempt.
func (l *leg) end() {
	l.ended.Store(true)
	if in := l.inner.Load(); in != nil {
		in.stop()
	}
}
