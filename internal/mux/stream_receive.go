// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"io"
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is the receiving direction of a stream.

// Accept allows the peer, which opened the stream, to send. Until then the peer sends no message,
// so that a refused call can be sent elsewhere completely. The window is small if the streams of
// the connection already hold much.
func (st *Stream) Accept() {
	if !openerSends(st.kind) {
		return
	}
	c := st.conn
	c.mu.Lock()
	if st.granted == 0 && !st.ended {
		if n := int(st.window); c.streams.widenLocked(n) { //nolint:gosec // at most maxStreamWindow
			st.grown += n
		} else {
			st.window = minStreamWindow
			c.memory.force(minStreamWindow)
			st.least = minStreamWindow
		}
		st.grantLocked(st.window)
	}
	c.writing.flushAndUnlock(true)
}

// Receive returns the next message, which is valid until the next Receive. It waits for a message,
// until ctx or the stream ends. The error io.EOF is the regular end of the stream.
func (st *Stream) Receive(ctx context.Context) (msg []byte, flags wire.Flags, err error) {
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	if st.at == len(st.out) {
		if err := st.refill(ctx); err != nil {
			return nil, 0, err
		}
	}
	record := st.out[st.at:]
	h := wire.ParseHeader(record)
	n := wire.HeaderSize + int(h.Len)
	if h.Type == gathered {
		st.uncounted += uint64(h.ID)
	} else {
		st.uncounted += uint64(n)
	}
	st.at += n
	if st.uncounted > st.half && st.at < len(st.out) {
		c := st.conn
		c.mu.Lock()
		st.consumeLocked()
		c.writing.flushLaterAndUnlock()
	}
	return record[wire.HeaderSize:n:n], h.Flags & opening, nil
}

// Buffered returns how many bytes of messages Receive can return without taking c.mu, headers
// included.
func (st *Stream) Buffered() int { return len(st.out) - st.at }

// refill takes the messages that have arrived, or waits for one.
func (st *Stream) refill(ctx context.Context) error {
	c := st.conn
	c.mu.Lock()
	defer c.writing.flushLaterAndUnlock()
	c.streams.unreserveLocked(&st.held)
	st.consumeLocked()
	for st.complete == 0 {
		if st.closed != nil {
			st.giveMemoryLocked()
			return st.closed
		}
		st.waiting = true
		st.pieceLocked()
		st.creditLocked()
		if err := st.awaitMessageRelocking(ctx); err != nil {
			return err
		}
	}
	tail := st.in[st.complete:]
	spare := st.out[:0]
	if cap(spare) > max(keepBuffer, 2*int(st.window)) { //nolint:gosec // at most maxStreamWindow
		st.conn.rt.memory.give(spare)
		spare = nil
	}
	st.out, st.at = st.in[:st.complete], 0
	st.in, st.complete = append(spare, tail...), 0
	st.held, st.kept = st.kept, 0
	return nil
}

// giveMemoryLocked gives memory to other streams when the stream has no more messages. It does not
// do so on the side that opened a duplex: the caller's function may have left a goroutine behind
// that still reads a message, while the call waits for its end.
func (st *Stream) giveMemoryLocked() {
	if !st.opener || st.kind == wire.Feed {
		st.conn.rt.memory.give(st.in)
		st.conn.rt.memory.give(st.out)
	}
	st.in, st.out, st.at = nil, nil, 0
}

// consumeLocked counts the messages that Receive has returned as consumed.
func (st *Stream) consumeLocked() {
	st.consumed += st.uncounted
	st.uncounted, st.half = 0, st.window/2
	st.creditLocked()
}

