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

// A Method is what a caller calls on connections: it gets a number on each one.
type Method struct {
	// Handle tells methods of one owner apart. Handles are small: they index a slice.
	Handle     int
	Name       string
	Codec      string
	Compressor string
	Kind       uint64 // as in wire
	Positional bool
	Idempotent bool
}

// A numbering is what one connection knows of a Method.
type numbering struct {
	number uint16
	known  bool
	id     uint32 // of the Method frame, which the answer repeats
}

// Out is a request on its way out. The caller keeps body and attachment unchanged until Call or
// Start has returned; what is written later is a copy.
//
// What every call sets comes first, and what few do last: an Out that is used again goes from the
// processor of who calls to that of who reads, and back.
type Out struct {
	Method     *Method
	Body       []byte
	Metadata   []byte // pairs, see wire.AppendPair
	Budget     uint64 // of attempts
	Bare       bool   // no other field is set: the connection need not look for one
	Compressed bool
	Checksum   bool
	OneWay     bool // set by Notify and its like
	NoWait     bool // fail at once instead of waiting for the peer's window
	// name the peer's request that the context belongs to, if it is open: the peer lets it in while
	// it drains
	Nest       bool
	sent       bool          // the connection has set fields itself
	Began      time.Duration // set by Start: about when it was, see Clock
	Waited     time.Duration // set by Call and its like: for the peer's window, and for room in the output
	Deadline   time.Time
	Now        time.Duration // a fresh reading of Clock; 0 for none
	Attachment []byte
	Stream     *Stream     // to be opened, for a method of a kind that has one; with Start only
	Fields     wire.Fields // without Timeout, Metadata, Budget and Parent, which the connection sets
}

// nested reports whether out was sent beyond the window, see nested.go.
func (out *Out) nested() bool { return out.sent && out.Fields.Parent != 0 }

// Reset makes out the request of nothing.
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

// A Completer is told how an asynchronous call ended. Answer is valid until Complete returns. With
// a reply it runs on the reading goroutine: when it blocks, the reading is handed to another one.
// Without one it runs on a goroutine of its own.
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
	At         time.Duration // about when it was read, on Clock; 0 for one of a stream

	waiter *waiter
	own    bool // the memory is for this message only
}

// Keep gives Body, Attachment and Fields to the caller for good, if they are in memory for this
// message only, and reports whether they are.
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

// Release gives back the memory of an answer that Call returned.
func (a *Answer) Release() {
	w := a.waiter
	if a.own {
		giveMemory(w.buf)
		a.own, w.buf = false, nil
	}
	w.conn.cfg.Pool.waiters.Put(w)
}

// A slot is an entry in the table of calls that this side opened. It is taken from the request
// until the final frame has come, also when nobody waits any more, so that ids are never reused too
// early.
type slot struct {
	id     uint32 // of the call now, or of the one before while the slot is free
	taken  bool
	nested bool    // it went beyond the window, see nested.go
	waiter *waiter // nil when nobody waits
	bytes  int     // counted in openBytes
	end    uint64  // offset behind the request's last byte in the connection's output
	nth    uint64  // the number of the request among all that the connection sent
	oneWay bool
	part   *collector
	stream *Stream
}

