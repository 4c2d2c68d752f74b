// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Target is what a method number stands for on the side that serves it: the method's name, found,
// with its codec. Its methods are called concurrently.
type Target interface {
	// Inline reports whether the method is known to be short, so that it runs on the reading
	// goroutine, and whether this call is to be timed: reading the clock takes longer than the
	// shortest methods. The reading goroutine asks, once for each request.
	Inline() (inline, timed bool)
	// Expects returns how many bytes the replies of the method have had of late, if that is much; 0
	// if it is little.
	Expects() int
	// New returns a Request, embedded in whatever the owner needs beside it. Used is nil, or one
	// that this side's targets have returned before and that has run inline to its end, to be used
	// again.
	New(used *Request) *Request
	// Serve carries out the call and leaves the reply in the request. It must not panic. It may end
	// its goroutine.
	Serve(r *Request)
	// Done is told when the reply has been queued, how long Serve took, or that it was not timed,
	// and whether it held up the reading goroutine so long that another one took over. It must not
	// panic. It may end its goroutine.
	Done(r *Request, took time.Duration, handedOver bool)
}

// Untimed is how long a call took that was not timed.
const Untimed time.Duration = -1

// A Request is a call that the peer opened. One that has run inline to its end may be used again:
// nobody but its reader has seen it. Handlers keep contexts, so its Context never is.
type Request struct {
	*Context // New sets it, or else the reader does

	// Owner is what the request is embedded in.
	Owner any

	// The request, as it came. Body and Attachment are valid until Done.
	OneWay     bool
	Compressed bool
	Metadata   []byte // pairs, see wire.EachPair; as long valid as Body
	Budget     uint64 // of attempts; 0 is without end
	// nil when there are none but the timeout, the metadata and the budget; its slices are valid
	// until Done
	Fields     *wire.Fields
	Body       []byte
	Attachment []byte
	Broken     error // not nil when the message could not be read; Serve makes the reply of it

	// Taken is when it was taken up, on Clock; 0 when the reading goroutine, which runs it, has not
	// looked. Left is when Done returned; 0 when that has not looked. So a reading of the clock at
	// the end of one call is that at the beginning of the next.
	Taken, Left time.Duration
	// Arrived is when it was read, its first frame if it came in several, on Clock; 0 when the
	// reading goroutine, which runs it, has not looked. Began is when the method itself began, if
	// Serve has said so.
	Arrived, Began time.Duration

	// The reply, to be filled in by Serve. Scratch is memory to encode it into; Serve leaves it
	// behind larger, if it made it grow.
	Reply   Outcome
	Scratch []byte

	fieldMemory *wire.Fields // nil before there were any

	target    Target
	number    uint16 // of the method
	methodID  uint32 // of the Method frame that gave it
	bytes     int
	memory    int  // counted for it, until it leaves the table
	expected  int  // of memory, for its reply
	admitted  bool // there was room for its reply, see replies.go
	checksum  bool
	own       bool       // held is for this message only
	nested    bool       // it serves a call of this side, see nested.go
	unwanted  bool       // the peer canceled it
	stray     bool       // the peer used the id twice, which was seen too late; guarded by Conn.mu
	orphan    bool       // its connection has ended and its caller was not waiting; guarded by Conn.mu
	held      *[]byte    // the body's memory when it is not the read buffer
	collected *collector // while it comes in pieces; changed with Conn.mu held, by the reader
	stream    *Stream    // nil for a unary method
	turn      *turn      // nil when it is not ordered; guarded by Conn.mu
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

// Inform tells the peer what is known of the method that it calls. A peer that must not know yet is
// told nothing by Config.Bind, and by this once it may.
func (r *Request) Inform(info wire.Info) {
	c := r.conn
	c.mu.Lock()
	if c.err == nil {
		c.appendLocked(func(dst []byte) []byte { return wire.AppendMethodInfo(dst, r.number, r.methodID, &info) })
	}
	c.flushLocked(true)
}

// Keep gives Body and Attachment to the caller for good, if they are in memory for this message
// only, and reports whether they are.
func (r *Request) Keep() bool {
	if r.own {
		r.held = nil
	}
	return r.own
}

// Stream returns the messages of a method that is not unary, or nil.
func (r *Request) Stream() *Stream { return r.stream }

// enterTableLocked makes r known by its id, so that it can be canceled.
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
		c.careLocked(r.deadline)
	}
	switch {
	case c.err == nil:
	case r.OneWay && !errors.Is(c.err, ErrClosed):
		c.orphanLocked(r)
	default:
		go r.cancel(context.Canceled, c.err)
	}
}

