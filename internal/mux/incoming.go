// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/window"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file reads requests: the reader parses them and refuses or accepts them. The file callsin.go
// handles accepted requests.

// request handles a frame that opens a call.
func (rd *reader) request(h wire.Header, frame []byte) bool {
	c := rd.c
	c.callsIn.received.Add(1)
	if !c.callsIn.validOpening(h) {
		c.lifetime.breach(fmt.Sprintf("a request with id %d and flags %#x", h.ID, h.Flags))
		return false
	}
	method := c.callsIn.targets.At(int(h.Arg))
	if method == nil || method.target == nil {
		c.lifetime.breach(fmt.Sprintf("a request for method number %d, which was not announced", h.Arg))
		return false
	}
	t := method.target
	r := rd.newRequest(t)
	if r.Context == nil {
		r.Context = new(Context)
	}
	r.conn, r.target, r.id = c, t, h.ID
	r.number, r.methodID = h.Arg, method.id
	r.OneWay, r.checksum = h.Flags&wire.OneWay != 0, h.Flags&wire.HasChecksum != 0
	r.Compressed = h.Flags&wire.Compressed != 0
	fields, msg, err := openMessage(h, frame)
	if err == nil && len(fields) > 0 {
		var t uint64
		if t, err = r.readFields(fields); err == nil && t != 0 {
			r.deadline = rd.arrival() + int64(min(t, maxTimeout))*int64(time.Microsecond)
		}
	}
	r.Arrived = time.Duration(rd.arrived)
	if r.Fields != nil {
		if r.Fields.Explain != 0 {
			r.Arrived = time.Duration(rd.arrival())
		}
		if r.Fields.Parent != 0 {
			r.nested = c.callsOut.serves(r)
		}
	}
	r.bytes, r.memory = len(msg), requestCost+len(frame)
	if method.kind == wire.Unary {
		r.ordered = newOrdered(r)
	} else if !r.alone() {
		r.stream = newIncomingStream(c, method.kind, h.ID, h.Flags)
	}
	if err == nil && h.Flags&wire.More != 0 {
		return rd.collect(r, h, frame, msg)
	}
	if err == nil {
		r.Body, r.Attachment, err = wire.SplitBody(h.Flags, msg)
	}
	r.Broken = err
	inline, timed := t.Inline()
	if inline && r.stream == nil && r.ordered == nil && !c.lifetime.draining.Load() && !c.callsIn.refusing.Load() && !rd.outputFull && r.bytes <= c.cfg.MaxMessage {
		return rd.runInline(r, timed)
	}
	r.Arrived = time.Duration(rd.arrival())
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	r.hold(c.cfg.Pool, fields)
	c.callsIn.dispatch(r)
	return true
}

// newRequest returns a request for t. A reused request keeps its memory for fields.
func (rd *reader) newRequest(t Target) *Request {
	used := rd.used
	rd.used = nil
	if used == nil {
		return t.New(nil)
	}
	memory := used.fieldMemory
	r := t.New(used)
	if r == used {
		r.fieldMemory = memory
	}
	return r
}

// validOpening reports whether the id and the flags of a request are valid.
func (ci *callsIn) validOpening(h wire.Header) bool {
	if h.ID == 0 {
		return h.Flags&(wire.OneWay|wire.More) == wire.OneWay // a request that Data frames follow needs an id
	}
	// The table has memory for all slots up to the highest one in use. A slot beyond the limit
	// would waste memory.
	return h.ID>>wire.SlotBits != 0 && int(wire.Slot(h.ID)) < window.Slots(ci.c.cfg.MaxOpen)
}

// maxTimeout bounds the timeout of a request, in microseconds, so that it fits in a time.Duration.
// It is about 146 years.
const maxTimeout = 1<<62/1000 - 1

// readFields parses the block of fields and returns the timeout. Most calls have only the usual
// fields. The struct for all fields is large, so readFields allocates it only for a call with other
// fields.
func (r *Request) readFields(block []byte) (timeout uint64, err error) {
	timeout, metadata, budget, ok := wire.ParseUsualFields(block)
	if ok {
		r.Metadata, r.Budget, r.Fields = metadata, budget, nil
		return timeout, nil
	}
	if r.fieldMemory == nil {
		r.fieldMemory = new(wire.Fields)
	}
	f := r.fieldMemory
	if err := wire.ParseFields(block, f); err != nil {
		return 0, err
	}
	r.Metadata, r.Budget, r.Fields = f.Metadata, f.Budget, f
	return f.Timeout, nil
}

// openMessage splits an opening frame into fields and message.
func openMessage(h wire.Header, frame []byte) (fields, msg []byte, err error) {
	payload, err := wire.Payload(frame)
	if err != nil {
		return nil, nil, err
	}
	return wire.SplitFields(h.Flags, payload)
}

