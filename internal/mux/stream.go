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

// A Stream is the messages of a call that has more than one of them, in either direction or both.
// It begins with Start, whose Out names it, or with a Request of the peer, and ends with the call:
// with the final frame, its deadline, its cancellation, the connection.
//
// Each direction has a window: what the receiver has said that it will hold. Who sends more than
// that waits, so a slow receiver costs nobody memory. A window grows when it turns out to be what
// keeps a fast receiver waiting.
//
// Send and End may be called concurrently with each other and with Receive; Receive is for one
// goroutine at a time.
type Stream struct {
	conn   *Conn
	kind   uint64
	id     uint32
	mark   wire.Flags // of the frames that this side sends
	opener bool
	nth    uint64 // as in slot

	// What this side sends, guarded by conn.mu.
	sent   uint64        // bytes of frames, headers included
	credit uint64        // how many may be sent in all
	room   uint64        // the peer's window, of which half is always granted again
	over   error         // why no more is sent; nil while more may be
	busy   bool          // somebody is in the middle of a message
	ending bool          // the end follows that message
	more   chan struct{} // closed when that may have changed; nil when nobody waits

	// What it receives, guarded by conn.mu.
	window   uint64        // how much may come beyond what has been consumed
	granted  uint64        // how much may come in all, as the peer knows
	received uint64        // how much has come
	consumed uint64        // how much of it has been consumed
	in       []byte        // records of messages, the last of which may be incomplete
	complete int           // bytes of in that are complete records
	want     int           // of the incomplete message, or 0 when there is none
	pending  uint64        // what its pieces cost and is not consumed
	closed   error         // why nothing more comes; nil while more may
	waiting  bool          // the consumer waits for more
	wake     chan struct{} // of capacity 1
	reserved int           // of conn.reserved, for the incomplete message
	kept     int           // of conn.reserved, for complete ones
	grown    int           // of conn.reserved, for the window
	taken    int           // counted by the owner, see Take
	least    int           // counted for a window of its own opening, or the smallest one
	queued   bool          // it waits for a reservation
	gone     bool          // the call has ended

	traffic Traffic // guarded by conn.mu

	// The consumer's own.
	out   []byte // records that it has taken over
	at    int    // how much of out has been handed out
	eaten uint64 // what that costs, and is not in consumed yet
	half  uint64 // of the window
	held  int    // reserved for a message in out; guarded by conn.mu

	// How the call ended, once done is closed.
	done   chan struct{}
	answer *Answer
	err    error
}

// Traffic is the messages of a stream that were sent and that have come, whole ones only, and their
// bytes as they went over the wire, without what is around them.
type Traffic struct{ Sent, SentBytes, Received, ReceivedBytes int }

