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
			f.End(false, true)
		}
	}
	return false
}

// End notes that a call has ended, if one has, and that the size is known.
func (f *FirstCalls) End(call, known bool) {
	if !call && f.over.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if call {
		f.running--
	}
	if known {
		f.over.Store(true)
	}
	if f.freed != nil {
		close(f.freed)
		f.freed = nil
	}
}
