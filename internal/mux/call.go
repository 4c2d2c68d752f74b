// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Method is a method that callers call. Each connection gives it a number.
type Method struct {
	// Handle distinguishes the methods of one owner. Handles are small, because they index a slice.
	Handle     int
	Name       string
	Codec      string
	Compressor string
	Kind       uint64 // as in wire
	Positional bool
	Idempotent bool
}

// A numbering is the number that one connection has given to a Method.
type numbering struct {
	number uint16
	known  bool
	id     uint32 // of the Method frame, which the peer's MethodInfo repeats
}

// Out is a request that this side sends. The caller must not change Body and Attachment until Call
// or Start has returned. Frames that are written after that are copies.
//
// The fields that every call sets come first, and rarely set ones last. A reused Out moves between
// the processor of the caller and that of the reader, so fewer cache lines move.
type Out struct {
	Method     *Method
	Body       []byte
	Metadata   []byte // pairs, see wire.AppendPair
	Budget     uint64 // the budget of attempts
	Bare       bool   // no other field is set, so the connection does not check them
	Compressed bool
	Checksum   bool
	OneWay     bool // set by Notify and Follow
	NoWait     bool // fail immediately instead of waiting for the peer's window
	// Name the peer's request that the context belongs to, if it is open. A draining peer accepts
	// such a request.
	Nest  bool
	sent  bool          // the connection has set Fields
	Began time.Duration // set by Start: approximately when the call began, see Clock
	// set by Call, Start, Notify and Follow: the time spent waiting for the peer's window and for
	// space in the output
	Waited     time.Duration
	Deadline   time.Time
	Now        time.Duration // a fresh reading of Clock; 0 for none
	Attachment []byte
	Stream     *Stream     // the stream to open, for a method of a streaming kind; only with Start
	Fields     wire.Fields // the connection sets Timeout, Metadata, Budget and Parent
}

// nested reports whether out was sent beyond the window, see nested.go.
func (out *Out) nested() bool { return out.sent && out.Fields.Parent != 0 }

// Reset clears out for the next request.
func (out *Out) Reset() {
	if !out.Bare || out.sent {
		out.Fields, out.Bare, out.sent = wire.Fields{}, true, false
	}
	out.Body, out.Compressed, out.OneWay, out.Nest = nil, false, false, false
	if out.Waited != 0 {
		out.Waited = 0
	}
	if out.Attachment != nil || out.Metadata != nil || out.Now != 0 || out.Budget != 0 {
		out.Attachment, out.Metadata, out.Now, out.Budget = nil, nil, 0, 0
	}
}

// A Completer receives the outcome of an asynchronous call. The Answer is valid until Complete
// returns. If there is a reply, Complete runs on the reader goroutine. If it blocks there, another
// goroutine takes over the reading. If there is no reply, Complete runs on its own goroutine.
type Completer interface {
	Complete(a *Answer, err error)
}

// An Answer is the reply to a call.
type Answer struct {
	Code       uint16 // 0 for success
	Flags      wire.Flags
	Fields     []byte
	Body       []byte
	Attachment []byte
	// approximately when the reply was read, on Clock; 0 for a reply to a stream
	At time.Duration

	waiter *waiter
	own    bool // the memory belongs to this message alone
}

// Keep passes ownership of Body, Attachment and Fields to the caller if their memory belongs to
// this message alone. It reports whether it does.
func (a *Answer) Keep() bool {
	own := a.own
	if own {
		a.own = false
		if a.waiter != nil {
			a.waiter.buf = nil
		}
	}
	return own
}

// Release releases the memory of an answer that Call returned.
func (a *Answer) Release() {
	w := a.waiter
	if a.own {
		giveMemory(w.buf)
		a.own, w.buf = false, nil
	}
	w.conn.cfg.Pool.waiters.Put(w)
}

// A slot is an entry in the table of calls that this side opened. It is taken from the request
// until the final frame has arrived, even if the caller no longer waits. So an id is not reused too
// early. Conn.mu guards it.
type slot struct {
	id     uint32 // of the current call; of the previous call while the slot is free
	taken  bool
	nested bool    // the request was sent beyond the window, see nested.go
	waiter *waiter // nil when the caller no longer waits
	bytes  int     // counted in openBytes
	end    uint64  // offset behind the last byte of the request in the connection's output
	nth    uint64  // the number of the request among all that the connection sent
	oneWay bool
	part   *collector
	stream *Stream
}

