// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file reads the pieces of a large message directly into the memory of that message.

// A piece is a Data frame that has arrived in part. Its rest is read directly into the message.
type piece struct {
	h    wire.Header
	of   *collect.Message // unwanted if the message was dropped meanwhile: the rest is then discarded
	left int              // bytes that have not arrived
}

const (
	// minStraight is how many bytes of a piece must be missing to read them directly. Fewer bytes
	// are copied faster than read separately.
	minStraight = 4 << 10
	// peek is how many bytes after a piece are read with it, to see whether another piece follows.
	peek = 4 << 10
	// ahead is how many further pieces are read together with the rest of a piece. If they are the
	// next pieces of the same message, which is nearly always so, they are read to their place in
	// the message. Otherwise they are copied.
	ahead = atOnce
)

// space returns the memory for the next bytes.
func (p *piece) space() []byte {
	n := len(p.of.Buf)
	return p.of.Buf[n : n+p.left]
}

// readStraight arranges that the rest of the frame at the end of the buffer is read directly into
// its message. It does so only if the frame is a piece of a large message, and the message is not
// broken.
func (rd *reader) readStraight(h wire.Header) {
	begun := rd.buf[rd.r+wire.HeaderSize : rd.w]
	left := int(h.Len) - len(begun)
	if left < minStraight || h.Flags&wire.HasChecksum != 0 || rd.c.lifetime.greeting.Load() {
		return
	}
	rd.c.mu.Lock()
	p, _ := rd.c.streams.gathererLocked(h)
	rd.c.mu.Unlock()
	if p == nil || p.Err != nil || !p.MakeRoom(int(h.Len)) {
		return
	}
	p.Buf = append(p.Buf, begun...)
	rd.r = rd.w
	rd.fill(piece{h: h, of: p, left: left})
	if rd.ahead == nil && socket.Vectored && rd.c.socket.Exists() {
		rd.ahead = &readAhead{in: rd.c.socket.Scatterer()}
	}
}

// fill makes the next reads fill the rest of a piece. Until letGo, the reader holds the memory of
// the message.
func (rd *reader) fill(p piece) {
	p.of.Fill()
	rd.piece = p
}

// letGo ends fill.
func (rd *reader) letGo() {
	p := rd.piece.of
	rd.piece = piece{}
	if p != unwanted {
		p.Filled()
	}
}

// fills reports whether the next read must fill the rest of a piece. If the message was dropped,
// the rest is read into the buffer and discarded, as other bytes without a use are. A peer that
// sends the rest slowly would hold the memory of the whole message otherwise.
func (rd *reader) fills() bool {
	if rd.piece.left == 0 || rd.piece.of == unwanted {
		return false
	}
	if rd.piece.of.Dropped() {
		h, left := rd.piece.h, rd.piece.left
		rd.letGo()
		rd.piece = piece{h: h, of: unwanted, left: left}
		return false
	}
	return true
}

// A readAhead reads several pieces at once.
type readAhead struct {
	in    *socket.Scatterer
	heads [ahead * wire.HeaderSize]byte
	// The rest of a piece, then the headers and payloads of the pieces that should follow, then the
	// bytes after the message.
	parts [][]byte
}

// next returns the header that is expected for the piece at offset at of the message. It assumes
// that all pieces have the length of p.
func (p *piece) next(at int) wire.Header {
	h := p.h
	h.Flags &^= wire.More
	if left := p.of.Size - at; int(h.Len) < left {
		h.Flags |= wire.More
	} else {
		h.Len = uint32(left) //nolint:gosec // less than it was
	}
	return h
}

// readPieces reads the rest of a piece, the pieces that should follow it, and some bytes after the
// message. It returns false when this reader is done.
func (rd *reader) readPieces() (alive bool, err error) {
	p, of := rd.piece, rd.piece.of
	a := rd.ahead
	parts := append(a.parts[:0], p.space())
	at := len(of.Buf) + p.left
	for len(parts) < 2*ahead && at < of.Size && p.h.Flags&wire.More != 0 {
		n := int(p.next(at).Len)
		if at+n > cap(of.Buf) {
			break
		}
		i := len(parts) / 2 * wire.HeaderSize
		parts = append(parts, a.heads[i:i+wire.HeaderSize], of.Buf[at:at+n])
		at += n
	}
	if at == of.Size {
		rd.makeRoom()
		parts = append(parts, rd.buf[:min(len(rd.buf), peek)])
	}
	n, err := a.in.Read(parts)
	rd.clock, alive = 0, true
	if n > 0 {
		alive = rd.gotPieces(parts, n)
	}
	clear(parts)
	a.parts = parts
	return alive, err
}

// gotPieces handles n bytes that were read into parts. It returns false when this reader is done.
func (rd *reader) gotPieces(parts [][]byte, n int) bool {
	c := rd.c
	c.count.reads.Add(1)
	c.count.bytesIn.Add(uint64(n))
	c.reading.heard.Store(true)
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
		want := rd.piece.next(len(of.Buf) + here)
		rd.grew(here) // the message has another piece, so the reader is not done
		if n < wire.HeaderSize || wire.ParseHeader(parts[0]) != want {
			break
		}
		n -= wire.HeaderSize
		parts = parts[1:]
		rd.fill(piece{h: want, of: of, left: int(want.Len)})
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
	if p.of != unwanted {
		p.of.Buf = p.of.Buf[:len(p.of.Buf)+n]
	}
	if p.left -= n; p.left > 0 {
		return true
	}
	h, of := p.h, p.of
	rd.letGo()
	rd.c.count.framesIn.Add(1)
	return rd.added(h, of)
}

// limit returns the offset in the buffer up to which the next read may fill it. While pieces are
// expected, that read takes only enough bytes to show whether a piece follows.
func (rd *reader) limit() int {
	if rd.expecting {
		return min(len(rd.buf), rd.w+peek)
	}
	return len(rd.buf)
}
