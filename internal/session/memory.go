// SPDX-License-Identifier: Apache-2.0

package session

// Reserve counts n bytes until Release, or the end of the session. It returns false, and counts
// nothing, if there is no room for them.
func (c *Conn) Reserve(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n < 0 || c.over || !c.takeLocked(n) {
		return false
	}
	c.reserved += n
	return true
}

// Release uncounts n reserved bytes, or all of them if they are fewer than n.
func (c *Conn) Release(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = max(min(n, c.reserved), 0)
	c.reserved -= n
	c.giveLocked(n)
}

// releaseAll ends all reservations, and makes Reserve fail.
func (c *Conn) releaseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.giveLocked(c.reserved)
	c.reserved, c.over = 0, true
}

func (c *Conn) takeLocked(n int) bool {
	if n > c.o.MaxMemory-c.held || !c.o.Memory.TakeFor(n, c.held+n) {
		return false
	}
	c.held += n
	return true
}

func (c *Conn) giveLocked(n int) {
	c.held -= n
	c.o.Memory.Give(n)
}