// awaitMessageRelocking waits until the reader brings a message. It unlocks c.mu while it waits.
func (st *Stream) awaitMessageRelocking(ctx context.Context) error {
	c := st.conn
	c.writing.flushLaterAndUnlock() // it writes credit for the peer
	var err error
	select {
	case <-st.wake:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	st.waiting = false
	select {
	case <-st.wake: // the message and the end of ctx came together
	default:
	}
	return err
}

// creditLocked grants the peer what has been consumed, once that is half of the window.
func (st *Stream) creditLocked() {
	if st.granted == 0 || st.closed != nil || st.granted-st.consumed > st.window/2 {
		return
	}
	st.grantLocked(st.consumed + st.window)
}

func (st *Stream) grantLocked(sum uint64) {
	if st.conn.lifetime.err != nil {
		return
	}
	st.granted = sum
	st.conn.writing.appendLocked(func(dst []byte) []byte {
		return wire.AppendCredit(dst, st.mark&wire.OfReply, st.id, &wire.Window{StreamBytes: sum})
	})
}

// opening has the flags that apply to a whole message.
const opening = wire.Compressed | wire.HasAttachment

// wholeLocked receives the messages at the beginning of frames that are complete, belong to this
// stream, and have no special flags. It returns their bytes and their number. The next frame is for
// dataLocked.
func (st *Stream) wholeLocked(frames []byte) (size, n int) {
	if st.closed != nil || len(st.in) > st.complete {
		return 0, 0
	}
	room := int(min(st.granted-st.received, uint64(len(frames)))) //nolint:gosec // both are lengths; the peer has never sent more than granted
	largest := uint32(min(st.conn.cfg.MaxMessage, maxFrame))      //nolint:gosec // positive
	special := wire.HasFields | wire.More | wire.HasChecksum | wire.End | wire.OfReply
	plain := wire.OfReply &^ st.mark // in frames of the peer
	for room-size >= wire.HeaderSize {
		h := wire.ParseHeader(frames[size:])
		end := size + wire.HeaderSize + int(h.Len)
		if h.Type != wire.Data || h.ID != st.id || h.Flags&special != plain || h.Len > largest || end > room {
			break
		}
		if h.Flags&wire.Waited != 0 && st.waiting && st.complete+size == 0 {
			st.growLocked()
		}
		size = end
		n++
	}
	if n > 0 {
		st.storeLocked(frames[:size])
		st.received += uint64(size)
		st.complete = len(st.in)
		st.traffic.in(n, size-n*wire.HeaderSize)
		st.signalLocked()
	}
	return size, n
}

// storeLocked appends received bytes to in. It takes large memory from streams that have ended.
// Otherwise growing in for 10,000 messages of 128 bytes would take twice as much memory as they
// have.
func (st *Stream) storeLocked(b []byte) {
	if n := len(st.in) + len(b); n > cap(st.in) && n >= minLarge {
		in := append(st.conn.rt.memory.take(pow2(n)), st.in...)
		st.conn.rt.memory.give(st.in)
		st.in = in
	}
	st.in = append(st.in, b...)
}

// dataLocked receives a frame. It returns how the peer has violated the protocol, or "".
func (st *Stream) dataLocked(h wire.Header, payload []byte, broken error) (breach string) {
	if h.Flags&wire.End != 0 {
		st.closeReceiveLocked(io.EOF)
		return ""
	}
	cost := wire.HeaderSize + uint64(h.Len)
	if st.received += cost; st.received > st.granted {
		return "more on a stream than its window holds"
	}
	switch {
	case st.closed != nil:
		return ""
	case broken != nil:
		st.closeReceiveLocked(&BrokenError{Cause: broken})
		return ""
	}
	if st.want == 0 && len(st.in) == st.complete {
		st.openRecordLocked(h, &payload)
	}
	if st.closed != nil {
		return ""
	}
	st.pieceOfRecordLocked(h, payload, cost)
	if h.Flags&wire.Waited != 0 && st.waiting {
		st.growLocked()
	}
	switch {
	case st.complete > 0:
		st.signalLocked()
	// A message that has begun to arrive must not block other streams because its consumer is busy
	// elsewhere.
	case st.waiting || st.reserved > 0:
		st.pieceLocked()
		st.creditLocked()
	}
	return ""
}

// openRecordLocked begins a message.
func (st *Stream) openRecordLocked(h wire.Header, payload *[]byte) {
	fields, msg, err := wire.SplitFields(h.Flags, *payload)
	var f wire.Fields
	if err == nil {
		err = wire.ParseFields(fields, &f)
	}
	size := f.Size
	if size == 0 {
		size = uint64(len(msg))
	}
	if limit := st.conn.cfg.MaxMessage; err == nil && size > uint64(limit) {
		st.closeReceiveLocked(&TooLargeError{Size: size, Limit: limit})
		return
	}
	if h.Flags&wire.More != 0 && f.Size == 0 && err == nil {
		err = errNoSize
	}
	if err != nil {
		st.closeReceiveLocked(&BrokenError{Cause: err})
		return
	}
	*payload = msg
	st.want = int(size) //nolint:gosec // within MaxMessage
	st.in = wire.Begin(st.in, wire.Header{Type: gathered, Flags: h.Flags & opening})
}

// pieceOfRecordLocked adds a piece to the incomplete message. The last piece completes it.
func (st *Stream) pieceOfRecordLocked(h wire.Header, piece []byte, cost uint64) {
	have := len(st.in) - st.complete - wire.HeaderSize + len(piece)
	switch last := h.Flags&wire.More == 0; {
	case have > st.want:
		st.closeReceiveLocked(&BrokenError{Cause: errLonger})
		return
	case last && have < st.want:
		st.closeReceiveLocked(&BrokenError{Cause: errShorter})
		return
	}
	// Enough bytes have arrived to believe the announced size, and memory for it is reserved.
	if have > firstGrant && st.reserved > 0 {
		st.growTo(len(st.in) + st.want - have + len(piece))
	}
	st.storeLocked(piece)
	st.pending += cost
	if h.Flags&wire.More != 0 {
		return
	}
	record := st.in[st.complete:]
	h = wire.Header{Type: gathered, Flags: wire.Flags(record[5]), Len: uint32(have), ID: uint32(st.pending)} //nolint:gosec // within MaxMessage, and the window
	wire.PutHeader(record, h)
	st.complete, st.want, st.pending = len(st.in), 0, 0
	st.traffic.in(1, have)
	if st.reserved != 0 {
		st.kept += st.reserved // until the consumer has processed it
		st.conn.streams.lazyLocked().partial -= st.reserved
		st.reserved = 0
	}
	st.doneWithPartLocked()
}

// growTo makes room for n bytes in all. Unlike append, make takes new memory from the system
// without touching it. Touching it would block the connection for milliseconds.
func (st *Stream) growTo(n int) {
	if n > cap(st.in) {
		st.in = append(make([]byte, 0, n), st.in...)
	}
}

// pieceLocked consumes the pieces of a message that is larger than the window. It begins only with
// a message that the consumer waits for, and only with a reservation for the whole message.
// Otherwise several messages could keep each other from becoming complete.
func (st *Stream) pieceLocked() {
	if st.pending == 0 || st.complete > 0 || st.queued {
		return
	}
	if st.reserved == 0 && !st.conn.streams.reserveLocked(st) {
		return
	}
	st.consumed += st.pending
	st.pending = 0
}

// growLocked doubles the window of a receiver that is faster than the window allows.
func (st *Stream) growLocked() {
	n := int(st.window) //nolint:gosec // at most maxStreamWindow
	if c := st.conn; 2*n <= maxStreamWindow && c.streams.widenLocked(n) {
		st.grown += n
		st.window += uint64(n)
	}
}

func (st *Stream) signalLocked() {
	if st.waiting {
		st.waiting = false
		st.wake <- struct{}{}
	}
}

func (st *Stream) closeReceiveLocked(err error) {
	if st.closed != nil {
		return
	}
	if err == io.EOF && len(st.in) > st.complete { //nolint:errorlint // it is passed bare
		err = &BrokenError{Cause: errShorter}
	}
	st.closed = err
	st.in, st.want, st.pending = st.in[:st.complete], 0, 0
	st.doneWithPartLocked()
	st.signalLocked()
}

// doneWithPartLocked gives back the reservation for the incomplete message, or removes the stream
// from the queue for one.
func (st *Stream) doneWithPartLocked() {
	c := st.conn
	if st.queued { // the window was enough, or the message will not arrive
		st.queued = false
		c.streams.reserving = slices.DeleteFunc(c.streams.reserving, func(other *Stream) bool { return other == st })
	}
	if st.reserved != 0 {
		c.streams.lazyLocked().partial -= st.reserved
	}
	c.streams.unreserveLocked(&st.reserved)
}

// streamDataAndUnlock passes a frame to its stream, together with the following frames of the same
// stream. The caller holds c.mu, and streamDataAndUnlock unlocks it.
func (rd *reader) streamDataAndUnlock(st *Stream, h wire.Header, frame, payload []byte, err error) bool {
	what := ""
	if size, n := st.wholeLocked(rd.buf[rd.r-len(frame) : rd.w]); n > 0 {
		rd.r += size - len(frame)
		rd.c.count.framesIn.Add(uint64(n - 1))
	} else {
		what = st.dataLocked(h, payload, err)
	}
	rd.c.mu.Unlock()
	rd.answered = true // with credit; a peer that does not read credit soon has none left
	if what != "" {
		rd.c.lifetime.breach(what)
	}
	return what == ""
}
