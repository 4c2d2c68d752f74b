// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"context"
	"io"
	"slices"

	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/records"
	"github.com/yodel-rpc/yodel/internal/spares"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// receiving is the receiving direction of a stream. Conn.mu guards the fields that do not belong to
// the consumer.
type receiving struct {
	st       *Stream
	window   uint64 // how many bytes may arrive beyond those consumed
	granted  uint64 // how many bytes may arrive in all, by the credit that the peer was sent
	received uint64 // how many bytes have arrived
	consumed uint64 // how many of them have been consumed
	in       records.Buffer
	closed   error         // why nothing more can arrive, or nil
	wake     chan struct{} // capacity 1
	waiting  bool          // the consumer waits for a message
	queued   bool          // the stream waits for a reservation
	reserved int           // the part of streams.reserved for the incomplete message
	kept     int           // the part of streams.reserved for complete messages
	held     int           // the part of streams.reserved for a message in out
	grown    int           // the part of streams.reserved for the window
	least    int           // bytes counted for the window without a reservation

	// Owned by the consumer, the goroutine that calls Receive.
	out       records.Taken
	uncounted uint64 // the cost of those messages that consumed does not include yet
	half      uint64 // half of the window
}

// accept is Stream.Accept.
func (rv *receiving) accept() {
	st := rv.st
	if !openerSends(st.kind) {
		return
	}
	c := st.conn
	c.mu.Lock()
	if rv.granted == 0 && !st.ended {
		if n := int(rv.window); c.streams.widenLocked(n) { //nolint:gosec // at most maxStreamWindow
			rv.grown += n
		} else {
			rv.window = minStreamWindow
			c.memory.Force(minStreamWindow)
			rv.least = minStreamWindow
		}
		rv.grantLocked(rv.window)
	}
	c.writing.flushAndUnlock(true)
}

// receive is Stream.Receive.
func (rv *receiving) receive(ctx context.Context) (msg []byte, flags wire.Flags, err error) {
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	if rv.out.Left() == 0 {
		if err := rv.refill(ctx); err != nil {
			return nil, 0, err
		}
	}
	msg, flags, cost := rv.out.Next()
	rv.uncounted += cost
	if rv.uncounted > rv.half && rv.out.Left() > 0 {
		c := rv.st.conn
		c.mu.Lock()
		rv.consumeLocked()
		c.writing.flushLaterAndUnlock()
	}
	return msg, flags & opening, nil
}

// buffered is Stream.Buffered.
func (rv *receiving) buffered() int { return rv.out.Left() }

// refill takes the messages that have arrived, or waits for one.
func (rv *receiving) refill(ctx context.Context) error {
	st := rv.st
	c := st.conn
	c.mu.Lock()
	defer c.writing.flushLaterAndUnlock()
	c.streams.unreserveLocked(&rv.held)
	rv.consumeLocked()
	for rv.in.Complete() == 0 {
		if rv.closed != nil {
			rv.giveMemoryLocked()
			return rv.closed
		}
		rv.waiting = true
		rv.pieceLocked()
		rv.creditLocked()
		if err := rv.awaitMessageRelocking(ctx); err != nil {
			return err
		}
	}
	rv.out.Refill(&rv.in, max(keepBuffer, 2*int(rv.window)), c.rt.spares) //nolint:gosec // at most maxStreamWindow
	rv.held, rv.kept = rv.kept, 0
	return nil
}

// giveMemoryLocked gives the stream's memory to other streams when the stream has no more messages.
// It does not do so on the side that opened a duplex. There the caller's function may have started
// a goroutine that still reads a message while the call waits for its end.
func (rv *receiving) giveMemoryLocked() {
	var memory *spares.Set
	if st := rv.st; !st.opener || st.kind == wire.Feed {
		memory = st.conn.rt.spares
	}
	rv.in.Free(memory)
	rv.out.Free(memory)
}

// consumeLocked counts the messages that Receive has returned as consumed.
func (rv *receiving) consumeLocked() {
	rv.consumed += rv.uncounted
	rv.uncounted, rv.half = 0, rv.window/2
	rv.creditLocked()
}

