// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A message that does not fit in a frame arrives in pieces, with other frames between them. The
// reader collects the pieces in memory of the right size, which is allocated once and then belongs
// to the receiver. The rest of a piece is read directly into that memory and not into the reader's
// buffer, because copying it would take as long as reading it. On Linux, one read also takes the
// pieces that are likely to follow.

// A collector collects a message that arrives in pieces. The reader owns it until the message is
// complete.
type collector struct {
	c       *Conn
	buf     []byte // begins with the header of the opening frame
	want    int    // the length of buf when all pieces have arrived
	err     error  // why the message cannot be read: a broken piece, or no memory
	taken   int    // bytes counted for buf; guarded by Conn.mu
	dropped bool   // the message is no longer wanted; guarded by Conn.mu
}

// unwanted is the collector of all messages that no caller waits for. It collects nothing.
var unwanted = &collector{err: ErrCallerGone}

var (
	errLonger  = errors.New("it is longer than announced")
	errShorter = errors.New("it is shorter than announced")
)

const (
	// firstGrant is how many bytes of a large message must arrive before memory for the whole
	// message is allocated. Before that, the memory is a multiple of the bytes that have arrived.
	firstGrant = 256 << 10
	// earlyGrant is that multiple if it is enough for the whole message. LateGrant is the multiple
	// otherwise, and the message is then copied once more.
	earlyGrant, lateGrant = 16, 4
	// leastGrant bytes are always allocated for a message of that size or more.
	leastGrant = 4 << 10
)

// collect begins to collect a request that arrives in pieces.
func (rd *reader) collect(r *Request, h wire.Header, frame, msg []byte) bool {
	r.bytes, r.Arrived = 0, time.Duration(rd.arrival())
	if r.Fields != nil {
		r.bytes = int(min(r.Fields.Size, math.MaxInt))
	}
	r.collected = new(collector) // so that the table shows it as incomplete
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	r.collected.begin(rd.c, h, r.bytes, frame, msg)
	return rd.collected(h, r.collected)
}

