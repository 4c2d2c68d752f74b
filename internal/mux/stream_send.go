// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// sending is the sending direction of a stream. Conn.mu guards it.
type sending struct {
	st          *Stream
	sent        uint64        // bytes of frames, headers included
	credit      uint64        // how many bytes may be sent in all
	room        uint64        // the peer's window; the peer grants new credit at least after each half of it
	sendErr     error         // why nothing more can be sent, or nil
	busy        bool          // a goroutine is sending a message
	ending      bool          // End was called during that message
	sendChanged chan struct{} // closed when one of these changes; nil when no goroutine waits
}

// ErrSendEnded is the error of Send after End.
var ErrSendEnded = errors.New("a message was sent after the end of the stream")

// awaitAccept is Stream.Accepted.
func (sd *sending) awaitAccept(ctx context.Context) error {
	c := sd.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for sd.credit == 0 && sd.sendErr == nil {
		if err := sd.waitRelocking(ctx); err != nil {
			return err
		}
	}
	return sd.sendErr
}

// send is Stream.Send.
func (sd *sending) send(ctx context.Context, flags wire.Flags, msg []byte) error {
	st := sd.st
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := st.conn
	c.mu.Lock()
	if sd.sendAtOnceLocked(flags, msg) {
		c.writing.flushLaterAndUnlock()
		return nil
	}
	defer c.mu.Unlock()
	for (sd.busy || sd.credit == 0) && sd.sendErr == nil && !sd.ending {
		if err := sd.waitRelocking(ctx); err != nil {
			return err
		}
	}
	switch {
	case sd.sendErr != nil:
		return sd.sendErr
	case sd.ending:
		return ErrSendEnded
	}
	sd.busy = true
	err := sd.sendRelocking(ctx, flags, msg)
	sd.busy = false
	if err == nil {
		st.traffic.out(msg)
	}
	if sd.ending {
		sd.endSendLocked(ErrSendEnded)
		c.writing.flushLaterAndUnlock()
		c.mu.Lock()
	}
	sd.sendChangedLocked()
	return err
}

// sendAtOnceLocked sends a message that fits in a frame, if it does not have to wait. Most messages
// take this path, which costs half as much as the usual one.
func (sd *sending) sendAtOnceLocked(flags wire.Flags, msg []byte) bool {
	st := sd.st
	c := st.conn
	cost := wire.HeaderSize + wire.ChecksumSize + len(msg)
	switch {
	case sd.busy || sd.ending || sd.sendErr != nil || c.lifetime.err != nil:
		return false
	case cost > sd.largest() || sd.credit < sd.sent+uint64(cost) || len(c.writing.out) >= c.writing.highWater():
		return false
	}
	start := c.writing.beginLocked(wire.Header{Type: wire.Data, Flags: flags | st.mark, ID: st.id})
	c.writing.out = append(c.writing.out, msg...)
	c.writing.finishLocked(start)
	sd.sent += uint64(len(c.writing.out) - start)
	st.traffic.out(msg)
	return true
}

// largest returns the largest cost of a frame. When the peer has consumed everything, it grants at
// least half of the window again. So a frame of that cost can always be sent in the end.
func (sd *sending) largest() int {
	return min(int(sd.room/2), wire.HeaderSize+maxPart) //nolint:gosec // a window is small
}

func (sd *sending) sendRelocking(ctx context.Context, flags wire.Flags, msg []byte) error {
	st := sd.st
	flags |= st.mark
	size := len(msg)
	largest := sd.largest()
	whole := wire.HeaderSize + wire.ChecksumSize + size
	if whole <= largest {
		return sd.sendFrameRelocking(ctx, wire.Header{Flags: flags}, 0, &msg, whole)
	}
	for first := true; first || len(msg) > 0; first = false {
		h, announced := wire.Header{Flags: flags}, 0
		if first {
			h.Flags |= wire.HasFields
			announced = size
		}
		cost := min(wire.HeaderSize+wire.ChecksumSize+sizeFieldSize+len(msg), largest)
		if err := sd.sendFrameRelocking(ctx, h, announced, &msg, cost); err != nil {
			if !first {
				// the message is incomplete, so nothing can follow it, and the peer must not wait
				sd.endSendLocked(err)
				st.conn.writing.flushLaterAndUnlock()
				st.conn.mu.Lock()
			}
			return err
		}
	}
	return nil
}

