// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"os"
	"time"
)

// orphanTime is how long one-way calls may go on when their client has disconnected, as in package
// mux. A client whose one-way call waits that long may count as disconnected.
const orphanTime = 30 * time.Second

// readAhead reads into the buffer while the reading goroutine does not read. So it can tell when
// the client disconnects. When the buffer is full, it asks the system. If the client has sent more
// than the system takes, the system does not know either: then a client counts as gone after
// orphanTime, unless patient is set. The function stop ends the read-ahead.
func (c *Conn) readAhead(patient bool) (stop func()) {
	c.flushApart()
	if !c.beginReadAhead() {
		return func() {}
	}
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer c.o.Guard.Rescue("a connection's own code")
		c.readUntilGone(patient, stopped)
	}()
	return func() {
		close(stopped)
		c.stopReadAhead(true)
		<-ended
		c.stopReadAhead(false)
	}
}

// readUntilGone reads until it is stopped, or the client has disconnected.
func (c *Conn) readUntilGone(patient bool, stopped <-chan struct{}) {
	began := time.Now()
	for c.reader.Buffered() < c.reader.Size() {
		_, err := c.reader.Peek(c.reader.Buffered() + 1)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil {
			c.gone()
			return
		}
	}
	for _, gone := c.o.Look(c.nc); !gone && (patient || time.Since(began) < orphanTime); _, gone = c.o.Look(c.nc) {
		select {
		case <-time.After(time.Second):
		case <-stopped:
			return
		}
	}
	c.gone()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet.Store(true) // what is unread may have no end
	c.wakeLocked(past)
}

// beginReadAhead reports whether stop could interrupt a Read of readAhead.
func (c *Conn) beginReadAhead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nc == nil || c.passed || c.quiet.Load() || c.nc.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	c.peeking, c.deadline = true, time.Time{}
	return true
}

// stopReadAhead interrupts the goroutine that reads ahead, or notes that it has ended.
func (c *Conn) stopReadAhead(interrupt bool) {
	c.mu.Lock()
	defer c.mu.Unlock() // also if the connection ends the goroutine
	c.peeking, c.stopPeek = interrupt, interrupt
	if interrupt {
		c.wakeLocked(past)
	}
}