// accept enters r in the table, or refuses it. Ok reports whether r is in the table. Alive reports
// whether the connection is still open.
func (rd *reader) accept(r *Request) (ok, alive bool) {
	c := rd.c
	c.mu.Lock()
	if r.alone() {
		c.callsIn.awaitRequestRoomRelocking(r) // a request without an id cannot be refused, so the reader waits for room
	}
	switch errorID, text := c.callsIn.objectionLocked(r); {
	case c.lifetime.err != nil:
		c.mu.Unlock()
		return false, false
	case c.callsIn.findSlotLocked(r.id) != nil && !r.alone():
		c.mu.Unlock()
		c.lifetime.breach(fmt.Sprintf("a request with id %d, which is open", r.id))
		return false, false
	case errorID != "":
		c.callsIn.refuseLocked(r, errorID, text)
	case !c.callsIn.stash.Take(&c.memory, r.memory):
		c.callsIn.refuseLocked(r, catalogue.NoMemory, memoryText)
	default:
		if r.stream != nil && r.collected == nil { // a stream may be open for ever
			r.bytes = 0 // it may be open for ever
		}
		c.callsIn.enterTableLocked(r)
		c.mu.Unlock()
		return true, true
	}
	if r.ordered != nil {
		c.callsIn.lazyLocked().order.Break(r.ordered)
	}
	c.mu.Unlock()
	rd.answered = true // the refusal goes out at the end of the batch
	return false, true
}

// objectionLocked returns why r is refused: the ID and the text of an error. An empty ID means that
// r is not refused.
func (ci *callsIn) objectionLocked(r *Request) (errorID, text string) {
	c := ci.c
	switch limit := c.cfg.MaxMessage; {
	case r.ordered != nil && ci.lazyLocked().order.Broken(r.ordered):
		return catalogue.EarlierRefused, skippedText
	case r.bytes > limit:
		return catalogue.RequestTooLarge, fmt.Sprintf("the request has %d bytes, the server's limit is %d", r.bytes, limit)
	case r.nested:
	// The reader counts a request before it comes here. So the drain notice may have promised that
	// this request is processed.
	case ci.refusing.Load(), c.lifetime.draining.Load() && !r.OneWay && ci.received.Load() > ci.promised:
		return catalogue.ShuttingDown, shuttingDown
	}
	open, bytes, maxOpen, maxBytes := ci.openLocked(r)
	switch {
	case r.alone(): // awaitRequestRoomRelocking has already waited for room
	case open >= maxOpen:
		return catalogue.TooManyOpen, fmt.Sprintf("%d requests are open on this connection, the limit is %d", open, maxOpen)
	case bytes > 0 && bytes+r.bytes > maxBytes:
		return catalogue.TooManyOpen, fmt.Sprintf("the open requests on this connection hold %d bytes, the limit is %d", bytes, maxBytes)
	}
	if !r.nested && !r.alone() && !ci.c.quota.budgetAllowsLocked(r, open, bytes) {
		return catalogue.TooManyOpen, fmt.Sprintf("%d requests are open on this connection, and the server has no room for more than it allowed", open)
	}
	return "", ""
}

// openLocked returns how many requests of r's kind are open, their bytes, and the limits of that
// kind. One-way requests are counted separately: the peer does not count them in its window, so
// they must not use up the window. Requests that serve calls of this side are counted separately
// too.
func (ci *callsIn) openLocked(r *Request) (open, bytes, maxOpen, maxBytes int) {
	limit := &ci.c.cfg.Limits
	switch {
	case r.alone():
		// the peer's window does not bound one-way requests, so the granted budget does
		return len(ci.oneWay), ci.oneWayBytes, ci.c.quota.limit, ci.c.quota.limitBytes
	case r.nested:
		maxOpen, maxBytes = window.Extra(limit.MaxOpen, limit.MaxOpenBytes)
		return ci.inNested, ci.inNestBytes, maxOpen, maxBytes
	}
	return ci.inOpen - len(ci.oneWay) - ci.inNested, ci.inBytes - ci.oneWayBytes - ci.inNestBytes, limit.MaxOpen, limit.MaxOpenBytes
}

// memoryText is the text of the refusal when there is no memory for a request.
const memoryText = "the server has no memory left for what its peers make it hold"

// hold copies a request out of the read buffer.
func (r *Request) hold(p *Pool, fields []byte) {
	n := len(r.Body) + len(r.Attachment) + len(fields)
	if n == 0 {
		return
	}
	held := p.buffers.GetFor(n)
	b := append((*held)[:0], r.Body...)
	b = append(b, r.Attachment...)
	b = append(b, fields...)
	*held, r.held = b, held
	n = len(r.Body)
	r.Body, b = b[:n:n], b[n:]
	if n := len(r.Attachment); r.Attachment != nil {
		r.Attachment, b = b[:n:n], b[n:]
	}
	if len(b) > 0 && r.Broken == nil {
		_, r.Broken = r.readFields(b) // the fields alias it
	}
}

// serves reports whether a request of the peer serves an open call of this side.
func (co *callsOut) serves(r *Request) bool {
	c := co.c
	c.mu.Lock()
	defer c.mu.Unlock()
	parent := r.Fields.Parent
	return !r.alone() && parent <= math.MaxUint32 && co.slotLocked(uint32(parent)) != nil
}