// A waiter waits for a call to end. It stands for a goroutine with a channel, or for a Completer.
//
// The fields that a Completer needs are in the first 64 bytes. They move between the processor of
// the caller and that of the reader.
type waiter struct {
	// id is the id of the call that is waited for. The goroutine that swaps it to 0 decides how the
	// call ends: the reader with the reply, the caller that cancels, the housekeeping timer with
	// the deadline, or endAndUnlock.
	id atomic.Uint32
	// the caller has canceled, and to only wants to learn of the end, see Follower
	late     bool
	bound    bool          // the call's context can end
	to       Completer     // receives the outcome in place of wake
	deadline int64         // on the connection's clock; 0 for none
	stop     func() bool   // stops the context.AfterFunc of an asynchronous call; nil for none
	wake     chan struct{} // capacity 1: one signal per call
	conn     *Conn
	nth      uint64 // as in slot; set while a halter may call Halt
	buf      []byte // the reply's frame
	answer   Answer
	err      error
}

func newWaiter() any {
	w := &waiter{wake: make(chan struct{}, 1)}
	w.answer.waiter = w
	return w
}

// A ticket is an entry in the queue of callers that wait for the peer's window. Conn.mu guards it.
type ticket struct {
	nth      uint64 // the ticket's number among all tickets
	wake     chan struct{}
	bytes    int
	admitted bool // space in the window is taken for it
	flooded  bool // failFloodedRelocking removed it from the queue
}