// sendFrameRelocking sends as much of msg as fits in a frame of cost bytes. It unlocks c.mu
// meanwhile.
func (sd *sending) sendFrameRelocking(ctx context.Context, h wire.Header, announced int, msg *[]byte, cost int) error {
	st := sd.st
	waited, err := sd.awaitWindowRelocking(ctx, uint64(cost))
	if err != nil {
		return err
	}
	c := st.conn
	h.Type, h.ID = wire.Data, st.id
	n := cost - wire.HeaderSize - wire.ChecksumSize
	if announced > 0 {
		n -= sizeFieldSize
	}
	n = min(n, len(*msg))
	if n < len(*msg) {
		h.Flags |= wire.More
	}
	if waited {
		h.Flags |= wire.Waited
	}
	start := c.writing.beginLocked(h)
	if announced > 0 {
		c.writing.out = wire.AppendFields(c.writing.out, &wire.Fields{Size: uint64(announced)})
	}
	c.writing.out = append(c.writing.out, (*msg)[:n]...)
	c.writing.finishLocked(start)
	*msg = (*msg)[n:]
	sd.sent += uint64(len(c.writing.out) - start)
	c.writing.flushLaterAndUnlock()
	c.mu.Lock()
	return nil
}

// awaitWindowRelocking waits until a frame of cost bytes may be sent. It unlocks c.mu while it
// waits. Waited reports whether the window made it wait.
func (sd *sending) awaitWindowRelocking(ctx context.Context, cost uint64) (waited bool, err error) {
	c := sd.st.conn
	for {
		switch {
		case sd.sendErr != nil:
			return waited, sd.sendErr
		case c.lifetime.err != nil:
			return waited, c.lifetime.err
		case len(c.writing.out) >= c.writing.highWater():
			err = c.writing.awaitFlushRelocking(ctx, noDeadline)
		case sd.credit-sd.sent < cost || sd.credit < sd.sent:
			waited = true
			err = sd.waitRelocking(ctx)
		default:
			return waited, nil
		}
		if err != nil {
			return waited, err
		}
	}
}

// end is Stream.End.
func (sd *sending) end() {
	c := sd.st.conn
	c.mu.Lock()
	if sd.busy {
		sd.ending = true
		sd.sendChangedLocked()
	} else {
		sd.endSendLocked(ErrSendEnded)
	}
	c.writing.flushLaterAndUnlock()
}

// endSendLocked tells the peer that no more messages come, unless the stream has ended.
func (sd *sending) endSendLocked(why error) {
	st := sd.st
	if c := st.conn; sd.sendErr == nil && c.lifetime.err == nil {
		sd.sendErr = why
		c.writing.finishLocked(c.writing.beginLocked(wire.Header{Type: wire.Data, Flags: st.mark | wire.End, ID: st.id}))
	}
}

// waitRelocking waits for a change of the sending direction. It unlocks conn.mu while it waits, and
// returns with conn.mu held.
func (sd *sending) waitRelocking(ctx context.Context) error {
	st := sd.st
	if sd.sendChanged == nil {
		sd.sendChanged = make(chan struct{})
	}
	if err := st.conn.lifetime.waitRelocking(ctx, noDeadline, sd.sendChanged); err != nil {
		return err
	}
	if sd.sendErr == nil {
		return st.conn.lifetime.err
	}
	return nil
}

func (sd *sending) sendChangedLocked() {
	if sd.sendChanged != nil {
		close(sd.sendChanged)
		sd.sendChanged = nil
	}
}

// creditedLocked stores the peer's newest credit.
func (sd *sending) creditedLocked(sum uint64) {
	if sum > sd.credit {
		if sd.room == 0 {
			sd.room = min(max(sum, minStreamWindow), maxStreamWindow)
		}
		sd.credit = sum
		sd.sendChangedLocked()
	}
}
