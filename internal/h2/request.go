// SPDX-License-Identifier: Apache-2.0

package h2

import "slices"

// This file takes the frames of requests. Only the reader runs it.

// continuation takes a further piece of a header block.
func (rd *reader) continuation(f *frame) (still bool, fault *Fault) {
	in := &rd.c.in
	if in.blockOf == 0 {
		return true, &Fault{code: protocolError, what: "CONTINUATION does not follow HEADERS"}
	}
	in.pieces++
	switch {
	case in.pieces > mostContinuations:
		return true, calm("a header block has too many CONTINUATION frames")
	case len(in.block)+len(f.payload) > max(rd.c.cfg.MaxHeaderList, maxFrame):
		return true, calm("a header block is too long")
	case len(f.payload) == 0 && !f.has(flagEndHeaders):
		return true, calm("a CONTINUATION frame is empty")
	}
	in.block = append(in.block, f.payload...)
	if !f.has(flagEndHeaders) {
		return true, nil
	}
	id, block := in.blockOf, in.block
	in.block, in.blockOf = nil, 0
	return rd.headers(id, block, in.blockEnds)
}

// decode decodes the block of a header or a trailer.
func (rd *reader) decode(block []byte, to *Head, trailer bool) (*listing, *Fault) {
	c := rd.c
	l := &rd.list
	*l = listing{to: to, trailer: trailer, left: c.cfg.MaxHeaderList, meanings: c.cfg.Meaning}
	if err := c.in.decoder.Decode(block, rd.add); err != nil {
		return l, &Fault{code: compressionError, what: err.Error()}
	}
	l.finish()
	return l, nil
}

// headers takes a whole header block. It begins a stream, or is the trailer of a request.
func (rd *reader) headers(id uint32, block []byte, end bool) (still bool, fault *Fault) {
	c := rd.c
	last := c.lastID.Load()
	switch {
	case id%2 == 0:
		return true, &Fault{code: protocolError, what: "HEADERS of a stream with an even number"}
	case id <= last:
		return true, rd.trailer(id, block, end)
	}
	s := rd.fresh()
	l, fault := rd.decode(block, &s.Head, false)
	if fault != nil {
		return true, fault
	}
	if id > last+2 {
		c.in.skipped = [2]uint32{last, id - 2}
	}
	c.lastID.Store(id)
	s.id, s.born, s.cost = id, c.ticks.Load(), streamCost+l.cost(c)
	requests := int(c.open.Add(1)) // before the look at refusing: see lifetime.checkLocked
	switch {
	case l.malformed != "":
		fault = &Fault{code: protocolError, stream: id, what: l.malformed}
	case c.refusing.Load(), c.full(), requests > c.cfg.MaxStreams+c.cfg.MaxStreams/4+1:
		fault = rd.refuse(id)
	case l.tooLong:
		rd.tooLong(s, end)
	case end && s.Length > 0:
		fault = &Fault{code: protocolError, stream: id, what: "content-length is not that of the body"}
	default:
		return rd.begin(s, end)
	}
	c.open.Add(-1)
	return true, fault
}

// keepFields is how many fields a Stream that is used again has room for.
const keepFields = 64

// fresh returns a Stream for the next request.
func (rd *reader) fresh() *Stream {
	s := rd.spare
	if s == nil {
		s = new(Stream)
		rd.spare = s
	}
	if cap(s.Fields) > keepFields {
		s.Fields = nil
	}
	*s = Stream{c: rd.c, Head: Head{Fields: s.Fields[:0], Length: -1}, window: rd.c.cfg.StreamWindow}
	return s
}

// full reports whether the client has opened as many streams as it may.
func (c *Conn) full() bool { return int(c.active.Load()) >= c.cfg.MaxStreams }

// refuse refuses a request, so that the client may send it elsewhere. It counts as a reset if the
// client has gone beyond MaxStreams, and knew it. A request that comes behind GOAWAY, or that is
// refused because handlers of earlier ones still run, is not counted.
func (rd *reader) refuse(id uint32) *Fault {
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send.out = appendReset(c.send.out, id, refusedStream)
	c.early.add(id)
	if c.refusing.Load() || !c.full() {
		return nil
	}
	if c.in.refused++; !c.in.acked && c.in.refused <= freeRefusals {
		return nil
	}
	return c.spendResetLocked(nil)
}

