// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/collect"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A message that does not fit in a frame arrives in pieces, with other frames between them. The
// reader collects the pieces in memory of the right size, which then belongs to the receiver: see
// package collect. The reader reads the rest of a piece directly into that memory and not into its
// own buffer, because copying the rest would take as long as reading it. On Linux, one read also
// takes the pieces that are likely to follow.

// unwanted stands for all messages that no caller waits for. It collects nothing.
var unwanted = &collect.Message{Err: ErrCallerGone}

// newMessage returns a message that arrives in pieces.
func (c *Conn) newMessage() *collect.Message {
	return &collect.Message{Of: collect.Memory{Mu: &c.mu, Account: &c.memory, Spares: c.rt.spares}}
}

// collect begins to collect a request that arrives in pieces.
func (rd *reader) collect(r *Request, h wire.Header, frame, msg []byte) bool {
	r.bytes, r.Arrived = 0, time.Duration(rd.arrival())
	if r.Fields != nil {
		r.bytes = int(min(r.Fields.Size, math.MaxInt))
	}
	p := rd.c.newMessage()
	r.collected = p // so that the table shows it as incomplete
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	begin(p, h, r.bytes, frame, msg)
	return rd.collected(h, p)
}

// collected refuses a request for which there is no memory. The part that has arrived is dropped,
// and the part that still arrives is ignored.
func (rd *reader) collected(h wire.Header, p *collect.Message) bool {
	if p.Err != memory.ErrFull || h.Flags&wire.OfReply != 0 { //nolint:errorlint // it is set bare
		return true
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.callsIn.findLocked(h.ID); r != nil && r.collected == p {
		c.callsIn.abandonRequestLocked(r, catalogue.NoMemory, memoryText)
		rd.answered = true
	}
	return true
}

// onLargeReply begins to collect a reply that arrives in pieces, if its call is open and a caller
// waits.
func (co *callsOut) onLargeReply(h wire.Header, frame []byte) bool {
	c := co.c
	if !co.setPart(h.ID, unwanted) {
		return true
	}
	var f wire.Fields
	fields, msg, err := openMessage(h, frame)
	if err == nil {
		err = wire.ParseFields(fields, &f)
	}
	if err == nil && f.Size > uint64(c.cfg.MaxMessage) {
		err = &TooLargeError{Size: f.Size, Limit: c.cfg.MaxMessage}
	}
	p := c.newMessage()
	p.Err = err
	if err == nil {
		begin(p, h, int(f.Size), frame, msg) //nolint:gosec // within MaxMessage
	}
	if !co.setPart(h.ID, p) { // the caller has canceled the call meanwhile
		p.Drop()
	}
	return true
}

// setPart makes p the collector of the reply to a call. Wanted reports whether a caller waits for
// the reply.
func (co *callsOut) setPart(id uint32, p *collect.Message) (wanted bool) {
	c := co.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s := co.slotLocked(id)
	if s == nil {
		return false
	}
	if wanted = s.wanted(); wanted || s.part == nil {
		s.part = p
	}
	return wanted
}

// begin starts a message with its opening frame, and with the part of the message that this frame
// carries.
func begin(p *collect.Message, h wire.Header, size int, frame, msg []byte) {
	opening := len(frame) - len(msg)
	if h.Flags&wire.HasChecksum != 0 {
		opening -= wire.ChecksumSize
	}
	if !p.Begin(frame[:opening], opening+size, len(msg)) {
		return
	}
	h.Flags &^= wire.HasChecksum | wire.More
	wire.PutHeader(p.Buf, &h)
	p.Add(msg)
}

// broken returns why the message cannot be read, or nil.
func broken(p *collect.Message) error {
	if p == nil || p.Err == nil {
		return nil
	}
	return &BrokenError{Cause: p.Err}
}

// data handles a piece of a large message, or a message of a stream.
func (rd *reader) data(h wire.Header, frame []byte) bool {
	payload, err := wire.Payload(frame)
	c := rd.c
	c.mu.Lock()
	p, st := c.streams.gathererLocked(h)
	if p == nil && st != nil {
		return rd.streamDataAndUnlock(st, h, frame, payload, err)
	}
	c.mu.Unlock()
	switch {
	case p == nil:
		return true
	case p.Err != nil:
	case err != nil:
		p.Err = err
	default:
		p.Add(payload)
	}
	if p.Err == memory.ErrFull && h.Flags&wire.OfReply == 0 { //nolint:errorlint // it is set bare
		return rd.collected(h, p)
	}
	return rd.added(h, p)
}

// added is called when a piece has arrived. It returns false when this reader is done.
func (rd *reader) added(h wire.Header, p *collect.Message) bool {
	if h.Flags&wire.More != 0 {
		rd.expecting = true
		return true
	}
	p.Complete()
	if h.Flags&wire.OfReply != 0 {
		return rd.wholeReply(h.ID, p)
	}
	return rd.wholeRequest(h.ID, p)
}

// wholeReply passes a complete reply to its caller.
func (rd *reader) wholeReply(id uint32, p *collect.Message) bool {
	c := rd.c
	e := delivery{id: id, part: p}
	c.mu.Lock()
	e.takeWaiterLocked(c)
	p.DropLocked() // from here on it belongs to the caller
	c.lifetime.endDrainedLocked()
	c.mu.Unlock()
	return rd.wake(&e)
}

// wholeRequest starts a complete request.
func (rd *reader) wholeRequest(id uint32, p *collect.Message) bool {
	c := rd.c
	c.mu.Lock()
	r := c.callsIn.findLocked(id)
	if r == nil || c.lifetime.err != nil { // the request has left the table
		defer c.mu.Unlock()
		return c.lifetime.err == nil
	}
	r.collected = nil
	c.callsIn.noteDeadlineLocked(r) // it may have passed meanwhile
	r.memory += p.TakeOverLocked()
	c.mu.Unlock()
	r.whole(p)
	c.callsIn.dispatch(r)
	return true
}

// whole sets the fields of r from the message that p has collected.
func (r *Request) whole(p *collect.Message) {
	if r.Broken = p.Err; p.Err != nil {
		return
	}
	h := wire.ParseHeader(p.Buf)
	fields, msg, err := openMessage(h, p.Buf)
	if err == nil {
		_, err = r.readFields(fields) // the fields alias p.Buf
	}
	if err == nil {
		r.Body, r.Attachment, err = wire.SplitBody(h.Flags, msg)
		r.own, r.held = true, &p.Buf
	}
	r.Broken = err
}
