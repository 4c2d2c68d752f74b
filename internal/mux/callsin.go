// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/deadlines"
	"github.com/yodel-rpc/yodel/internal/keyqueue"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/parts"
	"github.com/yodel-rpc/yodel/internal/sparse"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// callsIn is the role of the calls that the peer opens: their table, the limits of open requests
// and of memory, keyed order, and room for replies.
//
// callsIn appends replies to the output, sets the time of the next housekeeping, and ends a drained
// connection when the last request leaves the table.
type callsIn struct {
	c *Conn
	*lazyCallsIn
	refusing atomic.Bool          // this side accepts no more requests, but the connection remains open
	in       sparse.Table[inSlot] // by slot
	inOpen   int
	inBytes  int
	targets  sparse.Table[bound] // by method number; only the reader uses it
	received atomic.Uint64       // requests ever received

	stash memory.Stash
	stuck atomic.Int64 // bytes of replies that wait for space in out; changed with mu held
}

// An inSlot is a slot of the peer's calls.
type inSlot struct {
	r *Request // nil while the slot is free
	// The deadline of r until the context of r is canceled because of it; 0 for none. The search
	// for passed deadlines looks at many slots, and at a request only if its deadline has passed.
	deadline int64
}

// lazyCallsIn is the part of callsIn that is allocated on first use.
type lazyCallsIn struct {
	oneWay      map[*Request]int64 // requests of the peer that have no slot, and inSlot.deadline
	oneWayBytes int                // the part of inBytes that belongs to the requests in oneWay
	oneWayBy    int64              // no deadline of oneWay passes earlier; 0 for none
	deadlines   deadlines.Index    // of callsIn.in
	orphans     int                // how many requests of inOpen the pool has adopted
	// How many requests of inOpen serve calls of this side. They are not part of the window.
	inNested    int
	inNestBytes int
	// closed when a request leaves the table; nil when no goroutine waits
	room          chan struct{}
	hangUpChecked int64 // when this side, while it did not read, last checked whether the peer has closed
	// closed when no request is open; nil when Refuse was not called
	noRequests chan struct{}
	// the count in the drain notice: this side processes so many requests although it drains
	promised uint64
	// The number of the ping whose pong says that the peer obeys a lower limit, see quota.go. It is
	// 0 if no such ping is on its way.
	lowering    uint64
	limitsAsked bool                      // a ping was sent to find out whether the peer has read its limits
	order       keyqueue.Queues[*Request] // see order.go
	replies     replies                   // see replies.go
}

// noCallsIn is shared by all connections without a lazyCallsIn. Nothing changes it.
var noCallsIn = new(lazyCallsIn)

// lazyLocked returns the lazy part for writing to it.
func (ci *callsIn) lazyLocked() *lazyCallsIn { return ownPart(&ci.lazyCallsIn, noCallsIn) }

// enterTableLocked enters r in the table, so that a Cancel frame finds it by its id.
func (ci *callsIn) enterTableLocked(r *Request) {
	c := ci.c
	ci.inOpen++
	ci.inBytes += r.bytes
	r.stray = !r.alone() && ci.findSlotLocked(r.id) != nil
	if r.alone() || r.stray {
		if ci.oneWay == nil {
			ci.lazyLocked().oneWay = make(map[*Request]int64)
		}
		ci.oneWay[r] = r.deadline
		ci.oneWayBytes += r.bytes
		r.nested = false
	} else {
		*ci.in.Grow(int(wire.Slot(r.id))) = inSlot{r, r.deadline}
	}
	if r.nested {
		lazy := ci.lazyLocked()
		lazy.inNested++
		lazy.inNestBytes += r.bytes
	}
	ci.c.quota.usedLocked(ci.inOpen-ci.inNested, ci.inBytes-ci.inNestBytes)
	ci.noteDeadlineLocked(r)
	switch {
	case c.lifetime.err == nil:
	case r.OneWay && !errors.Is(c.lifetime.err, ErrClosed):
		ci.orphanLocked(r)
	default:
		go r.end.Cancel(context.Canceled, c.lifetime.err)
	}
}