// tooLong replies to a request whose header is too long (RFC 6585, section 5).
func (rd *reader) tooLong(s *Stream, end bool) {
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send.appendHeadersLocked(s.id, []Field{{Name: ":status", Value: "431"}}, true)
	if !end {
		c.send.out = appendReset(c.send.out, s.id, noError)
		c.early.add(s.id)
	}
}

// begin begins a request. It runs an inline handler at once if the whole request is in the buffer.
func (rd *reader) begin(s *Stream, end bool) (still bool, fault *Fault) {
	c := rd.c
	s.plan = c.cfg.Handler.Head(s)
	s.state = idle.on(beginsOpen)
	if end {
		s.state, s.complete = idle.on(beginsWhole), true
	}
	if s.plan.Inline {
		if !end {
			fault = rd.adjacent(s)
		}
		if fault != nil {
			c.open.Add(-1)
			return true, fault
		}
		if s.state == requestDone {
			c.active.Add(1)
			s.started, s.handling, s.inline = true, true, true
			return rd.run(s), nil
		}
	}
	rd.spare = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.over { // since the reader has looked
		c.open.Add(-1)
		return true, nil
	}
	if !c.cfg.Reserve(s.cost) {
		c.open.Add(-1)
		c.send.out = appendReset(c.send.out, s.id, refusedStream)
		c.early.add(s.id)
		return true, nil
	}
	if s.reserved = s.cost; !c.life.stale {
		s.begun = c.life.now
	}
	c.active.Add(1)
	c.listLocked(s)
	if end || s.plan.Whole <= 0 {
		c.startLocked(s)
	}
	return true, nil
}

// adjacent takes the body of an inline request if it is the next frame in the buffer. Such a
// request enters the table only if another reader takes over, or if its reply waits for the client.
func (rd *reader) adjacent(s *Stream) *Fault {
	f, n, fault := next(rd.buf[rd.r:rd.w])
	size := len(f.payload)
	if fault != nil || n == 0 || f.kind != dataFrame || f.stream != s.id || !f.has(flagEndStream) || size > s.plan.Whole || f.size > s.window {
		return nil //nolint:nilerr // the frame is handled in its turn
	}
	rd.r += n
	rd.earnControl()
	if fault := rd.received(f.size); fault != nil {
		return fault
	}
	rd.c.in.back += f.size
	if s.Length >= 0 && s.Length != int64(size) {
		return &Fault{code: protocolError, stream: s.id, what: "content-length is not that of the body"}
	}
	s.body, s.counted = f.payload, size
	s.state, s.complete = s.state.on(requestEnds), true
	return nil
}

// unknown is the Fault of a frame of a stream that has ended or was left out.
func (rd *reader) unknown(id uint32) *Fault {
	if skipped := rd.c.in.skipped; id > skipped[0] && id <= skipped[1] {
		return &Fault{code: protocolError, what: "a frame of a stream that the client has left out"}
	}
	return &Fault{code: streamClosed, what: "HEADERS of a stream that has ended"}
}