// Call sends a request and waits for the answer, which the caller must Release. Call returns as
// soon as ctx ends or the deadline passes, and tells the peer.
func (c *Conn) Call(ctx context.Context, out *Out) (*Answer, error) {
	waiters := &c.cfg.Pool.waiters
	w := waiters.Get().(*waiter) //nolint:forcetypeassert // the pool holds nothing else
	w.conn = c
	out.OneWay = false
	done, h := ends(ctx)
	w.bound = done != nil // Halt wakes it wherever it waits
	c.probe()
	id, nth, err := c.send(ctx, out, w, nil)
	if err != nil {
		waiters.Put(w)
		return nil, err
	}
	if h != nil {
		w.nth = nth
		h.Await(w, id)
	}
	ended := c.readReply(w, id) || w.wait(done)
	if h != nil {
		h.Await(nil, 0)
	}
	if !ended {
		if w.id.CompareAndSwap(id, 0) {
			c.abandon(id, nth, ctx.Err())
			waiters.Put(w) // not earlier: until then w is in the slot, where the reader looks at it
			return nil, context.Cause(ctx)
		}
		<-w.wake // the call is about to end
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

// A halter is a cancelable context without a channel: canceling it calls Halt on the connection in
// place of closing Done. It ends with its outer context too. It suits contexts that are created for
// each of many calls, where a channel, and a goroutine to close it, would cost too much.
type halter interface {
	// Outer returns Done of the outer context.
	Outer() <-chan struct{}
	// Await names the call to halt, and halts it at once if the context has ended. A nil conn names
	// no call. Await waits until a running Halt has returned, so that conn is not used afterwards.
	Await(conn interface{ Halt(id uint32) }, id uint32)
}

// ends returns the channel that ends ctx, and ctx as a halter if it is one.
func ends(ctx context.Context) (done <-chan struct{}, h halter) {
	if h, ok := ctx.(halter); ok {
		return h.Outer(), h
	}
	return ctx.Done(), nil
}

// Halt cancels w's call if it has not ended. See halter.
func (w *waiter) Halt(id uint32) { w.conn.giveUp(id, w.nth, context.Canceled, context.Canceled) }

// wait waits for the end of the call. It returns false if the call's context ends first.
func (w *waiter) wait(done <-chan struct{}) bool {
	if done == nil {
		<-w.wake // faster than a select
		return true
	}
	select {
	case <-w.wake:
		return true
	case <-done:
		return false
	}
}

// Start sends a request and returns. Unless Start returns an error, to receives the outcome of the
// call. Start waits only while the peer's window or the connection's output is full, and until ctx
// ends at most.
func (c *Conn) Start(ctx context.Context, out *Out, to Completer) error {
	out.OneWay = false
	// out may have been reused when send returns, because the call may have ended
	id, nth, err := c.send(ctx, out, nil, to)
	if err != nil || ctx.Done() == nil {
		return err
	}
	// AfterFunc may run code that needs c.mu.
	stop := context.AfterFunc(ctx, func() { c.giveUp(id, nth, ctx.Err(), context.Cause(ctx)) })
	c.mu.Lock()
	s := c.callLocked(id, nth)
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

// Notify sends a one-way request. It waits while the connection's output is full.
func (c *Conn) Notify(ctx context.Context, out *Out) error {
	if out.fieldsSize()+binary.MaxVarintLen64+len(out.Body)+len(out.Attachment) > maxPart {
		// several frames need an id, and therefore a slot and a final frame
		return c.Follow(ctx, out, discard{})
	}
	out.OneWay = true
	_, _, err := c.send(ctx, out, nil, nil)
	return err
}

// discard is a Completer that drops the outcome.
type discard struct{}

func (discard) Complete(*Answer, error) {}

// message returns the message of the request.
func (out *Out) message() message {
	m := message{body: out.Body, attachment: out.Attachment}
	if out.Compressed {
		m.flags |= wire.Compressed
	}
	if out.Checksum {
		m.flags |= wire.HasChecksum
	}
	if out.OneWay {
		m.flags |= wire.OneWay
	}
	return m
}

// fieldsSize is an upper bound of the bytes that are sent in addition to body and attachment.
func (out *Out) fieldsSize() int { return wire.FieldsSize(&out.Fields) + len(out.Metadata) }

// addFields adds the fields of the request to its message. Timeout is the time until the deadline,
// in microseconds.
func (out *Out) addFields(m *message, timeout uint64) {
	if !out.sent && (out.Bare || out.Fields.OnlyUsual()) {
		m.timeout, m.metadata, m.budget = timeout, out.Metadata, out.Budget
		return
	}
	m.fields, out.sent = &out.Fields, true
	m.fields.Timeout, m.fields.Metadata, m.fields.Budget = timeout, out.Metadata, out.Budget
}

// counted returns how many bytes a request counts in the window. A stream may be open for ever, so
// the opening request of a stream counts only if it takes more than one frame.
func (out *Out) counted(m *message) int {
	if m.simple() && out.Stream == nil {
		return len(m.body)
	}
	_, size := m.pieces()
	if out.Stream != nil && out.fieldsSize()+size <= maxPart {
		return 0
	}
	return size
}

// send admits a request and appends it to the output. W or to receives the outcome. A request
// without either is a one-way request without an id. Nth is the number of the request among all
// that the connection has sent.
func (c *Conn) send(ctx context.Context, out *Out, w *waiter, to Completer) (id uint32, nth uint64, err error) {
	m := out.message()
	size := out.counted(&m)
	async, alone := w == nil, w == nil && to == nil

	c.mu.Lock()
	if async {
		out.Began = c.beganLocked()
	}
	if out.sent {
		out.Fields.Parent, out.Fields.Timeout, out.Fields.Metadata, out.Fields.Budget, out.sent = 0, 0, nil, 0, false
	}
	if err := c.admitRelocking(ctx, out, size, async, alone); err != nil {
		c.mu.Unlock()
		return 0, 0, err
	}
	// From here on send does not wait until the request is queued.
	deadline, timeout, err := c.timeLocked(out)
	if err != nil {
		if !alone {
			c.leaveLocked(size, out.nested())
		}
		c.mu.Unlock()
		return 0, 0, err
	}
	out.addFields(&m, timeout)
	c.opened++
	nth = c.opened
	h := wire.Header{Type: wire.Request, Arg: c.numberLocked(out.Method)}
	if !alone {
		if async {
			w = c.waiterLocked()
			w.to = to
		}
		h.ID = c.takeSlotLocked(w, size)
		w.deadline, id = 0, h.ID
		if deadline != 0 && !out.OneWay { // a one-way call has no caller that waits
			w.deadline = deadline
			c.housekeepByLocked(deadline)
		}
		c.beginStreamLocked(out, id, m.flags)
	}
	rest := c.appendMessageLocked(h, &m)
	large := rest.size() > 0
	if !alone {
		s := &c.slots[wire.Slot(id)]
		s.oneWay = out.OneWay
		c.sentLocked(s, out.nested(), large)
	}
	if async {
		c.startReader()
	}
	switch {
	case large:
		c.sendLargeAndUnlock(ctx, out.Deadline, id, nth, m.remainder(rest), m.flags, async)
	case async:
		c.flushLaterAndUnlock()
	default:
		c.flushAndUnlock(c.open > 1)
	}
	return id, nth, nil
}

// sentLocked records in the slot what decides about the call if the connection ends.
func (c *Conn) sentLocked(s *slot, nested, large bool) {
	s.nested, s.nth, s.end = nested, c.opened, c.queued
	if large {
		s.end = math.MaxUint64 // until the last piece is appended
	}
}

// farAway is the distance from which a deadline counts as none, 146 years. With a later deadline,
// sums would overflow, and the wire format could not carry it.
const farAway = maxTimeout * time.Microsecond

// timeLocked returns the deadline of out on the connection's clock, and the microseconds until
// then. Both are 0 if there is no deadline.
func (c *Conn) timeLocked(out *Out) (deadline int64, timeout uint64, err error) {
	if out.Deadline.IsZero() {
		return 0, 0, nil
	}
	now := int64(out.Now)
	if now == 0 {
		now = c.now()
	}
	deadline = int64(out.Deadline.Sub(birth))
	if out.Deadline.Round(0) == out.Deadline { //nolint:staticcheck // not whether they are equal: it has no monotonic reading, and the clock of the wall may have been set
		at := time.Now()
		deadline = int64(at.Sub(birth) + min(out.Deadline.Sub(at), farAway))
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
// its memory as soon as it has the outcome, even while sendLargeAndUnlock runs. So that memory is
// copied with c.mu held, after a check that the outcome is still open.
func (c *Conn) sendLargeAndUnlock(ctx context.Context, deadline time.Time, id uint32, nth uint64, rest pieces, flags wire.Flags, async bool) {
	h := wire.Header{Type: wire.Data, Flags: flags & wire.HasChecksum, ID: id}
	err := c.sendRestAndUnlock(ctx, deadline, h, rest, async, func(size int, last bool) bool {
		s := c.callLocked(id, nth)
		if s == nil || !s.wanted() {
			return false
		}
		if last {
			s.end = c.queued + uint64(size)
		}
		return true
	})
	if err != nil { // ctx or the deadline has ended: the call is canceled, as during a wait
		why := ctx.Err()
		if why == nil {
			why = err
		}
		c.giveUp(id, nth, why, err)
	}
}

// admitRelocking waits until the peer's window has room for a request of size bytes, and takes that
// room. Requests are admitted in order of arrival. It may unlock c.mu while it waits, and returns
// with c.mu held.
func (c *Conn) admitRelocking(ctx context.Context, out *Out, size int, async, alone bool) error {
	switch {
	case c.err != nil, c.drained != nil && alone:
		return c.refusedLocked()
	case c.drained != nil, out.Nest && !alone:
		return c.admitSlowlyRelocking(ctx, out, size)
	}
	limit := c.cfg.MaxUnsent
	if async {
		limit = c.highWater()
	}
	if len(c.out) >= limit {
		out.Now = 0 // the reading is stale after a wait
		if out.NoWait {
			return &CallError{Cause: ErrWindow, NotProcessed: true}
		}
		began := Clock()
		err := c.awaitSpaceRelocking(ctx, out.Deadline, limit)
		out.Waited += Clock() - began
		if err != nil {
			return c.notSentLocked(err, AwaitedOutput)
		}
		if c.drained != nil && alone {
			return c.refusedLocked()
		}
	}
	if alone {
		return nil
	}
	if c.mayEnterLocked(size) {
		c.enterLocked(size)
		return nil
	}
	return c.admitSlowlyRelocking(ctx, out, size)
}

// mayEnterLocked reports whether a request of size bytes may be sent now, with an empty queue.
func (c *Conn) mayEnterLocked(size int) bool {
	return len(c.admission) == 0 && c.drained == nil && !c.flooded && c.fitsLocked(size)
}

// admitSlowlyRelocking is admitRelocking for a request that may have to wait. It unlocks c.mu
// meanwhile. A request that serves a call of the peer must not wait for earlier requests. They may
// be its ancestors, and those end after it.
func (c *Conn) admitSlowlyRelocking(ctx context.Context, out *Out, size int) error {
	out.Now = 0 // the reading is stale after a wait
	c.mu.Unlock()
	serving := c.serving(ctx) // it may run code that needs c.mu
	c.mu.Lock()
	nested := serving != nil && c.isOpenLocked(serving)
	switch {
	case c.err != nil:
		return c.refusedLocked()
	case c.mayEnterLocked(size) && (!out.Nest || !nested):
		c.enterLocked(size)
		return nil
	case c.flooded:
		return &CallError{Cause: ErrFlooded, NotProcessed: true}
	case nested:
		return c.nestLocked(out, size, serving.id)
	case c.drained != nil:
		return c.refusedLocked()
	case out.NoWait:
		return &CallError{Cause: ErrWindow, NotProcessed: true}
	}
	c.callsLocked().tickets++
	t := &ticket{nth: c.tickets, wake: make(chan struct{}, 1), bytes: size}
	c.admission = append(c.admission, t)
	began := Clock()
	err := c.queueRelocking(ctx, t, out.Deadline)
	out.Waited += Clock() - began
	return err
}

// nestLocked sends a request beyond the peer's window. The peer accepts it because this side is
// working on the peer's own call, parent. It never waits, so that an endless recursion of calls
// fails.
func (c *Conn) nestLocked(out *Out, size int, parent uint32) error {
	if c.nested >= extraOpen(c.mostOpen) || c.open >= maxSlots(c.mostOpen) || c.nested > 0 && c.nestedBytes+size > extraBytes(c.mostBytes) {
		return &CallError{Cause: ErrWindow, NotProcessed: true}
	}
	c.enterLocked(size)
	calls := c.callsLocked()
	calls.nested++
	calls.nestedBytes += size
	out.Fields.Parent, out.sent = uint64(parent), true
	return nil
}

// queueRelocking waits until t is admitted. It unlocks c.mu while it waits.
func (c *Conn) queueRelocking(ctx context.Context, t *ticket, deadline time.Time) error {
	c.passOnReadingRelocking()
	err := c.waitRelocking(ctx, deadline, t.wake)
	for t.admitted && !t.flooded && err == nil && c.err == nil && c.drained == nil {
		if bytes := c.openBytes - c.nestedBytes; c.open-c.nested <= c.maxOpen && (bytes <= c.maxBytes || bytes == t.bytes) {
			return nil
		}
		c.requeueLocked(t) // the window has shrunk meanwhile
		err = c.waitRelocking(ctx, deadline, t.wake)
	}
	if t.flooded && err == nil && c.err == nil {
		return &CallError{Cause: ErrFlooded, NotProcessed: true}
	}
	if t.admitted {
		c.leaveLocked(t.bytes, false)
		c.endDrainedLocked()
	}
	for i, other := range c.admission {
		if other == t {
			c.admission = append(c.admission[:i], c.admission[i+1:]...)
			c.admitNextLocked()
			break
		}
	}
	return c.notSentLocked(err, AwaitedWindow)
}

// requeueLocked returns t's room in the window, and puts t back in its place in the queue.
func (c *Conn) requeueLocked(t *ticket) {
	t.admitted = false
	c.open--
	c.openBytes -= t.bytes
	i := 0
	for i < len(c.admission) && c.admission[i].nth < t.nth {
		i++
	}
	c.admission = slices.Insert(c.admission, i, t)
	c.admitNextLocked()
}

// notSentLocked returns why a request was not sent: err, or the end of the connection.
func (c *Conn) notSentLocked(err error, awaited Awaited) error {
	if err == nil || c.err != nil {
		return c.refusedLocked()
	}
	return &CallError{Cause: err, NotProcessed: true, Awaited: awaited}
}

func (c *Conn) refusedLocked() error {
	err := c.err
	if err == nil {
		err = c.drained
	}
	return &CallError{Cause: err, NotProcessed: true}
}

// fitsLocked reports whether a request of size bytes may be sent now. A request that is larger than
// the whole window may be sent when no other request has bytes in the window.
func (c *Conn) fitsLocked(size int) bool {
	open, bytes := c.open-c.nested, c.openBytes-c.nestedBytes
	return open < c.maxOpen && c.open < maxSlots(c.mostOpen) && (bytes+size <= c.maxBytes || bytes == 0)
}

func (c *Conn) enterLocked(size int) {
	c.open++
	c.openBytes += size
	// The first open call gives a waiting reader something to read: see endBatch and
	// awaitRequestRoomRelocking.
	if c.open > 1 {
		return
	}
	if c.space != nil {
		close(c.space)
		c.space = nil
	}
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

func (c *Conn) leaveLocked(size int, nested bool) {
	c.open--
	c.openBytes -= size
	if nested {
		c.nested--
		c.nestedBytes -= size
	}
	if len(c.admission) > 0 {
		c.admitNextLocked()
	}
}

// admitNextLocked admits queued callers while the window has room. Once this side sends no more
// requests, it wakes all of them.
func (c *Conn) admitNextLocked() {
	for len(c.admission) > 0 {
		t := c.admission[0]
		if c.flooded {
			return
		}
		if c.drained == nil && c.err == nil {
			if !c.fitsLocked(t.bytes) {
				return
			}
			c.enterLocked(t.bytes)
			t.admitted = true
		}
		c.admission = c.admission[1:]
		t.wake <- struct{}{}
	}
}

// numberLocked returns the number of m on this connection. It announces a new number to the peer.
func (c *Conn) numberLocked(m *Method) uint16 {
	c.callsLocked()
	if m.Handle >= len(c.numbers) {
		c.numbers = append(c.numbers, make([]numbering, m.Handle+1-len(c.numbers))...)
	}
	n := &c.numbers[m.Handle]
	if n.known {
		return n.number
	}
	if int(c.nextNum) >= int(c.maxNum) { // start over: the newest meaning of a number applies
		clear(c.numbers)
		c.nextNum = 0
	}
	c.announced++
	*n = numbering{number: c.nextNum, known: true, id: c.announced}
	c.nextNum++
	binding := wire.Binding{Name: []byte(m.Name), Codec: []byte(m.Codec), Compressor: []byte(m.Compressor), Kind: m.Kind}
	if m.Positional {
		binding.Positional = 1
	}
	if m.Idempotent {
		binding.Idempotent = 1
	}
	c.appendLocked(func(dst []byte) []byte { return wire.AppendMethod(dst, n.number, n.id, &binding) })
	return n.number
}

func (c *Conn) takeSlotLocked(w *waiter, size int) uint32 {
	c.callsLocked()
	var i uint32
	if n := len(c.free); n > 0 {
		i = c.free[n-1]
		c.free = c.free[:n-1]
	} else {
		i = uint32(len(c.slots)) //nolint:gosec // below MaxSlots: maxSlots is
		c.slots = append(c.slots, slot{id: i})
	}
	s := &c.slots[i]
	s.id = wire.NextID(s.id)
	s.taken, s.waiter, s.bytes = true, w, size
	w.id.Store(s.id)
	return s.id
}

// freeSlotLocked frees the slot of a call that has ended, and its room in the window.
func (c *Conn) freeSlotLocked(s *slot) {
	s.part.dropLocked()
	s.taken, s.waiter, s.part = false, nil, nil
	c.dropStreamLocked(s)
	c.free = append(c.free, wire.Slot(s.id))
	c.leaveLocked(s.bytes, s.nested)
}

// dropStreamLocked ends the stream of a call that is closed or canceled.
func (c *Conn) dropStreamLocked(s *slot) {
	if s.stream != nil {
		s.stream.endLocked(errStreamEnded)
		s.stream = nil
	}
}

// callLocked returns the slot of the nth request that this side sent, or nil if that call is
// closed. Callers that released c.mu since they saw the call open use it in place of slotLocked,
// because an id is reused after 4095 calls in the same slot.
func (c *Conn) callLocked(id uint32, nth uint64) *slot {
	if s := c.slotLocked(id); s != nil && s.nth == nth {
		return s
	}
	return nil
}

// abandon removes the waiter of a call that its caller has canceled, and sends a Cancel frame to
// the peer. The slot stays taken until the final frame arrives.
func (c *Conn) abandon(id uint32, nth uint64, why error) {
	c.mu.Lock()
	if c.callLocked(id, nth) != nil {
		c.abandonLocked(id, why)
	}
	c.flushAndUnlock(c.open > 1)
}

func (c *Conn) abandonLocked(id uint32, why error) {
	s := c.slotLocked(id)
	if s == nil || c.err != nil {
		return
	}
	s.waiter = nil
	if s.part != nil {
		s.part.dropLocked()
		s.part = unwanted
	}
	c.dropStreamLocked(s)
	code := catalogue.Canceled
	if isDeadline(why) {
		code = catalogue.DeadlineExceeded
	}
	start := c.beginLocked(wire.Header{Type: wire.Cancel, Arg: code, ID: id})
	c.finishLocked(start)
}

// giveUp ends a call with err for its waiter. Why determines the code in the Cancel frame.
func (c *Conn) giveUp(id uint32, nth uint64, why, err error) {
	c.mu.Lock()
	s := c.callLocked(id, nth)
	if s == nil || !s.wanted() || !s.waiter.id.CompareAndSwap(id, 0) {
		c.mu.Unlock()
		return
	}
	w := s.waiter
	c.abandonLocked(id, why)
	c.followLocked(id, w.to)
	c.flushAndUnlock(c.open > 1)
	w.fail(err)
}

// fail ends the wait with an error. The caller must have swapped w.id to 0. A Completer may block,
// so it runs on its own goroutine.
func (w *waiter) fail(err error) {
	if w.to == nil {
		w.err = err
		w.conn.wakeSleeper(w)
		w.wake <- struct{}{}
		return
	}
	go func() {
		if w.stop != nil {
			w.stop()
		}
		w.to.Complete(nil, err)
	}()
}

// waiterLocked returns a waiter for a Completer. These waiters are on a free list under c.mu, which
// costs nothing extra while c.mu is held. One goroutine sends such calls and another completes
// them, and a sync.Pool is slow at moving objects from one processor to another.
func (c *Conn) waiterLocked() *waiter {
	n := len(c.idleWaiters)
	if n == 0 {
		return new(waiter)
	}
	w := c.idleWaiters[n-1]
	c.idleWaiters = c.idleWaiters[:n-1]
	return w
}

// maxIdleWaiters bounds the free list of waiters.
const maxIdleWaiters = 1024

// idleWaiterLocked puts a waiter on the free list. Its id must have been swapped to 0.
func (c *Conn) idleWaiterLocked(w *waiter) {
	w.to, w.stop, w.late = nil, nil, false
	if len(c.idleWaiters) < maxIdleWaiters {
		c.idleWaiters = append(c.idleWaiters, w)
	}
}

// parse splits the frame of a reply, or the header and the collected message of a large reply.
func (a *Answer) parse(frame []byte) error {
	h := wire.ParseHeader(frame)
	payload, err := wire.Payload(frame)
	if err == nil {
		var msg []byte
		a.Fields, msg, err = wire.SplitFields(h.Flags, payload)
		if err == nil {
			a.Body, a.Attachment, err = wire.SplitBody(h.Flags, msg)
		}
	}
	if err != nil {
		return &BrokenError{Cause: err}
	}
	a.Code, a.Flags = h.Arg, h.Flags
	return nil
}

// birth is the zero of Clock and Conn.now. It is one nanosecond before the start, so that they are
// never 0.
var birth = time.Now().Add(-1)

// Clock returns the time since the program began. It reads the monotonic clock once, for half of
// the cost of time.Now.
func Clock() time.Duration { return time.Since(birth) }

// TimeOf converts a reading of Clock to a time. Its monotonic part is exact. Its wall clock part is
// computed from the program's start, so that the wall clock is not read.
func TimeOf(reading time.Duration) time.Time { return birth.Add(reading) }

// timedStarts is how many calls of a batch share one reading of the clock in Out.Began.
const timedStarts = 32

// beganLocked returns approximately when an asynchronous call begins: when the first call of its
// batch began. Reading the clock takes up to a tenth of the time that starting such a call takes.
func (c *Conn) beganLocked() time.Duration {
	if len(c.out) == 0 || c.opened%timedStarts == 0 {
		c.batchBegan = Clock()
	}
	return c.batchBegan
}

// now returns Clock in nanoseconds.
func (c *Conn) now() int64 { return int64(Clock()) }

const never = math.MaxInt64

func isDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDeadline)
}
