// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"encoding/binary"
	"math"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// quota is the role that bounds the peer's open requests: it has the limits that this side has
// granted, and the connection's share of the owner's Budget. See budget.go.
//
// quota sends limits to the peer, and wakes goroutines that wait for room in the table of requests.
type quota struct {
	c     *Conn
	share *share // nil without a budget
	// the requests granted, including those that the peer may send before it learns of a lower
	// limit
	limit      int
	limitBytes int
	peak       int // the most requests that were open at once since the last measurement
	peakBytes  int
}

// hardLimit returns how many requests of the peer may be open in any case. Each takes about 7 KiB
// with the stack of its goroutine, which is not counted, and so has 8 KiB of MaxMemory.
func (q *quota) hardLimit() int {
	return min(q.c.cfg.MaxOpen, wire.MaxSlots, max(cmp.Or(q.c.cfg.MaxMemory, math.MaxInt)>>13, 1))
}

// joinBudget gives a new connection its share and returns the initial limits.
func (q *quota) joinBudget() (open, bytes int) {
	c := q.c
	open, bytes = q.hardLimit(), c.cfg.MaxOpenBytes
	if c.cfg.Budget != nil {
		q.share = c.cfg.Budget.join(c)
		open, bytes = q.share.granted, q.share.bytes
	}
	q.limit, q.limitBytes = open, bytes
	return open, bytes
}

// usedLocked records how many requests of the peer are open, and their bytes.
func (q *quota) usedLocked(open, bytes int) {
	if q.share == nil {
		return
	}
	if open > q.peak {
		if q.peak == 0 {
			q.c.cfg.Budget.touch(q.share)
		}
		q.peak = open
	}
	q.peakBytes = max(q.peakBytes, bytes)
}

// budgetAllowsLocked reports whether the budget allows one more request.
func (q *quota) budgetAllowsLocked(r *Request, open, bytes int) bool {
	c := q.c
	if open == 0 || open < q.limit && (bytes == 0 || bytes+r.bytes <= q.limitBytes) {
		return true
	}
	if q.share == nil || open >= initialWindow || c.lifetime.answered || !c.cfg.Budget.borrow(q.share, open+1, bytes+r.bytes) {
		return false
	}
	// The peer reads this side's settings, which contain the limits, before it answers the ping.
	if lazy := c.callsIn.lazyLocked(); !lazy.limitsAsked {
		lazy.limitsAsked = true
		c.writing.sendPingLocked(wire.Ping, make([]byte, pingSize))
	}
	q.limit, q.limitBytes = max(q.limit, open+1), max(q.limitBytes, bytes+r.bytes)
	return true
}

// giveBackUnusedLocked returns to the budget the part of the share that exceeds both the new limit
// and the open requests.
func (q *quota) giveBackUnusedLocked() {
	if q.share == nil {
		return
	}
	// one-way requests have a window of their own, of the same size
	ci := &q.c.callsIn
	open := max(ci.inOpen-ci.inNested-len(ci.oneWay), len(ci.oneWay))
	if ci.orphans > 0 {
		open = max(ci.inOpen-ci.inNested-ci.orphans, 0) // mostOrphans bounds the orphans
	}
	q.limit, q.limitBytes = q.c.cfg.Budget.takeBack(q.share, open, ci.inBytes-ci.inNestBytes)
}

// leaveBudgetLocked removes the connection from the budget. Requests that still run go on counting.
func (q *quota) leaveBudgetLocked() {
	if q.share != nil {
		q.c.cfg.Budget.leave(q.share)
		q.giveBackUnusedLocked()
	}
}

// measure reports to the budget how many requests and bytes were in use since the last measurement.
func (q *quota) measure() {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	open, bytes := c.callsIn.inOpen-c.callsIn.inNested, c.callsIn.inBytes-c.callsIn.inNestBytes // the requests in the window
	c.cfg.Budget.measuredAs(q.share, q.peak, q.peakBytes, open)
	q.peak, q.peakBytes = open, bytes
	q.giveBackUnusedLocked()
}

// sendLimit sends the peer a new limit.
func (q *quota) sendLimit(ch change) {
	c := q.c
	c.mu.Lock()
	if c.lifetime.err != nil {
		c.mu.Unlock()
		return
	}
	w := wire.Window{MaxOpen: uint64(ch.limit), MaxOpenBytes: uint64(ch.bytes)}
	c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendCredit(dst, 0, 0, &w) })
	if ch.isLowering {
		n := c.lifetime.nextPingLocked()
		c.callsIn.lazyLocked().lowering = n
		c.writing.sendPingLocked(wire.Ping, binary.LittleEndian.AppendUint64(nil, n))
	} else {
		q.limit, q.limitBytes = max(q.limit, ch.limit), max(q.limitBytes, ch.bytes)
		c.callsIn.roomChangedLocked()
	}
	c.writing.flushAndUnlock(false)
}

// obeyedLocked handles the pong to ping n. If that ping followed a lower limit, the peer has
// obeyed.
func (q *quota) obeyedLocked(n uint64) {
	if ci := &q.c.callsIn; ci.lowering == n && n != 0 {
		ci.lowering = 0
		q.c.cfg.Budget.obeyed(q.share)
		q.giveBackUnusedLocked()
	}
}

// enforce applies the lower limit to a peer that has not answered the ping for obeyTime.
func (q *quota) enforce() {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	q.obeyedLocked(c.callsIn.lowering)
}
