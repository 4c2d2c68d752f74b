// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Short handlers and callbacks run on the reading goroutine: a goroutine each costs three times as
// much CPU. Whether one is short is learned by its owner, and can turn out wrong: it asks for
// ctx.Done, sleeps, or calls somebody. Then the reading, with what has not been handled, goes to a
// new goroutine. The one that was held up keeps the part of the buffer that its message is in,
// sends its own reply when it is done, and ends.

// What a reader is doing, the low bits of reader.state. The rest counts.
const (
	idle       = 0
	running    = 1 // user code
	handedOver = 2 // another reader has its place; final
	completing = 4 // with running: it is a Completer
	stateBits  = 3
)

// batchTime is how long, in nanoseconds, replies of inline handlers may wait for the rest of the
// batch.
const batchTime = int64(200 * time.Microsecond)

// serve runs a request inline. It returns false when another reader took over meanwhile.
func (rd *reader) serve(r *Request, timed bool) (still bool) {
	c, began := rd.c, int64(0)
	if timed {
		began = rd.now()
	}
	r.Scratch = rd.scratch[:0]
	r.Taken = rd.taken(r)
	rd.current = r
	state := rd.enter(running)
	r.rd, r.running = rd, state
	normal, told := false, true
	defer func() {
		switch { // runtime.Goexit: this goroutine cannot go on reading
		case !normal:
			c.handOver(rd, state)
			r.Reply = goexitOutcome()
			c.finish(r)
			c.doneLate(r, 0)
		case !told:
			c.handOver(rd, rd.enter(running))
		}
	}()
	// whoever said so has seen this request running, or this sees it
	if refused := c.refusing.Load(); refused || rd.tooLate(r) {
		normal = true
		return rd.withdraw(r, state) && refused
	}
	r.target.Serve(r)
	normal = true
	r.sayTimesIfAsked()
	if !r.alone() && r.Reply.large() { // it may have to wait for the peer to read
		c.handOver(rd, state)
	}
	if !rd.leave(state) {
		if !timed {
			began = rd.lostAt.Load() // a tick or two late
		}
		rd.finishLate(r, began)
		return false
	}
	rd.current, rd.clock = nil, 0
	rd.inline++
	took := Untimed
	if timed {
		rd.clock = c.now()
		took = time.Duration(rd.clock - began)
	}
	r.hasReturned()
	rd.reply(r)
	rd.scratch = r.Scratch
	r.Body, r.Attachment, r.Scratch = nil, nil, nil
	told = false
	r.target.Done(r, took, false)
	told = true
	if r.Left != 0 {
		rd.clock = int64(r.Left)
	}
	rd.used = r
	if len(rd.replies) >= fullBatch || timed && rd.overdue() {
		return rd.endBatch()
	}
	return true
}

// finishLate ends a request that began to hold up the reading at a reading of the clock, or not
// much before.
func (rd *reader) finishLate(r *Request, began int64) {
	c := rd.c
	now := c.now()
	if r.Taken == 0 {
		r.Taken = time.Duration(began)
	}
	r.sayTimes(time.Duration(now))
	c.finish(r)
	c.doneLate(r, time.Duration(now-began))
}

// doneLate is Done of a request that held up the reading.
func (c *Conn) doneLate(r *Request, took time.Duration) {
	defer c.cfg.Pool.ran() // also when Done ends the goroutine
	r.target.Done(r, took, true)
}

// taken is Request.Taken of r, which is served now.
func (rd *reader) taken(r *Request) time.Duration {
	if r.explained() {
		return Clock()
	}
	return time.Duration(rd.clock)
}

// overdue reports whether a reply of the batch has waited for too long.
func (rd *reader) overdue() bool {
	if len(rd.replies) == 0 {
		return false
	}
	if rd.since == 0 {
		rd.since = rd.clock
	}
	return rd.clock-rd.since > batchTime
}

