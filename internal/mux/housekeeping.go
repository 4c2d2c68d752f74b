// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/readstate"
)

// This file does the timed work of a connection: it looks for passed deadlines (see expiry.go),
// handles keepalive, and ends connections that are idle or old.

// housekeepByLocked makes the housekeeping timer fire at t or before.
func (lt *lifetime) housekeepByLocked(t int64) {
	c := lt.c
	if t >= lt.housekeepAt || lt.err != nil {
		return
	}
	lt.housekeepAt = t
	d := time.Duration(max(t-c.now(), 0))
	switch {
	case d > timerless && c.reading.state.Is(readstate.Parked) && c.rt.parker.HousekeepAt(&c.reading, t):
		lt.dropTimerLocked()
	case lt.housekeeper == nil:
		lt.housekeeper = time.AfterFunc(d, lt.housekeep)
	default:
		lt.housekeeper.Reset(d)
	}
}

func (lt *lifetime) dropTimerLocked() {
	if lt.housekeeper != nil {
		lt.housekeeper.Stop()
		lt.housekeeper = nil
	}
}

// housekeep does the housekeeping that is due, and sets the timer for the next time.
func (lt *lifetime) housekeep() {
	c := lt.c
	c.mu.Lock()
	if lt.err != nil {
		c.mu.Unlock()
		return
	}
	now := c.now()
	lt.housekeepAt = monotime.Never
	why := lt.drainedLocked(now)
	switch {
	case why != nil:
	case lt.endAt != 0 && now >= lt.endAt && !lt.readsOnLocked(now):
		why = lt.writeErr
	case lt.helloBy != 0 && now >= lt.helloBy:
		why = ErrHandshake
	case lt.pingAt != 0 && now >= lt.pingAt && !lt.keepAliveLocked(now):
		why = ErrDead
	}
	if why != nil {
		lt.endAndUnlock(why)
		return
	}
	aged := lt.agedLocked(now)
	next := min(neverIfZero(lt.helloBy), neverIfZero(lt.linger), neverIfZero(lt.pingAt), neverIfZero(lt.endAt), lt.age.Next())
	late, nextCall := lt.expiredLocked(now)
	lt.housekeepByLocked(min(next, nextCall))
	c.writing.flushAndUnlock(false)
	late.end()
	if aged {
		lt.retire()
	}
}

// readsOnLocked reports whether this side goes on reading from a peer to which it can no longer
// write. The reader may have to wait for room before it can read the frames that the peer sent
// before it went away.
func (lt *lifetime) readsOnLocked(now int64) bool {
	c := lt.c
	frames := c.count.framesIn.Load()
	if now >= lt.endBy || !c.reading.holding && frames == lt.endFrames {
		return false
	}
	lt.lazyLocked().endAt, lt.endFrames = now+int64(closingTime)/4, frames
	return true
}

// drainedLocked returns the reason if a draining connection ends now, or nil.
func (lt *lifetime) drainedLocked(now int64) error {
	c := lt.c
	if c.callsOut.window.Open() > 0 || c.callsIn.inOpen > 0 {
		if lt.linger != 0 {
			lt.lazyLocked().linger = 0 // calls are open; linger is set again when they have ended
		}
		return nil
	}
	_, runs := c.reading.reader.Load().state.Run()
	busy := c.writing.written != c.writing.queued && c.writing.allowedLocked() || runs
	switch {
	case lt.drained != nil && !busy:
		return lt.drained
	case lt.drained != nil:
		lt.housekeepByLocked(now + int64(drainCheckTime))
	case lt.linger != 0 && now >= lt.linger:
		if !busy {
			return ErrClosed
		}
		lt.lazyLocked().linger = now + int64(lingerTime)
	}
	return nil
}

// drainCheckTime is how often a drained connection checks whether its last bytes have been written.
const drainCheckTime = time.Millisecond

func neverIfZero(t int64) int64 {
	if t == 0 {
		return monotime.Never
	}
	return t
}
