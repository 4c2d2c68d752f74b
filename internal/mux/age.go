// SPDX-License-Identifier: Apache-2.0

package mux

import "github.com/yodel-rpc/yodel/internal/monotime"

// This file ends idle connections and old connections without losing a call: a client stops using
// such a connection, and a server tells the client to stop using it. In both cases the client may
// connect again at once. See package aging.

// ageLocked starts the checks of age and activity. The random part keeps connections that began
// together from ending together.
func (lt *lifetime) ageLocked(now int64) {
	idle, age, retireAt := lt.c.cfg.IdleTimeout, lt.c.cfg.MaxAge, int64(0)
	if age > 0 {
		retireAt = monotime.Later(now, age-age/10, lt.c.rt.random(age/5+1))
	}
	if idle > 0 || age > 0 {
		lt.lazyLocked().age.Begin(now, idle, retireAt)
		lt.housekeepByLocked(lt.age.Next())
	}
}

// agedLocked reports, once, whether the connection is too old or has been idle for too long.
func (lt *lifetime) agedLocked(now int64) bool {
	out, in := &lt.c.callsOut, &lt.c.callsIn
	if lt.age.Next() > now || !lt.age.Ended(now, out.opened+in.received.Load(), out.window.Open()+out.window.Waiting()+in.inOpen > 0) {
		return false
	}
	lt.lazyLocked().retired = true
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
