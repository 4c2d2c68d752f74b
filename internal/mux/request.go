// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Target is a method on the side that serves it, with the codec of the call. The method number of
// the peer stands for it. Its methods are called concurrently.
type Target interface {
	// Inline reports whether the method is known to be short, so that it runs on the reader
	// goroutine. Timed says whether this call is measured: reading the clock takes longer than the
	// shortest methods. The reader goroutine calls Inline once for each request.
	Inline() (inline, timed bool)
	// Expects returns the size of the method's recent replies, in bytes, if they are large. It
	// returns 0 if they are small.
	Expects() int
	// New returns a Request, embedded in the owner's own state of a call. Used is nil, or a Request
	// that New of one of this side's targets has returned earlier and that has run inline to its
	// end. New may reuse it.
	New(used *Request) *Request
	// Serve executes the call and stores the reply in the request. It must not panic. It may end
	// its goroutine.
	Serve(r *Request)
	// Done is called when the reply has been queued. Took is how long Serve ran, or Untimed.
	// HandedOver says that Serve blocked the reader goroutine for so long that another reader took
	// over. Done must not panic. It may end its goroutine.
	Done(r *Request, took time.Duration, handedOver bool)
}

// Untimed is the duration of a call that was not measured.
const Untimed time.Duration = -1

// A Request is a call that the peer opened. A Request that has run inline to its end may be reused,
// because only its reader has seen it. Its Context is never reused, because handlers keep contexts.
type Request struct {
	*Context // set by New, or else by the reader

	// Owner is the value that the Request is embedded in.
	Owner any

	// The request as it arrived. Body and Attachment are valid until Done.
	OneWay     bool
	Compressed bool
	Metadata   []byte // pairs, see wire.EachPair; valid as long as Body
	Budget     uint64 // the budget of attempts; 0 means unlimited
	// Nil when the timeout, the metadata and the budget are the only fields. Its slices are valid
	// until Done.
	Fields     *wire.Fields
	Body       []byte
	Attachment []byte
	Broken     error // why the message could not be read, or nil; Serve turns it into the reply

	// Taken is when this side began to work on the request, on Clock. It is 0 if the reader
	// goroutine runs the request and has not read the clock. Left is when Done returned, or 0 if
	// Done has not read the clock. The reader uses Left as the beginning of the next call.
	Taken, Left time.Duration
	// Arrived is when the first frame of the request was read, on Clock. It is 0 if the reader
	// goroutine runs the request and has not read the clock. Began is when the method itself began,
	// if Serve has set it.
	Arrived, Began time.Duration

	// Serve fills in Reply. Scratch is memory for encoding the reply. If Serve grows it, Serve
	// stores the grown slice in Scratch.
	Reply   Outcome
	Scratch []byte

	fieldMemory *wire.Fields // nil before the first request with unusual fields

	target   Target
	number   uint16 // of the method
	methodID uint32 // of the Method frame that gave it
	bytes    int
	memory   int  // bytes that are counted for the request until it leaves the table
	expected int  // the part of memory for its reply
	admitted bool // there was room for its reply, see replies.go
	checksum bool
	own      bool // held belongs to this message alone
	nested   bool // the request serves a call of this side, see nested.go
	unwanted bool // the peer has canceled it; guarded by Conn.mu
	// the peer used the id twice, and the reader noticed too late; guarded by Conn.mu
	stray  bool
	orphan bool    // one-way, and its connection has ended; guarded by Conn.mu
	held   *[]byte // the memory of the body, unless it is the read buffer
	// set while the request arrives in pieces; changed by the reader with Conn.mu held
	collected *collector
	stream    *Stream       // nil for a unary method
	ordered   *orderedState // nil when the request is not ordered; guarded by Conn.mu
}

// An Outcome is the reply to a request.
type Outcome struct {
	Code         uint16
	NotProcessed bool
	Compressed   bool
	Fields       *wire.Fields
	Body         []byte
	Attachment   []byte
}

// Inform tells the peer what this side knows of the method that the peer calls. Config.Bind returns
// no information while the peer must not have it, and Inform sends it once the peer may.
func (r *Request) Inform(info wire.Info) {
	c := r.conn
	c.mu.Lock()
	if c.err == nil {
		c.appendLocked(func(dst []byte) []byte { return wire.AppendMethodInfo(dst, r.number, r.methodID, &info) })
	}
	c.flushAndUnlock(true)
}

// Keep passes ownership of Body and Attachment to the caller if their memory belongs to this
// message alone. It reports whether it does.
func (r *Request) Keep() bool {
	if r.own {
		r.held = nil
	}
	return r.own
}

// Stream returns the stream of a method that is not unary, or nil.
func (r *Request) Stream() *Stream { return r.stream }

