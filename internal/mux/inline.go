// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Short handlers and callbacks run on the reader goroutine, because a goroutine for each of them
// costs three times as much CPU. The owner learns from earlier calls which methods are short. It
// can be wrong: a handler may wait for ctx.Done, sleep, or make a call. Then a new goroutine takes
// over the reading, together with the data that has not been handled. The blocked reader keeps the
// part of the buffer that holds its message. When the handler returns, the blocked reader sends the
// reply and ends.

// batchTime is how long replies of inline handlers may wait for the end of the batch, in
// nanoseconds.
const batchTime = int64(200 * time.Microsecond)

// runInline runs a request inline. It returns false when another reader has taken over meanwhile.
func (rd *reader) runInline(r *Request, timed bool) (still bool) {
	c, began := rd.c, int64(0)
	if timed {
		began = rd.now()
	}
	r.Scratch = rd.scratch[:0]
	r.Taken = rd.taken(r)
	rd.current = r
	state := rd.beginUserCode(false)
	r.rd, r.running = rd, state
	normal, done := false, true
	defer func() {
		switch { // after runtime.Goexit this goroutine cannot go on reading
		case !normal:
			c.reading.handOver(rd, state)
			c.callsIn.exited(r, began)
		case !done:
			c.reading.handOver(rd, rd.beginUserCode(false))
		}
	}()
	// Either Refuse has found this request running, or this check finds refusing set.
	if refused := c.callsIn.refusing.Load(); refused || rd.tooLate(r) {
		normal = true
		return rd.withdraw(r, state) && refused
	}
	r.target.Serve(r)
	normal = true
	r.sayTimesIfAsked()
	if !r.alone() && r.Reply.large() || r.late.Load() != notLate { // sending may have to wait until the peer reads
		c.reading.handOver(rd, state)
	}
	if !rd.state.End(state) {
		if !timed {
			began = rd.lostAt.Load() // one or two ticks after the real beginning
		}
		if r.serveEnded(began) {
			rd.finishLate(r, began)
		}
		return false
	}
	rd.current, rd.clock = nil, 0
	rd.inline++
	took := Untimed
	if timed {
		rd.clock = c.now()
		took = time.Duration(rd.clock - began)
	}
	r.end.Return()
	rd.reply(r)
	rd.scratch = r.Scratch
	r.Body, r.Attachment, r.Scratch = nil, nil, nil
	done = false
	r.target.Done(r, took, false)
	done = true
	if r.Left != 0 {
		rd.clock = int64(r.Left)
	}
	rd.used = r
	if len(rd.replies) >= fullBatch || timed && rd.overdue() {
		return rd.endBatch()
	}
	return true
}

// finishLate ends a request that has blocked the reader since about began.
func (rd *reader) finishLate(r *Request, began int64) {
	c := rd.c
	now := c.now()
	if r.Taken == 0 {
		r.Taken = time.Duration(began)
	}
	r.sayTimes(time.Duration(now))
	c.callsIn.finish(r)
	c.callsIn.doneLate(r, time.Duration(now-began))
}

// taken returns Request.Taken for r, which is about to be served.
func (rd *reader) taken(r *Request) time.Duration {
	if r.explained() {
		return rd.c.rt.clock()
	}
	return time.Duration(rd.clock)
}

// overdue reports whether a reply of the batch has waited longer than batchTime.
func (rd *reader) overdue() bool {
	if len(rd.replies) == 0 {
		return false
	}
	if rd.since == 0 {
		rd.since = rd.clock
	}
	return rd.clock-rd.since > batchTime
}

// tooLate reports whether the connection ended before r could begin. A one-way request is still
// executed, unless this side closed the connection.
func (rd *reader) tooLate(r *Request) bool {
	return !rd.alive() && (!r.alone() || errors.Is(rd.c.Err(), ErrClosed))
}

// withdraw ends a request that was about to run when the connection ended, or when this side
// stopped accepting requests. It reports whether this reader still reads the connection.
func (rd *reader) withdraw(r *Request, state uint64) (still bool) {
	c := rd.c
	r.Reply = refusedWith(catalogue.ShuttingDown, shuttingDown)
	if !rd.state.End(state) {
		c.callsIn.finish(r)
		c.cfg.Pool.running.End()
		return false
	}
	rd.current = nil
	r.end.Return()
	rd.reply(r)
	return true
}

