// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Stream carries the messages of a call that has more than one message in a direction. It begins
// with Start, whose Out names it, or with a Request of the peer. It ends with the call: with the
// final frame, the deadline, the cancellation, or the end of the connection.
//
// Each direction has a window, which is what the receiver has agreed to hold. A sender waits when
// the window is full, so a slow receiver costs a bounded amount of memory. A window grows when it
// keeps a fast receiver waiting.
//
// Send and End may be called concurrently with each other and with Receive. Receive is for one
// goroutine at a time.
type Stream struct {
	conn   *Conn
	kind   uint64
	id     uint32
	mark   wire.Flags // of the frames that this side sends
	opener bool
	nth    uint64 // as in slot; 0 for a stream that the peer opened

	// The sending direction, guarded by conn.mu.
	sent        uint64        // bytes of frames, headers included
	credit      uint64        // how many bytes may be sent in all
	room        uint64        // the peer's window; the peer always grants half of it again
	sendErr     error         // why nothing more can be sent, or nil
	busy        bool          // a goroutine is sending a message
	ending      bool          // End was called during that message
	sendChanged chan struct{} // closed when one of these changes; nil when no goroutine waits

	// The receiving direction, guarded by conn.mu.
	window   uint64        // how many bytes may arrive beyond those consumed
	granted  uint64        // how many bytes may arrive in all, as the peer knows
	received uint64        // how many bytes have arrived
	consumed uint64        // how many of them have been consumed
	in       []byte        // records of messages; the last one may be incomplete
	complete int           // bytes of in that are complete records
	want     int           // the size of the incomplete message, or 0
	pending  uint64        // the cost of its pieces that is not consumed yet
	closed   error         // why nothing more can arrive, or nil
	waiting  bool          // the consumer waits for a message
	wake     chan struct{} // capacity 1
	reserved int           // the part of conn.reserved for the incomplete message
	kept     int           // the part of conn.reserved for complete messages
	grown    int           // the part of conn.reserved for the window
	taken    int           // bytes that the owner has counted with Take
	least    int           // bytes counted for the window without a reservation
	queued   bool          // the stream waits for a reservation
	ended    bool          // the call has ended

	traffic Traffic // guarded by conn.mu

	// Owned by the consumer, the goroutine that calls Receive.
	out       []byte // records that the consumer has taken from in
	at        int    // how much of out Receive has returned
	uncounted uint64 // the cost of those messages that consumed does not include yet
	half      uint64 // half of the window
	held      int    // the part of conn.reserved for a message in out; guarded by conn.mu

	// The outcome of the call, valid once done is closed.
	done   chan struct{}
	answer *Answer
	err    error
}

// Traffic counts the complete messages that a stream has sent and received, and their bytes on the
// wire without headers.
type Traffic struct{ Sent, SentBytes, Received, ReceivedBytes int }

// Traffic returns what the stream has sent and received so far.
func (st *Stream) Traffic() Traffic {
	if st.conn == nil { // the stream was never opened
		return Traffic{}
	}
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	return st.traffic
}

func (t *Traffic) out(msg []byte) {
	t.Sent++
	t.SentBytes += len(msg)
}

func (t *Traffic) in(messages, bytes int) {
	t.Received += messages
	t.ReceivedBytes += bytes
}

// A record in the memory of a stream is a header and a message. A message that arrived as one
// frame, without fields and without a checksum, is kept with its frame header. So the messages of
// one read, often hundreds, are received by copying them. The record of any other message has the
// type gathered, and the cost of the message in place of an id.
const gathered wire.Type = 0

const (
	// defaultStreamWindow is the window of a side whose settings name none.
	defaultStreamWindow = 64 << 10
	// minStreamWindow is the smallest window: frames smaller than half of it would be mostly
	// headers.
	minStreamWindow = 4 << 10
	// maxStreamWindow is the largest window: 40 MB/s over a round trip of 100 ms.
	maxStreamWindow = 4 << 20
	// sizeFieldSize is an upper bound of the fields that hold the size of a message.
	sizeFieldSize = 2 + 1 + binary.MaxVarintLen64
)

// ErrSendEnded is the error of Send after End.
var ErrSendEnded = errors.New("a message was sent after the end of the stream")

var (
	errNoSize      = errors.New("a message in pieces does not say its size")
	errStreamEnded = io.EOF // senders get it once the call has ended; the call's outcome says more
)

