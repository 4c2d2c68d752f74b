// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"context"
	"sync"
	"sync/atomic"
)

// A leg is the context of an attempt: it ends with the call's context, or when the attempt has
// lost. It costs a call nothing but its memory: a connection says what there is to halt (see
// Await), and for everybody else there is a context of the standard library when somebody wants to
// wait.
type leg struct {
	context.Context //nolint:containedctx // it is one, around the call's

	ended atomic.Bool
	inner atomic.Pointer[inner] // nil until somebody waits

	mu   sync.Mutex
	conn interface{ Halt(id uint32) } // where the attempt is under way; nil when it is nowhere
	id   uint32
}

// An inner context is the same with a channel of its own.
type inner struct {
	context.Context //nolint:containedctx // it is one

	stop context.CancelFunc
}

// Outer is for yodel's connections, as Await is: the channel that is closed when the call's context
// ends.
func (l *leg) Outer() <-chan struct{} { return l.Context.Done() }

// Await says that the attempt is under way on conn; nil says that it is no more.
func (l *leg) Await(conn interface{ Halt(id uint32) }, id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.id = conn, id
	if conn != nil && l.ended.Load() {
		conn.Halt(id)
	}
}

// cancel ends an attempt that has lost.
func (l *leg) cancel() {
	l.end()
	l.mu.Lock() // until it is halted, so that it is no other call
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Halt(l.id)
	}
}

// end ends the context with its attempt.
func (l *leg) end() {
	l.ended.Store(true)
	if in := l.inner.Load(); in != nil {
		in.stop()
	}
}

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
		if l.ended.Load() { // asked when end can see it
			stop()
		}
	}
	return in
}
