// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A message that does not fit in a frame arrives in pieces, with other frames between them. The
// reader collects the pieces in memory of the right size, which is allocated once and then belongs
// to the receiver. The reader reads the rest of a piece directly into that memory and not into its
// own buffer, because copying the rest would take as long as reading it. On Linux, one read also
// takes the pieces that are likely to follow.

// A collector collects a message that arrives in pieces. The reader owns it until the message is
// complete.
type collector struct {
	c       *Conn       // nil for unwanted
	buf     []byte      // begins with the header of the opening frame
	want    int         // the length of buf when all pieces have arrived
	err     error       // why the message cannot be read: a broken piece, or no memory
	taken   int         // bytes counted for buf; guarded by Conn.mu
	filling bool        // the reader reads a piece directly into buf; guarded by Conn.mu
	dropped atomic.Bool // the message is no longer wanted; changed with Conn.mu held
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
	// earlyGrant is that multiple if the memory is then large enough for the whole message.
	// Otherwise the multiple is lateGrant, and the message is copied once more later.
	earlyGrant, lateGrant = 16, 4
	// leastGrant is the least memory that is allocated for a message of at least that size.
	leastGrant = 4 << 10
)

// collect begins to collect a request that arrives in pieces.
func (rd *reader) collect(r *Request, h wire.Header, frame, msg []byte) bool {
	r.bytes, r.Arrived = 0, time.Duration(rd.arrival())
	if r.Fields != nil {
		r.bytes = int(min(r.Fields.Size, math.MaxInt))
	}
	p := &collector{c: rd.c}
	r.collected = p // so that the table shows it as incomplete
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	p.begin(h, r.bytes, frame, msg)
	return rd.collected(h, p)
}

// collected refuses a request for which there is no memory. The part that has arrived is dropped,
// and the part that still arrives is ignored.
func (rd *reader) collected(h wire.Header, p *collector) bool {
	if p.err != ErrMemory || h.Flags&wire.OfReply != 0 { //nolint:errorlint // it is set bare
		return true
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.callsIn.findLocked(h.ID); r != nil && r.collected == p {
		c.callsIn.abandonRequestLocked(r, catalogue.NoMemory, memoryText)
		rd.answered = true
	}
	return true
}

// onLargeReply begins to collect a reply that arrives in pieces, if its call is open and a caller
// waits.
func (co *callsOut) onLargeReply(h wire.Header, frame []byte) bool {
	c := co.c
	if !co.setPart(h.ID, unwanted) {
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
	p := &collector{c: c, err: err}
	if err == nil {
		p.begin(h, int(f.Size), frame, msg) //nolint:gosec // within MaxMessage
	}
	if !co.setPart(h.ID, p) { // the caller has canceled the call meanwhile
		p.drop()
	}
	return true
}

// setPart makes p the collector of the reply to a call. Wanted reports whether a caller waits for
// the reply.
func (co *callsOut) setPart(id uint32, p *collector) (wanted bool) {
	c := co.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s := co.slotLocked(id)
	if s == nil {
		return false
	}
	if wanted = s.wanted(); wanted || s.part == nil {
		s.part = p
	}
	return wanted
}

// begin starts a message with its opening frame, and with the part of the message that this frame
// carries.
func (p *collector) begin(h wire.Header, size int, frame, msg []byte) {
	opening := len(frame) - len(msg)
	if h.Flags&wire.HasChecksum != 0 {
		opening -= wire.ChecksumSize
	}
	p.want = opening + size
	n := opening + len(msg)
	if n >= leastGrant {
		n = p.grant(n)
	} // the pieces that follow decide how much memory is allocated
	if !p.grow(n) {
		return
	}
	p.buf = append(p.buf, frame[:opening]...)
	h.Flags &^= wire.HasChecksum | wire.More
	wire.PutHeader(p.buf, &h)
	p.add(msg)
}

// grow moves the message to memory of n bytes. It counts these bytes before it allocates them. It
// returns false if the memory limit is reached, or if the message is no longer wanted.
func (p *collector) grow(n int) bool {
	c := p.c
	c.mu.Lock()
	switch {
	case p.dropped.Load():
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
	buf := append(c.rt.memory.take(n), p.buf...)
	c.rt.memory.give(p.buf)
	old := cap(p.buf)
	p.buf = buf
	if old > 0 {
		c.mu.Lock()
		if !p.dropped.Load() {
			p.taken, old = n, p.taken-n
			c.memory.give(old)
		}
		c.mu.Unlock()
	}
	return true
}

// drop uncounts the memory of a message that is no longer wanted. The table of calls must no longer
// have the collector, so that the memory is garbage then.
func (p *collector) drop() {
	if p.c != nil {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		p.dropLocked()
	}
}

func (p *collector) dropLocked() {
	if p == nil || p.c == nil || p.dropped.Load() {
		return
	}
	p.dropped.Store(true)
	if p.filling { // the reader holds the memory, and uncounts it in letGo
		p.c.memory.keep(p.taken)
		return
	}
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

// data handles a piece of a large message, or a message of a stream.
func (rd *reader) data(h wire.Header, frame []byte) bool {
	payload, err := wire.Payload(frame)
	c := rd.c
	c.mu.Lock()
	p, st := c.streams.gathererLocked(h)
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
	c.lifetime.endDrainedLocked()
	c.mu.Unlock()
	return rd.wake(&e)
}

// wholeRequest starts a complete request.
func (rd *reader) wholeRequest(id uint32, p *collector) bool {
	c := rd.c
	c.mu.Lock()
	r := c.callsIn.findLocked(id)
	if r == nil || c.lifetime.err != nil { // the request has left the table
		defer c.mu.Unlock()
		return c.lifetime.err == nil
	}
	r.collected = nil
	r.memory += p.taken
	p.dropped.Store(true)
	p.taken = 0
	c.mu.Unlock()
	r.whole(p)
	c.callsIn.dispatch(r)
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