// noteDeadlineLocked makes the housekeeping cancel r when its deadline has passed.
func (ci *callsIn) noteDeadlineLocked(r *Request) {
	if r.deadline == 0 {
		return
	}
	switch lazy := ci.lazyLocked(); {
	case !r.alone() && !r.stray:
		lazy.deadlines.Add(int(wire.Slot(r.id)), r.deadline)
	case lazy.oneWayBy == 0 || r.deadline < lazy.oneWayBy:
		lazy.oneWayBy = r.deadline
	}
	ci.c.lifetime.expireByLocked(r.deadline)
}

// orphanLocked gives a one-way request to the pool when its connection has ended, because its
// caller does not wait for it. The budget no longer counts the request, so that disconnected
// clients take no room from connected ones. If the pool already has Config.mostOrphans orphans, the
// budget goes on counting the request, and the pool cancels it soon.
func (ci *callsIn) orphanLocked(r *Request) {
	c := ci.c
	r.orphan = true
	if c.cfg.Pool.orphans.Add(r, c.cfg.mostOrphans()) {
		ci.lazyLocked().orphans++
	}
}

func (ci *callsIn) leaveTableLocked(r *Request) {
	c := ci.c
	if r.orphan && c.cfg.Pool.orphans.Remove(r) {
		ci.lazyLocked().orphans--
	}
	if r.ordered != nil {
		ci.passLocked(r)
	}
	ci.inOpen--
	ci.inBytes -= r.bytes
	if r.collected != nil { // the rest of the request will not arrive
		r.collected.DropLocked()
		r.collected = nil // the owner's state of the request may remain in memory
	}
	ci.giveLocked(r.memory)
	r.memory = 0
	ci.replyGoneLocked(r)
	if r.nested {
		ci.inNested--
		ci.inNestBytes -= r.bytes
	}
	if r.stream != nil {
		r.stream.endLocked(context.Canceled)
	}
	if r.alone() || r.stray {
		delete(ci.oneWay, r)
		ci.oneWayBytes -= r.bytes
	} else {
		*ci.in.At(int(wire.Slot(r.id))) = inSlot{}
	}
	if c.lifetime.err != nil {
		ci.c.quota.giveBackUnusedLocked()
	}
	ci.roomChangedLocked()
	ci.requestsEndedLocked()
	c.lifetime.endDrainedLocked()
}

// roomChangedLocked wakes the goroutines that wait for room in the table.
func (ci *callsIn) roomChangedLocked() {
	if ci.room != nil {
		close(ci.room)
		ci.room = nil
	}
}

// findSlotLocked returns the request in the slot of id, or nil.
func (ci *callsIn) findSlotLocked(id uint32) *Request {
	if s := ci.in.At(int(wire.Slot(id))); s != nil {
		return s.r
	}
	return nil
}

// findLocked returns the request with this id, or nil.
func (ci *callsIn) findLocked(id uint32) *Request {
	if r := ci.findSlotLocked(id); r != nil && r.id == id {
		return r
	}
	return nil
}

// finish sends the reply of a request that is in the table, and takes the request out of the table.
func (ci *callsIn) finish(r *Request) {
	c := ci.c
	r.end.Return()
	c.mu.Lock()
	if r.stream != nil {
		// The handler may have started a goroutine that still uses the stream. It must not send
		// frames after the reply has begun.
		r.stream.endLocked(context.Canceled)
	}
	// A peer that does not read must not make this side buffer more replies.
	if r.alone() || ci.awaitReplySpaceRelocking(r) != nil {
		ci.leaveTableLocked(r)
		c.mu.Unlock()
		return
	}
	var m message
	h := r.replyMessage(&m)
	rest := c.writing.appendMessageLocked(h, &m)
	if rest.Size() > 0 {
		ci.finishLargeAndUnlock(r, wire.Header{Type: wire.Data, Flags: m.flags&wire.HasChecksum | wire.OfReply, ID: r.id}, m.remainder(rest))
		return
	}
	ci.leaveTableLocked(r)
	c.writing.countOutLocked()
	c.writing.flushAndUnlock(ci.inOpen > 0)
}

