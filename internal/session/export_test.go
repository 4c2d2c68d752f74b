// SPDX-License-Identifier: Apache-2.0

package session

// Counted returns how many calls, and requests that count as calls, are open.
func (c *Conn) Counted() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// ReadAhead is readAhead.
func (c *Conn) ReadAhead(patient bool) (stop func()) { return c.readAhead(patient) }

// OrphanTime is orphanTime.
const OrphanTime = orphanTime