// NewStream returns a stream, which Start opens.
func NewStream() *Stream {
	return &Stream{opener: true, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// openerSends and receiverSends report which sides send messages for a kind of method.
func openerSends(kind uint64) bool   { return kind == wire.Upload || kind == wire.Duplex }
func receiverSends(kind uint64) bool { return kind == wire.Feed || kind == wire.Duplex }

func (c *Conn) streamWindow() int {
	if c.cfg.StreamWindow <= 0 {
		return defaultStreamWindow
	}
	return min(max(c.cfg.StreamWindow, minStreamWindow), maxStreamWindow)
}

// beginStreamLocked connects the stream of a request, if there is one, to the call.
func (c *Conn) beginStreamLocked(out *Out, id uint32, flags wire.Flags) {
	st := out.Stream
	if st == nil {
		return
	}
	st.nth = c.opened
	st.conn, st.kind, st.id, st.mark = c, out.Method.Kind, id, flags&wire.HasChecksum
	st.window = uint64(c.streamWindow())
	if receiverSends(st.kind) {
		st.granted, st.least = st.window, int(st.window) //nolint:gosec // at most maxStreamWindow
		// this side opened the stream itself, so the bytes cannot be refused
		c.memory.force(st.least)
	}
	c.slots[wire.Slot(id)].stream = st
}

// newIncomingStream returns the stream of a call that the peer opened.
func newIncomingStream(c *Conn, kind uint64, id uint32, flags wire.Flags) *Stream {
	st := &Stream{conn: c, kind: kind, id: id, mark: flags&wire.HasChecksum | wire.OfReply, wake: make(chan struct{}, 1)}
	st.window = uint64(c.streamWindow())
	if receiverSends(kind) {
		st.room = uint64(c.peerStream) //nolint:gosec // at least minStreamWindow
		st.credit = st.room
	}
	return st
}

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
		if n := int(st.window); c.widenLocked(n) { //nolint:gosec // at most maxStreamWindow
			st.grown += n
		} else {
			st.window = minStreamWindow
			c.memory.force(minStreamWindow)
			st.least = minStreamWindow
		}
		st.grantLocked(st.window)
	}
	c.flushAndUnlock(true)
}

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
		c.flushLaterAndUnlock()
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
		c.flushLaterAndUnlock()
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
	case st.busy || st.ending || st.sendErr != nil || c.err != nil:
		return false
	case cost > st.largest() || st.credit < st.sent+uint64(cost) || len(c.out) >= c.highWater():
		return false
	}
	start := c.beginLocked(wire.Header{Type: wire.Data, Flags: flags | st.mark, ID: st.id})
	c.out = append(c.out, msg...)
	c.finishLocked(start)
	st.sent += uint64(len(c.out) - start)
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
				st.conn.flushLaterAndUnlock()
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
	start := c.beginLocked(h)
	if announced > 0 {
		c.out = wire.AppendFields(c.out, &wire.Fields{Size: uint64(announced)})
	}
	c.out = append(c.out, (*msg)[:n]...)
	c.finishLocked(start)
	*msg = (*msg)[n:]
	st.sent += uint64(len(c.out) - start)
	c.flushLaterAndUnlock()
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
		case c.err != nil:
			return waited, c.err
		case len(c.out) >= c.highWater():
			err = c.awaitFlushRelocking(ctx, noDeadline)
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
	c.flushLaterAndUnlock()
}

// endSendLocked tells the peer that no more messages come, unless the stream has ended.
func (st *Stream) endSendLocked(why error) {
	if c := st.conn; st.sendErr == nil && c.err == nil {
		st.sendErr = why
		c.finishLocked(c.beginLocked(wire.Header{Type: wire.Data, Flags: st.mark | wire.End, ID: st.id}))
	}
}

// waitRelocking waits for a change of the sending direction. It unlocks conn.mu while it waits, and
// returns with conn.mu held.
func (st *Stream) waitRelocking(ctx context.Context) error {
	if st.sendChanged == nil {
		st.sendChanged = make(chan struct{})
	}
	if err := st.conn.waitRelocking(ctx, noDeadline, st.sendChanged); err != nil {
		return err
	}
	if st.sendErr == nil {
		return st.conn.err
	}
	return nil
}

func (st *Stream) sendChangedLocked() {
	if st.sendChanged != nil {
		close(st.sendChanged)
		st.sendChanged = nil
	}
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
		c.flushLaterAndUnlock()
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
	defer c.flushLaterAndUnlock()
	c.unreserveLocked(&st.held)
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
		giveMemory(spare)
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
		giveMemory(st.in)
		giveMemory(st.out)
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
	c.flushLaterAndUnlock() // it writes credit for the peer
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
	if st.conn.err != nil {
		return
	}
	st.granted = sum
	st.conn.appendLocked(func(dst []byte) []byte {
		return wire.AppendCredit(dst, st.mark&wire.OfReply, st.id, &wire.Window{StreamBytes: sum})
	})
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
		in := append(takeMemory(pow2(n)), st.in...)
		giveMemory(st.in)
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
		st.conn.seldomLocked().partial -= st.reserved
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
	if st.reserved == 0 && !st.conn.reserveLocked(st) {
		return
	}
	st.consumed += st.pending
	st.pending = 0
}