// enterTableLocked enters r in the table, so that a Cancel frame finds it by its id.
func (c *Conn) enterTableLocked(r *Request) {
	c.inOpen++
	c.inBytes += r.bytes
	r.stray = !r.alone() && c.findSlotLocked(r.id) != nil
	if r.alone() || r.stray {
		if c.oneWay == nil {
			c.seldomLocked().oneWay = make(map[*Request]struct{})
		}
		c.oneWay[r] = struct{}{}
		c.oneWayBytes += r.bytes
		r.nested = false
	} else {
		*c.in.grow(int(wire.Slot(r.id))) = r
	}
	if r.nested {
		seldom := c.seldomLocked()
		seldom.inNested++
		seldom.inNestBytes += r.bytes
	}
	c.usedLocked(c.inOpen-c.inNested, c.inBytes-c.inNestBytes)
	if r.deadline != 0 {
		c.housekeepByLocked(r.deadline)
	}
	switch {
	case c.err == nil:
	case r.OneWay && !errors.Is(c.err, ErrClosed):
		c.orphanLocked(r)
	default:
		go r.cancel(context.Canceled, c.err)
	}
}

// orphanLocked gives a one-way request to the pool when its connection has ended, because its
// caller does not wait for it. The budget no longer counts the request, so that clients that leave
// take no room from clients that stay. If the pool has enough orphans, the budget goes on counting
// the request, and the pool cancels it soon.
func (c *Conn) orphanLocked(r *Request) {
	r.orphan = true
	if c.cfg.Pool.adopt(r, c.cfg.mostOrphans()) {
		c.seldomLocked().orphans++
	}
}

// mostOrphans is how many orphans a server may have: a quarter of the requests that may be open.
func (cfg *Config) mostOrphans() int {
	most := cfg.MaxOpen
	if cfg.Budget != nil {
		most = cfg.Budget.total
	}
	return max(most/4, 1)
}

func (c *Conn) leaveTableLocked(r *Request) {
	if r.orphan && c.cfg.Pool.disown(r) {
		c.seldomLocked().orphans--
	}
	if r.ordered != nil {
		c.passLocked(r)
	}
	c.inOpen--
	c.inBytes -= r.bytes
	if r.collected != nil { // the rest of the request will not arrive
		r.collected.dropLocked()
	}
	c.giveLocked(r.memory)
	r.memory = 0
	c.replyGoneLocked(r)
	if r.nested {
		c.inNested--
		c.inNestBytes -= r.bytes
	}
	if r.stream != nil {
		r.stream.endLocked(context.Canceled)
	}
	if r.alone() || r.stray {
		delete(c.oneWay, r)
		c.oneWayBytes -= r.bytes
	} else {
		*c.in.at(int(wire.Slot(r.id))) = nil
	}
	if c.err != nil {
		c.giveBackUnusedLocked()
	}
	c.roomChangedLocked()
	c.requestsEndedLocked()
	c.endDrainedLocked()
}

// roomChangedLocked wakes the goroutines that wait for room in the table.
func (c *Conn) roomChangedLocked() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// findSlotLocked returns the request in the slot of id, or nil.
func (c *Conn) findSlotLocked(id uint32) *Request {
	if r := c.in.at(int(wire.Slot(id))); r != nil {
		return *r
	}
	return nil
}

// findLocked returns the request with this id, or nil.
func (c *Conn) findLocked(id uint32) *Request {
	if r := c.findSlotLocked(id); r != nil && r.id == id {
		return r
	}
	return nil
}

// run serves a request that is in the table. It runs on a goroutine of the pool.
func (r *Request) run() {
	c := r.conn
	if r.park() {
		c.cfg.Pool.ran()
		return
	}
	scratch := c.cfg.Pool.buffer()
	r.Scratch = (*scratch)[:0]
	r.Taken = Clock()
	normal := false
	defer func() {
		if !normal {
			r.Reply = goexitOutcome()
		}
		now := Clock()
		took := now - r.Taken
		r.sayTimes(now)
		c.finish(r)
		defer func() { // also if Done ends the goroutine
			*scratch = r.Scratch
			r.Scratch = nil
			c.cfg.Pool.release(scratch)
			r.releaseBody(c.cfg.Pool)
			c.cfg.Pool.ran()
		}()
		r.target.Done(r, took, false)
	}()
	r.target.Serve(r)
	normal = true
}

// Size returns the bytes of body and attachment, as they were sent.
func (r *Request) Size() int { return r.bytes }

// explained reports whether the peer asked where the time of the call went.
func (r *Request) explained() bool { return r.Fields != nil && r.Fields.Explain != 0 }

// sayTime is the duration from which a reply carries the time of the call without being asked. The
// fields cost an allocation and a few bytes.
const sayTime = 10 * time.Millisecond

// sayTimesIfAsked is sayTimes for a request that was not measured, if the peer asked for the times.
func (r *Request) sayTimesIfAsked() {
	if r.explained() {
		r.sayTimes(Clock())
	}
}

