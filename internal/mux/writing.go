// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"runtime"
	"time"

	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/wire"
)

const (
	// fullBatch is the number of bytes from which a batch counts as full: waiting for more bytes
	// saves nothing.
	fullBatch = 64 << 10
	// mostGathered is the largest number of callers whose next requests the reader flushes
	// together, see gatherLocked.
	mostGathered = 64
	// highWater is the number of unwritten bytes from which the next piece of a large message, an
	// asynchronous call or a one-way call has to wait. So a small call waits only for a bounded
	// number of bytes.
	highWater = 256 << 10
	// maxWrite bounds the bytes of a blocking write, so that keepAliveLocked can see its progress.
	maxWrite = 256 << 10
	// keepBuffer is the size of the largest write buffer that is kept.
	keepBuffer = 512 << 10
	// maxPart is how many bytes of a message fit in one frame, with room for a checksum.
	maxPart = maxFrame - 16
)

// writing is the role that writes the connection: the output buffer, and the goroutine that flushes
// it. Other roles append frames to out, and then call flushAndUnlock.
//
// writing may end the connection when a write fails, and counts the memory of the output.
type writing struct {
	c *Conn
	*lazyWriting
	flushing  bool   // a goroutine is flushing out, or out waits, see greetAndUnlock
	yielding  bool   // the flusher first lets other goroutines append
	vectoring bool   // the flusher writes a piece of a large message, see vector.go
	out       []byte // frames that no write has taken yet
	spare     []byte // the buffer that replaces out during a write
	queued    uint64 // bytes ever appended to out
	taken     uint64 // bytes ever passed to a write
	written   uint64 // bytes ever written
	framesOut uint64
}

// lazyWriting is the part of writing that is allocated on first use.
type lazyWriting struct {
	// The value w.flush, created once. Starting a goroutine with it allocates nothing.
	flushAll func()
	// closed when a flusher has taken out; nil when no goroutine waits
	space chan struct{}
	// closed when everything is written; nil when no goroutine waits
	flushed chan struct{}
}

// noWriting is shared by all connections without a lazyWriting. Nothing changes it.
var noWriting = new(lazyWriting)

// lazyLocked returns the lazy part for writing to it.
func (w *writing) lazyLocked() *lazyWriting { return ownPart(&w.lazyWriting, noWriting) }

// flushAndUnlock makes sure that out is written. The caller holds c.mu, and flushAndUnlock unlocks
// it.
//
// If no goroutine flushes, the caller becomes the flusher. Company says that other goroutines use
// the connection too. The flusher then first yields once, so that the frames that these goroutines
// append meanwhile go out in the same write. With 100 callers, this yield more than doubles the
// calls per second, and further yields add nothing. A caller that fills the batch while the flusher
// yields flushes in its place. Otherwise the frames of 1000 callers would go out in one write from
// a newly allocated buffer, and the peer would wait for that write.
func (w *writing) flushAndUnlock(company bool) {
	c := w.c
	if w.flushing && !w.mayTakeOverLocked() || len(w.out) == 0 || c.lifetime.err != nil {
		c.mu.Unlock()
		return
	}
	w.flushing, w.yielding = true, false
	if !c.socket.Exists() {
		w.yielding = true
		w.goFlushLocked()
		c.mu.Unlock()
		return
	}
	if company && len(w.out) < fullBatch {
		w.yielding = true
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
		if !w.yielding {
			c.mu.Unlock()
			return
		}
		w.yielding = false
	}
	for len(w.out) > 0 && c.lifetime.err == nil {
		buf := w.takeOutLocked()
		c.mu.Unlock()
		n, err := c.socket.Write(&c.count.writes, buf)
		c.mu.Lock()
		w.written += uint64(n)
		if err != nil {
			w.taken = w.written
			w.writeFailedAndUnlock(err)
			return
		}
		if n < len(buf) { // the socket is full: a goroutine that may block goes on
			c.mu.Unlock()
			go w.flushRest(buf, n)
			return
		}
		w.giveBackLocked(buf)
	}
	w.flushedLocked()
	c.mu.Unlock()
}

// allowedLocked reports whether this side may write. A server waits for the client's preface.
func (w *writing) allowedLocked() bool { return w.c.lifetime.client || w.c.reading.preface }