// awaitMessageRelocking waits until the reader brings a message. It unlocks c.mu while it waits.
func (rv *receiving) awaitMessageRelocking(ctx context.Context) error {
	c := rv.st.conn
	c.writing.flushLaterAndUnlock() // it writes credit for the peer
	defer rv.lockAgain()            // also if ctx panics
	select {
	case <-rv.wake:
		return nil
	case <-ctx.Done():
		return cmp.Or(context.Cause(ctx), context.Canceled)
	}
}

// lockAgain locks c.mu and ends a wait.
func (rv *receiving) lockAgain() {
	rv.st.conn.mu.Lock()
	rv.waiting = false
	select {
	case <-rv.wake: // the message and the end of ctx came together
	default:
	}
}

// creditLocked grants the peer new credit for the consumed bytes, once they are half of the window.
func (rv *receiving) creditLocked() {
	if rv.granted == 0 || rv.closed != nil || rv.granted-rv.consumed > rv.window/2 {
		return
	}
	rv.grantLocked(rv.consumed + rv.window)
}

func (rv *receiving) grantLocked(sum uint64) {
	st := rv.st
	if st.conn.lifetime.err != nil {
		return
	}
	rv.granted = sum
	st.conn.writing.appendLocked(func(dst []byte) []byte {
		return wire.AppendCredit(dst, st.mark&wire.OfReply, st.id, &wire.Window{StreamBytes: sum})
	})
}

// opening has the flags that apply to a whole message.
const opening = wire.Compressed | wire.HasAttachment

// wholeLocked receives the messages at the beginning of frames that are complete, belong to this
// stream, and have no special flags. It returns their bytes and their number. The next frame is for
// dataLocked.
func (rv *receiving) wholeLocked(frames []byte) (size, n int) {
	st := rv.st
	if rv.closed != nil || !rv.in.Whole() {
		return 0, 0
	}
	room := int(min(rv.granted-rv.received, uint64(len(frames)))) //nolint:gosec // both are lengths; the peer has never sent more than granted
	largest := uint32(min(st.conn.cfg.MaxMessage, maxFrame))      //nolint:gosec // positive
	special := wire.HasFields | wire.More | wire.HasChecksum | wire.End | wire.OfReply
	plain := wire.OfReply &^ st.mark // in frames of the peer
	for room-size >= wire.HeaderSize {
		h := wire.ParseHeader(frames[size:])
		end := size + wire.HeaderSize + int(h.Len)
		if h.Type != wire.Data || h.ID != st.id || h.Flags&special != plain || h.Len > largest || end > room {
			break
		}
		if h.Flags&wire.Waited != 0 && rv.waiting && rv.in.Complete()+size == 0 {
			rv.growLocked()
		}
		size = end
		n++
	}
	if n > 0 {
		rv.in.AddFrames(frames[:size], st.conn.rt.spares)
		rv.received += uint64(size)
		st.traffic.in(n, size-n*wire.HeaderSize)
		rv.signalLocked()
	}
	return size, n
}

// dataLocked receives a frame. It returns how the peer has violated the protocol, or "".
func (rv *receiving) dataLocked(h wire.Header, payload []byte, broken error) (breach string) {
	if h.Flags&wire.End != 0 {
		rv.closeReceiveLocked(io.EOF)
		return ""
	}
	cost := wire.HeaderSize + uint64(h.Len)
	if rv.received += cost; rv.received > rv.granted {
		return "more on a stream than its window holds"
	}
	switch {
	case rv.closed != nil:
		return ""
	case broken != nil:
		rv.closeReceiveLocked(&BrokenError{Cause: broken})
		return ""
	}
	if rv.in.Whole() {
		rv.openRecordLocked(h, &payload)
	}
	if rv.closed != nil {
		return ""
	}
	rv.pieceOfRecordLocked(h, payload, cost)
	if h.Flags&wire.Waited != 0 && rv.waiting {
		rv.growLocked()
	}
	switch {
	case rv.in.Complete() > 0:
		rv.signalLocked()
	// A message that is partly received must not block other streams while its consumer is busy
	// elsewhere.
	case rv.waiting || rv.reserved > 0:
		rv.pieceLocked()
		rv.creditLocked()
	}
	return ""
}