// finishLargeAndUnlock sends the rest of a reply and unlocks c.mu. The request leaves the table
// together with the last piece, because the peer may reuse the id as soon as it has that piece.
func (ci *callsIn) finishLargeAndUnlock(r *Request, h wire.Header, rest parts.Parts) {
	c := ci.c
	left := false
	// The only error is the end of the connection, which the peer notices by itself.
	_ = c.writing.sendRestAndUnlock(context.Background(), time.Time{}, h, rest, false, func(_ int, last bool) bool {
		if left = last && !r.unwanted; left {
			ci.leaveTableLocked(r)
		}
		return !r.unwanted
	})
	c.mu.Lock()
	if !left { // the caller has canceled, or the connection has ended
		c.writing.finishLocked(c.writing.beginLocked(h))
		ci.leaveTableLocked(r)
	}
	c.writing.flushAndUnlock(false)
}

// refuseLocked answers a request with an error of the catalogue. The request is not executed.
func (ci *callsIn) refuseLocked(r *Request, errorID, text string) {
	ci.refuseForLocked(r, catalogue.Of(errorID).Code, errorID, text)
}

// refuseForLocked is refuseLocked with a given code.
func (ci *callsIn) refuseForLocked(r *Request, code uint16, errorID, text string) {
	if r.alone() {
		return
	}
	m := message{flags: wire.NotProcessed, fields: &wire.Fields{Message: []byte(text), ErrorID: []byte(errorID)}}
	if r.checksum {
		m.flags |= wire.HasChecksum
	}
	ci.c.writing.appendMessageLocked(wire.Header{Type: wire.Reply, Arg: code, ID: r.id}, &m)
}

// abandonRequestLocked refuses an incomplete request.
func (ci *callsIn) abandonRequestLocked(r *Request, errorID, text string) {
	ci.leaveTableLocked(r)
	ci.refuseLocked(r, errorID, text)
}