// collected refuses a request for which there is no memory. What has arrived of it is dropped, and
// what still arrives is ignored.
func (rd *reader) collected(h wire.Header, p *collector) bool {
	if p.err != ErrMemory || h.Flags&wire.OfReply != 0 { //nolint:errorlint // it is set bare
		return true
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.findLocked(h.ID); r != nil && r.collected == p {
		c.abandonRequestLocked(r, catalogue.NoMemory, memoryText)
		rd.answered = true
	}
	return true
}

// abandonRequestLocked refuses an incomplete request.
func (c *Conn) abandonRequestLocked(r *Request, errorID, text string) {
	c.leaveTableLocked(r)
	c.refuseLocked(r, errorID, text)
}

// onLargeReply begins to collect a reply that arrives in pieces, if its call is open and a caller
// waits.
func (c *Conn) onLargeReply(h wire.Header, frame []byte) bool {
	if !c.setPart(h.ID, unwanted) {
		return true
	}
	var f wire.Fields
	fields, msg, err := openMessage(h, frame)
	if err == nil {
		err = wire.ParseFields(fields, &f)
	}
	if err == nil && f.Size > uint64(c.cfg.MaxMessage) {
		err = &TooLargeError{Size: f.Size, Limit: c.cfg.MaxMessage}
	}
	p := &collector{err: err}
	if err == nil {
		p.begin(c, h, int(f.Size), frame, msg) //nolint:gosec // within MaxMessage
	}
	if !c.setPart(h.ID, p) { // the caller has canceled the call meanwhile
		p.drop()
	}
	return true
}

// setPart makes p the collector of the reply to a call. Wanted reports whether a caller waits for
// the reply.
func (c *Conn) setPart(id uint32, p *collector) (wanted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slotLocked(id)
	if s == nil {
		return false
	}
	if wanted = s.wanted(); wanted || s.part == nil {
		s.part = p
	}
	return wanted
}

// begin starts the message with an opening frame and the part of the message in it.
func (p *collector) begin(c *Conn, h wire.Header, size int, frame, msg []byte) {
	opening := len(frame) - len(msg)
	if h.Flags&wire.HasChecksum != 0 {
		opening -= wire.ChecksumSize
	}
	p.c, p.want = c, opening+size
	n := opening + len(msg)
	if n >= leastGrant {
		n = p.grant(n)
	} // the pieces that follow decide how much is allocated
	if !p.grow(n) {
		return
	}
	p.buf = append(p.buf, frame[:opening]...)
	h.Flags &^= wire.HasChecksum | wire.More
	wire.PutHeader(p.buf, h)
	p.add(msg)
}

// grow moves the message to memory of n bytes, which it counts first. It returns false if there is
// no memory, or if the message is no longer wanted.
func (p *collector) grow(n int) bool {
	c := p.c
	c.mu.Lock()
	switch {
	case p.dropped:
		p.err = ErrCallerGone
	case !c.memory.take(n):
		p.err = ErrMemory
	default:
		p.taken += n
	}
	c.mu.Unlock()
	if p.err != nil {
		return false
	}
	buf := append(takeMemory(n), p.buf...)
	giveMemory(p.buf)
	old := cap(p.buf)
	p.buf = buf
	if old > 0 {
		c.mu.Lock()
		if !p.dropped {
			p.taken, old = n, p.taken-n
			c.memory.give(old)
		}
		c.mu.Unlock()
	}
	return true
}

// drop uncounts the memory of a message that is no longer wanted.
func (p *collector) drop() {
	if p.c != nil {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		p.dropLocked()
	}
}

func (p *collector) dropLocked() {
	if p == nil || p.c == nil || p.dropped {
		return
	}
	p.dropped = true
	p.c.memory.give(p.taken)
	p.taken = 0
}

// add appends a piece.
func (p *collector) add(piece []byte) {
	if p.makeRoom(len(piece)) {
		p.buf = append(p.buf, piece...)
	}
}

// makeRoom makes room for n more bytes in buf. It returns false if the message would be longer than
// announced, or if there is no memory.
func (p *collector) makeRoom(n int) bool {
	n += len(p.buf)
	if n > p.want {
		p.err = errLonger
		return false
	}
	return n <= cap(p.buf) || p.grow(p.grant(n))
}

// grant returns how many bytes to allocate when n bytes have arrived.
func (p *collector) grant(n int) int {
	if n > firstGrant || p.want <= earlyGrant*n {
		return max(n, p.want)
	}
	return max(n, min(p.want, max(leastGrant, lateGrant*n)))
}

// broken returns why the message cannot be read, or nil.
func (p *collector) broken() error {
	if p == nil || p.err == nil {
		return nil
	}
	return &BrokenError{Cause: p.err}
}

// gathererLocked returns the collector or the stream that a Data frame belongs to. Both are nil if
// the call was canceled or refused.
func (c *Conn) gathererLocked(h wire.Header) (p *collector, st *Stream) {
	if h.Flags&wire.OfReply != 0 {
		if s := c.slotLocked(h.ID); s != nil {
			p, st = s.part, s.stream
		}
	} else if r := c.findLocked(h.ID); r != nil {
		p, st = r.collected, r.stream
	}
	return p, st
}

// data handles a piece of a large message, or a message of a stream.
func (rd *reader) data(h wire.Header, frame []byte) bool {
	payload, err := wire.Payload(frame)
	c := rd.c
	c.mu.Lock()
	p, st := c.gathererLocked(h)
	if p == nil && st != nil {
		return rd.streamDataAndUnlock(st, h, frame, payload, err)
	}
	c.mu.Unlock()
	switch {
	case p == nil:
		return true
	case p.err != nil:
	case err != nil:
		p.err = err
	default:
		p.add(payload)
	}
	if p.err == ErrMemory && h.Flags&wire.OfReply == 0 { //nolint:errorlint // it is set bare
		return rd.collected(h, p)
	}
	return rd.added(h, p)
}

// added is called when a piece has arrived. It returns false when this reader is done.
func (rd *reader) added(h wire.Header, p *collector) bool {
	if h.Flags&wire.More != 0 {
		rd.expecting = true
		return true
	}
	if p.err == nil && len(p.buf) != p.want {
		p.err = errShorter
	}
	if h.Flags&wire.OfReply != 0 {
		return rd.wholeReply(h.ID, p)
	}
	return rd.wholeRequest(h.ID, p)
}

// wholeReply passes a complete reply to its caller.
func (rd *reader) wholeReply(id uint32, p *collector) bool {
	c := rd.c
	e := delivery{id: id, part: p}
	c.mu.Lock()
	e.takeWaiterLocked(c)
	p.dropLocked() // from here on it belongs to the caller
	c.endDrainedLocked()
	c.mu.Unlock()
	return rd.wake(&e)
}

// wholeRequest starts a complete request.
func (rd *reader) wholeRequest(id uint32, p *collector) bool {
	c := rd.c
	c.mu.Lock()
	r := c.findLocked(id)
	if r == nil || c.err != nil { // the request has left the table
		defer c.mu.Unlock()
		return c.err == nil
	}
	r.collected = nil
	r.memory += p.taken
	p.dropped, p.taken = true, 0
	c.mu.Unlock()
	r.whole(p)
	c.dispatch(r)
	return true
}

// whole sets the fields of r from the message that p has collected.
func (r *Request) whole(p *collector) {
	if r.Broken = p.err; p.err != nil {
		return
	}
	h := wire.ParseHeader(p.buf)
	fields, msg, err := openMessage(h, p.buf)
	if err == nil {
		_, err = r.readFields(fields) // the fields alias p.buf
	}
	if err == nil {
		r.Body, r.Attachment, err = wire.SplitBody(h.Flags, msg)
		r.own, r.held = true, &p.buf
	}
	r.Broken = err
}

// little is how many bytes are copied rather than sent or read separately.
const little = 4 << 10

// opening returns how many bytes of a large message go into the opening frame, which has room for
// room bytes. Both sides copy the bytes of the opening frame. They do not copy the bytes of the
// other frames, but each of those costs a read. So a message that is hardly longer than room fills
// the opening frame. Otherwise the opening frame takes the bytes that leave only full frames, if
// they are few. It always takes the prefix.
func (p *pieces) opening(room int) int {
	prefix, size := len(p[0]), p.size()
	if size-room <= little {
		return room
	}
	if odd := (size - prefix) % maxPart; odd <= little {
		return prefix + odd
	}
	return prefix
}

// remainder returns rest as slices of the body and the attachment, and not by way of m. Otherwise m
// would escape to the heap. The prefix is always in the opening frame.
func (m *message) remainder(rest pieces) pieces {
	return pieces{1: m.body[len(m.body)-len(rest[1]):], 2: m.attachment[len(m.attachment)-len(rest[2]):]}
}

// sendRestAndUnlock sends the remainder of a message in Data frames. It sends a few at a time, so
// that frames of other calls go between them. It unlocks c.mu. The opening frame waits in out, and
// goes with the first Data frame. When sendRestAndUnlock has returned, no frame points into the
// caller's memory.
//
// Before each frame it calls step with c.mu held, with the frame's size and whether it is the last.
// If step returns false, the message is no longer wanted, and sendRestAndUnlock returns nil. With
// copied, it copies all bytes with c.mu held, so it does not read the message after step has
// returned false.
func (c *Conn) sendRestAndUnlock(ctx context.Context, deadline time.Time, h wire.Header, rest pieces, copied bool, step func(size int, last bool) bool) error {
	for {
		var wanted bool
		// out may hold the opening frame, and no other goroutine may flush it
		if len(c.out) >= c.highWater() {
			c.flushAndUnlock(false)
			c.mu.Lock()
		}
		err := c.awaitSpaceRelocking(ctx, deadline, c.highWater())
		for err == nil && c.vectoring && len(c.out) == 0 {
			err = c.awaitFlushRelocking(ctx, deadline)
		}
		switch {
		case err != nil:
			c.flushAndUnlock(false)
			return err
		case vectored && !copied && c.socket != nil && !c.flushing && h.Flags&wire.HasChecksum == 0:
			wanted = c.sendVectoredAndUnlock(h, &rest, step)
		default:
			if wanted = nextPiece(&h, rest.size(), step); wanted {
				start := c.beginLocked(h)
				rest = c.appendPartsLocked(rest, int(h.Len))
				c.finishLocked(start)
			}
			c.flushAndUnlock(false)
		}
		if !wanted || rest.size() == 0 {
			return nil
		}
		c.mu.Lock()
	}
}

// nextPiece makes h the header of the next frame of a message with left remaining bytes. It reports
// whether step wants the frame.
func nextPiece(h *wire.Header, left int, step func(size int, last bool) bool) bool {
	n := min(left, maxPart)
	h.Len = uint32(n) //nolint:gosec // within maxPart
	h.Flags &^= wire.More
	if n < left {
		h.Flags |= wire.More
	}
	size := wire.HeaderSize + n
	if h.Flags&wire.HasChecksum != 0 {
		size += wire.ChecksumSize
	}
	return step(size, n == left)
}

// take removes the first n bytes and returns them.
func (p *pieces) take(n int) (taken pieces) {
	for i, part := range p {
		k := min(len(part), n)
		taken[i], p[i] = part[:k], part[k:]
		n -= k
	}
	return taken
}

// atOnce is how many pieces one write takes. A single piece would cost a third more CPU time,
// because the system moves more than that at once. But a small call waits for all of them: with 16
// pieces, small calls beside four echoes of 1 MiB waited longer in each of three pairs of runs.
const atOnce = 4

// sendVectoredAndUnlock writes everything in out, followed by a few Data frames whose payload is
// the caller's own memory. It unlocks c.mu. No goroutine may be flushing. It reports whether more
// frames are wanted.
func (c *Conn) sendVectoredAndUnlock(h wire.Header, rest *pieces, step func(size int, last bool) bool) (wanted bool) {
	var ends [atOnce]int // of the headers, in out
	var payloads [atOnce]pieces
	n := 0
	for wanted = true; n < atOnce && rest.size() > 0; n++ {
		if wanted = nextPiece(&h, rest.size(), step); !wanted {
			break
		}
		c.beginLocked(h)
		ends[n], payloads[n] = len(c.out), rest.take(int(h.Len))
		c.countFrameLocked(wire.HeaderSize + int(h.Len))
		c.taken += uint64(h.Len)
	}
	if n == 0 {
		c.flushAndUnlock(false)
		return false
	}
	c.flushing, c.vectoring = true, true
	others := c.space != nil
	buf := c.takeOutLocked()
	c.mu.Unlock()
	parts := make(net.Buffers, 0, 2*n+1)
	for i, start := 0, 0; i < n; i++ {
		parts = append(parts, buf[start:ends[i]])
		for _, part := range payloads[i] {
			if len(part) > 0 {
				parts = append(parts, part)
			}
		}
		start = ends[i]
	}
	c.writeVectored(buf, parts)
	if others { // large messages alternate
		runtime.Gosched()
	}
	return wanted
}

// writeVectored writes parts, some of which point into buf. It copies what the socket does not
// take, and a goroutine that may block writes the copy.
func (c *Conn) writeVectored(buf []byte, parts net.Buffers) {
	n, left, err := writeSocketAll(c.socket, &c.count, parts)
	c.mu.Lock()
	c.wroteLocked(n)
	switch {
	case err != nil:
		c.taken = c.written
		c.writeFailedAndUnlock(err)
	case len(left) > 0:
		var tail []byte
		if len(c.out) == 0 { // the memory of out is free to use
			tail, c.out = c.out, nil
		}
		c.mu.Unlock()
		size := 0
		for _, part := range left {
			size += len(part)
		}
		tail = slices.Grow(tail, size)
		for _, part := range left {
			tail = append(tail, part...)
		}
		c.mu.Lock()
		if c.out == nil && cap(buf) <= keepBuffer {
			c.out = buf[:0]
		}
		c.mu.Unlock()
		go c.flushRest(tail, 0)
	default:
		c.giveBackLocked(buf)
		if c.flushing = false; len(c.out) > 0 {
			c.flushAndUnlock(false)
			return
		}
		c.flushedLocked()
		c.mu.Unlock()
	}
}

// A piece is a Data frame that has arrived in part. Its rest is read directly into the message.
type piece struct {
	h    wire.Header
	of   *collector
	left int // bytes that have not arrived
}

const (
	// minStraight is how many bytes of a piece must be missing to read them directly. Fewer bytes
	// are copied faster than read separately.
	minStraight = 4 << 10
	// peek is how many bytes are read behind a piece, to see whether another piece follows.
	peek = 4 << 10
	// ahead is how many pieces are read together with the rest of one. They are in the right place
	// if they are the next pieces of the same message, which is nearly always so. Otherwise they
	// are copied.
	ahead = atOnce
)

// space returns the memory for the next bytes.
func (p *piece) space() []byte {
	n := len(p.of.buf)
	return p.of.buf[n : n+p.left]
}

// readStraight arranges that the rest of the frame at the end of the buffer is read directly into
// its message. It does so only for a piece of a large message that is not broken.
func (rd *reader) readStraight(h wire.Header) {
	begun := rd.buf[rd.r+wire.HeaderSize : rd.w]
	left := int(h.Len) - len(begun)
	if left < minStraight || h.Flags&wire.HasChecksum != 0 || rd.c.greeting.Load() {
		return
	}
	rd.c.mu.Lock()
	p, _ := rd.c.gathererLocked(h)
	rd.c.mu.Unlock()
	if p == nil || p.err != nil || !p.makeRoom(int(h.Len)) {
		return
	}
	p.buf = append(p.buf, begun...)
	rd.r = rd.w
	rd.piece = piece{h: h, of: p, left: left}
	if rd.ahead == nil && vectored && rd.c.socket != nil {
		rd.ahead = &readAhead{in: newScatterer(rd.c.socket)}
	}
}

// A readAhead reads several pieces at once.
type readAhead struct {
	in    *scatterer
	heads [ahead * wire.HeaderSize]byte
	// The rest of a piece, the headers and payloads of the pieces that should follow, and the bytes
	// behind the message.
	parts [][]byte
}

// next returns the expected header of the piece that begins at offset at of the message, if all
// pieces are as long as this one.
func (p *piece) next(at int) wire.Header {
	h := p.h
	h.Flags &^= wire.More
	if left := p.of.want - at; int(h.Len) < left {
		h.Flags |= wire.More
	} else {
		h.Len = uint32(left) //nolint:gosec // less than it was
	}
	return h
}

// readPieces reads the rest of a piece, the pieces that should follow it, and some bytes behind the
// message. It returns false when this reader is done.
func (rd *reader) readPieces() (alive bool, err error) {
	p, of := rd.piece, rd.piece.of
	a := rd.ahead
	parts := append(a.parts[:0], p.space())
	at := len(of.buf) + p.left
	for len(parts) < 2*ahead && at < of.want && p.h.Flags&wire.More != 0 {
		n := int(p.next(at).Len)
		if at+n > cap(of.buf) {
			break
		}
		i := len(parts) / 2 * wire.HeaderSize
		parts = append(parts, a.heads[i:i+wire.HeaderSize], of.buf[at:at+n])
		at += n
	}
	if at == of.want {
		rd.makeRoom()
		parts = append(parts, rd.buf[:min(len(rd.buf), peek)])
	}
	n, err := a.in.read(parts)
	rd.clock, alive = 0, true
	if n > 0 {
		alive = rd.gotPieces(parts, n)
	}
	clear(parts)
	a.parts = parts
	return alive, err
}

// gotPieces handles n bytes that were read to parts. It returns false when this reader is done.
func (rd *reader) gotPieces(parts [][]byte, n int) bool {
	c := rd.c
	c.count.reads.Add(1)
	c.count.bytesIn.Add(uint64(n))
	c.heard.Store(true)
	of := rd.piece.of
	for {
		here := min(n, rd.piece.left)
		n -= here
		parts = parts[1:]
		if len(parts) == 1 { // the message ends here
			rd.w = n
		}
		if n == 0 || len(parts) <= 1 {
			return rd.grew(here)
		}
		want := rd.piece.next(len(of.buf) + here)
		rd.grew(here) // the message has another piece, so the reader is not done
		if n < wire.HeaderSize || wire.ParseHeader(parts[0]) != want {
			break
		}
		n -= wire.HeaderSize
		parts = parts[1:]
		rd.piece = piece{h: want, of: of, left: int(want.Len)}
		if n == 0 {
			return true
		}
	}
	rd.moveToBuffer(parts, n)
	return true
}

// moveToBuffer moves the first n bytes of parts to the buffer, which is empty.
func (rd *reader) moveToBuffer(parts [][]byte, n int) {
	buf := rd.buf
	if len(buf) < n {
		buf = make([]byte, pow2(n))
	}
	i, end := 0, 0
	for ; end < n; i++ {
		end += len(parts[i])
	}
	for ; i > 0; i-- { // backwards, because the last part may be in the buffer itself
		begin := end - len(parts[i-1])
		copy(buf[begin:n], parts[i-1])
		end = begin
	}
	rd.buf, rd.r, rd.w = buf, 0, n
}

// grew handles n bytes of a piece that have arrived. It returns false when this reader is done.
func (rd *reader) grew(n int) bool {
	p := &rd.piece
	p.of.buf = p.of.buf[:len(p.of.buf)+n]
	if p.left -= n; p.left > 0 {
		return true
	}
	h, of := p.h, p.of
	rd.piece = piece{}
	rd.c.count.framesIn.Add(1)
	return rd.added(h, of)
}

// limit returns how far the next read fills the buffer. While pieces are expected, it reads only
// far enough to see the next piece.
func (rd *reader) limit() int {
	if rd.expecting {
		return min(len(rd.buf), rd.w+peek)
	}
	return len(rd.buf)
}
