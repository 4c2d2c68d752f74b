// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"math"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/deadlines"
	"github.com/yodel-rpc/yodel/internal/halt"
	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/numbers"
	"github.com/yodel-rpc/yodel/internal/parts"
	"github.com/yodel-rpc/yodel/internal/window"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// call is Conn.Call.
func (co *callsOut) call(ctx context.Context, out *Out, begun []*atomic.Int64) (*Answer, error) {
	c := co.c
	waiters := &c.cfg.Pool.waiters
	w := waiters.Get().(*waiter) //nolint:forcetypeassert // the pool holds nothing else
	w.conn = c
	out.OneWay = false
	done, h := halt.Ends(ctx)
	count(begun)          // not earlier: ctx may panic
	w.bound = done != nil // Halt wakes the caller wherever it waits
	c.reading.probe()
	id, nth, err := co.send(ctx, out, w, nil)
	if err != nil {
		waiters.Put(w)
		return nil, err
	}
	if h != nil {
		w.nth = nth
		h.Await(w, id)
	}
	ended := c.reading.readReply(w, id) || w.wait(done)
	if h != nil {
		h.Await(nil, 0)
	}
	if !ended {
		if w.id.CompareAndSwap(id, 0) {
			ctx = isolate.Context(ctx)
			co.abandon(id, nth, ctx.Err())
			waiters.Put(w) // not earlier: until abandon has returned, the reader may use w, which is in the slot
			return nil, context.Cause(ctx)
		}
		<-w.wake // another goroutine has begun to end the call
	}
	if w.err != nil {
		err := w.err
		w.err = nil
		waiters.Put(w)
		return nil, err
	}
	if err := w.answer.parse(w.buf); err != nil {
		w.answer.Release()
		return nil, err
	}
	return &w.answer, nil
}

// count increments counters.
func count(counters []*atomic.Int64) {
	for _, n := range counters {
		if n != nil {
			n.Add(1)
		}
	}
}

// start is Conn.Start.
func (co *callsOut) start(ctx context.Context, out *Out, to Completer, begun []*atomic.Int64) error {
	c := co.c
	out.OneWay = false
	done := ctx.Done()
	count(begun) // not earlier: ctx may panic
	// out may have been reused when send returns, because the call may have ended
	id, nth, err := co.send(ctx, out, nil, to)
	if err != nil || done == nil {
		return err
	}
	ctx = isolate.Context(ctx)
	// AfterFunc may run code that needs c.mu.
	stop := context.AfterFunc(ctx, func() { co.giveUp(id, nth, ctx.Err(), context.Cause(ctx)) })
	c.mu.Lock()
	s := co.callLocked(id, nth)
	open := s != nil && s.wanted()
	if open {
		s.waiter.stop = stop
	}
	c.mu.Unlock()
	if !open {
		stop()
	}
	return nil
}

// notify is Conn.Notify.
func (co *callsOut) notify(ctx context.Context, out *Out) error {
	if out.fieldsSize()+binary.MaxVarintLen64+len(out.Body)+len(out.Attachment) > maxPart {
		// a request of several frames needs an id, and therefore a slot and a final frame
		return co.follow(ctx, out, discard{})
	}
	out.OneWay = true
	_, _, err := co.send(ctx, out, nil, nil)
	return err
}

// send admits a request and appends it to the output. Either w or to receives the outcome. A
// request with neither of them is a one-way request without an id. Nth is the number of the request
// among all requests that the connection has sent.
func (co *callsOut) send(ctx context.Context, out *Out, w *waiter, to Completer) (id uint32, nth uint64, err error) {
	c := co.c
	var m message
	out.message(&m)
	size := out.counted(&m)
	async, alone := w == nil, w == nil && to == nil

	c.mu.Lock()
	if async {
		out.Began = co.beganLocked()
	}
	if out.sent {
		out.Fields.Parent, out.Fields.Timeout, out.Fields.Metadata, out.Fields.Budget, out.sent = 0, 0, nil, 0, false
	}
	if err := co.admitRelocking(ctx, out, size, async, alone); err != nil {
		c.mu.Unlock()
		return 0, 0, err
	}
	// From here on send does not wait until the request is queued.
	deadline, timeout, err := co.timeLocked(out)
	if err != nil {
		if !alone {
			co.leaveLocked(size, out.nested())
		}
		c.mu.Unlock()
		return 0, 0, err
	}
	out.addFields(&m, timeout)
	lazy := co.lazyLocked()
	lazy.opened++
	nth = lazy.opened
	h := wire.Header{Type: wire.Request, Arg: co.numberLocked(out.Method)}
	if !alone {
		if async {
			w = co.waiterLocked()
			w.to = to
		}
		h.ID = co.takeSlotLocked(w, size)
		id = h.ID
		if deadline != 0 && !out.OneWay { // a one-way call has no caller that waits
			co.slots[wire.Slot(id)].deadline = deadline
			lazy.deadlines.Add(int(wire.Slot(id)), deadline)
			c.lifetime.expireByLocked(deadline)
		}
		c.streams.beginStreamLocked(out, id, m.flags)
	}
	rest := c.writing.appendMessageLocked(h, &m)
	if !alone {
		s := &co.slots[wire.Slot(id)]
		s.oneWay = out.OneWay
		co.sentLocked(s, out.nested(), rest.Size() > 0)
	}
	if async {
		c.reading.startReader()
	}
	switch {
	case rest.Size() > 0:
		co.sendLargeAndUnlock(ctx, out.Deadline, id, nth, m.remainder(rest), m.flags, async)
	case async:
		c.writing.flushLaterAndUnlock()
	default:
		c.writing.flushAndUnlock(co.window.Open() > 1)
	}
	return id, nth, nil
}

