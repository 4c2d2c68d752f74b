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

// A message that does not fit in a frame comes in pieces, between which other frames come. They are
// gathered in memory that is allocated once, of the right size, and becomes the receiver's. What
// has not come yet of a piece is read to its place there, past the reader's buffer: copying it
// would take as long as reading does. On Linux the pieces that are likely to follow are read with
// it.

// A collector gathers a message that comes in pieces. It belongs to the reader, until the message
// is whole.
type collector struct {
	c     *Conn
	buf   []byte // begins with the opening frame's header
	want  int    // bytes of buf when all have come
	err   error  // a piece was broken, or there is no memory
	taken int    // bytes counted for buf; guarded by Conn.mu
	gone  bool   // nobody wants the message any more; guarded by Conn.mu
}

// unwanted gathers nothing, of a message that nobody waits for any more.
var unwanted = &collector{err: ErrCallerGone}

var (
	errLonger  = errors.New("it is longer than announced")
	errShorter = errors.New("it is shorter than announced")
)

const (
	// firstGrant is how much of a large message must have come until the rest is believed, and
	// allocated in one piece. Before that, memory is a multiple of what has come.
	firstGrant = 256 << 10
	// earlyGrant is that multiple for a message that it is enough for, and lateGrant for others,
	// which are copied once more.
	earlyGrant, lateGrant = 16, 4
	// leastGrant is always allocated, of a message that has so much.
	leastGrant = 4 << 10
)

// collect begins to gather a request that comes in pieces.
func (rd *reader) collect(r *Request, h wire.Header, frame, msg []byte) bool {
	r.bytes, r.Arrived = 0, time.Duration(rd.arrival())
	if r.Fields != nil {
		r.bytes = int(min(r.Fields.Size, math.MaxInt))
	}
	r.collected = new(collector) // in the table it must be seen to be incomplete
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	r.collected.begin(rd.c, h, r.bytes, frame, msg)
	return rd.collected(h, r.collected)
}

// collected ends a request that there is no memory for: what has come of it is dropped, and what
// still comes ignored.
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

// abandonRequestLocked refuses a request that has not come whole.
func (c *Conn) abandonRequestLocked(r *Request, errorID, text string) {
	c.leaveTableLocked(r)
	c.refuseLocked(r, errorID, text)
}

// onLargeReply begins to gather a reply that comes in pieces, if its call was made and somebody
// waits for it.
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
	if !c.setPart(h.ID, p) { // it has been given up meanwhile
		p.drop()
	}
	return true
}

// setPart has p gather the reply to a call, as long as somebody waits for it, which it reports.
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

// begin begins with an opening frame and the part of the message that it carries.
func (p *collector) begin(c *Conn, h wire.Header, size int, frame, msg []byte) {
	opening := len(frame) - len(msg)
	if h.Flags&wire.HasChecksum != 0 {
		opening -= wire.ChecksumSize
	}
	p.c, p.want = c, opening+size
	n := opening + len(msg)
	if n >= leastGrant {
		n = p.grant(n)
	} // else the pieces that follow are what counts
	if !p.grow(n) {
		return
	}
	p.buf = append(p.buf, frame[:opening]...)
	h.Flags &^= wire.HasChecksum | wire.More
	wire.PutHeader(p.buf, h)
	p.add(msg)
}

// grow moves what has come to memory of n bytes, which are counted first. It returns false when
// there is no such memory, or the message is not wanted any more.
func (p *collector) grow(n int) bool {
	c := p.c
	c.mu.Lock()
	switch {
	case p.gone:
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
		if !p.gone {
			p.taken, old = n, p.taken-n
			c.memory.give(old)
		}
		c.mu.Unlock()
	}
	return true
}

// drop gives back what is counted for a message that nobody wants any more.
func (p *collector) drop() {
	if p.c != nil {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		p.dropLocked()
	}
}

func (p *collector) dropLocked() {
	if p == nil || p.c == nil || p.gone {
		return
	}
	p.gone = true
	p.c.memory.give(p.taken)
	p.taken = 0
}

// add appends a piece.
func (p *collector) add(piece []byte) {
	if p.makeRoom(len(piece)) {
		p.buf = append(p.buf, piece...)
	}
}

