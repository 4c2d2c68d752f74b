// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Target is what a method number stands for on the side that serves it: the method's name, found, with
// its codec. Its methods are called concurrently.
type Target interface {
	// Inline reports whether the method is known to be short, so that it runs on the reading goroutine.
	Inline() bool
	// New returns a new Request, embedded in whatever the owner needs beside it.
	New() *Request
	// Serve carries out the call and leaves the reply in the request. It must not panic. It may end its
	// goroutine.
	Serve(r *Request)
	// Done is told when the reply has been queued, how long Serve took, and whether it held up the
	// reading goroutine so long that another one took over.
	Done(r *Request, took time.Duration, handedOver bool)
}

// A Request is a call that the peer opened. It is the context of its handler too: done when the
// peer cancels, when the deadline passes, when the connection ends, and when the handler has
// returned. It is never reused, because handlers keep contexts.
type Request struct {
	// Owner is what the request is embedded in.
	Owner any

	// The request, as it came. Body and Attachment are valid until Done.
	OneWay     bool
	Compressed bool
	Fields     *wire.Fields // nil when there are none but the timeout; its slices are valid until Done
	Body       []byte
	Attachment []byte
	Broken     error // not nil when the message could not be read; Serve makes the reply of it

	// The reply, to be filled in by Serve. Scratch is memory to encode it into; Serve leaves it
	// behind larger, if it made it grow.
	Reply   Outcome
	Scratch []byte

	conn      *Conn
	target    Target
	id        uint32
	number    uint16 // of the method
	methodID  uint32 // of the Method frame that gave it
	bytes     int
	checksum  bool
	own       bool                   // held is for this message only
	nested    bool                   // it serves a call of this side, see nested.go
	unwanted  bool                   // the peer canceled it
	stray     bool                   // the peer used the id twice, which was seen too late; guarded by Conn.mu
	orphan    bool                   // its connection has ended and its caller was not waiting; guarded by Conn.mu
	held      *[]byte                // the body's memory when it is not the read buffer
	deadline  int64                  // on the connection's clock; 0 for none
	rd        atomic.Pointer[reader] // the reader that runs it inline
	running   uint64                 // the reader's state meanwhile
	collected *collector             // while it comes in pieces; changed with Conn.mu held, by the reader
	stream    *Stream                // nil for a unary method
	turn      *turn                  // nil when it is not ordered; guarded by Conn.mu

	mu    sync.Mutex
	done  chan struct{}
	err   error
	cause error
	after []*afterFunc
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

// Conn returns the connection that the request came on.
func (r *Request) Conn() *Conn { return r.conn }

// Inform tells the peer what is known of the method that it calls. A peer that must not know yet is told
// nothing by Config.Bind, and by this once it may.
func (r *Request) Inform(info wire.Info) {
	c := r.conn
	c.mu.Lock()
	if c.err == nil {
		c.appendLocked(func(dst []byte) []byte { return wire.AppendMethodInfo(dst, r.number, r.methodID, &info) })
	}
	c.flushLocked(true)
}

// Keep gives Body and Attachment to the caller for good, if they are in memory for this message only, and reports whether they are.
func (r *Request) Keep() bool {
	if r.own {
		r.held = nil
	}
	return r.own
}

// Stream returns the messages of a method that is not unary, or nil.
func (r *Request) Stream() *Stream { return r.stream }

// Draining returns a channel that is closed when this side begins to drain the connection: whoever works on something
// without end should end it.
func (r *Request) Draining() <-chan struct{} {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drainBegun == nil {
		c.drainBegun = make(chan struct{})
		if c.draining.Load() || c.refusing.Load() {
			close(c.drainBegun)
		}
	}
	return c.drainBegun
}

// alone reports whether the request is one-way and so small that it has no id: it gets no final frame.
func (r *Request) alone() bool { return r.id == 0 }

// Expired reports whether the deadline has passed.
func (r *Request) Expired() bool { return r.deadline != 0 && r.conn.now() >= r.deadline }

// Deadline implements context.Context.
func (r *Request) Deadline() (time.Time, bool) {
	if r.deadline == 0 {
		return time.Time{}, false
	}
	return r.conn.start.Add(time.Duration(r.deadline)), true
}

// Done implements context.Context. Who asks is going to wait: a handler that does so on the reading
// goroutine gives up the reading at once, because otherwise nobody could read the cancellation.
func (r *Request) Done() <-chan struct{} {
	r.Blocking()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.doneLocked()
}

func (r *Request) doneLocked() <-chan struct{} {
	if r.done == nil {
		r.done = make(chan struct{})
		if r.err != nil {
			close(r.done)
		}
	}
	return r.done
}

// Blocking says that the handler is going to wait for something.
func (r *Request) Blocking() {
	if rd := r.rd.Load(); rd != nil {
		r.conn.handOver(rd, r.running)
	}
}

// Err implements context.Context.
func (r *Request) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Value implements context.Context; the owner has more to say. Calls that are made with this context, or one derived from it, are
// known by it to serve the request: see Conn.serving.
func (r *Request) Value(key any) any {
	if _, ok := key.(requestKey); ok {
		return r
	}
	return nil
}

// Cause tells why the peer canceled: nil before, and what context.Cause would say.
func (r *Request) Cause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cause
}

