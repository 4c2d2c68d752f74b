// SPDX-License-Identifier: Apache-2.0

package mux

// This file ends idle connections and old connections without losing a call: a client stops using
// such a connection, and a server tells the client to stop using it. In both cases the client may
// connect again at once.

// aging says when the connection must end because it is idle or old. Conn.mu guards it.
type aging struct {
	retireAt  int64  // when the connection is too old; 0 never
	checkAt   int64  // when to check next for activity; 0 never
	seen      uint64 // how many requests both sides had sent at the last check
	open      bool   // calls were open at the last check
	idleCount int    // how many checks in a row found no activity
	retired   bool   // this side or the peer has ended the connection because of its age or idleness
}

// idleChecks is the number of checks in Limits.IdleTimeout. Because of these checks, a call does
// not have to record when it begins and ends.
const idleChecks = 4

func (a *aging) nextLocked() int64 { return min(neverIfZero(a.retireAt), neverIfZero(a.checkAt)) }

// ageLocked starts the checks of age and activity. The random part keeps connections that began
// together from ending together.
func (lt *lifetime) ageLocked(now int64) {
	c := lt.c
	if age := c.cfg.MaxAge; age > 0 {
		lt.lazyLocked().aging.retireAt = later(now, age-age/10, lt.c.rt.random(age/5+1))
	}
	if idle := c.cfg.IdleTimeout; idle > 0 {
		lt.lazyLocked().aging.checkAt = later(now, max(idle/idleChecks, 1))
	}
	lt.housekeepByLocked(lt.aging.nextLocked())
}

// agedLocked reports, once, whether the connection is too old or has been idle for too long.
func (lt *lifetime) agedLocked(now int64) bool {
	c := lt.c
	a := &lt.aging
	if a.checkAt != 0 && now >= a.checkAt {
		seen, open := c.callsOut.opened+c.callsIn.received.Load(), c.callsOut.open+len(c.callsOut.admission)+c.callsIn.inOpen > 0
		if seen != a.seen || open || a.open { // a call that was open may have ended just now
			a.idleCount = 0
		} else {
			a.idleCount++
		}
		a.seen, a.open, a.checkAt = seen, open, later(now, max(c.cfg.IdleTimeout/idleChecks, 1))
	}
	if a.idleCount < idleChecks && (a.retireAt == 0 || now < a.retireAt) {
		return false
	}
	*a = aging{retired: true}
	return lt.drained == nil && !lt.draining.Load()
}

// retire ends the connection because it is old or idle.
func (lt *lifetime) retire() {
	c := lt.c
	if !lt.client {
		lt.drain(1)
		return
	}
	if c.cfg.Unusable != nil {
		c.cfg.Unusable(c) // first, so that new calls use another connection in place of being refused
	}
	lt.closeWhenIdle(ErrAged)
}