// sayTimes adds the times of the call up to now to the reply, if the peer may want them.
func (r *Request) sayTimes(now time.Duration) {
	if r.Arrived == 0 {
		r.Arrived = r.Taken
	}
	took := now - r.Arrived
	if failed := r.Reply.Code != 0 && r.Reply.Fields != nil; r.alone() || took < sayTime && !failed && !r.explained() {
		return
	}
	began := r.Began
	if began == 0 {
		began = r.Taken
	}
	if r.Reply.Fields == nil {
		r.Reply.Fields = new(wire.Fields)
	}
	f := r.Reply.Fields
	f.ServerTime = max(microseconds(took), 1)
	f.ServerWait = min(microseconds(began-r.Arrived), f.ServerTime)
}

func microseconds(d time.Duration) uint64 { return uint64(max(d, 0) / time.Microsecond) }

func (r *Request) releaseBody(p *Pool) {
	if r.held != nil {
		if r.own {
			giveMemory(*r.held)
		} else {
			p.release(r.held)
		}
		r.held, r.Body, r.Attachment = nil, nil, nil
	}
}

// finish sends the reply of a request that is in the table, and takes the request out of the table.
func (c *Conn) finish(r *Request) {
	r.hasReturned()
	c.mu.Lock()
	if r.stream != nil {
		// A goroutine that the handler left behind must not send frames into the reply.
		r.stream.endLocked(context.Canceled)
	}
	// A peer that does not read must not make this side buffer more replies.
	if r.alone() || c.awaitReplySpaceRelocking(r) != nil {
		c.leaveTableLocked(r)
		c.mu.Unlock()
		return
	}
	h, m := r.replyMessage()
	rest := c.appendMessageLocked(h, &m)
	if rest.size() > 0 {
		c.finishLargeAndUnlock(r, wire.Header{Type: wire.Data, Flags: m.flags&wire.HasChecksum | wire.OfReply, ID: r.id}, m.remainder(rest))
		return
	}
	c.leaveTableLocked(r)
	c.countOutLocked()
	c.flushAndUnlock(c.inOpen > 0)
}

// finishLargeAndUnlock sends the rest of a reply and unlocks c.mu. The request leaves the table
// together with the last piece, because the peer may reuse the id as soon as it has that piece.
func (c *Conn) finishLargeAndUnlock(r *Request, h wire.Header, rest pieces) {
	left := false
	// The only error is the end of the connection, which the peer notices by itself.
	_ = c.sendRestAndUnlock(context.Background(), time.Time{}, h, rest, false, func(_ int, last bool) bool {
		if left = last && !r.unwanted; left {
			c.leaveTableLocked(r)
		}
		return !r.unwanted
	})
	c.mu.Lock()
	if !left { // the caller has canceled, or the connection has ended
		c.finishLocked(c.beginLocked(h))
		c.leaveTableLocked(r)
	}
	c.flushAndUnlock(false)
}

// replyMessage returns the header and the message of the reply of r.
func (r *Request) replyMessage() (wire.Header, message) {
	m := message{fields: r.Reply.Fields, body: r.Reply.Body, attachment: r.Reply.Attachment}
	if r.Reply.NotProcessed {
		m.flags |= wire.NotProcessed
	}
	if r.Reply.Compressed {
		m.flags |= wire.Compressed
	}
	if r.checksum {
		m.flags |= wire.HasChecksum
	}
	return wire.Header{Type: wire.Reply, Arg: r.Reply.Code, ID: r.id}, m
}

// refuseLocked answers a request that is not executed with an error of the catalogue.
func (c *Conn) refuseLocked(r *Request, errorID, text string) {
	c.refuseForLocked(r, catalogue.Of(errorID).Code, errorID, text)
}

// refuseForLocked is refuseLocked with a given code.
func (c *Conn) refuseForLocked(r *Request, code uint16, errorID, text string) {
	if r.alone() {
		return
	}
	m := message{flags: wire.NotProcessed, fields: &wire.Fields{Message: []byte(text), ErrorID: []byte(errorID)}}
	if r.checksum {
		m.flags |= wire.HasChecksum
	}
	c.appendMessageLocked(wire.Header{Type: wire.Reply, Arg: code, ID: r.id}, &m)
}

// unserved is the target of every method number on a side that serves nothing.
type unserved struct{}

func (unserved) Inline() (bool, bool)  { return false, false }
func (unserved) Expects() int          { return 0 }
func (unserved) New(*Request) *Request { return new(Request) }
func (unserved) Serve(r *Request) {
	r.Reply = refusedWith(catalogue.NothingServed, "this side of the connection serves nothing")
}
func (unserved) Done(*Request, time.Duration, bool) {}

// shuttingDown is the text of the refusal of requests that arrive after the drain notice.
const shuttingDown = "the server is shutting down"

// refusedWith returns the outcome of a request that is not executed.
func refusedWith(errorID, text string) Outcome {
	o := failedWith(errorID, text)
	o.NotProcessed = true
	return o
}

func failedWith(errorID, text string) Outcome {
	return Outcome{Code: catalogue.Of(errorID).Code, Fields: &wire.Fields{ErrorID: []byte(errorID), Message: []byte(text)}}
}

func goexitOutcome() Outcome {
	return failedWith(catalogue.HandlerGoexited, "the handler ended its goroutine (runtime.Goexit) instead of returning")
}
