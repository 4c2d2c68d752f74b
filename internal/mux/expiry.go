// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"time"

	"github.com/yodel-rpc/yodel/internal/deadlines"
	"github.com/yodel-rpc/yodel/internal/monotime"
)

// This file ends the calls and cancels the requests whose deadline has passed. No call has a timer.
// The housekeeping searches the tables of both sides with an index, see package deadlines, and sets
// its timer to the earliest deadline.
//
// A connection may have a hundred thousand calls that expire at the same moment, so a search has
// rounds. Other calls of the connection use the lock between two rounds.

const (
	// sweepSlots is how many entries of the table of each side a round looks at, and sweepCalls is
	// how many calls it ends, and how many requests. So it holds Conn.mu for some 100 µs at most.
	// It looks at all requests without a slot.
	sweepSlots = 4096
	sweepCalls = 256
	// sweepPause is the time between two rounds. A round that has looked at more than sweepMany
	// entries has a next one: there are so many deadlines that another passes soon.
	sweepPause = int64(500 * time.Microsecond)
	sweepMany  = 256
)

// lateCalls are the calls of this side and the requests of the peer that a round has found.
type lateCalls struct {
	waiters  []*waiter
	requests []*Request
}

// fills reports whether another block of entries could be too much for a round that has looked at
// so many entries of a side, and found so many late ones.
func fills(looked, found int) bool {
	return looked >= sweepSlots || found+deadlines.Block > sweepCalls
}

// end ends the calls. Their ids have been swapped to 0. The caller must not hold Conn.mu.
func (l *lateCalls) end() {
	for _, w := range l.waiters {
		w.fail(ErrDeadline)
	}
	for _, r := range l.requests {
		r.end.Cancel(context.DeadlineExceeded, ErrDeadline)
	}
}

// expireByLocked makes the housekeeping find a call or a request with deadline t.
func (lt *lifetime) expireByLocked(t int64) {
	if lt.sweepAfter != 0 {
		t = max(t, lt.sweepAfter)
	}
	lt.housekeepByLocked(t)
}

// expiredLocked makes a round of a search for passed deadlines. It returns what the round has
// found, and when the housekeeping must call it again.
func (lt *lifetime) expiredLocked(now int64) (late lateCalls, again int64) {
	co, ci := &lt.c.callsOut, &lt.c.callsIn
	if lt.sweepAfter == 0 || now >= lt.sweepAfter {
		calls, allCalls := co.expiredLocked(now, &late)
		requests, allRequests := ci.expiredLocked(now, &late)
		if !allCalls || !allRequests || calls+requests > sweepMany {
			lt.lazyLocked().sweepAfter = now + sweepPause
		}
	}
	again = min(co.deadlines.Soonest(), ci.deadlines.Soonest(), neverIfZero(ci.oneWayBy))
	if lt.sweepAfter != 0 {
		again = max(again, lt.sweepAfter)
	}
	return late, again
}

// expiredLocked is the part of a round that looks at the calls of this side. It returns at how many
// entries it has looked, and whether it has found all calls that are late.
func (co *callsOut) expiredLocked(now int64, late *lateCalls) (looked int, all bool) {
	for block := range co.deadlines.Due(now) {
		if fills(looked, len(late.waiters)) {
			return looked, false
		}
		soonest, first := int64(monotime.Never), block*deadlines.Block
		for i := first; i < min(first+deadlines.Block, len(co.slots)); i++ {
			switch s := &co.slots[i]; {
			case s.deadline == 0 || s.waiter == nil:
			case s.deadline > now:
				soonest = min(soonest, s.deadline)
			case s.waiter.id.CompareAndSwap(s.id, 0):
				w := s.waiter
				co.abandonLocked(s.id, ErrDeadline)
				co.followLocked(s.id, w.to)
				late.waiters = append(late.waiters, w)
			}
		}
		looked += deadlines.Block
		co.deadlines.Reset(block, soonest)
	}
	return looked, true
}

// expiredLocked is the part of a round that looks at the requests of the peer: see callsOut.
func (ci *callsIn) expiredLocked(now int64, late *lateCalls) (looked int, all bool) {
	look := func(r *Request, deadline, soonest int64) (left, newSoonest int64) {
		switch {
		case deadline == 0:
		case deadline > now:
			soonest = min(soonest, deadline)
		case r.collected == nil:
			late.requests = append(late.requests, r)
			return 0, soonest
		}
		return deadline, soonest
	}
	for block := range ci.deadlines.Due(now) {
		if fills(looked, len(late.requests)) {
			return looked, false
		}
		soonest, first := int64(monotime.Never), block*deadlines.Block
		for i := first; i < first+deadlines.Block; i++ {
			if s := ci.in.At(i); s != nil {
				s.deadline, soonest = look(s.r, s.deadline, soonest)
			}
		}
		looked += deadlines.Block
		ci.deadlines.Reset(block, soonest)
	}
	if ci.oneWayBy == 0 || ci.oneWayBy > now {
		return looked, true
	}
	soonest := int64(monotime.Never)
	for r, deadline := range ci.oneWay { // they have no order in which a search could go on
		if len(late.requests) >= sweepCalls {
			return looked, false
		}
		var left int64
		if left, soonest = look(r, deadline, soonest); left != deadline {
			ci.oneWay[r] = left
		}
		looked++
	}
	ci.oneWayBy = soonest
	return looked, true
}