// tooLate reports whether the connection has ended before r could begin. Another reader may have
// come to its end meanwhile; a one-way request is executed all the same, unless this side wanted
// the end.
func (rd *reader) tooLate(r *Request) bool {
	return !rd.alive() && (!r.alone() || errors.Is(rd.c.Err(), ErrClosed))
}

// withdraw ends a request that was about to run when the connection ended, or accepted no more
// requests. It reports whether this is still the reader.
func (rd *reader) withdraw(r *Request, state uint64) (still bool) {
	c := rd.c
	r.Reply = refusedWith(catalogue.ShuttingDown, shuttingDown)
	if !rd.leave(state) {
		c.finish(r)
		c.cfg.Pool.ran()
		return false
	}
	rd.current = nil
	r.hasReturned()
	rd.reply(r)
	return true
}

// reply appends the reply of an inline request to those of the batch.
func (rd *reader) reply(r *Request) {
	if r.alone() {
		return
	}
	h, m := r.replyMessage()
	rd.nReply++
	rd.answered = true
	if m.simple() {
		h.Flags |= m.flags
		rd.replies = wire.AppendFrame(rd.replies, h, m.body)
		return
	}
	parts, _ := m.pieces()
	if m.fields != nil {
		h.Flags |= wire.HasFields
	}
	h.Flags |= m.flags
	start := len(rd.replies)
	rd.replies = wire.Begin(rd.replies, h)
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

// complete runs a callback on the reading goroutine.
func (rd *reader) complete(to Completer, stop func() bool, frame []byte, err error) bool {
	if stop != nil {
		stop()
	}
	a := &rd.answer
	if err == nil {
		err = a.parse(frame)
	}
	state := rd.enter(running | completing)
	rd.clock = 0
	normal := false
	defer func() {
		if !normal {
			rd.c.handOver(rd, state)
		}
	}()
	if err != nil {
		to.Complete(nil, err)
	} else {
		to.Complete(a, nil)
	}
	normal = true
	if a.own {
		giveMemory(frame)
	}
	return rd.leave(state)
}

// enter says that user code begins to run on this reader.
func (rd *reader) enter(what uint64) uint64 {
	state := (rd.state.Load()>>stateBits+1)<<stateBits | what
	rd.state.Store(state)
	rd.c.watch()
	return state
}

// leave says that it has ended, and reports whether this is still the reader.
func (rd *reader) leave(state uint64) bool {
	return rd.state.CompareAndSwap(state, state&^(running|completing)|idle)
}

// handOver gives the reading of rd, if it is still in this state, to a new goroutine.
func (c *Conn) handOver(rd *reader, state uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !rd.state.CompareAndSwap(state, state&^(running|completing)|handedOver) {
		return
	}
	rd.lostAt.Store(c.now())
	next := &reader{
		c: c, buf: rd.buf[rd.r:], w: rd.w - rd.r, // what is before that is the message that rd handles
		replies: rd.replies, nReply: rd.nReply, since: rd.since, settled: rd.settled, told: rd.told,
	}
	if rd.current != nil {
		c.cfg.Pool.busy.Add(1)                             // from here on it is not the reader's
		rd.current.memory = requestCost + rd.current.bytes // the read buffer is shared with the next reader
		c.memory.force(rd.current.memory)
		c.enterTableLocked(rd.current)
	}
	c.reader.Store(next)
	go next.takeOver()
}

// passOnReadingLocked is for a caller that is about to wait for the peer's window. It may be a
// callback, and so hold up the reading that it waits for: it is not known whose goroutine this is.
// A callback that does not end while others get their turn loses the reading now, not with the next
// tick of the watch.
func (c *Conn) passOnReadingLocked() {
	rd := c.reader.Load()
	state := rd.state.Load()
	if state&completing == 0 {
		return
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	const turns = 16
	for range turns {
		runtime.Gosched()
		if rd.state.Load() != state {
			return
		}
	}
	c.handOver(rd, state)
}

// takeOver goes on where another reader was held up. What it had ready for others comes first.
func (rd *reader) takeOver() {
	rd.c.mu.Lock()
	rd.appendRepliesLocked()
	rd.c.flushLocked(false)
	if rd.tell() {
		rd.loop()
	}
}

// pow2 rounds n up to a power of two that leaves room for more.
func pow2(n int) int {
	p := 1
	for p <= n {
		p *= 2
	}
	return p
}

// endBatch writes what the batch brought about. When the peer does not read its answers, it gets no
// more of them: nothing is read until it does. While calls of this side wait for the peer's answers
// that could last for ever, because the peer may do the same: then the reading goes on, and
// handlers wait with their replies elsewhere. It returns false when the connection has ended.
func (rd *reader) endBatch() bool {
	c := rd.c
	rd.clock = 0    // it may have to wait
	if !c.preface { // a peer of another protocol hears nothing of this one
		return true
	}
	c.mu.Lock()
	rd.appendRepliesLocked()
	answered, limit := rd.answered, c.cfg.MaxUnsent
	rd.quiet = c.inOpen == 0 && c.open <= 1
	if !c.countOutLocked() {
		limit = c.highWater()
	}
	rd.answered, rd.crowded = false, len(c.out) >= limit
	c.flushLocked(false)
	if !answered || !rd.crowded {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.open == 0 && len(c.out) >= limit || len(c.out) >= limit+misconduct {
		if c.waitForSpaceLocked(context.Background(), time.Time{}) != nil {
			break
		}
	}
	rd.crowded = len(c.out) >= limit
	return c.err == nil
}

// misconduct is how much waits beyond the limit only when the peer does not keep to its window, and
// has to be refused all the time.
const misconduct = 2 * highWater

func (rd *reader) appendRepliesLocked() {
	if len(rd.replies) == 0 {
		return
	}
	c := rd.c
	c.usedLocked(c.inOpen+rd.inline, c.inBytes) // all of a batch were sent before any of their replies
	if len(c.out) == 0 && !c.flushing && cap(rd.replies) <= keepBuffer {
		c.out, rd.replies = rd.replies, c.out // nothing is copied
		c.queued += uint64(len(c.out))
	} else {
		c.out = append(c.out, rd.replies...)
		c.queued += uint64(len(rd.replies))
	}
	c.framesOut += rd.nReply
	rd.replies, rd.nReply, rd.since = rd.replies[:0], 0, 0
	c.restLocked()
}

// A Watch looks after readers that run user code: one that it finds in the same call for two ticks
// is held up, and another takes over. It sleeps when nothing runs. It belongs to a server or a
// client.
type Watch struct {
	mu    sync.Mutex
	conns map[*Conn]uint64 // and the state that each was seen in
	timer *time.Timer
}

// tick is so short that a handler that blocks holds others up for about 1 ms, and so long that
// looking costs nothing that shows.
const tick = 750 * time.Microsecond

// NewWatch returns a Watch. It holds a timer only while there is something to watch.
func NewWatch() *Watch { return &Watch{conns: make(map[*Conn]uint64)} }

// watch puts the connection on the list of those looked after, once.
func (c *Conn) watch() {
	if c.watched.Load() || !c.watched.CompareAndSwap(false, true) {
		return
	}
	w := c.cfg.Watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = 0
	switch {
	case w.timer == nil:
		w.timer = time.AfterFunc(tick, w.look)
	case len(w.conns) == 1:
		w.timer.Reset(tick)
	}
}

// look is one tick.
func (w *Watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c, seen := range w.conns {
		rd := c.reader.Load()
		state := rd.state.Load()
		switch {
		case state == seen && state&running == 0:
			// It did nothing for a tick. It will be back on the list with its next call.
			delete(w.conns, c)
			c.watched.Store(false)
			if rd.state.Load() == state || !c.watched.CompareAndSwap(false, true) {
				continue
			}
			// A call has just begun, and trusted that it is watched.
		case state == seen:
			c.handOver(rd, state)
		}
		w.conns[c] = state
	}
	if len(w.conns) > 0 {
		w.timer.Reset(tick)
	}
}
