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

// Short handlers and callbacks run on the reader goroutine, because a goroutine for each costs
// three times as much CPU. The owner learns which methods are short, and can be wrong: a handler
// may wait for ctx.Done, sleep, or make a call. The reading then goes to a new goroutine, together
// with the data that has not been handled. The blocked reader keeps the part of the buffer that
// holds its message. It sends its own reply when the handler returns, and ends.

// The states of a reader, in the low bits of reader.state. The other bits are a counter.
const (
	idle       = 0
	running    = 1 // user code runs
	handedOver = 2 // another reader has taken over; final
	completing = 4 // with running: the user code is a Completer
	stateBits  = 3
)

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
	state := rd.beginUserCode(running)
	r.rd, r.running = rd, state
	normal, told := false, true
	defer func() {
		switch { // after runtime.Goexit this goroutine cannot go on reading
		case !normal:
			c.handOver(rd, state)
			r.Reply = goexitOutcome()
			c.finish(r)
			c.doneLate(r, 0)
		case !told:
			c.handOver(rd, rd.beginUserCode(running))
		}
	}()
	// Refuse has seen this request running, or this sees refusing.
	if refused := c.refusing.Load(); refused || rd.tooLate(r) {
		normal = true
		return rd.withdraw(r, state) && refused
	}
	r.target.Serve(r)
	normal = true
	r.sayTimesIfAsked()
	if !r.alone() && r.Reply.large() { // it may have to wait until the peer reads
		c.handOver(rd, state)
	}
	if !rd.endUserCode(state) {
		if !timed {
			began = rd.lostAt.Load() // one or two ticks late
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

// finishLate ends a request that has blocked the reader since about began.
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

// doneLate calls Done of a request that has blocked the reader.
func (c *Conn) doneLate(r *Request, took time.Duration) {
	defer c.cfg.Pool.ran() // also if Done ends the goroutine
	r.target.Done(r, took, true)
}

// taken returns Request.Taken for r, which is about to be served.
func (rd *reader) taken(r *Request) time.Duration {
	if r.explained() {
		return Clock()
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
	if !rd.endUserCode(state) {
		c.finish(r)
		c.cfg.Pool.ran()
		return false
	}
	rd.current = nil
	r.hasReturned()
	rd.reply(r)
	return true
}

// reply appends the reply of an inline request to the replies of the batch.
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

// complete runs a Completer on the reader goroutine. It returns false when another reader has taken
// over.
func (rd *reader) complete(to Completer, stop func() bool, frame []byte, err error) bool {
	if stop != nil {
		stop()
	}
	a := &rd.answer
	if err == nil {
		err = a.parse(frame)
	}
	state := rd.beginUserCode(running | completing)
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
	return rd.endUserCode(state)
}

// beginUserCode marks that user code begins to run on this reader. It returns the new state.
func (rd *reader) beginUserCode(what uint64) uint64 {
	state := (rd.state.Load()>>stateBits+1)<<stateBits | what
	rd.state.Store(state)
	rd.c.joinWatch()
	return state
}

// endUserCode marks that the user code has returned. It returns false when another reader has taken
// over.
func (rd *reader) endUserCode(state uint64) bool {
	return rd.state.CompareAndSwap(state, state&^(running|completing)|idle)
}

// handOver moves the reading of rd to a new goroutine, if rd is still in this state.
func (c *Conn) handOver(rd *reader, state uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !rd.state.CompareAndSwap(state, state&^(running|completing)|handedOver) {
		return
	}
	rd.lostAt.Store(c.now())
	next := &reader{
		// the part before rd.r is the message that rd handles
		c: c, buf: rd.buf[rd.r:], w: rd.w - rd.r,
		replies: rd.replies, nReply: rd.nReply, since: rd.since, deliveries: rd.deliveries, delivered: rd.delivered,
	}
	if rd.current != nil {
		// from here on the request is not the reader's
		c.cfg.Pool.busy.Add(1)
		// the read buffer is shared with the next reader
		rd.current.memory = requestCost + rd.current.bytes
		c.memory.force(rd.current.memory)
		c.enterTableLocked(rd.current)
	}
	c.reader.Store(next)
	go next.takeOver()
}

// passOnReadingRelocking is for a caller that is about to wait for the peer's window. The caller
// may be a Completer, and may so block the reading that it waits for. It is not known on which
// goroutine the caller runs. A Completer that does not return while other goroutines run loses the
// reading now, and not at the next tick of the Watch. It unlocks c.mu meanwhile.
func (c *Conn) passOnReadingRelocking() {
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

// takeOver goes on where another reader was blocked. It first writes the replies and wakes the
// callers that the other reader had ready.
func (rd *reader) takeOver() {
	rd.c.mu.Lock()
	rd.appendRepliesLocked()
	rd.c.flushAndUnlock(false)
	if rd.deliver() {
		rd.loop()
	}
}

// pow2 returns the smallest power of two above n, which leaves room for more.
func pow2(n int) int {
	p := 1
	for p <= n {
		p *= 2
	}
	return p
}

// endBatch writes the frames that the batch has produced. If the peer does not read its replies,
// endBatch waits until it does, so that nothing more is read. While calls of this side wait for
// replies of the peer, that wait could last for ever, because the peer may do the same. So the
// reading then goes on, and handlers wait with their replies on their own goroutines. It returns
// false when the connection has ended.
func (rd *reader) endBatch() bool {
	c := rd.c
	rd.clock = 0    // the reading may be stale after a wait
	if !c.preface { // a peer of another protocol gets no frames
		return true
	}
	c.mu.Lock()
	rd.appendRepliesLocked()
	answered, limit := rd.answered, c.cfg.MaxUnsent
	rd.quiet = c.inOpen == 0 && c.open <= 1
	if !c.countOutLocked() {
		limit = c.highWater()
	}
	rd.answered, rd.outputFull = false, len(c.out) >= limit
	c.flushAndUnlock(false)
	if !answered || !rd.outputFull {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.open == 0 && len(c.out) >= limit || len(c.out) >= limit+unsentGrace {
		if c.awaitFlushRelocking(context.Background(), time.Time{}) != nil {
			break
		}
	}
	rd.outputFull = len(c.out) >= limit
	return c.err == nil
}

// unsentGrace is how many bytes beyond the limit can wait only if the peer ignores its window, so
// that this side refuses its requests all the time.
const unsentGrace = 2 * highWater

func (rd *reader) appendRepliesLocked() {
	if len(rd.replies) == 0 {
		return
	}
	c := rd.c
	// the peer sent all requests of a batch before any of their replies
	c.usedLocked(c.inOpen+rd.inline, c.inBytes)
	if len(c.out) == 0 && !c.flushing && cap(rd.replies) <= keepBuffer {
		c.out, rd.replies = rd.replies, c.out // the buffers are swapped, and nothing is copied
		c.queued += uint64(len(c.out))
	} else {
		c.out = append(c.out, rd.replies...)
		c.queued += uint64(len(rd.replies))
	}
	c.framesOut += rd.nReply
	rd.replies, rd.nReply, rd.since = rd.replies[:0], 0, 0
	c.endDrainedLocked()
}

// A Watch checks the readers that run user code. A reader that is in the same call for two ticks is
// blocked, and another reader takes over. Its timer stops when no user code runs. A server or a
// client has one.
type Watch struct {
	mu sync.Mutex // guards conns and timer; taken before Conn.mu
	// the connections to check, each with the reader state that was last seen
	conns map[*Conn]uint64
	timer *time.Timer
}

// tick is short enough that a blocked handler delays other calls by about 1 ms. It is long enough
// that the checks cost nothing measurable.
const tick = 750 * time.Microsecond

// NewWatch returns a Watch. It uses a timer only while there are connections to check.
func NewWatch() *Watch { return &Watch{conns: make(map[*Conn]uint64)} }

// joinWatch adds the connection to its Watch, unless it is there.
func (c *Conn) joinWatch() {
	if c.watched.Load() || !c.watched.CompareAndSwap(false, true) {
		return
	}
	w := c.cfg.Watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = 0
	switch {
	case w.timer == nil:
		w.timer = time.AfterFunc(tick, w.check)
	case len(w.conns) == 1:
		w.timer.Reset(tick)
	}
}

// check is one tick: it checks every connection in conns.
func (w *Watch) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c, seen := range w.conns {
		rd := c.reader.Load()
		state := rd.state.Load()
		switch {
		case state == seen && state&running == 0:
			// No user code ran for a tick. The next call puts the connection back.
			delete(w.conns, c)
			c.watched.Store(false)
			if rd.state.Load() == state || !c.watched.CompareAndSwap(false, true) {
				continue
			}
			// A call has just begun, and relies on the connection being in conns.
		case state == seen:
			c.handOver(rd, state)
		}
		w.conns[c] = state
	}
	if len(w.conns) > 0 {
		w.timer.Reset(tick)
	}
}
