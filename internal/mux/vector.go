// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/parts"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file sends large messages in pieces. Where the operating system allows it, the pieces are
// written directly from the caller's memory.

// sendRestAndUnlock sends the remainder of a message in Data frames. It sends a few frames at a
// time, so that frames of other calls can go between them. It unlocks c.mu. The opening frame waits
// in out, and is written together with the first Data frame. When sendRestAndUnlock has returned,
// no frame points into the caller's memory.
//
// Before each frame sendRestAndUnlock calls step with c.mu held. It passes the frame's size, and
// whether the frame is the last one. If step returns false, the message is no longer wanted, and
// sendRestAndUnlock returns nil. If copied is set, sendRestAndUnlock copies all bytes with c.mu
// held, so it does not read the message after step has returned false.
func (w *writing) sendRestAndUnlock(ctx context.Context, deadline time.Time, h wire.Header, rest parts.Parts, copied bool, step func(size int, last bool) bool) error {
	c := w.c
	for {
		var wanted bool
		// out may hold the opening frame, and no other goroutine may flush it
		if len(w.out) >= w.highWater() {
			w.flushAndUnlock(false)
			c.mu.Lock()
		}
		err := w.awaitSpaceRelocking(ctx, deadline, w.highWater())
		for err == nil && w.vectoring && len(w.out) == 0 {
			err = w.awaitFlushRelocking(ctx, deadline)
		}
		switch {
		case err != nil:
			w.flushAndUnlock(false)
			return err
		case socket.Vectored && !copied && c.socket.Exists() && !w.flushing && h.Flags&wire.HasChecksum == 0:
			wanted = w.sendVectoredAndUnlock(h, &rest, step)
		default:
			if wanted = nextPiece(&h, rest.Size(), step); wanted {
				start := w.beginLocked(h)
				rest = w.appendPartsLocked(rest, int(h.Len))
				w.finishLocked(start)
			}
			w.flushAndUnlock(false)
		}
		if !wanted || rest.Size() == 0 {
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

// atOnce is how many pieces one write takes. One piece per write would cost a third more CPU time,
// because the operating system can take more than one piece at once. But a small call waits for all
// pieces of a write. With 16 pieces per write, small calls that ran beside four echo calls of 1 MiB
// waited longer in each of three pairs of runs.
const atOnce = 4

// sendVectoredAndUnlock writes everything in out, followed by a few Data frames whose payload is
// the caller's own memory. It unlocks c.mu. No goroutine may be flushing. It reports whether more
// frames are wanted.
func (w *writing) sendVectoredAndUnlock(h wire.Header, rest *parts.Parts, step func(size int, last bool) bool) (wanted bool) {
	var ends [atOnce]int // of the headers, in out
	var payloads [atOnce]parts.Parts
	n := 0
	for wanted = true; n < atOnce && rest.Size() > 0; n++ {
		if wanted = nextPiece(&h, rest.Size(), step); !wanted {
			break
		}
		w.beginLocked(h)
		ends[n], payloads[n] = len(w.out), rest.Take(int(h.Len))
		w.countFrameLocked(wire.HeaderSize + int(h.Len))
		w.taken += uint64(h.Len)
	}
	if n == 0 {
		w.flushAndUnlock(false)
		return false
	}
	w.flushing, w.vectoring = true, true
	others := w.space != nil
	buf := w.takeOutLocked()
	w.c.mu.Unlock()
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
	w.writeVectored(buf, parts)
	if others { // several large messages take turns
		runtime.Gosched()
	}
	return wanted
}

// writeVectored writes parts, some of which point into buf. If the socket does not take all bytes,
// writeVectored copies the rest, and a goroutine that may block writes the copy.
func (w *writing) writeVectored(buf []byte, parts net.Buffers) {
	c := w.c
	n, left, err := c.socket.WriteParts(&c.count.writes, parts)
	c.mu.Lock()
	w.written += uint64(n)
	switch {
	case err != nil:
		w.taken = w.written
		w.writeFailedAndUnlock(err)
	case len(left) > 0:
		var tail []byte
		if len(w.out) == 0 { // the memory of out is free to use
			tail, w.out = w.out, nil
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
		if w.out == nil && cap(buf) <= keepBuffer {
			w.out = buf[:0]
		}
		c.mu.Unlock()
		go w.flushRest(tail, 0)
	default:
		w.giveBackLocked(buf)
		if w.flushing = false; len(w.out) > 0 {
			w.flushAndUnlock(false)
			return
		}
		w.flushedLocked()
		c.mu.Unlock()
	}
}
