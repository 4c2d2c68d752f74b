// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/binary"
	"sync"

	"github.com/yodel-rpc/yodel/internal/hpack"
	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/spares"
)

// reading is what a connection has received so far. The goroutine that reads owns it.
type reading struct {
	decoder  *hpack.Decoder[meaning]
	greeted  bool      // the preface has arrived
	set      bool      // the first frame was SETTINGS
	acked    bool      // the client has acknowledged the SETTINGS of this side
	skipped  [2]uint32 // the last numbers that the client has left out: above the first, up to the second
	received int64     // bytes of DATA since the beginning
	back     int       // of these, what batches have not given back yet

	controls int    // how many more frames may carry nothing: see spendControl
	refilled uint32 // the tick of the last refill
	refused  int    // how many requests were refused

	// A header block whose CONTINUATION is awaited.
	block     []byte
	blockOf   uint32 // the stream, or 0
	blockEnds bool   // it has END_STREAM
	pieces    int
}

// inSize is the size of a reader's buffer. A frame always fits.
const inSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([inSize]byte) }}

// A reader is a goroutine that reads a connection. When a handler blocks it, another one takes
// over, and this one ends after the handler.
type reader struct {
	c     *Conn
	state inline.State
	buf   *[inSize]byte // nil while the reader waits with nothing unread
	r, w  int           // what is unread
	spare *Stream       // for the next request
	cur   *Stream       // the request whose handler runs
	ready *Stream       // a request that has become whole, whose handler runs next
	fed   *Stream       // more of its body has arrived, and a Read may wait for it
	list  listing
	add   func(name, value string, m *meaning) bool // of list; made once, because a closure is an allocation
	taken int                                       // how many frames
	poll  poll
	small [64]byte // to wait with, in place of buf
}

func newReader(c *Conn) *reader {
	rd := &reader{c: c}
	rd.poll.begin(rd)
	rd.add = rd.list.add
	return rd
}

// ensure makes sure that the reader has a buffer, and that a frame fits behind what is unread.
func (rd *reader) ensure() {
	switch {
	case rd.buf == nil:
		rd.buf = buffers.Get().(*[inSize]byte) //nolint:forcetypeassert // the pool holds nothing else
		rd.r, rd.w = 0, 0
	case rd.r == rd.w:
		rd.r, rd.w = 0, 0
	case rd.r > 0 && inSize-rd.r < frameHeader+maxFrame || rd.w == inSize:
		rd.w = copy(rd.buf[:], rd.buf[rd.r:rd.w])
		rd.r = 0
	}
}

// release gives the buffer back if nothing is unread.
func (rd *reader) release() {
	if rd.buf != nil && rd.r == rd.w {
		buffers.Put(rd.buf)
		rd.buf = nil
	}
}

// loop reads until the connection ends, or another goroutine takes over.
func (rd *reader) loop() {
	for {
		if !rd.handle() { // its handler may still use the buffer
			return
		}
		n, err := 0, error(nil)
		if rd.endBatch() {
			n, err = rd.poll.read()
		}
		if n == 0 {
			rd.r = rd.w
			rd.release()
			rd.c.end(err)
			return
		}
		rd.w += n
		rd.c.reads.Add(1)
		rd.c.unpark()
		spares.Process.MessageArrived()
	}
}

// handle handles the whole frames in the buffer. It returns false if another reader has taken over.
func (rd *reader) handle() bool {
	c := rd.c
	for rd.r < rd.w {
		if c.life.unread.Load() {
			rd.r = rd.w
			break
		}
		buf := rd.buf[rd.r:rd.w]
		if !c.in.greeted {
			n := min(len(buf), len(preface))
			if string(buf[:n]) != preface[:n] {
				c.fail(&Fault{code: protocolError, what: "the client does not begin with the preface"})
				rd.r = rd.w
				return true
			}
			if n < len(preface) {
				return true
			}
			c.in.greeted = true
			rd.r += n
			continue
		}
		f, n, fault := next(buf)
		if n == 0 && fault == nil {
			return true
		}
		rd.r += n
		still := true
		if fault == nil {
			still, fault = rd.take(&f)
		}
		if s := rd.ready; s != nil && fault == nil {
			rd.ready = nil
			rd.feed(nil)
			still = rd.run(s)
		}
		if !still {
			return false
		}
		if fault != nil && rd.punish(fault) {
			rd.r = rd.w
			return true
		}
		if rd.behind() && !rd.endBatch() {
			return false
		}
	}
	return true
}

// looksAfter is after how many frames the reader looks how much output it has made.
const looksAfter = 16

// behind reports whether so much output waits that the reader has to write it before it goes on.
func (rd *reader) behind() bool {
	if rd.taken++; rd.taken%looksAfter > 0 {
		return false
	}
	rd.c.mu.Lock()
	defer rd.c.mu.Unlock()
	return len(rd.c.send.out) >= rd.c.cfg.MaxUnsent
}