// makeRoom sees to it that n bytes more fit in buf, unless they are more than were announced.
func (p *collector) makeRoom(n int) bool {
	n += len(p.buf)
	if n > p.want {
		p.err = errLonger
		return false
	}
	return n <= cap(p.buf) || p.grow(p.grant(n))
}

// grant returns how much memory is allocated when n bytes have come.
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

// gathererLocked returns who gathers the message that a Data frame belongs to: a collector, or else
// a stream. There is neither when its call was given up, or refused.
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

// data handles a piece of a large message, or what was sent on a stream.
func (rd *reader) data(h wire.Header, frame []byte) bool {
	payload, err := wire.Payload(frame)
	c := rd.c
	c.mu.Lock()
	p, st := c.gathererLocked(h)
	if p == nil && st != nil {
		return rd.streamData(st, h, frame, payload, err)
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

// added goes on when a piece has come. It returns false when this reader is done.
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

// wholeReply tells the caller that its reply has come whole.
func (rd *reader) wholeReply(id uint32, p *collector) bool {
	c := rd.c
	e := settled{id: id, part: p}
	c.mu.Lock()
	e.settleLocked(c)
	p.dropLocked() // from here on it is the caller's
	c.restLocked()
	c.mu.Unlock()
	return rd.wake(&e)
}

// wholeRequest has a request served that has come whole.
func (rd *reader) wholeRequest(id uint32, p *collector) bool {
	c := rd.c
	c.mu.Lock()
	r := c.findLocked(id)
	if r == nil || c.err != nil { // it has been taken out of the table
		defer c.mu.Unlock()
		return c.err == nil
	}
	r.collected = nil
	r.memory += p.taken
	p.gone, p.taken = true, 0
	c.mu.Unlock()
	r.whole(p)
	c.dispatch(r)
	return true
}

// whole gives r the message that p has gathered.
func (r *Request) whole(p *collector) {
	if r.Broken = p.err; p.err != nil {
		return
	}
	h := wire.ParseHeader(p.buf)
	fields, msg, err := openMessage(h, p.buf)
	if err == nil {
		_, err = r.readFields(fields) // they alias p.buf
	}
	if err == nil {
		r.Body, r.Attachment, err = wire.SplitBody(h.Flags, msg)
		r.own, r.held = true, &p.buf
	}
	r.Broken = err
}

// little is how much is copied rather than sent, or read, by itself.
const little = 4 << 10

// opening returns how much of a message that needs several frames the opening one carries, of which
// there is so much room. What it carries is copied on both sides, what the others carry is not, but
// a read of its own. So of a message that is hardly longer, all that fits, and else as much as
// makes the others full ones, if that is little. The prefix is in it anyway.
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

// remainder is rest, without its way through m: what the system is given would put m on the heap.
// The prefix is always in the opening frame.
func (m *message) remainder(rest pieces) pieces {
	return pieces{1: m.body[len(m.body)-len(rest[1]):], 2: m.attachment[len(m.attachment)-len(rest[2]):]}
}

// sendRestLocked sends the remainder of a message in Data frames, a few at a time, so that other
// calls get in between, and unlocks. The opening frame waits to be written, and goes with the first
// of them. Nothing that is written later points into the caller's memory. Before each frame step,
// called with c.mu held, is told its size and whether it is the last; it returns false when the
// message is not wanted any more, which ends the sending without an error. With copied, nothing is
// read of the message after that.
func (c *Conn) sendRestLocked(ctx context.Context, deadline time.Time, h wire.Header, rest pieces, copied bool, step func(size int, last bool) bool) error {
	for {
		var wanted bool
		if len(c.out) >= c.highWater() { // perhaps with the opening frame, which nobody else would write
			c.flushLocked(false)
			c.mu.Lock()
		}
		err := c.spaceLocked(ctx, deadline, c.highWater())
		for err == nil && c.straight && len(c.out) == 0 {
			err = c.waitForSpaceLocked(ctx, deadline)
		}
		switch {
		case err != nil:
			c.flushLocked(false)
			return err
		case vectored && !copied && c.socket != nil && !c.flushing && h.Flags&wire.HasChecksum == 0:
			wanted = c.sendStraightLocked(h, &rest, step)
		default:
			if wanted = nextPiece(&h, rest.size(), step); wanted {
				start := c.beginLocked(h)
				rest = c.appendPartsLocked(rest, int(h.Len))
				c.finishLocked(start)
			}
			c.flushLocked(false)
		}
		if !wanted || rest.size() == 0 {
			return nil
		}
		c.mu.Lock()
	}
}

// nextPiece makes h the header of the next frame, of a message of which so much is left, and
// reports whether it is wanted.
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

// take takes n bytes off.
func (p *pieces) take(n int) (taken pieces) {
	for i, part := range p {
		k := min(len(part), n)
		taken[i], p[i] = part[:k], part[k:]
		n -= k
	}
	return taken
}

// atOnce is how many pieces are given to a write. One would cost a third more CPU time, because the
// system moves more than that at a time; and a small call waits for all of them. With 16, small
// calls beside four echoes of 1 MiB waited longer in each of three pairs of runs.
const atOnce = 4

// sendStraightLocked writes a few Data frames whose payload is still the caller's memory, behind
// all that waits to be written, and unlocks. Nobody is flushing. It reports whether more is wanted.
func (c *Conn) sendStraightLocked(h wire.Header, rest *pieces, step func(size int, last bool) bool) (wanted bool) {
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
		c.flushLocked(false)
		return false
	}
	c.flushing, c.straight = true, true
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
	c.writeStraight(buf, parts)
	if others { // large messages take turns
		runtime.Gosched()
	}
	return wanted
}

// writeStraight writes parts, some of which are in buf. What the socket does not take is copied,
// and left to somebody who may block.
func (c *Conn) writeStraight(buf []byte, parts net.Buffers) {
	n, left, err := writeSocketAll(c.socket, &c.count, parts)
	c.mu.Lock()
	c.wroteLocked(n)
	switch {
	case err != nil:
		c.taken = c.written
		c.writeFailedLocked(err)
	case len(left) > 0:
		var tail []byte
		if len(c.out) == 0 { // its memory is as good as any
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
			c.flushLocked(false)
			return
		}
		c.flushedLocked()
		c.mu.Unlock()
	}
}

// A piece is a Data frame that has begun to come, and whose rest is read to its place in the
// message.
type piece struct {
	h    wire.Header
	of   *collector
	left int // bytes that have not come
}

const (
	// minStraight is how much of a piece must be missing for that: less is copied faster than read
	// by itself.
	minStraight = 4 << 10
	// peek is how much is read behind a piece, to see whether another one follows.
	peek = 4 << 10
	// ahead is how many pieces are read behind one that has begun to come. They are where they
	// belong if they are the next ones of the same message, as nearly always. Else they are copied.
	ahead = atOnce
)

// space is where the next bytes go.
func (p *piece) space() []byte {
	n := len(p.of.buf)
	return p.of.buf[n : n+p.left]
}

// readStraight has the rest of the frame that the buffer ends with read to its place, if it is a
// piece of a large message that is not broken.
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
	parts [][]byte // the rest of a piece; header and payload of those that should follow it; what is behind the message
}