// greetAndUnlock lets a server write, because its reader has judged the first bytes of the client.
// Until then flushing is set, so that no goroutine writes to a client of another protocol.
func (w *writing) greetAndUnlock() {
	w.flushing = w.flushing && w.c.lifetime.client
	w.flushAndUnlock(false)
}

// gatherLocked makes the reader the flusher for the callers that it is about to wake. Otherwise the
// first caller would often write before the last caller has run. With this, 2 callers make 0.63
// writes per call in place of 1.10, and 10 callers make 0.15 in place of 0.27. The server is woken
// less often too. That saves 6 to 24 % of the processor time of both sides, and more on an idle
// machine. The reader does not gather for more than mostGathered callers, because their requests go
// out in one write anyway. It does not gather for a single caller either, because that caller
// writes sooner by itself.
func (w *writing) gatherLocked(callers int) bool {
	c := w.c
	if w.flushing || !c.socket.Exists() || c.lifetime.err != nil || callers > mostGathered || callers+c.callsOut.window.Open() < 2 {
		return false
	}
	w.flushing, w.yielding = true, true
	return true
}

// flushGathered lets the woken callers run, and then flushes.
func (w *writing) flushGathered() {
	c := w.c
	runtime.Gosched()
	c.mu.Lock()
	if !w.yielding { // a caller has taken over the flush
		c.mu.Unlock()
		return
	}
	w.yielding = false
	w.flushedLocked()
	w.flushAndUnlock(false)
}

// mayTakeOverLocked reports whether a caller may flush in place of a flusher that yields, because
// the batch is full.
func (w *writing) mayTakeOverLocked() bool {
	return w.yielding && w.c.socket.Exists() && len(w.out) >= fullBatch
}

func (w *writing) flushedLocked() {
	w.flushing, w.vectoring = false, false
	w.countOutLocked()
	w.spaceChangedLocked()
	if w.flushed != nil {
		close(w.flushed)
		w.flushed = nil
	}
}

// flushLaterAndUnlock is flushAndUnlock for a caller that has more to append. A new goroutine
// writes, unless the batch is full. The caller holds c.mu, and flushLaterAndUnlock unlocks it.
func (w *writing) flushLaterAndUnlock() {
	c := w.c
	if c.socket.Exists() && len(w.out) >= fullBatch {
		w.flushAndUnlock(false)
		return
	}
	if !w.flushing && len(w.out) > 0 && c.lifetime.err == nil {
		w.flushing, w.yielding = true, true
		w.goFlushLocked()
	}
	c.mu.Unlock()
}

// goFlushLocked starts a goroutine that flushes.
func (w *writing) goFlushLocked() {
	if w.flushAll == nil {
		w.lazyLocked().flushAll = w.flush
	}
	go w.flushAll()
}

// flush writes until out is empty. It may block, so it runs on its own goroutine.
func (w *writing) flush() { w.flushRest(nil, 0) }

func (w *writing) flushRest(buf []byte, from int) {
	c := w.c
	if buf == nil {
		runtime.Gosched() // as in flushAndUnlock
	}
	c.mu.Lock()
	if buf == nil {
		if !w.yielding {
			c.mu.Unlock()
			return
		}
		w.yielding = false
	}
	for {
		if buf == nil {
			if len(w.out) == 0 || c.lifetime.err != nil {
				break
			}
			buf = w.takeOutLocked()
		}
		c.mu.Unlock()
		n, err := w.writeBelow(buf[from:min(len(buf), from+maxWrite)])
		c.count.writes.Add(1)
		c.mu.Lock()
		w.written += uint64(n)
		if err != nil {
			// a connection that is not a socket may have sent more bytes than its Write reports
			if c.socket.Exists() {
				w.taken = w.written
			}
			w.writeFailedAndUnlock(err)
			return
		}
		if from += n; from < len(buf) {
			continue
		}
		w.giveBackLocked(buf)
		buf, from = nil, 0
	}
	w.flushedLocked()
	c.mu.Unlock()
}

// writeFailedAndUnlock makes the connection end soon. It unlocks c.mu. The reader first reads the
// frames that the peer sent before it went away, because they may contain the reason. No goroutine
// writes any more, because flushing remains set.
func (w *writing) writeFailedAndUnlock(err error) {
	c := w.c
	c.lifetime.peerGoneLocked(&IOError{Op: Write, Err: err}, c.lifetime.stuckTime())
	c.mu.Unlock()
}