// Traffic returns what has gone over the stream by now.
func (st *Stream) Traffic() Traffic {
	if st.conn == nil { // it was never opened
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

// A record in the memory of a stream is a message behind a header. A message that came as one
// frame, without fields or a checksum, is kept as it came: so what a read has brought is taken in
// by copying it, some hundred messages at a time. The record of any other has the type gathered,
// and what the message cost instead of an id.
const gathered wire.Type = 0

const (
	// defaultStreamWindow is what a side takes that says nothing else.
	defaultStreamWindow = 64 << 10
	// minStreamWindow is the least a window can be: frames smaller than half of it would be mostly
	// headers.
	minStreamWindow = 4 << 10
	// maxStreamWindow is how far a window grows: 40 MB/s over a round trip of 100 ms.
	maxStreamWindow = 4 << 20
	// sizeFieldSize is an upper bound of the fields that hold the size of a message.
	sizeFieldSize = 2 + 1 + binary.MaxVarintLen64
)

// ErrSendEnded is what Send returns after End.
var ErrSendEnded = errors.New("a message was sent after the end of the stream")

var (
	errNoSize      = errors.New("a message in pieces does not say its size")
	errStreamEnded = io.EOF // what senders get once the call has ended; its outcome says more
)

// NewStream returns a stream for Start, which opens it.
func NewStream() *Stream {
	return &Stream{opener: true, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// Both sides send unless the kind of the method says otherwise.
func openerSends(kind uint64) bool   { return kind == wire.Upload || kind == wire.Duplex }
func receiverSends(kind uint64) bool { return kind == wire.Feed || kind == wire.Duplex }

func (c *Conn) streamWindow() int {
	if c.cfg.StreamWindow <= 0 {
		return defaultStreamWindow
	}
	return min(max(c.cfg.StreamWindow, minStreamWindow), maxStreamWindow)
}

// beginStreamLocked ties the stream of a request, if it has one, to the call that it opens.
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
		c.memory.force(st.least)                         // it is this side that opens it
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

// Accept lets the peer, which opened the stream, send. Until then it sends nothing, so that a call
// that is refused can go elsewhere whole. When the streams of the connection hold much already, the
// window is small.
func (st *Stream) Accept() {
	if !openerSends(st.kind) {
		return
	}
	c := st.conn
	c.mu.Lock()
	if st.granted == 0 && !st.gone {
		if n := int(st.window); c.widenLocked(n) { //nolint:gosec // at most maxStreamWindow
			st.grown += n
		} else {
			st.window = minStreamWindow
			c.memory.force(minStreamWindow)
			st.least = minStreamWindow
		}
		st.grantLocked(st.window)
	}
	c.flushLocked(true)
}

// Accepted waits until the peer takes messages. An error means that it never will; Wait says why.
func (st *Stream) Accepted(ctx context.Context) error {
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for st.credit == 0 && st.over == nil {
		if err := st.waitLocked(ctx); err != nil {
			return err
		}
	}
	return st.over
}

// Send sends a message, and keeps nothing of it. It waits while the peer's window, or the
// connection's output, is full. It ends with ctx and with the stream: io.EOF says that the peer has
// ended the call.
func (st *Stream) Send(ctx context.Context, flags wire.Flags, msg []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := st.conn
	c.mu.Lock()
	if st.sendAtOnceLocked(flags, msg) {
		c.flushLater()
		return nil
	}
	defer c.mu.Unlock()
	for (st.busy || st.credit == 0) && st.over == nil && !st.ending {
		if err := st.waitLocked(ctx); err != nil {
			return err
		}
	}
	switch {
	case st.over != nil:
		return st.over
	case st.ending:
		return ErrSendEnded
	}
	st.busy = true
	err := st.sendLocked(ctx, flags, msg)
	st.busy = false
	if err == nil {
		st.traffic.out(msg)
	}
	if st.ending {
		st.endSendLocked(ErrSendEnded)
		c.flushLater()
		c.mu.Lock()
	}
	st.moreLocked()
	return err
}

// sendAtOnceLocked sends a message that fits in a frame, if there is nothing to wait for: most need
// no more, and cost half as much so.
func (st *Stream) sendAtOnceLocked(flags wire.Flags, msg []byte) bool {
	c := st.conn
	cost := wire.HeaderSize + wire.ChecksumSize + len(msg)
	switch {
	case st.busy || st.ending || st.over != nil || c.err != nil:
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

// largest is what a frame may cost. Half of the window is always granted again once the peer has
// consumed what came, so a frame of that cost can be waited for.
func (st *Stream) largest() int {
	return min(int(st.room/2), wire.HeaderSize+maxPart) //nolint:gosec // a window is small
}

func (st *Stream) sendLocked(ctx context.Context, flags wire.Flags, msg []byte) error {
	flags |= st.mark
	size := len(msg)
	largest := st.largest()
	whole := wire.HeaderSize + wire.ChecksumSize + size
	if whole <= largest {
		return st.frameLocked(ctx, wire.Header{Flags: flags}, 0, &msg, whole)
	}
	for first := true; first || len(msg) > 0; first = false {
		h, announced := wire.Header{Flags: flags}, 0
		if first {
			h.Flags |= wire.HasFields
			announced = size
		}
		cost := min(wire.HeaderSize+wire.ChecksumSize+sizeFieldSize+len(msg), largest)
		if err := st.frameLocked(ctx, h, announced, &msg, cost); err != nil {
			if !first {
				st.endSendLocked(err) // half a message: nothing can follow it, and the peer need not wait
				st.conn.flushLater()
				st.conn.mu.Lock()
			}
			return err
		}
	}
	return nil
}

// frameLocked sends as much of msg as a frame of at most cost bytes holds.
func (st *Stream) frameLocked(ctx context.Context, h wire.Header, announced int, msg *[]byte, cost int) error {
	waited, err := st.roomLocked(ctx, uint64(cost))
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
	c.flushLater()
	c.mu.Lock()
	return nil
}

// roomLocked waits until a frame of cost bytes may be sent, and reports whether it was the window
// that it had to wait for.
func (st *Stream) roomLocked(ctx context.Context, cost uint64) (waited bool, err error) {
	c := st.conn
	for {
		switch {
		case st.over != nil:
			return waited, st.over
		case c.err != nil:
			return waited, c.err
		case len(c.out) >= c.highWater():
			err = c.waitForSpaceLocked(ctx, noDeadline)
		case st.credit-st.sent < cost || st.credit < st.sent:
			waited = true
			err = st.waitLocked(ctx)
		default:
			return waited, nil
		}
		if err != nil {
			return waited, err
		}
	}
}

// End says that this side sends no more messages. One that is being sent goes first.
func (st *Stream) End() {
	c := st.conn
	c.mu.Lock()
	if st.busy {
		st.ending = true
		st.moreLocked()
	} else {
		st.endSendLocked(ErrSendEnded)
	}
	c.flushLater()
}

// endSendLocked tells the peer, unless the stream is over, that no more comes.
func (st *Stream) endSendLocked(why error) {
	if c := st.conn; st.over == nil && c.err == nil {
		st.over = why
		c.finishLocked(c.beginLocked(wire.Header{Type: wire.Data, Flags: st.mark | wire.End, ID: st.id}))
	}
}

// waitLocked waits for a change on the side that sends. It returns with conn.mu held.
func (st *Stream) waitLocked(ctx context.Context) error {
	if st.more == nil {
		st.more = make(chan struct{})
	}
	if err := st.conn.waitLocked(ctx, noDeadline, st.more); err != nil {
		return err
	}
	if st.over == nil {
		return st.conn.err
	}
	return nil
}

func (st *Stream) moreLocked() {
	if st.more != nil {
		close(st.more)
		st.more = nil
	}
}

// Receive returns the next message, which is valid until it is called again. It waits for one, and
// ends with ctx and with the stream: io.EOF is its regular end.
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
		st.eaten += uint64(h.ID)
	} else {
		st.eaten += uint64(n)
	}
	st.at += n
	if st.eaten > st.half && st.at < len(st.out) {
		c := st.conn
		c.mu.Lock()
		st.eatLocked()
		c.flushLater()
	}
	return record[wire.HeaderSize:n:n], h.Flags & opening, nil
}

// Buffered is how many bytes of messages can be received, headers included, without a look at what
// has come meanwhile.
func (st *Stream) Buffered() int { return len(st.out) - st.at }

// refill takes over what has come, or waits for it.
func (st *Stream) refill(ctx context.Context) error {
	c := st.conn
	c.mu.Lock()
	defer c.flushLater()
	c.unreserveLocked(&st.held)
	st.eatLocked()
	for st.complete == 0 {
		if st.closed != nil {
			st.giveMemoryLocked()
			return st.closed
		}
		st.waiting = true
		st.pieceLocked()
		st.creditLocked()
		if err := st.awaitLocked(ctx); err != nil {
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

// giveMemoryLocked gives the memory of a stream of which nothing more is received to other streams.
// The body of a duplex may have left a goroutine behind that still looks at a message, while its
// call waits for the end.
func (st *Stream) giveMemoryLocked() {
	if !st.opener || st.kind == wire.Feed {
		giveMemory(st.in)
		giveMemory(st.out)
	}
	st.in, st.out, st.at = nil, nil, 0
}

// eatLocked counts what has been handed out as consumed.
func (st *Stream) eatLocked() {
	st.consumed += st.eaten
	st.eaten, st.half = 0, st.window/2
	st.creditLocked()
}

// awaitLocked waits for the reader to bring more.
func (st *Stream) awaitLocked(ctx context.Context) error {
	c := st.conn
	c.flushLater() // credit for the peer
	var err error
	select {
	case <-st.wake:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	st.waiting = false
	select {
	case <-st.wake: // both happened
	default:
	}
	return err
}

// creditLocked lets the peer send again what has been consumed, once that is half of the window.
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

// creditedLocked is told of the peer's newest credit.
func (st *Stream) creditedLocked(sum uint64) {
	if sum > st.credit {
		if st.room == 0 {
			st.room = min(max(sum, minStreamWindow), maxStreamWindow)
		}
		st.credit = sum
		st.moreLocked()
	}
}

// opening are the flags that hold for a whole message.
const opening = wire.Compressed | wire.HasAttachment

// wholeLocked takes in the messages that frames begins with, as far as they are whole ones of this
// stream that have nothing special, and returns how many bytes and messages that was. What comes
// then is for dataLocked.
func (st *Stream) wholeLocked(frames []byte) (size, n int) {
	if st.closed != nil || len(st.in) > st.complete {
		return 0, 0
	}
	room := int(min(st.granted-st.received, uint64(len(frames)))) //nolint:gosec // both are lengths; more has never come than was granted
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
		st.keepLocked(frames[:size])
		st.received += uint64(size)
		st.complete = len(st.in)
		st.traffic.in(n, size-n*wire.HeaderSize)
		st.signalLocked()
	}
	return size, n
}

// keepLocked appends to what has come and is not consumed. Large memory is that of streams that
// have ended: for one of 10,000 messages of 128 bytes it would be twice as much as they are.
func (st *Stream) keepLocked(b []byte) {
	if n := len(st.in) + len(b); n > cap(st.in) && n >= minLarge {
		in := append(takeMemory(pow2(n)), st.in...)
		giveMemory(st.in)
		st.in = in
	}
	st.in = append(st.in, b...)
}

// dataLocked takes in a frame. It returns what is wrong with the peer, or "".
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
	case st.waiting || st.reserved > 0: // what has begun to come must not hold up others because its consumer is away
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

// pieceOfRecordLocked adds a piece to the incomplete message, and completes it with the last one.
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
	if have > firstGrant && st.reserved > 0 { // enough has come to believe the rest, and there is room for it
		st.growTo(len(st.in) + st.want - have + len(piece))
	}
	st.keepLocked(piece)
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
		st.kept += st.reserved // until the consumer has done with it
		st.conn.seldomLocked().partial -= st.reserved
		st.reserved = 0
	}
	st.doneWithPartLocked()
}

// growTo makes room for n bytes in all. Unlike append, make takes new memory from the system as it
// is: what is not written yet is not touched, which would hold up everybody else on the connection
// for milliseconds.
func (st *Stream) growTo(n int) {
	if n > cap(st.in) {
		st.in = append(make([]byte, 0, n), st.in...)
	}
}

// pieceLocked consumes the pieces of a message that is larger than the window. Only a message that
// the consumer waits for begins to be taken in so, and only with a reservation for all of it:
// otherwise several could keep each other from ever being complete.
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

// growLocked doubles the window of a receiver that is faster than its peer may send.
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

// endLocked ends the stream with its call: nothing more is sent or received, and nothing kept for
// it.
func (st *Stream) endLocked(why error) {
	if st.over == nil {
		st.over = why
	}
	st.moreLocked()
	c := st.conn
	st.gone = true
	if st.busy && c.space != nil { // it may wait for that
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

// doneWithPartLocked gives back what is reserved for the incomplete message, or its place in the
// queue for that.
func (st *Stream) doneWithPartLocked() {
	c := st.conn
	if st.queued { // the window was enough, or the message will not come
		st.queued = false
		c.reserving = slices.DeleteFunc(c.reserving, func(other *Stream) bool { return other == st })
	}
	if st.reserved != 0 {
		c.seldomLocked().partial -= st.reserved
	}
	c.unreserveLocked(&st.reserved)
}

// reserveLocked takes room for the incomplete message of st, or puts it in the queue for that. When
// there is not enough, it gets room all the same if no other message is on its way: it would wait
// for consumers, who may be waiting for it.
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

// widenLocked takes n bytes for the window of a stream, if the streams of the connection have not
// enough already.
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

// admitStreamsLocked gives those that wait for a reservation what there is room for, in their
// order.
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

// Complete implements Completer: the call that this side opened has ended.
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
	c.flushLocked(false)
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

// Cancel ends a call that this side opened, if it has not ended: the peer is told, and the outcome
// is err.
func (st *Stream) Cancel(err error) { st.conn.giveUp(st.id, st.nth, context.Canceled, err) }

// Wait waits for the end of a call that this side opened, and returns the answer or why there is
// none.
func (st *Stream) Wait() (*Answer, error) {
	<-st.done
	return st.answer, st.err
}
