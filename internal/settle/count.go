// SPDX-License-Identifier: Apache-2.0

// Package settle counts what runs, and tells when nothing does. Unlike a sync.WaitGroup, it lets
// things begin while a goroutine waits, and the wait can be given up.
package settle

import (
	"sync"
	"sync/atomic"
)

// A Count is how many things run. The zero value is ready. Its methods may be called concurrently.
type Count struct {
	n       atomic.Int64
	waited  atomic.Bool // a goroutine waits for Zero
	mu      sync.Mutex  // guards settled
	settled chan struct{}
}

// Begin counts a thing that runs.
func (c *Count) Begin() { c.n.Add(1) }

// End uncounts it.
func (c *Count) End() {
	if c.n.Add(-1) == 0 && c.waited.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settleLocked()
	}
}

// Zero returns a channel that is closed when nothing runs.
func (c *Count) Zero() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled == nil {
		c.settled = make(chan struct{})
	}
	settled := c.settled
	c.waited.Store(true)
	c.settleLocked()
	return settled
}

func (c *Count) settleLocked() {
	if c.n.Load() == 0 && c.settled != nil {
		close(c.settled)
		c.settled = nil
		c.waited.Store(false)
	}
}