// punish ends the stream or the connection of a Fault. It returns true if it was the connection.
func (rd *reader) punish(f *Fault) (all bool) {
	c := rd.c
	if f.stream > 0 {
		c.mu.Lock()
		s := c.streams.get(f.stream)
		worse := c.spendResetLocked(nil)
		switch {
		case worse != nil:
			f = worse
		case s != nil && s.state != closed:
			s.resetLocked(f.code, f)
		default:
			c.send.out = appendReset(c.send.out, f.stream, f.code)
			c.early.add(f.stream) // the rest of the request may be on its way
		}
		c.mu.Unlock()
		if worse == nil {
			return false
		}
	}
	c.fail(f)
	return true
}

// take handles a frame. It returns false if another reader has taken over.
func (rd *reader) take(f *frame) (still bool, fault *Fault) {
	c := rd.c
	switch {
	case c.in.blockOf > 0 && (f.kind != continuationFrame || f.stream != c.in.blockOf):
		return true, &Fault{code: protocolError, what: "a header block is interrupted"}
	case !c.in.set && (f.kind != settingsFrame || f.has(flagAck)):
		return true, &Fault{code: protocolError, what: "the client does not begin with SETTINGS"}
	}
	c.in.set = true
	switch f.kind { //nolint:exhaustive // reading.frame knows the rest
	case headersFrame:
		rd.earnControl()
		if !f.has(flagEndHeaders) {
			c.in.block = append(c.in.block[:0], f.payload...)
			c.in.blockOf, c.in.blockEnds, c.in.pieces = f.stream, f.has(flagEndStream), 0
			return true, nil
		}
		return rd.headers(f.stream, f.payload, f.has(flagEndStream))
	case continuationFrame:
		return rd.continuation(f)
	case dataFrame:
		if len(f.payload) == 0 {
			if fault := rd.spendControl(); fault != nil {
				return true, fault
			}
		}
		return true, rd.data(f)
	}
	if fault := rd.spendControl(); fault != nil {
		return true, fault
	}
	return true, rd.control(f)
}

// control handles a frame that belongs to no header and no body.
func (rd *reader) control(f *frame) *Fault {
	c := rd.c
	switch f.kind {
	case settingsFrame:
		return rd.settings(f)
	case windowFrame:
		return rd.windowUpdate(f.stream, int64(binary.BigEndian.Uint32(f.payload)&^(1<<31)))
	case resetFrame:
		return rd.reset(f.stream)
	case pingFrame:
		if f.has(flagAck) {
			c.pong(f.payload)
			return nil
		}
		c.mu.Lock()
		c.send.out = appendPing(c.send.out, flagAck, [8]byte(f.payload))
		c.mu.Unlock()
	default: // PRIORITY and GOAWAY change nothing here, and unknown frames are ignored
	}
	return nil
}

// reset takes RST_STREAM.
func (rd *reader) reset(id uint32) *Fault {
	c := rd.c
	if id > c.lastID.Load() {
		return &Fault{code: protocolError, what: "RST_STREAM of a stream that has not begun"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams.get(id)
	if s == nil || s.state == closed {
		return nil
	}
	fault := c.spendResetLocked(s)
	s.left = true
	s.abortLocked(errReset)
	return fault
}

// endBatch writes what the frames of a read have brought about, with one write. It waits if the
// client does not read. It returns false when the connection has ended.
func (rd *reader) endBatch() bool {
	c := rd.c
	c.mu.Lock()
	rd.feedLocked(nil)
	c.partial = rd.r < rd.w || c.in.blockOf > 0
	if c.in.back > 0 {
		c.giveBackLocked(c.in.back)
		c.in.back = 0
	}
	c.flushAndUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send.awaitSpaceRelocking()
	return !c.life.over
}

// feedLocked wakes the Read of the last stream that got a part of its body, unless s gets the next
// part. A handler that is woken once for all parts of a batch takes less processor time.
func (rd *reader) feedLocked(s *Stream) {
	if rd.fed != nil && rd.fed != s {
		rd.fed.wakeLocked()
	}
	rd.fed = s
}

// feed is feedLocked without the lock.
func (rd *reader) feed(s *Stream) {
	if rd.fed != nil {
		rd.c.mu.Lock()
		rd.feedLocked(s)
		rd.c.mu.Unlock()
	}
}

// readPlain reads a connection that is not a socket. While nothing is unread, it waits with a small
// buffer: the rest of what has arrived follows at once.
func (rd *reader) readPlain() (int, error) {
	rd.release()
	if rd.buf != nil {
		rd.ensure()
		return rd.c.nc.Read(rd.buf[rd.w:])
	}
	n, err := rd.c.nc.Read(rd.small[:])
	if n > 0 {
		rd.ensure()
		copy(rd.buf[:], rd.small[:n])
		return n, nil
	}
	return n, err
}