// trailer takes HEADERS of a stream that has begun before.
func (rd *reader) trailer(id uint32, block []byte, end bool) *Fault {
	c := rd.c
	var h Head
	l, fault := rd.decode(block, &h, true)
	if fault != nil {
		return fault
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams.get(id)
	switch {
	case c.endedHereLocked(s, id):
		return nil // it was on its way when this side ended the stream
	case s == nil || s.state == closed:
		return rd.unknown(id)
	case s.state != open:
		return &Fault{code: streamClosed, stream: id, what: "HEADERS behind the end of a request"}
	case !end:
		return &Fault{code: protocolError, stream: id, what: "a trailer does not end its request"}
	case l.malformed != "":
		return &Fault{code: protocolError, stream: id, what: l.malformed}
	case l.tooLong:
		return &Fault{code: enhanceYourCalm, stream: id, what: "a trailer is too long"}
	}
	cost := l.cost(c)
	if !c.cfg.Reserve(cost) {
		return &Fault{code: enhanceYourCalm, stream: id, what: "no memory is left for a trailer"}
	}
	s.reserved, s.cost = s.reserved+cost, s.cost+cost
	s.trailers = h.Fields
	return rd.endRequestLocked(s)
}

// endRequestLocked ends the request of a stream in the table, and makes its handler run.
func (rd *reader) endRequestLocked(s *Stream) *Fault {
	if s.Length >= 0 && s.Length != s.got {
		return &Fault{code: protocolError, stream: s.id, what: "content-length is not that of the body"}
	}
	s.state, s.complete = s.state.on(requestEnds), true
	switch {
	case s.started:
		s.wakeLocked()
	case s.plan.Inline:
		s.started, s.handling, s.inline = true, true, true
		rd.ready = s
	default:
		rd.c.startLocked(s)
	}
	return nil
}

// data takes DATA.
func (rd *reader) data(f *frame) *Fault {
	if fault := rd.received(f.size); fault != nil {
		return fault
	}
	c := rd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams.get(f.stream)
	if s == nil || s.state != open {
		c.giveBackLocked(f.size)
		switch {
		case s == nil && f.stream > c.lastID.Load():
			return &Fault{code: protocolError, what: "DATA of a stream that has not begun"}
		case c.endedHereLocked(s, f.stream):
			return nil // it was on its way when this side ended the stream
		case s != nil && s.state == requestDone:
			return &Fault{code: streamClosed, stream: f.stream, what: "DATA behind the end of a request"}
		}
		c.send.out = appendReset(c.send.out, f.stream, streamClosed)
		return nil
	}
	if s.window -= f.size; s.window < 0 {
		c.giveBackLocked(f.size)
		return &Fault{code: flowControlError, stream: f.stream, what: "DATA is larger than the window of the stream"}
	}
	s.got += int64(len(f.payload))
	if s.Length >= 0 && s.got > s.Length {
		c.giveBackLocked(f.size)
		return &Fault{code: protocolError, stream: f.stream, what: "content-length is not that of the body"}
	}
	padding := f.size - len(f.payload)
	c.giveBackLocked(padding)
	s.giveBackLocked(padding)
	if c.storeLocked(s, f.payload, f.has(flagEndStream)); s.waiting != nil {
		rd.feedLocked(s)
	}
	if len(f.payload) > 0 {
		rd.earnControl()
	}
	if f.has(flagEndStream) {
		return rd.endRequestLocked(s)
	}
	return nil
}

// endedHereLocked reports whether this side has ended a stream for which frames may be on their
// way. S is nil if the stream is not in the table.
func (c *Conn) endedHereLocked(s *Stream, id uint32) bool {
	if s == nil {
		return c.early.has(id)
	}
	return s.state == closed && !s.left && !s.complete
}

// storeLocked keeps a part of a body until the handler reads it. It drops the part if the handler
// has returned.
func (c *Conn) storeLocked(s *Stream, p []byte, last bool) {
	switch {
	case s.started && !s.handling: // the reply is complete, and waits for the client
		c.giveBackLocked(len(p))
		s.giveBackLocked(len(p))
		return
	case s.started:
	case len(s.body)+len(p) <= s.plan.Whole && c.growLocked(s, len(p)):
		s.counted += len(p)
		c.giveBackLocked(len(p))
		if !last {
			s.giveBackLocked(len(p))
		}
	default:
		c.startLocked(s) // it reads the rest by itself
	}
	if n := copy(s.into, p); n > 0 { // all that arrived before was read
		s.into, p = s.into[n:], p[n:]
		c.giveBackLocked(n)
		s.giveBackLocked(n)
	}
	if len(p) > 0 {
		s.keepLocked(p)
	}
}

// keepLocked appends a part of a body to what the handler has not read.
func (s *Stream) keepLocked(p []byte) {
	if s.read > len(s.body)/2 {
		s.body = s.body[:copy(s.body, s.body[s.read:])]
		s.read = 0
	}
	if need := len(s.body) + len(p); need > cap(s.body) {
		s.body = enlarge(s.body, need)
	}
	s.body = append(s.body, p...)
}

// growLocked makes room for n more bytes of a body, if Reserve has memory for it.
func (c *Conn) growLocked(s *Stream, n int) bool {
	need := len(s.body) + n
	if need <= cap(s.body) {
		return true
	}
	size := min(max(2*cap(s.body), need, 512), max(s.plan.Whole, need))
	if !c.cfg.Reserve(size - cap(s.body)) {
		return false
	}
	s.reserved += size - cap(s.body)
	s.body = slices.Grow(s.body, size-len(s.body))
	return true
}
