// SPDX-License-Identifier: Apache-2.0

package h2

import "sync/atomic"

// A counter counts memory.
type counter struct {
	n, most atomic.Int64
	limit   int64 // 0 for none
}

func (c *counter) take(n int) bool {
	now := c.n.Add(int64(n))
	if c.limit > 0 && now > c.limit {
		c.n.Add(int64(-n))
		return false
	}
	c.most.Store(max(c.most.Load(), now))
	return true
}

func (c *counter) give(n int) { c.n.Add(int64(-n)) }