// orphanLocked leaves a one-way request to the pool when its connection is lost: its caller was not
// waiting for it. From there on it does not count in the budget, so that clients that leave do not
// take room from those that stay. When the pool has enough of them, the request goes on counting,
// and is canceled soon.
func (c *Conn) orphanLocked(r *Request) {
	r.orphan = true
	if c.cfg.Pool.adopt(r, c.cfg.mostOrphans()) {
		c.seldomLocked().orphans++
	}
}

// mostOrphans is how many orphans a server may have: a quarter of the requests that it may have
// open.
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
	if r.turn != nil {
		c.passLocked(r)
	}
	c.inOpen--
	c.inBytes -= r.bytes
	if r.collected != nil { // it will not come whole
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
		c.settleLocked()
	}
	c.roomChangedLocked()
	c.quietLocked()
	c.restLocked()
}

// roomChangedLocked wakes who waits for room in the table.
func (c *Conn) roomChangedLocked() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// findSlotLocked returns the request in the slot of this id, or nil.
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

// run serves a request that is in the table, on a goroutine that is not the reader.
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
		defer func() { // also when Done ends the goroutine
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

// Size is how many bytes came with the request: body and attachment, as they were sent.
func (r *Request) Size() int { return r.bytes }

// explained reports whether the peer wants to know where the time went.
func (r *Request) explained() bool { return r.Fields != nil && r.Fields.Explain != 0 }

// sayTime is from when on a reply says how long the call took, without being asked: fields take an
// allocation and some bytes.
const sayTime = 10 * time.Millisecond

// sayTimesIfAsked is sayTimes for a request that has not been timed, if it has to be.
func (r *Request) sayTimesIfAsked() {
	if r.explained() {
		r.sayTimes(Clock())
	}
}

// sayTimes makes the reply say where the time went until now, if somebody may want to know.
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

// finish sends the reply of a request that is in the table, and takes it out.
func (c *Conn) finish(r *Request) {
	r.hasReturned()
	c.mu.Lock()
	if r.stream != nil {
		// a goroutine that the handler has left behind must not send into the reply
		r.stream.endLocked(context.Canceled)
	}
	// A peer that does not read gets no more replies into memory.
	if r.alone() || c.awaitReplySpaceLocked(r) != nil {
		c.leaveTableLocked(r)
		c.mu.Unlock()
		return
	}
	h, m := r.replyMessage()
	rest := c.appendMessageLocked(h, &m)
	if rest.size() > 0 {
		c.finishLargeLocked(r, wire.Header{Type: wire.Data, Flags: m.flags&wire.HasChecksum | wire.OfReply, ID: r.id}, m.remainder(rest))
		return
	}
	c.leaveTableLocked(r)
	c.countOutLocked()
	c.flushLocked(c.inOpen > 0)
}

// finishLargeLocked sends the rest of a reply, and unlocks, and takes its request out of the table
// together with the last piece: the peer may use the id again as soon as it has that.
func (c *Conn) finishLargeLocked(r *Request, h wire.Header, rest pieces) {
	left := false
	// An error is the end of the connection; the peer will know.
	_ = c.sendRestLocked(context.Background(), time.Time{}, h, rest, false, func(_ int, last bool) bool {
		if left = last && !r.unwanted; left {
			c.leaveTableLocked(r)
		}
		return !r.unwanted
	})
	c.mu.Lock()
	if !left { // the caller has gone, or the connection
		c.finishLocked(c.beginLocked(h))
		c.leaveTableLocked(r)
	}
	c.flushLocked(false)
}

// replyMessage makes the reply of r a message.
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

// refuseLocked answers a request that is not executed, with an error of the catalogue.
func (c *Conn) refuseLocked(r *Request, errorID, text string) {
	c.refuseForLocked(r, catalogue.Of(errorID).Code, errorID, text)
}

// refuseForLocked is refuseLocked with a code that the peer chose.
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

// unserved is what every method number stands for on a side that serves nothing.
type unserved struct{}

func (unserved) Inline() (bool, bool)  { return false, false }
func (unserved) Expects() int          { return 0 }
func (unserved) New(*Request) *Request { return new(Request) }
func (unserved) Serve(r *Request) {
	r.Reply = refusedWith(catalogue.NothingServed, "this side of the connection serves nothing")
}
func (unserved) Done(*Request, time.Duration, bool) {}

// shuttingDown refuses the requests that come after the drain notice.
const shuttingDown = "the server is shutting down"

// refusedWith is the outcome of a request that is not executed.
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