// sentLocked records in the slot how far the request was sent. If the connection ends, this decides
// whether the call can be reported as not processed.
func (co *callsOut) sentLocked(s *slot, nested, large bool) {
	s.nested, s.nth, s.end = nested, co.opened, co.c.writing.queued
	if large {
		s.end = math.MaxUint64 // until the last piece is appended
	}
}

// farAway is 146 years. A call whose deadline is at least that far away counts as a call without a
// deadline. A later deadline would overflow in sums, and the wire format could not carry it.
const farAway = maxTimeout * time.Microsecond

// timeLocked returns the deadline of out on the connection's clock, and the microseconds until
// then. Both are 0 if there is no deadline.
func (co *callsOut) timeLocked(out *Out) (deadline int64, timeout uint64, err error) {
	if out.Deadline.IsZero() {
		return 0, 0, nil
	}
	now := int64(out.Now)
	if now == 0 {
		now = co.c.now()
	}
	deadline = int64(monotime.Of(out.Deadline))
	if out.Deadline.Round(0) == out.Deadline { //nolint:staticcheck // not whether they are equal: it has no monotonic reading, and the clock of the wall may have been set
		at := co.c.rt.time()
		deadline = int64(monotime.Of(at) + min(out.Deadline.Sub(at), farAway))
	}
	if deadline <= now {
		return 0, 0, &CallError{Cause: ErrDeadline, NotProcessed: true}
	}
	if deadline >= int64(farAway) || deadline-now >= int64(farAway) {
		return 0, 0, nil
	}
	return deadline, (uint64(deadline-now) + 999) / 1000, nil //nolint:gosec // positive
}

// sendLargeAndUnlock sends the rest of a message that did not fit in the opening frame. It unlocks
// c.mu. The waiter receives the outcome in any case. The caller of an asynchronous call may reuse
// the memory of its message as soon as it has the outcome, even while sendLargeAndUnlock runs. So
// sendLargeAndUnlock copies that memory with c.mu held, after it has checked that the call has no
// outcome yet.
func (co *callsOut) sendLargeAndUnlock(ctx context.Context, deadline time.Time, id uint32, nth uint64, rest parts.Parts, flags wire.Flags, async bool) {
	c := co.c
	h := wire.Header{Type: wire.Data, Flags: flags & wire.HasChecksum, ID: id}
	err := c.writing.sendRestAndUnlock(ctx, deadline, h, rest, async, func(size int, last bool) bool {
		s := co.callLocked(id, nth)
		if s == nil || !s.wanted() {
			return false
		}
		if last {
			s.end = c.writing.queued + uint64(size)
		}
		return true
	})
	if err != nil { // ctx or the deadline has ended: the call is canceled, as during a wait
		why := isolate.Context(ctx).Err()
		if why == nil {
			why = err
		}
		co.giveUp(id, nth, why, err)
	}
}

// numberLocked returns the number of m on this connection. It announces a new number to the peer.
func (co *callsOut) numberLocked(m *Method) uint16 {
	if n, ok := co.numbers.Of(m.Handle, m.Generation); ok {
		return n
	}
	return co.announceLocked(m)
}

func (co *callsOut) announceLocked(m *Method) uint16 {
	n, id := co.lazyLocked().numbers.Give(m.Handle, m.Generation, int(co.maxNum))
	b := wire.Binding{Name: []byte(m.Name), Codec: []byte(m.Codec), Compressor: []byte(m.Compressor), Kind: m.Kind}
	if m.Positional {
		b.Positional = 1
	}
	if m.Idempotent {
		b.Idempotent = 1
	}
	co.c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendMethod(dst, n, id, &b) })
	return n
}

