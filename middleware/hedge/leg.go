// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/halt"
)

// A leg is the context of an attempt. It ends with the context of the call, or when the attempt has
// lost. It allocates nothing beyond itself if only a connection waits for it: the connection
// registers with Await, and is halted (see halt.Context). For other code that waits, a leg creates
// a context of the standard library.
type leg struct {
	context.Context //nolint:containedctx // it is one, around the call's

	ended atomic.Bool
	inner atomic.Pointer[inner] // nil until other code waits

	mu   sync.Mutex
	conn halt.Conn // the connection of the attempt; nil while there is none
	id   uint32
}

// An inner is a context that ends with the leg and has a channel.
type inner struct {
	context.Context //nolint:containedctx // it is one

	stop context.CancelFunc
}

// Outer returns the channel that is closed when the call's context ends. Only yodel's connections
// call Outer and Await.
func (l *leg) Outer() <-chan struct{} { return l.Context.Done() }

// Await registers the connection on which the attempt is in flight. A nil conn means that it is no
// longer in flight.
func (l *leg) Await(conn halt.Conn, id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.id = conn, id
	if conn != nil && l.ended.Load() {
		conn.Halt(id)
	}
}

// cancel cancels an attempt that has lost.
func (l *leg) cancel() {
	l.end()
	l.mu.Lock() // until Halt returns, so that the id still belongs to this attempt
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Halt(l.id)
	}
}

// end ends the context after its attempt.
func (l *leg) end() {
	l.ended.Store(true)
	if in := l.inner.Load(); in != nil {
		in.stop()
	}
}

func (l *leg) Done() <-chan struct{} { return l.waited().Done() }

// AfterFunc is used by package context: contexts derived from a leg then need no goroutine. See
// context.AfterFunc.
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

// waited returns a context of the standard library that ends when the leg ends.
func (l *leg) waited() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.inner.Load()
	if in == nil {
		ctx, stop := context.WithCancel(l.Context)
		in = &inner{ctx, stop}
		l.inner.Store(in)
		if l.ended.Load() { // checked after inner is stored, where end sees it
			stop()
		}
	}
	return in
}
