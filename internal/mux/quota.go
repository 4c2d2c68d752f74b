// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"encoding/binary"
	"math"

	"github.com/yodel-rpc/yodel/internal/shares"
	"github.com/yodel-rpc/yodel/internal/window"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// quota is the role that bounds the peer's open requests: it has the limits that this side has
// granted, and the connection's share of the owner's Budget. See package shares.
//
// quota sends limits to the peer, and wakes goroutines that wait for room in the table of requests.
type quota struct {
	c     *Conn
	share *shares.Share // nil without a budget
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
		var first shares.Limit
		q.share, first = c.cfg.Budget.Join(q, open, bytes)
		open, bytes = first.Open, first.Bytes
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
			q.share.Touch()
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
	if q.share == nil || open >= window.Initial || c.lifetime.answered || !q.share.Borrow(open+1, bytes+r.bytes) {
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
	q.limit, q.limitBytes = q.share.TakeBack(open, ci.inBytes-ci.inNestBytes)
}

// leaveBudgetLocked removes the connection from the budget. Requests that still run go on counting.
func (q *quota) leaveBudgetLocked() {
	if q.share != nil {
		q.share.Leave()
		q.giveBackUnusedLocked()
	}
}

// Measure reports to the budget how many requests and bytes were in use since the last measurement.
func (q *quota) Measure() {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	open, bytes := c.callsIn.inOpen-c.callsIn.inNested, c.callsIn.inBytes-c.callsIn.inNestBytes // the requests in the window
	q.share.Measured(q.peak, q.peakBytes, open)
	q.peak, q.peakBytes = open, bytes
	q.giveBackUnusedLocked()
}

// Open returns how many requests of the peer are open.
func (q *quota) Open() int {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.c.callsIn.inOpen
}

// SetLimit sends the peer a new limit.
func (q *quota) SetLimit(l shares.Limit) {
	c := q.c
	c.mu.Lock()
	if c.lifetime.err != nil {
		c.mu.Unlock()
		return
	}
	w := wire.Window{MaxOpen: uint64(l.Open), MaxOpenBytes: uint64(l.Bytes)}
	c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendCredit(dst, 0, 0, &w) })
	if l.Lower {
		n := c.lifetime.nextPingLocked()
		c.callsIn.lazyLocked().lowering = n
		c.writing.sendPingLocked(wire.Ping, binary.LittleEndian.AppendUint64(nil, n))
	} else {
		q.limit, q.limitBytes = max(q.limit, l.Open), max(q.limitBytes, l.Bytes)
		c.callsIn.roomChangedLocked()
	}
	c.writing.flushAndUnlock(false)
}

// obeyedLocked handles the pong to ping n. If that ping followed a lower limit, the peer has
// obeyed.
func (q *quota) obeyedLocked(n uint64) {
	if ci := &q.c.callsIn; ci.lowering == n && n != 0 {
		ci.lowering = 0
		q.share.Obeyed()
		q.giveBackUnusedLocked()
	}
}

// Enforce applies the lower limit to a peer that has not answered the ping for obeyTime.
func (q *quota) Enforce() {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	q.obeyedLocked(c.callsIn.lowering)
}