// next returns the header of the piece behind the one that is followed by offset at in the message,
// if all pieces are as long as this one.
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

// readPieces reads the rest of a piece, those that should follow it, and a bit of what is behind
// the message. It returns false when this reader is done.
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

// gotPieces takes note of n bytes read to parts. It returns false when this reader is done.
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
		rd.grew(here) // another piece belongs to the message
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
	rd.keep(parts, n)
	return true
}

// keep has the buffer, which is empty, hold the first n bytes of parts.
func (rd *reader) keep(parts [][]byte, n int) {
	buf := rd.buf
	if len(buf) < n {
		buf = make([]byte, pow2(n))
	}
	i, end := 0, 0
	for ; end < n; i++ {
		end += len(parts[i])
	}
	for ; i > 0; i-- { // backwards, because the last one may be in the buffer itself
		begin := end - len(parts[i-1])
		copy(buf[begin:n], parts[i-1])
		end = begin
	}
	rd.buf, rd.r, rd.w = buf, 0, n
}

// grew takes note of n bytes that have come of a piece. It returns false when this reader is done.
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

// limit is how far the buffer is filled by the next read: while pieces are expected only so far
// that one can be seen coming.
func (rd *reader) limit() int {
	if rd.expecting {
		return min(len(rd.buf), rd.w+peek)
	}
	return len(rd.buf)
}
