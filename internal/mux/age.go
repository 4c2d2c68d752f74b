// SPDX-License-Identifier: Apache-2.0

package mux

import "math/rand/v2"

// Connections that do nothing, or have been open for long enough, are ended without losing a call:
// a client stops using them, a server tells the client to. Either way the client may connect again
// at once.

// aging is when that is due. Guarded by Conn.mu.
type aging struct {
	retireAt int64  // because of its age; 0 never
	lookAt   int64  // when it is seen next whether anything happens; 0 never
	seen     uint64 // how many requests there had been when it was last looked
	open     bool   // some were open then
	quiet    int    // how often in a row nothing happened
	over     bool   // this side or the peer has said that the time of the connection is over
}

// idleLooks is how often it is looked, in the time after which a connection counts as idle. Nothing
// need be noted when calls begin and end.
const idleLooks = 4

func (a *aging) nextLocked() int64 { return min(orNever(a.retireAt), orNever(a.lookAt)) }

// ageLocked begins to count the age of the connection. Connections that were made together do not
// end together.
func (c *Conn) ageLocked(now int64) {
	if age := c.cfg.MaxAge; age > 0 {
		c.seldomLocked().aging.retireAt = later(now, age-age/10, rand.N(age/5+1))
	}
	if idle := c.cfg.IdleTimeout; idle > 0 {
		c.seldomLocked().aging.lookAt = later(now, max(idle/idleLooks, 1))
	}
	c.careLocked(c.aging.nextLocked())
}

// agedLocked reports whether the time of the connection is over, once.
func (c *Conn) agedLocked(now int64) bool {
	a := &c.aging
	if a.lookAt != 0 && now >= a.lookAt {
		seen, open := c.opened+c.received.Load(), c.open+len(c.admission)+c.inOpen > 0
		if seen != a.seen || open || a.open { // what was open may have ended just now
			a.quiet = 0
		} else {
			a.quiet++
		}
		a.seen, a.open, a.lookAt = seen, open, later(now, max(c.cfg.IdleTimeout/idleLooks, 1))
	}
	if a.quiet < idleLooks && (a.retireAt == 0 || now < a.retireAt) {
		return false
	}
	*a = aging{over: true}
	return c.drained == nil && !c.draining.Load()
}

// retire ends the connection when its time is over.
func (c *Conn) retire() {
	if !c.client {
		c.drain(1)
		return
	}
	if c.cfg.Unusable != nil {
		c.cfg.Unusable(c) // first, so that no call is refused that could go elsewhere
	}
	c.closeWhenIdle(ErrAged)
}

// Aged reports whether the connection ends because it was idle or old, on this side or the peer's:
// nothing is wrong with the peer.
func (c *Conn) Aged() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aging.over
}
