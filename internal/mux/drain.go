// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file drains a connection: this side or the peer accepts no more requests, and the connection
// ends when the open ones have ended.

func (lt *lifetime) onGoAway(h wire.Header, payload []byte) bool {
	c := lt.c
	var d wire.Drain
	if err := wire.ParseGoAway(payload, &d); err != nil {
		lt.breach("a broken drain notice: " + err.Error())
		return false
	}
	c.mu.Lock()
	if lt.drained == nil {
		last := lt.lazyLocked()
		last.drained, last.accepted = ErrDrained, d.Count
	}
	lt.lazyLocked().accepted = min(lt.accepted, d.Count)
	lt.retired = lt.retired || d.Again != 0
	if h.Arg != 0 {
		lt.drained = &Refusal{Code: h.Arg, ID: text.ID(string(d.ErrorID)), Message: text.Clip(string(d.Message), maxRefusal)}
		lt.endAndUnlock(lt.drained)
		return false
	}
	c.callsOut.admitNextLocked()
	lt.endDrainedLocked()
	c.mu.Unlock()
	if c.cfg.Unusable != nil {
		c.cfg.Unusable(c)
	}
	return true
}

// maxRefusal is how many bytes of a peer's refusal message are kept.
const maxRefusal = 1 << 10

// endDrainedLocked schedules the end of a draining connection once no call is open on it. The side
// that received the drain notice closes the connection. If the draining side closed the connection,
// TCP could answer late data with a reset, and the reset could destroy replies that are still in
// transit.
func (lt *lifetime) endDrainedLocked() {
	c := lt.c
	switch {
	case c.callsOut.window.Open() > 0 || c.callsIn.inOpen > 0:
	case lt.drained != nil:
		lt.housekeepByLocked(c.now()) // at once, but on the timer's goroutine: the caller may be the reader
	case lt.draining.Load() && lt.linger == 0:
		lt.lazyLocked().linger = c.now() + int64(lingerTime)
		lt.housekeepByLocked(lt.linger)
	}
}

// lingerTime is how long a drained connection waits for the peer to close it.
const lingerTime = time.Second

func (lt *lifetime) drain(again uint64) {
	c := lt.c
	c.mu.Lock()
	if lt.err != nil || lt.draining.Load() {
		c.mu.Unlock()
		return
	}
	lt.drainBegunLocked()
	lt.draining.Store(true)
	d := wire.Drain{Count: c.callsIn.promiseLocked(), Again: again}
	c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendGoAway(dst, 0, &d) })
	lt.endDrainedLocked()
	c.writing.flushAndUnlock(false)
}

// drainBegunLocked closes the channel that Context.Draining returned, once.
func (lt *lifetime) drainBegunLocked() {
	if lt.drainBegun != nil && !lt.draining.Load() && !lt.c.callsIn.refusing.Load() {
		close(lt.drainBegun)
	}
}

func (lt *lifetime) closeWhenIdle(why error) {
	c := lt.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if lt.drained == nil {
		last := lt.lazyLocked()
		last.drained, last.accepted = why, c.callsOut.opened
	}
	c.callsOut.admitNextLocked()
	lt.endDrainedLocked()
}