// takeOutLocked returns out for a write, and replaces it with the spare buffer.
func (w *writing) takeOutLocked() []byte {
	buf := w.out
	w.out, w.spare = w.spare[:0], nil
	w.taken += uint64(len(buf))
	w.spaceChangedLocked()
	return buf
}

// spaceChangedLocked wakes the goroutines that wait for space in out.
func (w *writing) spaceChangedLocked() {
	if w.space != nil {
		close(w.space)
		w.space = nil
	}
}

func (w *writing) giveBackLocked(buf []byte) {
	if cap(buf) <= keepBuffer {
		w.spare = buf
	}
}

// awaitSpaceRelocking waits until out holds fewer than limit bytes. It unlocks c.mu while it waits,
// and returns with c.mu held in any case. It returns an error if ctx, the deadline or the
// connection ends first.
func (w *writing) awaitSpaceRelocking(ctx context.Context, deadline time.Time, limit int) error {
	c := w.c
	for len(w.out) >= limit && c.lifetime.err == nil {
		if err := w.awaitFlushRelocking(ctx, deadline); err != nil {
			return err
		}
	}
	return c.lifetime.err
}

// awaitFlushRelocking waits until a flusher has taken out.
func (w *writing) awaitFlushRelocking(ctx context.Context, deadline time.Time) error {
	c := w.c
	if w.space == nil {
		w.lazyLocked().space = make(chan struct{})
	}
	err := c.lifetime.waitRelocking(ctx, deadline, w.space)
	if err == nil {
		err = c.lifetime.err
	}
	return err
}

// waitRelocking waits for wake, ctx, the deadline if there is one, or the end of the connection. It
// returns an error only for ctx and the deadline. It unlocks c.mu while it waits.
func (lt *lifetime) waitRelocking(ctx context.Context, deadline time.Time, wake <-chan struct{}) error {
	c := lt.c
	ended := lt.endedLocked()
	c.mu.Unlock()
	defer c.mu.Lock()
	ctx = isolate.Context(ctx)
	var expired <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-wake:
	case <-ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-expired:
		return ErrDeadline
	}
	return nil
}

// noDeadline is the deadline of a wait that only its context bounds.
var noDeadline time.Time

// beginLocked and finishLocked begin and finish one frame in out. Between them the caller appends
// the payload of the frame.
func (w *writing) beginLocked(h wire.Header) int {
	start := len(w.out)
	w.out = wire.Begin(w.out, &h)
	return start
}

func (w *writing) finishLocked(start int) {
	w.out = wire.Finish(w.out, start)
	w.countFrameLocked(len(w.out) - start)
}

func (w *writing) countFrameLocked(n int) {
	w.queued += uint64(n)
	w.framesOut++
}

// appendLocked appends a whole small frame to out.
func (w *writing) appendLocked(frame func(dst []byte) []byte) {
	start := len(w.out)
	w.out = frame(w.out)
	w.countFrameLocked(len(w.out) - start)
}

func (w *writing) highWater() int { return min(highWater, w.c.cfg.MaxUnsent) }

func (w *writing) sendPingLocked(t wire.Type, payload []byte) {
	start := w.beginLocked(wire.Header{Type: t})
	w.out = append(w.out, payload...)
	w.finishLocked(start)
}

// awaitWrittenRelocking waits until all output has been written. It unlocks c.mu while it waits,
// and returns with c.mu held.
func (w *writing) awaitWrittenRelocking(ctx context.Context) {
	c := w.c
	for w.allowedLocked() && (w.flushing || len(w.out) > 0) && c.lifetime.err == nil && c.lifetime.writeErr == nil && ctx.Err() == nil {
		if w.flushed == nil {
			w.lazyLocked().flushed = make(chan struct{})
		}
		flushed, ended := w.flushed, c.lifetime.endedLocked()
		c.mu.Unlock()
		select {
		case <-flushed:
		case <-ended:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
}

// trimLocked drops memory that an idle connection does not need.
func (w *writing) trimLocked() {
	w.spare = nil
	if len(w.out) == 0 {
		w.out = nil
	}
	if w.space == nil && w.flushed == nil {
		w.lazyWriting = noWriting
	}
}