// growLocked doubles the window of a receiver that is faster than the window allows.
func (st *Stream) growLocked() {
	n := int(st.window) //nolint:gosec // at most maxStreamWindow
	if c := st.conn; 2*n <= maxStreamWindow && c.widenLocked(n) {
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

// endLocked ends the stream with its call. Nothing more is sent or received, and all reserved
// memory is given back.
func (st *Stream) endLocked(why error) {
	if st.sendErr == nil {
		st.sendErr = why
	}
	st.sendChangedLocked()
	c := st.conn
	st.ended = true
	if st.busy && c.space != nil { // Send may wait for space
		close(c.space)
		c.space = nil
	}
	if !st.opener { // the opener's messages end with the outcome: see Complete
		st.closeReceiveLocked(why)
	}
	st.doneWithPartLocked()
	for _, n := range [...]*int{&st.kept, &st.held, &st.grown} {
		c.unreserveLocked(n)
	}
	c.memory.give(st.least + st.taken)
	st.least, st.taken = 0, 0
}

// doneWithPartLocked gives back the reservation for the incomplete message, or removes the stream
// from the queue for one.
func (st *Stream) doneWithPartLocked() {
	c := st.conn
	if st.queued { // the window was enough, or the message will not arrive
		st.queued = false
		c.reserving = slices.DeleteFunc(c.reserving, func(other *Stream) bool { return other == st })
	}
	if st.reserved != 0 {
		c.seldomLocked().partial -= st.reserved
	}
	c.unreserveLocked(&st.reserved)
}

// reserveLocked reserves memory for the incomplete message of st, or puts st in the queue for it.
// If there is not enough, st gets the reservation only if no other message is incomplete. Otherwise
// st would wait for consumers that may be waiting for st.
func (c *Conn) reserveLocked(st *Stream) bool {
	if len(c.reserving) > 0 && !st.queued || c.partial > 0 && c.reserved+st.want > c.cfg.MaxOpenBytes {
		if !st.queued {
			st.queued = true
			c.seldomLocked().reserving = append(c.reserving, st)
		}
		return false
	}
	if !c.memory.take(st.want) {
		st.closeReceiveLocked(ErrMemory)
		return false
	}
	st.reserved = st.want
	seldom := c.seldomLocked()
	seldom.reserved += st.want
	seldom.partial += st.want
	return true
}

// widenLocked reserves n bytes for the window of a stream, unless the streams of the connection
// hold too much already.
func (c *Conn) widenLocked(n int) bool {
	most := c.cfg.MaxOpenBytes / 2
	if c.cfg.MaxMemory > 0 {
		most = c.cfg.MaxMemory / 2
	}
	if c.reserved+n > most || !c.memory.take(n) {
		return false
	}
	c.seldomLocked().reserved += n
	return true
}

func (c *Conn) unreserveLocked(n *int) {
	if *n != 0 {
		c.seldomLocked().reserved -= *n
		c.memory.give(*n)
		*n = 0
	}
	c.admitStreamsLocked()
}

// admitStreamsLocked makes the reservations for which there is room, in the order of the queue.
func (c *Conn) admitStreamsLocked() {
	for len(c.reserving) > 0 {
		next := c.reserving[0]
		if !c.reserveLocked(next) {
			return
		}
		c.reserving = c.reserving[1:]
		next.queued = false
		next.pieceLocked()
		next.creditLocked()
	}
}

// Complete implements Completer. It is called when the call that this side opened has ended.
func (st *Stream) Complete(a *Answer, err error) {
	c := st.conn
	c.mu.Lock()
	st.err = err
	closed := err
	if err == nil {
		closed = io.EOF
		st.answer = &Answer{
			Code: a.Code, Flags: a.Flags, Fields: slices.Clone(a.Fields), Body: slices.Clone(a.Body), Attachment: slices.Clone(a.Attachment),
		}
	}
	st.closeReceiveLocked(closed)
	st.endLocked(errStreamEnded)
	c.flushAndUnlock(false)
	close(st.done)
}

// Ended reports whether a call that this side opened has ended.
func (st *Stream) Ended() bool {
	select {
	case <-st.done:
		return true
	default:
		return false
	}
}

// Cancel ends a call that this side opened, unless it has ended. It tells the peer. The outcome is
// err.
func (st *Stream) Cancel(err error) { st.conn.giveUp(st.id, st.nth, context.Canceled, err) }

// Wait waits for the end of a call that this side opened. It returns the answer or an error.
func (st *Stream) Wait() (*Answer, error) {
	<-st.done
	return st.answer, st.err
}
