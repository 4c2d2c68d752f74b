// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is the sending direction of a stream.

// ErrSendEnded is the error of Send after End.
var ErrSendEnded = errors.New("a message was sent after the end of the stream")

// Accepted waits until the peer accepts messages. An error means that it never will. Wait returns
// the reason.
func (st *Stream) Accepted(ctx context.Context) error {
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for st.credit == 0 && st.sendErr == nil {
		if err := st.waitRelocking(ctx); err != nil {
			return err
		}
	}
	return st.sendErr
}

// Send sends a message, and keeps no reference to msg. It waits while the peer's window or the
// connection's output is full. It returns an error when ctx or the stream ends. The error io.EOF
// means that the call has ended.
func (st *Stream) Send(ctx context.Context, flags wire.Flags, msg []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := st.conn
	c.mu.Lock()
	if st.sendAtOnceLocked(flags, msg) {
		c.writing.flushLaterAndUnlock()
		return nil
	}
	defer c.mu.Unlock()
	for (st.busy || st.credit == 0) && st.sendErr == nil && !st.ending {
		if err := st.waitRelocking(ctx); err != nil {
			return err
		}
	}
	switch {
	case st.sendErr != nil:
		return st.sendErr
	case st.ending:
		return ErrSendEnded
	}
	st.busy = true
	err := st.sendRelocking(ctx, flags, msg)
	st.busy = false
	if err == nil {
		st.traffic.out(msg)
	}
	if st.ending {
		st.endSendLocked(ErrSendEnded)
		c.writing.flushLaterAndUnlock()
		c.mu.Lock()
	}
	st.sendChangedLocked()
	return err
}

// sendAtOnceLocked sends a message that fits in a frame, if it does not have to wait. Most messages
// take this path, and cost half as much.
func (st *Stream) sendAtOnceLocked(flags wire.Flags, msg []byte) bool {
	c := st.conn
	cost := wire.HeaderSize + wire.ChecksumSize + len(msg)
	switch {
	case st.busy || st.ending || st.sendErr != nil || c.lifetime.err != nil:
		return false
	case cost > st.largest() || st.credit < st.sent+uint64(cost) || len(c.writing.out) >= c.writing.highWater():
		return false
	}
	start := c.writing.beginLocked(wire.Header{Type: wire.Data, Flags: flags | st.mark, ID: st.id})
	c.writing.out = append(c.writing.out, msg...)
	c.writing.finishLocked(start)
	st.sent += uint64(len(c.writing.out) - start)
	st.traffic.out(msg)
	return true
}

// largest returns the largest cost of a frame. The peer always grants half of the window again
// after it has consumed everything, so a frame of that cost can always be sent in the end.
func (st *Stream) largest() int {
	return min(int(st.room/2), wire.HeaderSize+maxPart) //nolint:gosec // a window is small
}

func (st *Stream) sendRelocking(ctx context.Context, flags wire.Flags, msg []byte) error {
	flags |= st.mark
	size := len(msg)
	largest := st.largest()
	whole := wire.HeaderSize + wire.ChecksumSize + size
	if whole <= largest {
		return st.sendFrameRelocking(ctx, wire.Header{Flags: flags}, 0, &msg, whole)
	}
	for first := true; first || len(msg) > 0; first = false {
		h, announced := wire.Header{Flags: flags}, 0
		if first {
			h.Flags |= wire.HasFields
			announced = size
		}
		cost := min(wire.HeaderSize+wire.ChecksumSize+sizeFieldSize+len(msg), largest)
		if err := st.sendFrameRelocking(ctx, h, announced, &msg, cost); err != nil {
			if !first {
				// the message is incomplete, so nothing can follow it, and the peer must not wait
				st.endSendLocked(err)
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
func (st *Stream) sendFrameRelocking(ctx context.Context, h wire.Header, announced int, msg *[]byte, cost int) error {
	waited, err := st.awaitWindowRelocking(ctx, uint64(cost))
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
	st.sent += uint64(len(c.writing.out) - start)
	c.writing.flushLaterAndUnlock()
	c.mu.Lock()
	return nil
}

// awaitWindowRelocking waits until a frame of cost bytes may be sent. It unlocks c.mu while it
// waits. Waited reports whether the window made it wait.
func (st *Stream) awaitWindowRelocking(ctx context.Context, cost uint64) (waited bool, err error) {
	c := st.conn
	for {
		switch {
		case st.sendErr != nil:
			return waited, st.sendErr
		case c.lifetime.err != nil:
			return waited, c.lifetime.err
		case len(c.writing.out) >= c.writing.highWater():
			err = c.writing.awaitFlushRelocking(ctx, noDeadline)
		case st.credit-st.sent < cost || st.credit < st.sent:
			waited = true
			err = st.waitRelocking(ctx)
		default:
			return waited, nil
		}
		if err != nil {
			return waited, err
		}
	}
}

// End says that this side sends no more messages. A message that is being sent goes first.
func (st *Stream) End() {
	c := st.conn
	c.mu.Lock()
	if st.busy {
		st.ending = true
		st.sendChangedLocked()
	} else {
		st.endSendLocked(ErrSendEnded)
	}
	c.writing.flushLaterAndUnlock()
}

// endSendLocked tells the peer that no more messages come, unless the stream has ended.
func (st *Stream) endSendLocked(why error) {
	if c := st.conn; st.sendErr == nil && c.lifetime.err == nil {
		st.sendErr = why
		c.writing.finishLocked(c.writing.beginLocked(wire.Header{Type: wire.Data, Flags: st.mark | wire.End, ID: st.id}))
	}
}

// waitRelocking waits for a change of the sending direction. It unlocks conn.mu while it waits, and
// returns with conn.mu held.
func (st *Stream) waitRelocking(ctx context.Context) error {
	if st.sendChanged == nil {
		st.sendChanged = make(chan struct{})
	}
	if err := st.conn.lifetime.waitRelocking(ctx, noDeadline, st.sendChanged); err != nil {
		return err
	}
	if st.sendErr == nil {
		return st.conn.lifetime.err
	}
	return nil
}

func (st *Stream) sendChangedLocked() {
	if st.sendChanged != nil {
		close(st.sendChanged)
		st.sendChanged = nil
	}
}

// creditedLocked stores the peer's newest credit.
func (st *Stream) creditedLocked(sum uint64) {
	if sum > st.credit {
		if st.room == 0 {
			st.room = min(max(sum, minStreamWindow), maxStreamWindow)
		}
		st.credit = sum
		st.sendChangedLocked()
	}
}
