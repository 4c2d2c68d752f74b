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

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A message that does not fit in a frame comes in pieces, between which other frames come. They are gathered in memory that is
// allocated once, of the right size, and becomes the receiver's. What has not come yet of a piece is read to its place there, past
// the reader's buffer: copying it would take as long as reading does.

// A collector gathers a message that comes in pieces. It belongs to the reader, until the message is whole.
type collector struct {
	buf  []byte // begins with the opening frame's header
	want int    // bytes of buf when all have come
	err  error  // a piece was broken
}

// unwanted gathers nothing, of a message that nobody waits for any more.
var unwanted = &collector{err: ErrCallerGone}

var (
	errLonger  = errors.New("it is longer than announced")
	errShorter = errors.New("it is shorter than announced")
)

const (
	// firstGrant is how much of a large message must have come until the rest is believed, and allocated in one piece. Before
	// that, memory is a multiple of what has come.
	firstGrant = 256 << 10
	// earlyGrant is that multiple for a message that it is enough for, and lateGrant for others, which are copied once more.
	earlyGrant, lateGrant = 16, 4
	// leastGrant is always allocated, of a message that has so much.
	leastGrant = 4 << 10
)

// collect begins to gather a request that comes in pieces.
func (rd *reader) collect(r *Request, h wire.Header, frame, msg []byte) bool {
	r.bytes = 0
	if r.Fields != nil {
		r.bytes = int(min(r.Fields.Size, math.MaxInt))
	}
	r.collected = new(collector) // in the table it must be seen to be incomplete
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	*r.collected = newCollector(h, r.bytes, frame, msg)
	return true
}

// onLargeReply begins to gather a reply that comes in pieces, if its call was made and somebody waits for it.
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
		*p = newCollector(h, int(f.Size), frame, msg) //nolint:gosec // within MaxMessage
	}
	c.setPart(h.ID, p) // unless it has been given up meanwhile
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

// newCollector begins with an opening frame and the part of the message that it carries.
func newCollector(h wire.Header, size int, frame, msg []byte) collector {
	opening := len(frame) - len(msg)
	if h.Flags&wire.HasChecksum != 0 {
		opening -= wire.ChecksumSize
	}
	p := collector{want: opening + size}
	p.buf = append(takeMemory(p.grant(opening+len(msg))), frame[:opening]...)
	h.Flags &^= wire.HasChecksum | wire.More
	wire.PutHeader(p.buf, h)
	p.add(msg)
	return p
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
	if n > cap(p.buf) {
		buf := append(takeMemory(p.grant(n)), p.buf...)
		giveMemory(p.buf)
		p.buf = buf
	}
	return true
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

// gathererLocked returns who gathers the message that a Data frame belongs to: a collector, or else a stream. There is neither when
// its call was given up, or refused.
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
		return rd.streamData(st, h, payload, err)
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

// littleRest is how much is sent with the opening frame, because a write of its own costs more than copying it: 64 KiB and their
// header do not quite fit in a frame.
const littleRest = 4 << 10

// appendLittleLocked appends what an opening frame, h, has left over, if that is little. It returns what is left then.
func (c *Conn) appendLittleLocked(h wire.Header, rest pieces) pieces {
	n := rest.size()
	if n == 0 || n > littleRest {
		return rest
	}
	data := wire.Header{Type: wire.Data, Flags: h.Flags & wire.HasChecksum, ID: h.ID}
	if h.Type == wire.Reply {
		data.Flags |= wire.OfReply
	}
	start := c.beginLocked(data)
	rest = c.appendPartsLocked(rest, n)
	c.finishLocked(start)
	return rest
}

// remainder is rest, without its way through m: what the system is given would put m on the heap. The prefix is always in the
// opening frame.
func (m *message) remainder(rest pieces) pieces {
	return pieces{1: m.body[len(m.body)-len(rest[1]):], 2: m.attachment[len(m.attachment)-len(rest[2]):]}
}

// sendRest sends the remainder of a message in Data frames, a few at a time, so that other calls get in between. Nothing that is
// written later points into the caller's memory. Before each frame step, called with c.mu held, is told its size and whether it
// is the last; it returns false when the message is not wanted any more, which ends the sending without an error. With copied,
// nothing is read of the message after that.
func (c *Conn) sendRest(ctx context.Context, deadline time.Time, h wire.Header, rest pieces, copied bool, step func(size int, last bool) bool) error {
	for wanted := true; wanted && rest.size() > 0; {
		c.mu.Lock()
		err := c.spaceLocked(ctx, deadline, c.highWater())
		for err == nil && c.straight && len(c.out) == 0 {
			err = c.waitForSpaceLocked(ctx, deadline)
		}
		switch {
		case err != nil:
			c.mu.Unlock()
			return err
		case vectored && !copied && c.direct != nil && !c.flushing && h.Flags&wire.HasChecksum == 0:
			wanted = c.sendStraightLocked(h, &rest, step)
		default:
			if wanted = nextPiece(&h, rest.size(), step); wanted {
				start := c.beginLocked(h)
				rest = c.appendPartsLocked(rest, int(h.Len))
				c.finishLocked(start)
			}
			c.flushLocked(false)
		}
	}
	return nil
}

// nextPiece makes h the header of the next frame, of a message of which so much is left, and reports whether it is wanted.
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

// atOnce is how many pieces are given to a write. One would cost a third more CPU time, because the system moves more than that
// at a time; and a small call waits for all of them.
const atOnce = 4

// sendStraightLocked writes a few Data frames whose payload is still the caller's memory, behind all that waits to be written, and
// unlocks. Nobody is flushing. It reports whether more is wanted.
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
	parts := make(net.Buffers, 0, n*(1+len(payloads[0])))
	for i, start := 0, 0; i < n; i++ {
		parts = append(append(parts, buf[start:ends[i]]), payloads[i][:]...)
		start = ends[i]
	}
	c.writeStraight(buf, parts)
	if others { // large messages take turns
		runtime.Gosched()
	}
	return wanted
}

// writeStraight writes parts, some of which are in buf. What the socket does not take is copied, and left to somebody who may block.
func (c *Conn) writeStraight(buf []byte, parts net.Buffers) {
	n, left, err := c.direct.writeAll(parts)
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

// A piece is a Data frame that has begun to come, and whose rest is read to its place in the message.
type piece struct {
	h    wire.Header
	of   *collector
	left int // bytes that have not come
}

const (
	// minStraight is how much of a piece must be missing for that: less is copied faster than read by itself.
	minStraight = 4 << 10
	// peek is how much is read behind a piece, to see whether another one follows.
	peek = 4 << 10
)

// space is where the next bytes go.
func (p *piece) space() []byte {
	n := len(p.of.buf)
	return p.of.buf[n : n+p.left]
}

// readStraight has the rest of the frame that the buffer ends with read to its place, if it is a piece of a large message that is
// not broken.
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

// limit is how far the buffer is filled by the next read: while pieces are expected only so far that one can be seen coming.
func (rd *reader) limit() int {
	if rd.expecting {
		return min(len(rd.buf), rd.w+peek)
	}
	return len(rd.buf)
}