// openRecordLocked begins a message.
func (rv *receiving) openRecordLocked(h wire.Header, payload *[]byte) {
	fields, msg, err := wire.SplitFields(h.Flags, *payload)
	var f wire.Fields
	if err == nil {
		err = wire.ParseFields(fields, &f)
	}
	size := f.Size
	if size == 0 {
		size = uint64(len(msg))
	}
	if limit := rv.st.conn.cfg.MaxMessage; err == nil && size > uint64(limit) {
		rv.closeReceiveLocked(&TooLargeError{Size: size, Limit: limit})
		return
	}
	if h.Flags&wire.More != 0 && f.Size == 0 && err == nil {
		err = errNoSize
	}
	if err != nil {
		rv.closeReceiveLocked(&BrokenError{Cause: err})
		return
	}
	*payload = msg
	rv.in.Open(int(size), h.Flags&opening) //nolint:gosec // within MaxMessage
}

// pieceOfRecordLocked adds a piece to the incomplete message. The last piece completes it.
func (rv *receiving) pieceOfRecordLocked(h wire.Header, piece []byte, cost uint64) {
	st := rv.st
	size, last := rv.in.Want(), h.Flags&wire.More == 0
	// with a reservation, memory for the whole message is counted
	if err := rv.in.AddPiece(piece, cost, last, rv.reserved > 0, st.conn.rt.spares); err != nil {
		rv.closeReceiveLocked(&BrokenError{Cause: err})
		return
	}
	if !last {
		return
	}
	st.traffic.in(1, size)
	if rv.reserved != 0 {
		rv.kept += rv.reserved // until the consumer has processed the message
		st.conn.streams.lazyLocked().partial -= rv.reserved
		rv.reserved = 0
	}
	rv.doneWithPartLocked()
}

// pieceLocked consumes the pieces of a message that is larger than the window. It does so only for
// a message that the consumer waits for, and only with a reservation for the whole message.
// Otherwise several messages could keep each other from becoming complete.
func (rv *receiving) pieceLocked() {
	st := rv.st
	if rv.in.Pending() == 0 || rv.in.Complete() > 0 || rv.queued {
		return
	}
	if rv.reserved == 0 && !st.conn.streams.reserveLocked(st) {
		return
	}
	rv.consumed += rv.in.ConsumePieces()
}

// growLocked doubles the window of a receiver that is faster than the window allows.
func (rv *receiving) growLocked() {
	n := int(rv.window) //nolint:gosec // at most maxStreamWindow
	if c := rv.st.conn; 2*n <= maxStreamWindow && c.streams.widenLocked(n) {
		rv.grown += n
		rv.window += uint64(n)
	}
}

func (rv *receiving) signalLocked() {
	if rv.waiting {
		rv.waiting = false
		rv.wake <- struct{}{}
	}
}

func (rv *receiving) closeReceiveLocked(err error) {
	if rv.closed != nil {
		return
	}
	if err == io.EOF && !rv.in.Whole() { //nolint:errorlint // it is passed bare
		err = &BrokenError{Cause: collect.ErrShorter}
	}
	rv.closed = err
	rv.in.Cut()
	rv.doneWithPartLocked()
	rv.signalLocked()
}

// doneWithPartLocked gives back the reservation for the incomplete message, or removes the stream
// from the queue for one.
func (rv *receiving) doneWithPartLocked() {
	st := rv.st
	c := st.conn
	if rv.queued { // the window was enough, or the message will not arrive
		rv.queued = false
		c.streams.reserving = slices.DeleteFunc(c.streams.reserving, func(other *Stream) bool { return other == st })
	}
	if rv.reserved != 0 {
		c.streams.lazyLocked().partial -= rv.reserved
	}
	c.streams.unreserveLocked(&rv.reserved)
}

// streamDataAndUnlock passes a frame to its stream, together with the following frames of the same
// stream. The caller holds c.mu, and streamDataAndUnlock unlocks it.
func (rd *reader) streamDataAndUnlock(st *Stream, h wire.Header, frame, payload []byte, err error) bool {
	what := ""
	if size, n := st.receiving.wholeLocked(rd.buf[rd.r-len(frame) : rd.w]); n > 0 {
		rd.r += size - len(frame)
		rd.c.count.framesIn.Add(uint64(n - 1))
	} else {
		what = st.receiving.dataLocked(h, payload, err)
	}
	rd.c.mu.Unlock()
	rd.answered = true // the answer is credit; a peer that does not read its credit soon cannot send any more
	if what != "" {
		rd.c.lifetime.breach(what)
	}
	return what == ""
}