// timedStarts is how many calls of a batch share one reading of the clock in Out.Began.
const timedStarts = 32

// beganLocked returns approximately when an asynchronous call begins: the time at which the first
// call of its batch began. It does not read the clock for every call, because that would take up to
// a tenth of the time that it takes to start one.
func (co *callsOut) beganLocked() time.Duration {
	if len(co.c.writing.out) == 0 || co.opened%timedStarts == 0 {
		co.lazyLocked().batchBegan = co.c.rt.clock()
	}
	return co.batchBegan
}

// callsOut is the role of the calls that this side opens: the peer's window, the slots of open
// calls, the queue of callers that wait for the window, deadlines, and the waiters that receive the
// outcome.
//
// callsOut appends requests to the output, sets the time of the next housekeeping, and begins and
// ends the streams of its calls.
type callsOut struct {
	c *Conn
	*lazyCallsOut
	flooded bool  // calls fail because this side cannot read their replies, see failFloodedRelocking
	maxNum  int32 // how many method numbers the peer accepts
	window  window.Window
}

// lazyCallsOut is the part of callsOut that is allocated with the first call.
type lazyCallsOut struct {
	opened    uint64 // requests ever sent
	slots     []slot
	free      []uint32        // slots not in use
	numbers   numbers.Table   // of the methods
	deadlines deadlines.Index // of slots

	idleWaiters []*waiter     // for asynchronous calls
	batchBegan  time.Duration // see beganLocked
}

// noCallsOut is shared by all connections that have sent no call. Nothing changes it.
var noCallsOut = new(lazyCallsOut)

// lazyLocked returns the lazy part for writing to it.
func (co *callsOut) lazyLocked() *lazyCallsOut { return ownPart(&co.lazyCallsOut, noCallsOut) }

// follow is Conn.Follow.
func (co *callsOut) follow(ctx context.Context, out *Out, to Completer) error {
	out.OneWay = true
	_, _, err := co.send(ctx, out, nil, to)
	return err
}

func (co *callsOut) onMethodInfo(h wire.Header, payload []byte) bool {
	c := co.c
	var info wire.Info
	if err := wire.ParseMethodInfo(payload, &info); err != nil {
		c.lifetime.breach("broken method information: " + err.Error())
		return false
	}
	if c.cfg.Learned == nil {
		return true
	}
	c.mu.Lock()
	handle, generation, ok := co.numbers.Method(h.Arg, h.ID)
	c.mu.Unlock()
	if ok {
		c.cfg.Learned(c, handle, generation, info)
	}
	return true
}

func (co *callsOut) onCredit(h wire.Header, payload []byte) bool {
	c := co.c
	var w wire.Window
	if err := wire.ParseCredit(payload, &w); err != nil {
		c.lifetime.breach("broken credit: " + err.Error())
		return false
	}
	c.mu.Lock()
	if h.ID != 0 {
		if st := c.streams.streamLocked(h); st != nil {
			st.sending.creditedLocked(w.StreamBytes)
		}
		c.mu.Unlock()
		return true
	}
	co.setWindowLocked(w.MaxOpen, w.MaxOpenBytes)
	co.admitNextLocked()
	c.mu.Unlock()
	return true
}

// notProcessedLocked reports whether the peer certainly did not execute the call in s: either the
// last byte of the request was never passed to a write, or the peer refused it with its drain
// notice.
func (co *callsOut) notProcessedLocked(s *slot) bool {
	c := co.c
	// A draining peer still executes one-way requests and requests that serve its own calls.
	return s.end > c.writing.taken || (c.lifetime.drained != nil && s.nth > c.lifetime.accepted && !s.oneWay && !s.nested)
}

// A failedCall is a waiter whose call has failed, and the error for it.
type failedCall struct {
	w   *waiter
	err error
}

// endAllLocked frees all slots when the connection has ended with err. It returns the waiters,
// which the caller fails without the lock.
func (co *callsOut) endAllLocked(err error) (calls []failedCall) {
	for i := range co.slots {
		s := &co.slots[i]
		if w := s.waiter; w != nil && w.id.CompareAndSwap(s.id, 0) {
			calls = append(calls, failedCall{w, &CallError{Cause: err, NotProcessed: co.notProcessedLocked(s)}})
		}
		if s.taken {
			co.freeSlotLocked(s)
		}
	}
	return calls
}

// trimLocked drops memory that an idle connection does not need.
func (co *callsOut) trimLocked() {
	if co.lazyCallsOut != noCallsOut {
		co.idleWaiters, co.deadlines = nil, deadlines.Index{}
	}
}