func (ci *callsIn) onMethod(h wire.Header, payload []byte) bool {
	c := ci.c
	var b wire.Binding
	if err := wire.ParseMethod(payload, &b); err != nil {
		c.lifetime.breach("a broken method: " + err.Error())
		return false
	}
	if b.TooLong() { // the names are too long to be kept until the connection ends
		c.lifetime.breach(fmt.Sprintf("a method with a name, codec, compressor or schema of more than %d bytes", wire.MaxName))
		return false
	}
	number := int(h.Arg)
	if number >= max(c.cfg.MaxMethods, defaultMaxMethods) { // the peer may not know the limit yet
		c.lifetime.breach(fmt.Sprintf("method number %d, which is beyond the limit", number))
		return false
	}
	cost, old := methodCost+len(payload), 0
	if b := ci.targets.At(number); b != nil {
		old = int(b.cost)
	}
	if !c.memory.HoldUntilEnd(cost - old) {
		c.lifetime.refuse(&Refusal{Code: catalogue.ResourceExhausted, ID: catalogue.NoMemory, Message: memory.ErrFull.Error()}, memory.ErrFull)
		return false
	}
	t, info := Target(unserved{}), wire.Info{}
	if c.cfg.Bind != nil {
		t, info = c.cfg.Bind(c, &b)
	}
	*ci.targets.Grow(number) = bound{target: t, id: h.ID, kind: b.Kind, cost: int32(cost)} //nolint:gosec // less than maxFrame and methodCost
	if info == (wire.Info{}) {                                                             // the peer needs no information about this method
		return true // nothing that the peer needs to know
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing.appendLocked(func(dst []byte) []byte { return wire.AppendMethodInfo(dst, h.Arg, h.ID, &info) })
	return true // the frame goes out at the end of the batch
}

func (ci *callsIn) onCancel(h wire.Header) {
	c := ci.c
	c.mu.Lock()
	r := ci.findLocked(h.ID)
	if r != nil && r.collected != nil {
		// The rest of the request will not arrive, and the request has not begun.
		ci.leaveTableLocked(r)
		ci.refuseForLocked(r, max(h.Arg, catalogue.Canceled), "", "canceled before the request had come")
		c.writing.flushAndUnlock(false)
		return
	}
	if r != nil && r.ordered.Waits() {
		ci.cancelWaitingLocked(r, h.Arg)
		c.writing.flushAndUnlock(false)
		return
	}
	if r != nil {
		r.unwanted = true
	}
	c.mu.Unlock()
	if r == nil {
		return
	}
	if h.Arg == catalogue.DeadlineExceeded {
		r.end.Cancel(context.DeadlineExceeded, ErrDeadline)
		return
	}
	r.end.Cancel(context.Canceled, ErrCallerGone)
}

// refuseNew is Conn.Refuse.
func (ci *callsIn) refuseNew() (quiet <-chan struct{}) {
	c := ci.c
	c.mu.Lock()
	c.lifetime.drainBegunLocked()
	ci.refusing.Store(true)
	c.mu.Unlock()
	// A request that runs on the reader goroutine is not in the table. Either it began before
	// refusing was set, and handOver enters it now, or it sees refusing.
	rd := c.reading.reader.Load()
	if run, runs := rd.state.Run(); runs {
		c.reading.handOver(rd, run)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ci.noRequests == nil {
		ci.lazyLocked().noRequests = make(chan struct{})
		ci.requestsEndedLocked()
	}
	return ci.noRequests
}

func (ci *callsIn) requestsEndedLocked() {
	if ci.noRequests == nil || ci.inOpen > 0 {
		return
	}
	select {
	// already closed: only requests that serve calls of this side have arrived since
	case <-ci.noRequests:
	default:
		close(ci.noRequests)
	}
}

// cancelAll is Conn.CancelRequests.
func (ci *callsIn) cancelAll() {
	c := ci.c
	c.mu.Lock()
	requests := make([]*Request, 0, ci.inOpen)
	ci.eachRequestLocked(func(r *Request) { requests = append(requests, r) })
	c.mu.Unlock()
	for _, r := range requests {
		r.end.Cancel(context.Canceled, ErrClosed)
	}
}

// executing is Conn.Executing.
func (ci *callsIn) executing() []Target {
	c := ci.c
	c.mu.Lock()
	defer c.mu.Unlock()
	targets := make([]Target, 0, ci.inOpen)
	ci.eachRequestLocked(func(r *Request) { targets = append(targets, r.target) })
	return targets
}

func (ci *callsIn) eachRequestLocked(f func(*Request)) {
	for _, s := range ci.in.All(0) {
		if s.r != nil {
			f(s.r)
		}
	}
	for r := range ci.oneWay {
		f(r)
	}
}

// unfinishedLocked returns the requests of the peer that are incomplete, and the requests with a
// stream on which a large message is incomplete.
func (ci *callsIn) unfinishedLocked() (unfinished []*Request) {
	for _, s := range ci.in.All(0) {
		if r := s.r; r != nil && (r.collected != nil || r.stream != nil && r.stream.receiving.reserved > 0) {
			unfinished = append(unfinished, r)
		}
	}
	return unfinished
}

// doneLate calls Done of a request that has blocked the reader.
func (ci *callsIn) doneLate(r *Request, took time.Duration) {
	defer ci.c.cfg.Pool.running.End() // also if Done ends the goroutine
	r.target.Done(r, took, true)
}

// endAllLocked cancels the requests when the connection has ended with err. One-way requests go on,
// unless this side has closed the connection. The lock is held meanwhile, so that the context of a
// handler has ended when the handler notices that its stream has.
func (ci *callsIn) endAllLocked(err error) {
	for _, s := range ci.in.All(0) {
		r := s.r
		if r == nil {
			continue
		}
		if r.OneWay && r.collected == nil && !errors.Is(err, ErrClosed) {
			ci.orphanLocked(r)
			continue
		}
		r.end.Cancel(context.Canceled, err)
		if r.collected != nil { // no goroutine will run it
			ci.leaveTableLocked(r)
		}
	}
	for r := range ci.oneWay {
		if errors.Is(err, ErrClosed) || !r.alone() {
			r.end.Cancel(context.Canceled, err)
		} else {
			ci.orphanLocked(r)
		}
	}
}

// trimLocked releases memory that an idle connection does not need.
func (ci *callsIn) trimLocked() {
	ci.in = sparse.Table[inSlot]{}
	ci.trimMemoryLocked()
	if lazy := ci.lazyCallsIn; lazy.noRequests == nil && lazy.lowering == 0 && lazy.replies.inOut == 0 && lazy.order.Whole() {
		ci.lazyCallsIn = noCallsIn // the other fields describe open requests
	} else {
		lazy.deadlines, lazy.oneWayBy = deadlines.Index{}, 0
	}
}

// promiseLocked returns how many requests have arrived. A draining side still processes all of
// them.
func (ci *callsIn) promiseLocked() uint64 {
	lazy := ci.lazyLocked()
	lazy.promised = ci.received.Load()
	return lazy.promised
}