// reply appends the reply of an inline request to the replies of the batch.
func (rd *reader) reply(r *Request) {
	if r.alone() {
		return
	}
	var m message
	h := r.replyMessage(&m)
	rd.nReply++
	rd.answered = true
	if m.simple() {
		h.Flags |= m.flags
		rd.replies = wire.AppendFrame(rd.replies, &h, m.body)
		return
	}
	parts, _ := m.pieces()
	if m.fields != nil {
		h.Flags |= wire.HasFields
	}
	h.Flags |= m.flags
	start := len(rd.replies)
	rd.replies = wire.Begin(rd.replies, &h)
	if m.fields != nil {
		rd.replies = wire.AppendFields(rd.replies, m.fields)
	}
	for _, part := range parts {
		rd.replies = append(rd.replies, part...)
	}
	rd.replies = wire.Finish(rd.replies, start)
}

// large reports whether the reply may take more than one frame.
func (o *Outcome) large() bool {
	size := binary.MaxVarintLen64 + len(o.Body) + len(o.Attachment)
	if o.Fields != nil {
		size += wire.FieldsSize(o.Fields)
	}
	return size > maxPart
}

// beginUserCode marks that user code, or a Completer, begins to run on this reader. It returns the
// new state.
func (rd *reader) beginUserCode(callback bool) uint64 {
	re := &rd.c.reading
	state := rd.state.Begin(callback)
	re.watched.Join(re.c.cfg.Watch, re)
	return state
}

// takeOver goes on where another reader was blocked. It first writes the replies and wakes the
// callers that the other reader had ready.
func (rd *reader) takeOver() {
	rd.c.mu.Lock()
	rd.appendRepliesLocked()
	rd.c.writing.flushAndUnlock(false)
	if rd.deliver() {
		rd.loop()
	}
}

// pow2 returns the smallest power of two above n, so that a buffer of n bytes has room to grow.
func pow2(n int) int { return 1 << bits.Len(uint(n)) }

// endBatch writes the frames that the batch has produced. If the peer does not read its replies,
// endBatch waits until the peer reads again, so that this side reads no more requests meanwhile.
// While calls of this side are open, endBatch does not wait, because the peer may be waiting in the
// same way and both sides would wait for ever. The reader then reads on, and handlers wait on their
// own goroutines until their replies can be sent. endBatch returns false when the connection has
// ended.
func (rd *reader) endBatch() bool {
	c := rd.c
	rd.clock = 0            // after a wait, the reading of the clock may be too old
	if !c.reading.preface { // the peer may speak another protocol, so it gets no frames yet
		return true
	}
	c.mu.Lock()
	rd.appendRepliesLocked()
	answered, limit := rd.answered, c.cfg.MaxUnsent
	rd.quiet = c.callsIn.inOpen == 0 && c.callsOut.window.Open() <= 1
	if !c.writing.countOutLocked() {
		limit = c.writing.highWater()
	}
	rd.answered, rd.outputFull = false, len(c.writing.out) >= limit
	c.writing.flushAndUnlock(false)
	if !answered || !rd.outputFull {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.callsOut.window.Open() == 0 && len(c.writing.out) >= limit || len(c.writing.out) >= limit+unsentGrace {
		if c.writing.awaitFlushRelocking(context.Background(), time.Time{}) != nil {
			break
		}
	}
	rd.outputFull = len(c.writing.out) >= limit
	return c.lifetime.err == nil
}

// unsentGrace is how many bytes beyond the limit a peer that obeys its window can cause to wait.
// More bytes wait only if the peer ignores its window, so that this side keeps sending refusals.
const unsentGrace = 2 * highWater

func (rd *reader) appendRepliesLocked() {
	if len(rd.replies) == 0 {
		return
	}
	c := rd.c
	// the peer sent all requests of a batch before any of their replies
	c.quota.usedLocked(c.callsIn.inOpen+rd.inline, c.callsIn.inBytes)
	if len(c.writing.out) == 0 && !c.writing.flushing && cap(rd.replies) <= keepBuffer {
		c.writing.out, rd.replies = rd.replies, c.writing.out // swaps the buffers in place of copying
		c.writing.queued += uint64(len(c.writing.out))
	} else {
		c.writing.out = append(c.writing.out, rd.replies...)
		c.writing.queued += uint64(len(rd.replies))
	}
	c.writing.framesOut += rd.nReply
	rd.replies, rd.nReply, rd.since = rd.replies[:0], 0, 0
	c.lifetime.endDrainedLocked()
}
