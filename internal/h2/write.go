// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/binary"
	"sync"

	"github.com/yodel-rpc/yodel/internal/hpack"
)

// sending is the output of a connection, and the client's windows. Blocks are encoded when they are
// appended to the output, so the order of the encoder is the order on the wire. Conn.mu guards all
// of it.
type sending struct {
	c       *Conn
	encoder hpack.Encoder

	out, spare []byte
	flushing   bool      // a goroutine writes, or the output is over
	yielding   bool      // a goroutine is about to flush
	soon       bool      // the goroutine of flushSoon is about to flush
	row        int       // how many parts were written one by one since a handler last waited for the client
	rest       unwritten // what the socket has not taken of a write; the goroutine of writeRest has it
	written    uint64    // how many writes have got something through
	before     uint64    // written at the last Tick
	waiting    bool      // the reader waits for space
	space      sync.Cond // that out has become shorter, or that the connection has ended

	credit     int64   // what the client takes on all streams together
	initial    int64   // what it takes on a new stream
	highest    int64   // at least the highest delta of the streams
	earned     int     // how many more frames the client may send that carry nothing: see mostControls
	stalled    int     // how many streams have pending bytes
	replies    int     // how many of them are of Reply
	data       uint64  // how many frames of DATA were appended
	head, tail *Stream // those with credit of their own, in the order in which they are served
}

// keepBuffer is the largest output buffer that is used again.
const keepBuffer = 256 << 10

// appendHeadersLocked appends a block in as many frames as it needs.
func (w *sending) appendHeadersLocked(id uint32, fields []Field, end bool) {
	start, flags := len(w.out), byte(flagEndHeaders)
	if end {
		flags |= flagEndStream
	}
	w.out = appendHeader(w.out, headersFrame, flags, id, 0)
	for i := range fields {
		w.out = appendField(w.out, &w.encoder, &fields[i])
	}
	size := len(w.out) - start - frameHeader
	if size <= maxFrame {
		putSize(w.out[start:], size)
		return
	}
	block := append([]byte(nil), w.out[start+frameHeader:]...)
	kind := headersFrame
	for flags &^= flagEndHeaders; ; kind, flags = continuationFrame, 0 {
		n := min(len(block), maxFrame)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		w.out = append(appendHeader(w.out[:start], kind, flags, id, n), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return
		}
		start = len(w.out)
	}
}

// putSize sets the size in the header of a frame.
func putSize(header []byte, size int) {
	header[0] = byte(size >> 16)                         // #nosec G115 -- three bytes of it
	binary.BigEndian.PutUint16(header[1:], uint16(size)) //nolint:gosec // at most a frame
}

// mostFlushes is how many writes a goroutine makes in a row for others.
const mostFlushes = 4

// flushAndUnlock writes the output, unless another goroutine does. Frames that are appended
// meanwhile go out in the next write. It does not wait for the client: what the socket does not
// take is written by a goroutine, as is everything on a connection that is no socket.
func (c *Conn) flushAndUnlock() { c.flushTimesAndUnlock(mostFlushes) }

func (c *Conn) flushTimesAndUnlock(most int) {
	w := &c.send
	for range most {
		if c.life.over {
			w.dropLocked()
		}
		if w.flushing || len(w.out) == 0 {
			c.life.checkLocked(c)
			c.mu.Unlock()
			return
		}
		if !c.direct.exists() {
			break
		}
		buf := w.takeLocked()
		c.mu.Unlock()
		n, err := c.direct.write(buf)
		c.mu.Lock()
		if err != nil {
			c.writeFailedAndUnlock(err)
			return
		}
		if n < len(buf) {
			w.rest = unwritten{buf, n}
			break
		}
		w.tookLocked(buf)
	}
	if !w.flushing && len(w.out) == 0 || c.life.over {
		c.life.checkLocked(c)
	} else if !w.flushing || w.rest.buf != nil {
		w.flushing = true
		c.ended.Add(1)
		go c.writeRest(w.rest)
		w.rest = unwritten{}
	}
	c.mu.Unlock()
}

// takeLocked returns the output for a write.
func (w *sending) takeLocked() []byte {
	buf := w.out
	w.out, w.spare, w.flushing = w.spare[:0], nil, true
	w.space.Broadcast()
	return buf
}

// tookLocked says that the connection has taken all of a buffer.
func (w *sending) tookLocked(buf []byte) {
	w.flushing = false
	w.written++
	if cap(buf) <= keepBuffer {
		w.spare = buf[:0]
	}
	w.resumeLocked()
}

// An unwritten is a buffer whose first n bytes were written.
type unwritten struct {
	buf []byte
	n   int
}

// writeRest writes until no output is left. It waits for the client.
func (c *Conn) writeRest(rest unwritten) {
	defer c.ended.Done()
	w := &c.send
	for {
		for rest.n < len(rest.buf) {
			n, err := c.writePiece(rest.buf[rest.n:])
			rest.n += n
			c.mu.Lock()
			w.written++
			if err != nil {
				c.writeFailedAndUnlock(err)
				return
			}
			c.mu.Unlock()
		}
		c.mu.Lock()
		if w.flushing = false; rest.buf != nil {
			w.tookLocked(rest.buf)
		}
		if len(w.out) == 0 || c.life.over {
			c.life.checkLocked(c)
			c.mu.Unlock()
			return
		}
		rest = unwritten{w.takeLocked(), 0}
		c.mu.Unlock()
	}
}

// writePiece writes a part of buf. It waits for the client if the socket takes nothing at once. The
// part is then so short that sending.written tells that a slow client reads.
func (c *Conn) writePiece(buf []byte) (int, error) {
	if c.direct.exists() {
		if n, err := c.direct.write(buf); n > 0 || err != nil {
			return n, err
		}
	}
	return c.nc.Write(buf[:min(len(buf), maxFrame)])
}

// writeFailedAndUnlock ends the connection. Flushing stays set.
func (c *Conn) writeFailedAndUnlock(err error) {
	c.send.flushing = true
	c.endLocked(err)
	c.mu.Unlock()
	c.nc.Close()
}

// trimLocked drops the buffers of a connection that has written nothing since the last Tick.
func (w *sending) trimLocked() {
	if w.before == w.written && !w.flushing && len(w.out) == 0 {
		w.dropLocked()
	}
	w.before = w.written
}

// dropLocked drops output that cannot be written any more.
func (w *sending) dropLocked() { w.out, w.spare = nil, nil }

// awaitSpaceRelocking waits until less than the limit of the output waits for the client. It
// unlocks Conn.mu meanwhile.
func (w *sending) awaitSpaceRelocking() {
	for len(w.out) >= w.c.cfg.MaxUnsent && !w.c.life.over {
		w.waiting = true
		w.space.Wait()
	}
	w.waiting = false
}