// A waiter is somebody who waits for a call to end: a goroutine with a channel, or a Completer.
//
// What a Completer needs is in the first 64 bytes: these go from the processor of who calls to that
// of who reads, and back.
type waiter struct {
	// id is the call's while it is waited for. Whoever swaps it to 0 decides how the call ends: the
	// reader with the reply, the caller who gives up, the deadline, or the end of the connection.
	id       atomic.Uint32
	late     bool          // who called has given up, and to wants to know of the end only: see Follower
	bound    bool          // its context may end
	to       Completer     // instead of wake
	deadline int64         // on the connection's clock; 0 for none
	stop     func() bool   // takes an asynchronous call's context off its watch; nil for none
	wake     chan struct{} // capacity 1: one signal for each call
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

// A ticket stands in the queue of callers that wait for the peer's window.
type ticket struct {
	nth      uint64 // of all tickets
	wake     chan struct{}
	bytes    int
	admitted bool // its place in the window is taken for it
	flooded  bool // it was sent away: see floodedLocked
}

// Call sends a request and waits for the answer, which the caller must Release. It ends with ctx,
// and with the deadline, at once; the peer is told.
func (c *Conn) Call(ctx context.Context, out *Out) (*Answer, error) {
	waiters := &c.cfg.Pool.waiters
	w := waiters.Get().(*waiter) //nolint:forcetypeassert // the pool holds nothing else
	w.conn = c
	out.OneWay = false
	done, h := ends(ctx)
	w.bound = done != nil // Halt wakes it wherever it waits
	c.glance()
	id, nth, err := c.send(ctx, out, w, nil)
	if err != nil {
		waiters.Put(w)
		return nil, err
	}
	if h != nil {
		w.nth = nth
		h.Await(w, id)
	}
	ended := c.readLone(w, id) || w.wait(done)
	if h != nil {
		h.Await(nil, 0)
	}
	if !ended {
		if w.id.CompareAndSwap(id, 0) {
			c.abandon(id, nth, ctx.Err())
			waiters.Put(w) // not before: until then w is in the slot, where the reader looks at it
			return nil, context.Cause(ctx)
		}
		<-w.wake // it is just ending
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

// A halter is a context that ends with the one around it, or when somebody ends it: that one calls
// Halt. One that is made for each of many calls is not worth a channel, nor what closes that when
// the context around it ends.
type halter interface {
	// Outer returns Done of the context around it.
	Outer() <-chan struct{}
	// Await says which call to halt, at once if the context has ended; nil is none. It waits until
	// a Halt that is in progress has returned: conn is not used after that.
	Await(conn interface{ Halt(id uint32) }, id uint32)
}

// ends returns what ends ctx.
func ends(ctx context.Context) (done <-chan struct{}, h halter) {
	if h, ok := ctx.(halter); ok {
		return h.Outer(), h
	}
	return ctx.Done(), nil
}

// Halt ends w's call, if it has not ended. See halter.
func (w *waiter) Halt(id uint32) { w.conn.giveUp(id, w.nth, context.Canceled, context.Canceled) }

// wait waits for the end of the call, and reports whether that came before the end of its context.
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

// Start sends a request and returns; to is told how the call ended, unless Start returns an error.
// It waits, until ctx ends, only while the peer's window or the connection's output is full.
func (c *Conn) Start(ctx context.Context, out *Out, to Completer) error {
	out.OneWay = false
	id, nth, err := c.send(ctx, out, nil, to) // which may have given out away
	if err != nil || ctx.Done() == nil {
		return err
	}
	// it may run code that needs c.mu
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

// Notify sends a request that gets no answer. It waits while the connection's output is full.
func (c *Conn) Notify(ctx context.Context, out *Out) error {
	if out.fieldsSize()+binary.MaxVarintLen64+len(out.Body)+len(out.Attachment) > maxPart {
		return c.Follow(ctx, out, discard{}) // several frames need an id, and so a slot and a final frame
	}
	out.OneWay = true
	_, _, err := c.send(ctx, out, nil, nil)
	return err
}

// discard is who is told of what nobody waits for.
type discard struct{}

func (discard) Complete(*Answer, error) {}

// message returns what a request carries.
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

// fieldsSize is an upper bound of the bytes that travel beside body and attachment.
func (out *Out) fieldsSize() int { return wire.FieldsSize(&out.Fields) + len(out.Metadata) }

// addFields adds to its message what travels beside the body, and for how many microseconds the
// call may go on.
func (out *Out) addFields(m *message, timeout uint64) {
	if !out.sent && (out.Bare || out.Fields.OnlyUsual()) {
		m.timeout, m.metadata, m.budget = timeout, out.Metadata, out.Budget
		return
	}
	m.fields, out.sent = &out.Fields, true
	m.fields.Timeout, m.fields.Metadata, m.fields.Budget = timeout, out.Metadata, out.Budget
}

// counted returns how many bytes a request counts with in the window. A stream may be open for
// ever, and takes no room from others for its beginning, unless that is large.
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

// send admits a request and appends it to the output. W or to is told how it ended; without either
// it is alone. Nth is the number of the request among all that the connection sent.
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
	if err := c.admitLocked(ctx, out, size, async, alone); err != nil {
		c.mu.Unlock()
		return 0, 0, err
	}
	// From here on nothing waits until the request is queued.
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
		if deadline != 0 && !out.OneWay { // else nobody waits
			w.deadline = deadline
			c.careLocked(deadline)
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
		c.reclaim()
	}
	switch {
	case large:
		c.sendLargeLocked(ctx, out.Deadline, id, nth, m.remainder(rest), m.flags, async)
	case async:
		c.flushLater()
	default:
		c.flushLocked(c.open > 1)
	}
	return id, nth, nil
}

// sentLocked notes in its slot what is to be known of a request in case that the connection ends.
func (c *Conn) sentLocked(s *slot, nested, large bool) {
	s.nested, s.nth, s.end = nested, c.opened, c.queued
	if large {
		s.end = math.MaxUint64 // until the last piece
	}
}

// farAway is how far away a deadline is that counts as none, 146 years: with a later one sums
// overflow, and the peer could not be told.
const farAway = maxTimeout * time.Microsecond

// timeLocked returns when the time of out ends on the connection's clock, and the microseconds
// until then; 0 for never.
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

// sendLargeLocked sends what did not fit in the opening frame, with that, and unlocks. The outcome
// goes to the waiter in any case. Who is told of it while this goes on may use the memory again at
// once: what an asynchronous caller gave is copied with c.mu held, when it is certain that he has
// not been told.
func (c *Conn) sendLargeLocked(ctx context.Context, deadline time.Time, id uint32, nth uint64, rest pieces, flags wire.Flags, async bool) {
	h := wire.Header{Type: wire.Data, Flags: flags & wire.HasChecksum, ID: id}
	err := c.sendRestLocked(ctx, deadline, h, rest, async, func(size int, last bool) bool {
		s := c.callLocked(id, nth)
		if s == nil || !s.wanted() {
			return false
		}
		if last {
			s.end = c.queued + uint64(size)
		}
		return true
	})
	if err != nil { // ctx or the deadline: the caller gives up, as it would while waiting
		why := ctx.Err()
		if why == nil {
			why = err
		}
		c.giveUp(id, nth, why, err)
	}
}

// admitLocked waits until the peer's window has room for a request of size bytes, and takes that
// room. First come, first served. It returns with c.mu held.
func (c *Conn) admitLocked(ctx context.Context, out *Out, size int, async, alone bool) error {
	switch {
	case c.err != nil, c.drained != nil && alone:
		return c.refusedLocked()
	case c.drained != nil, out.Nest && !alone:
		return c.admitSlowlyLocked(ctx, out, size)
	}
	limit := c.cfg.MaxUnsent
	if async {
		limit = c.highWater()
	}
	if len(c.out) >= limit {
		out.Now = 0 // it waits
		if out.NoWait {
			return &CallError{Cause: ErrWindow, NotProcessed: true}
		}
		began := Clock()
		err := c.spaceLocked(ctx, out.Deadline, limit)
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
	return c.admitSlowlyLocked(ctx, out, size)
}

// mayEnterLocked reports whether a request of size bytes may be sent now, with nobody before it.
func (c *Conn) mayEnterLocked(size int) bool {
	return len(c.admission) == 0 && c.drained == nil && !c.flooded && c.fitsLocked(size)
}

// admitSlowlyLocked is admitLocked for a request that cannot be sent at once. One that is made in
// the service of a call of the peer must not wait for those before it: they may be its ancestors,
// which end after it.
func (c *Conn) admitSlowlyLocked(ctx context.Context, out *Out, size int) error {
	out.Now = 0 // it waits
	c.mu.Unlock()
	serving := c.serving(ctx) // may run code that needs c.mu
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
	err := c.queueLocked(ctx, t, out.Deadline)
	out.Waited += Clock() - began
	return err
}

// nestLocked sends a request beyond the peer's window: the peer lets it in because of its own call,
// parent, which this side is working on. It never waits, so that calls which call each other
// without end do end.
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

// queueLocked waits for t's turn.
func (c *Conn) queueLocked(ctx context.Context, t *ticket, deadline time.Time) error {
	c.passOnReadingLocked()
	err := c.waitLocked(ctx, deadline, t.wake)
	for t.admitted && !t.flooded && err == nil && c.err == nil && c.drained == nil {
		if bytes := c.openBytes - c.nestedBytes; c.open-c.nested <= c.maxOpen && (bytes <= c.maxBytes || bytes == t.bytes) {
			return nil
		}
		c.requeueLocked(t) // the window has shrunk meanwhile
		err = c.waitLocked(ctx, deadline, t.wake)
	}
	if t.flooded && err == nil && c.err == nil {
		return &CallError{Cause: ErrFlooded, NotProcessed: true}
	}
	if t.admitted {
		c.leaveLocked(t.bytes, false)
		c.restLocked()
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

// requeueLocked takes t's place in the window back and has it wait where it did.
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

// notSentLocked is why a request was not sent: err if there is one, or the end of the connection.
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

// fitsLocked reports whether a request of size bytes may be sent now. One that is larger than the
// whole window is sent when no bytes of others are open.
func (c *Conn) fitsLocked(size int) bool {
	open, bytes := c.open-c.nested, c.openBytes-c.nestedBytes
	return open < c.maxOpen && c.open < maxSlots(c.mostOpen) && (bytes+size <= c.maxBytes || bytes == 0)
}

func (c *Conn) enterLocked(size int) {
	c.open++
	c.openBytes += size
	if c.open > 1 { // the reader, if it waits, now has something to read: see endBatch and roomLocked
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

// admitNextLocked admits those who wait, as far as there is room, and sends them away once the
// peer accepts no more.
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

// numberLocked returns the number of m on this connection, and tells the peer of a new one.
func (c *Conn) numberLocked(m *Method) uint16 {
	c.callsLocked()
	if m.Handle >= len(c.numbers) {
		c.numbers = append(c.numbers, make([]numbering, m.Handle+1-len(c.numbers))...)
	}
	n := &c.numbers[m.Handle]
	if n.known {
		return n.number
	}
	if int(c.nextNum) >= int(c.maxNum) { // begin again: the newest meaning of a number counts
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

// freeSlotLocked ends the life of a call on this connection.
func (c *Conn) freeSlotLocked(s *slot) {
	s.part.dropLocked()
	s.taken, s.waiter, s.part = false, nil, nil
	c.dropStreamLocked(s)
	c.free = append(c.free, wire.Slot(s.id))
	c.leaveLocked(s.bytes, s.nested)
}

// dropStreamLocked ends the stream of a call that is not open any more, or not wanted.
func (c *Conn) dropStreamLocked(s *slot) {
	if s.stream != nil {
		s.stream.endLocked(errStreamEnded)
		s.stream = nil
	}
}

// callLocked returns the slot of the nth request that this side sent, if that call is open, or nil.
// Unlike slotLocked it is for callers that did not hold c.mu since they saw the call open: its id
// is used again after 4095 calls in the same slot.
func (c *Conn) callLocked(id uint32, nth uint64) *slot {
	if s := c.slotLocked(id); s != nil && s.nth == nth {
		return s
	}
	return nil
}

// abandon clears the waiter of a call whose caller has taken it back, and tells the peer that
// nobody waits for the reply any more. The slot stays taken until the final frame comes.
func (c *Conn) abandon(id uint32, nth uint64, why error) {
	c.mu.Lock()
	if c.callLocked(id, nth) != nil {
		c.abandonLocked(id, why)
	}
	c.flushLocked(c.open > 1)
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

// giveUp ends a call for its waiter, with err. Why is what the peer is told.
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
	c.flushLocked(c.open > 1)
	w.fail(err)
}

// fail ends the wait with an error. Whoever calls it has swapped w.id to 0. A Completer, which may
// block, holds nobody up.
func (w *waiter) fail(err error) {
	if w.to == nil {
		w.err = err
		w.conn.rouse(w)
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

// waiterLocked returns a waiter for a Completer. These have a list of their own, which costs
// nothing where c.mu is held: one goroutine sends such calls and another one completes them, and a
// sync.Pool is slow to move things from one to the other.
func (c *Conn) waiterLocked() *waiter {
	n := len(c.idleWaiters)
	if n == 0 {
		return new(waiter)
	}
	w := c.idleWaiters[n-1]
	c.idleWaiters = c.idleWaiters[:n-1]
	return w
}

// maxIdleWaiters is how many are kept.
const maxIdleWaiters = 1024

// idleWaiterLocked takes a waiter back whose id has been swapped to 0.
func (c *Conn) idleWaiterLocked(w *waiter) {
	w.to, w.stop, w.late = nil, nil, false
	if len(c.idleWaiters) < maxIdleWaiters {
		c.idleWaiters = append(c.idleWaiters, w)
	}
}

// parse takes the frame of a reply, or the header and the collected message of a large one, apart.
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

// birth is what Clock and now count from, which are never 0.
var birth = time.Now().Add(-1)

// Clock is the time since the program began: one reading of the monotonic clock, half of what
// time.Now costs.
func Clock() time.Duration { return time.Since(birth) }

// TimeOf returns the time of a reading of Clock. Its monotonic reading is right; what the clock of
// the wall shows is reckoned from when the program began, so that none is read.
func TimeOf(reading time.Duration) time.Time { return birth.Add(reading) }

// timedStarts is how many calls of a batch begin at the same time, as far as Out.Began is
// concerned.
const timedStarts = 32

// beganLocked returns about when an asynchronous call begins that is sent now: when the batch did
// that it goes out with. The clock takes as long as a tenth of all that is done to start such a
// call.
func (c *Conn) beganLocked() time.Duration {
	if len(c.out) == 0 || c.opened%timedStarts == 0 {
		c.batchBegan = Clock()
	}
	return c.batchBegan
}

// now is Clock in nanoseconds.
func (c *Conn) now() int64 { return int64(Clock()) }

const never = math.MaxInt64

func isDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDeadline)
}
