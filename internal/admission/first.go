// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// FirstCalls bounds how many calls of a method begin before the size of its replies is known.
// Without it, a client could send a thousand requests for large replies before the first of them
// exists. After firstTime without a reply, the size is taken to be small: the method waits for
// something. The zero value is ready to use. It may be used concurrently.
type FirstCalls struct {
	over    atomic.Bool
	mu      sync.Mutex
	running int
	freed   chan struct{} // closed when a call has ended, or over is set; nil without a waiter
}

const (
	mostFirst = 16
	firstTime = 50 * time.Millisecond
)

// Begin waits until the call may begin. It reports whether the call must call End.
func (f *FirstCalls) Begin(ctx context.Context) bool {
	if f.over.Load() {
		return false
	}
	for began := time.Now(); !f.over.Load(); {
		f.mu.Lock()
		if f.running < mostFirst {
			f.running++
			f.mu.Unlock()
			return true
		}
		if f.freed == nil {
			f.freed = make(chan struct{})
		}
		freed := f.freed
		f.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		case <-time.After(firstTime - time.Since(began)):
			f.Known()
		}
	}
	return false
}

// End notes that a call for which Begin returned true has ended.
func (f *FirstCalls) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	f.wakeLocked()
}

// Known notes that the size of replies is known.
func (f *FirstCalls) Known() {
	if f.over.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over.Store(true)
	f.wakeLocked()
}

func (f *FirstCalls) wakeLocked() {
	if f.freed != nil {
		close(f.freed)
		f.freed = nil
	}
}