type afterFunc struct{ f func() }

// AfterFunc makes contexts that are derived from this one cost no goroutine: see context.AfterFunc.
func (r *Request) AfterFunc(f func()) (stop func() bool) {
	r.Blocking()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		go f()
		return func() bool { return false }
	}
	entry := &afterFunc{f: f}
	r.after = append(r.after, entry)
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, other := range r.after {
			if other == entry {
				r.after = append(r.after[:i], r.after[i+1:]...)
				return true
			}
		}
		return false
	}
}

// cancel ends the context of the request.
func (r *Request) cancel(err, cause error) {
	r.mu.Lock()
	if r.err != nil {
		r.mu.Unlock()
		return
	}
	r.err, r.cause = err, cause
	if r.done != nil {
		close(r.done)
	}
	after := r.after
	r.after = nil
	r.mu.Unlock()
	for _, entry := range after {
		go entry.f()
	}
}

// enterTableLocked makes r known by its id, so that it can be canceled.
func (c *Conn) enterTableLocked(r *Request) {
	c.inOpen++
	c.inBytes += r.bytes
	r.stray = !r.alone() && c.findSlotLocked(r.id) != nil
	if r.alone() || r.stray {
		c.oneWay[r] = struct{}{}
		c.oneWayBytes += r.bytes
		r.nested = false
	} else {
		i := int(wire.Slot(r.id))
		if i >= len(c.in) {
			c.in = append(c.in, make([]*Request, i+1-len(c.in))...)
		}
		c.in[i] = r
	}
	if r.nested {
		c.inNested++
		c.inNestBytes += r.bytes
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

// orphanLocked leaves a one-way request, whose caller was not waiting for it anyway, to the pool when its
// connection is lost.
func (c *Conn) orphanLocked(r *Request) {
	r.orphan = true
	c.cfg.Pool.adopt(r)
}

func (c *Conn) leaveTableLocked(r *Request) {
	if r.orphan {
		c.cfg.Pool.disown(r)
	}
	if r.turn != nil {
		c.passLocked(r)
	}
	c.inOpen--
	c.inBytes -= r.bytes
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
		c.in[wire.Slot(r.id)] = nil
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
	if i := int(wire.Slot(id)); i < len(c.in) {
		return c.in[i]
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
	scratch := c.cfg.Pool.buffer()
	r.Scratch = (*scratch)[:0]
	began := c.now()
	normal := false
	defer func() {
		if !normal {
			r.Reply = goexitOutcome()
		}
		took := time.Duration(c.now() - began)
		c.finish(r)
		r.target.Done(r, took, false)
		*scratch = r.Scratch
		r.Scratch = nil
		c.cfg.Pool.release(scratch)
		r.releaseBody(c.cfg.Pool)
		c.cfg.Pool.ran()
	}()
	r.target.Serve(r)
	normal = true
}

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
	r.cancel(context.Canceled, nil)
	c.mu.Lock()
	if r.stream != nil {
		r.stream.endLocked(context.Canceled) // a goroutine that the handler has left behind must not send into the reply
	}
	// A peer that does not read gets no more replies into memory.
	if r.alone() || c.spaceLocked(context.Background(), time.Time{}, c.cfg.MaxUnsent) != nil {
		c.leaveTableLocked(r)
		c.mu.Unlock()
		return
	}
	h, m := r.replyMessage()
	rest := c.appendMessageLocked(h, &m)
	if rest.size() > 0 {
		c.flushLocked(false)
		c.finishLarge(r, wire.Header{Type: wire.Data, Flags: m.flags&wire.HasChecksum | wire.OfReply, ID: r.id}, m.remainder(rest))
		return
	}
	c.leaveTableLocked(r)
	c.flushLocked(c.inOpen > 0)
}

// finishLarge sends the rest of a reply, and takes its request out of the table together with the last piece: the
// peer may use the id again as soon as it has that.
func (c *Conn) finishLarge(r *Request, h wire.Header, rest pieces) {
	left := false
	// An error is the end of the connection; the peer will know.
	_ = c.sendRest(context.Background(), time.Time{}, h, rest, false, func(_ int, last bool) bool {
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

// refuseLocked answers a request that is not executed.
func (c *Conn) refuseLocked(r *Request, code uint16, errorID, text string) {
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

func (unserved) Inline() bool  { return false }
func (unserved) New() *Request { return new(Request) }
func (unserved) Serve(r *Request) {
	r.Reply = Outcome{Code: unimplementedCode, NotProcessed: true, Fields: &wire.Fields{
		ErrorID: []byte("YDL2010"), Message: []byte("this side of the connection serves nothing"),
	}}
}
func (unserved) Done(*Request, time.Duration, bool) {}

const (
	unimplementedCode = 12
	internalCode      = 13
)

func refusedOutcome() Outcome {
	return Outcome{Code: codeUnavailable, NotProcessed: true, Fields: &wire.Fields{
		ErrorID: []byte("YDL3004"), Message: []byte("the server is shutting down"),
	}}
}

func goexitOutcome() Outcome {
	return Outcome{Code: internalCode, Fields: &wire.Fields{
		ErrorID: []byte("YDL5002"),
		Message: []byte("the handler ended its goroutine (runtime.Goexit) instead of returning"),
	}}
}
