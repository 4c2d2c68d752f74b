// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"io"
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// Calls that call back must not wait for each other. The handler of a call may call the caller,
// whose handler may call back again: the first call keeps its place in the window until the last
// one has ended, so the last one must not wait for a place. Three things see to that:
//
//   - A request in the service of a call of the peer goes beyond the peer's window when that is
//     full, and names the call. The peer lets it in because of that, up to another limit. Beyond
//     that it fails at once: a recursion without end ends.
//   - A side with calls open reads on, also when more one-way requests come than it takes.
//   - A callback that waits for the window does not hold up the reading: see passOnReadingLocked.

// extraOpen is how many requests may be open beside a window of n because they serve calls of the
// receiver. When both windows are full of calls, and each is called back and calls back, that makes
// two for each place.
func extraOpen(n int) int { return max(2*min(n, wire.MaxSlots), initialWindow) }

// extraBytes is how many bytes they may have, beside a window of n bytes.
func extraBytes(n int) int { return max(2*min(n, math.MaxInt/4), 1<<20) }

// maxSlots is how many slots both together take.
func maxSlots(n int) int { return min(min(n, wire.MaxSlots)+extraOpen(n), wire.MaxSlots) }

// requestKey finds the request that a context belongs to.
type requestKey struct{}

// serving returns the context of the peer's request on this connection that a call made with ctx
// serves, or nil. Once it has returned, an open one is in the table.
func (c *Conn) serving(ctx context.Context) *Context {
	x, ok := ctx.Value(requestKey{}).(*Context)
	if !ok || x.conn != c || x.alone() {
		return nil
	}
	x.Blocking()
	return x
}

// isOpenLocked reports whether the request of x is in the table.
func (c *Conn) isOpenLocked(x *Context) bool {
	r := c.findLocked(x.id)
	return r != nil && r.Context == x
}

// ConnOf returns the connection of the request that ctx is the context of, or derived from; nil for
// another context.
func ConnOf(ctx context.Context) *Conn {
	if x, ok := ctx.Value(requestKey{}).(*Context); ok {
		return x.conn
	}
	return nil
}

// serves reports whether a request of the peer serves a call that this side has open.
func (c *Conn) serves(r *Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	parent := r.Fields.Parent
	return !r.alone() && parent <= math.MaxUint32 && c.slotLocked(uint32(parent)) != nil
}

// roomLocked waits until the table has room for a one-way request. While calls of this side are
// open, the reading must not wait: a handler may be among those who want their replies. Then more
// come in, up to another limit.
func (c *Conn) roomLocked(r *Request) {
	held := false
	for c.err == nil && !c.refusing.Load() {
		open, bytes, maxOpen, maxBytes := c.openLocked(r)
		if c.open > 0 {
			maxOpen, maxBytes = maxSlots(maxOpen), maxBytes+extraBytes(maxBytes)
		}
		if open == 0 || open < maxOpen && bytes+r.bytes <= maxBytes {
			break
		}
		held, c.holding = true, true
		stuck := c.awaitRoomLocked()
		c.holding = false
		if stuck && c.open > 0 && !c.flooded {
			c.floodedLocked()
		}
	}
	if held {
		c.pinged = false // the peer's pong, if it sent one, is read only now
	}
	if c.flooded {
		c.flooded = false
		c.admitNextLocked()
	}
}

// hangUpTime is how long it may take to notice that the peer has hung up while this side does not
// read. Once it has, what it sent is read for as long again.
const hangUpTime = time.Second

// awaitRoomLocked waits until a request may have left the table. It returns true when none has for
// stuckTime.
func (c *Conn) awaitRoomLocked() (stuck bool) {
	last, now := c.seldomLocked(), c.now()
	if last.room == nil {
		last.room = make(chan struct{})
	}
	if last.looked == 0 || now-last.looked > 2*int64(hangUpTime) { // this side has read meanwhile
		last.looked = now
	}
	for room, late := last.room, later(now, c.stuckTime()); ; {
		look := later(last.looked, hangUpTime)
		err := c.waitLocked(context.Background(), time.Now().Add(time.Duration(min(look, late)-now)), room)
		if now = c.now(); now >= look {
			last.looked = now
			c.lookForHangUpLocked()
		}
		if err == nil || now >= late {
			return err != nil
		}
	}
}

// lookForHangUpLocked sees whether the peer has hung up. The end of what it sent cannot come while
// the system has no room for that; so it is sent a ping, to which the system of a peer that has
// gone answers with a reset, which has come when this side looks again.
func (c *Conn) lookForHangUpLocked() {
	switch {
	case c.writeErr != nil:
	case hungUp(c.nc):
		c.peerGoneLocked(&IOError{Op: EndOfStream, Err: io.EOF}, hangUpTime)
	case c.written == c.queued: // else what is on its way does as well
		c.sendPingLocked(wire.Ping, make([]byte, pingSize))
		c.flushLater()
		c.mu.Lock()
	}
}

// stuckTime is how long no one-way request may end, while more come than there is room for, until
// their handlers are taken to wait for replies that are not read.
func (c *Conn) stuckTime() time.Duration {
	if c.cfg.KeepAlive > 0 {
		return c.cfg.KeepAlive
	}
	return 15 * time.Second
}

// floodedLocked fails the calls of this side: no reply is read, and the handlers of one-way
// requests, none of which has ended for long, may be who makes them.
func (c *Conn) floodedLocked() {
	c.flooded = true
	for i := range c.slots {
		if w := c.slots[i].waiter; w != nil && !w.late && w.id.CompareAndSwap(c.slots[i].id, 0) {
			c.abandonLocked(c.slots[i].id, context.Canceled)
			c.followLocked(c.slots[i].id, w.to)
			w.fail(&CallError{Cause: ErrFlooded})
		}
	}
	for _, t := range c.admission {
		t.flooded = true
		t.wake <- struct{}{}
	}
	c.callsLocked().admission = nil
	c.flushLater()
	c.mu.Lock()
}
