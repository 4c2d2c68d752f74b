// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"io"
	"time"

	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/internal/window"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Calls that call back must not wait for each other. The handler of a call may call the caller, and
// that handler may call back again. The first call keeps its place in the window until the
// innermost call has ended. So the innermost call must not wait for a place in the window. Three
// rules ensure this:
//
//   - A request that serves a call of the peer may go beyond the peer's window. The request names
//     that call, so the peer accepts it, up to a second limit. Beyond the second limit the request
//     fails at once, so that an endless recursion ends.
//   - A side with open calls goes on reading, even if more one-way requests arrive than its window
//     allows.
//   - If a Completer waits for the window, another goroutine takes over the reading: see
//     passOnReadingRelocking.

// requestKey is the context key that finds the request of a context.
type requestKey struct{}

// serving returns the context of the peer's request on this connection that a call made with ctx
// serves, or nil. If that request is open, it is in the table when serving returns.
func (ci *callsIn) serving(ctx context.Context) *Context {
	x, ok := isolate.Context(ctx).Value(requestKey{}).(*Context)
	if !ok || x.conn != ci.c || x.alone() {
		return nil
	}
	x.Blocking()
	return x
}

// isOpenLocked reports whether the request of x is in the table.
func (ci *callsIn) isOpenLocked(x *Context) bool {
	r := ci.findLocked(x.id)
	return r != nil && r.Context == x
}

// ConnOf returns the connection of the request that ctx belongs to, or nil for any other context.
func ConnOf(ctx context.Context) *Conn {
	if x, ok := ctx.Value(requestKey{}).(*Context); ok {
		return x.conn
	}
	return nil
}

// awaitRequestRoomRelocking waits until the table has room for a one-way request. It unlocks c.mu
// while it waits. While calls of this side are open, the reader must not wait, because a handler
// may wait for their replies. The table then takes more requests, up to a second limit.
func (ci *callsIn) awaitRequestRoomRelocking(r *Request) {
	c := ci.c
	held := false
	for c.lifetime.err == nil && !ci.refusing.Load() {
		open, bytes, maxOpen, maxBytes := ci.openLocked(r)
		if c.callsOut.window.Open() > 0 {
			_, extra := window.Extra(maxOpen, maxBytes)
			maxOpen, maxBytes = window.Slots(maxOpen), maxBytes+extra
		}
		if open == 0 || open < maxOpen && bytes+r.bytes <= maxBytes {
			break
		}
		held, c.reading.holding = true, true
		stuck := ci.awaitRoomRelocking()
		c.reading.holding = false
		if stuck && c.callsOut.window.Open() > 0 && !c.callsOut.flooded {
			c.callsOut.failFloodedRelocking()
		}
	}
	if held {
		c.lifetime.pinged = false // the peer's pong, if there is one, is read only now
	}
	if c.callsOut.flooded {
		c.callsOut.flooded = false
		c.callsOut.admitNextLocked()
	}
}

// hangUpTime is the interval at which a side that has stopped reading checks whether the peer has
// closed the connection. If the peer has closed it, this side reads the peer's last frames for at
// most hangUpTime, and then ends the connection.
const hangUpTime = time.Second

// awaitRoomRelocking waits until a request has left the table, for at most stuckTime. It unlocks
// c.mu while it waits. It returns true if no request has left the table for stuckTime.
func (ci *callsIn) awaitRoomRelocking() (stuck bool) {
	c := ci.c
	last, now := ci.lazyLocked(), c.now()
	if last.room == nil {
		last.room = make(chan struct{})
	}
	if last.hangUpChecked == 0 || now-last.hangUpChecked > 2*int64(hangUpTime) { // this side has read meanwhile
		last.hangUpChecked = now
	}
	for room, late := last.room, monotime.Later(now, c.lifetime.stuckTime()); ; {
		look := monotime.Later(last.hangUpChecked, hangUpTime)
		err := c.lifetime.waitRelocking(context.Background(), time.Now().Add(time.Duration(min(look, late)-now)), room)
		if now = c.now(); now >= look {
			last.hangUpChecked = now
			ci.checkHangUpRelocking()
		}
		if err == nil || now >= late {
			return err != nil
		}
	}
}

// checkHangUpRelocking checks whether the peer has closed the connection. It unlocks c.mu
// meanwhile. While the receive buffer is full, the notice that the peer has closed cannot arrive.
// So this side sends a ping. If the peer is gone, its operating system answers with a reset, and
// the next check finds that reset.
func (ci *callsIn) checkHangUpRelocking() {
	c := ci.c
	switch _, gone := socket.Look(c.nc); {
	case c.lifetime.writeErr != nil:
	case gone:
		c.lifetime.peerGoneLocked(&IOError{Op: EndOfStream, Err: io.EOF}, hangUpTime)
	case c.writing.written == c.writing.queued: // otherwise the queued output has the same effect
		c.writing.sendPingLocked(wire.Ping, make([]byte, pingSize))
		c.writing.flushLaterAndUnlock()
		c.mu.Lock()
	}
}
