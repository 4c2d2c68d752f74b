// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A reader is a goroutine that reads a connection, and the state that it owns. If a handler blocks
// it, a new reader takes over: see handover.go. Only its own goroutine uses a field, unless its
// comment says otherwise, or the caller that has taken the reader, see lone.go.
type reader struct {
	c   *Conn
	buf []byte
	r   int // buf[r:w] has been read and not handled
	w   int

	clock      int64      // see now; 0 before the first reading
	arrived    int64      // see arrival
	replies    []byte     // frames of the replies of inline requests, written when the batch ends
	since      int64      // when the first of replies was appended
	nReply     uint64     // the number of frames in replies
	deliveries []delivery // final frames of the batch whose waiters have not been woken
	delivered  int        // how many of deliveries are done
	inline     int        // the number of requests of the batch that ran inline

	piece     piece      // the piece of a large message that is read in place, see large.go
	expecting bool       // another piece is likely to follow
	ahead     *readAhead // created with the first piece; nil where vectored reads do not exist

	err   error // the error of the last caller that read with this reader
	quiet bool  // no request of the peer was open when the batch ended

	parkIn     int  // how many batches may follow until the connection is parked again
	answered   bool // this side has sent frames because of the batch
	outputFull bool // the peer does not read its replies

	// state is a counter of inline calls, shifted by stateBits, and one of the states. Changing it
	// decides between the reader and the goroutine that takes over.
	state   atomic.Uint64
	current *Request // the request that runs inline; nil for a Completer
	used    *Request // the last request that ran inline to its end; nil while it is reused
	scratch []byte
	lostAt  atomic.Int64 // when another reader took over

	answer Answer // the Answer for Completers
}

// A delivery is a final frame whose waiter has not been woken. Its slot is free after
// takeWaiterLocked.
type delivery struct {
	w     *waiter   // nil when no goroutine waits
	to    Completer // in place of w
	stop  func() bool
	id    uint32
	frame []byte
	part  *collector // in place of frame, for a message that arrived in pieces
}

// loop reads until the connection ends, another reader has taken over, or the reading is left to
// callers.
func (rd *reader) loop() {
	if lent := rd.read(); !lent && rd.state.Load()&handedOver == 0 {
		rd.c.lingerAndClose()
	}
}

// read reads and handles batches. Lent says that it has left the reading to callers.
func (rd *reader) read() (lent bool) {
	c := rd.c
	for {
		if !rd.handle() {
			return false
		}
		if !rd.endBatch() {
			return false
		}
		if rd.offerToken() || rd.parkIn > 0 && rd.parkAgain() {
			return true
		}
		rd.inline = 0
		n, err := 0, rd.err
		if err == nil && rd.piece.left > 0 && rd.ahead != nil {
			var alive bool
			if alive, err = rd.readPieces(); !alive {
				return false
			}
		} else if err == nil {
			n, err = rd.await(rd.space())
			if !rd.got(n) {
				return false
			}
		}
		if err != nil && n == 0 {
			tired, down := rd.parkInterrupted(err)
			if down {
				return true
			}
			if !tired {
				c.end(readError(err))
				return false
			}
		}
	}
}

// space returns the memory for the next bytes.
func (rd *reader) space() []byte {
	if rd.piece.left > 0 {
		return rd.piece.space()
	}
	rd.makeRoom()
	return rd.buf[rd.w:rd.limit()]
}

// await reads the next bytes.
func (rd *reader) await(space []byte) (n int, err error) {
	c := rd.c
	l := &c.self
	rd.clock, rd.arrived = 0, 0
	if c.socket == nil {
		return c.readBelow(space)
	}
	start := c.now()
	if rd.quiet {
		n, err = l.poll(c.socket, start, c.cfg.Polling, space)
	}
	if n == 0 && err == nil {
		n, err = c.readBelow(space)
	}
	rd.clock = c.now()
	rd.arrived = rd.clock
	l.waited(rd.clock-start, c.cfg.Polling)
	return n, err
}

// got records that n bytes were read. It returns false when this reader is done.
func (rd *reader) got(n int) bool {
	c := rd.c
	c.count.reads.Add(1)
	if n <= 0 {
		return true
	}
	c.count.bytesIn.Add(uint64(n))
	c.heard.Store(true)
	messageArrived()
	if rd.piece.left > 0 {
		return rd.grew(n)
	}
	rd.w += n
	rd.expecting = rd.expecting && n < peek
	return true
}

func readError(err error) error {
	if err == io.EOF { //nolint:errorlint // Read returns it bare
		return &IOError{Op: EndOfStream, Err: err}
	}
	return &IOError{Op: Read, Err: err}
}

// makeRoom prepares the buffer for the next read. It moves the rest of an incomplete frame to the
// front. It doubles the buffer if the last read filled it, or if a frame does not fit.
func (rd *reader) makeRoom() {
	size, left := len(rd.buf), rd.w-rd.r
	little := rd.w > size/2 // the room behind w is small
	if rd.w == size && size < maxReadBuffer || little && left > size/2 {
		size = max(2*size, minReadBuffer)
	}
	switch {
	case size > len(rd.buf):
		buf := make([]byte, size)
		copy(buf, rd.buf[rd.r:rd.w])
		rd.buf, rd.r, rd.w = buf, 0, left
	case left == 0:
		rd.r, rd.w = 0, 0
	case little:
		rd.r, rd.w = 0, copy(rd.buf, rd.buf[rd.r:rd.w])
	}
}

// arrival returns when the batch was read. Timeouts of requests count from then.
func (rd *reader) arrival() int64 {
	if rd.arrived == 0 {
		rd.arrived = rd.now()
	}
	return rd.arrived
}

// now returns the time of the batch, or of the last inline call in it.
func (rd *reader) now() int64 {
	if rd.clock == 0 {
		rd.clock = rd.c.now()
	}
	return rd.clock
}

// handle handles all complete frames in the buffer. It returns false when this reader is done,
// because the connection has ended or another reader has taken over.
func (rd *reader) handle() bool {
	c := rd.c
	if !c.preface && !rd.readPreface() {
		return c.reader.Load() == rd && rd.alive()
	}
	frames := uint64(0)
	defer func() { c.count.framesIn.Add(frames) }()
	for rd.w-rd.r >= wire.HeaderSize {
		h := wire.ParseHeader(rd.buf[rd.r:])
		whole := h.Type == wire.Reply && h.Flags&wire.More == 0 && h.Len <= maxFrame && !c.greeting.Load()
		if !whole && !rd.deliver() {
			return false // the new reader finds the frame in the buffer
		}
		if h.Len > maxFrame {
			c.breach(fmt.Sprintf("a frame of %d bytes, the limit is %d", h.Len, maxFrame))
			return false
		}
		size := wire.HeaderSize + int(h.Len)
		if rd.w-rd.r < size {
			if h.Type == wire.Data {
				rd.readStraight(h)
			}
			break
		}
		frame := rd.buf[rd.r : rd.r+size : rd.r+size]
		rd.r += size
		frames++
		if whole {
			if rd.queueDelivery(h, frame); len(rd.deliveries) == maxDeliveries && !rd.deliver() {
				return false
			}
		} else if !rd.frame(h, frame) {
			return false
		}
	}
	return rd.deliver()
}

// alive reports whether the connection is open.
func (rd *reader) alive() bool { return !rd.c.hasEnded.Load() }

// readPreface checks the part of the preface that has arrived, so that a peer of another protocol
// is recognized by its first bytes.
func (rd *reader) readPreface() bool {
	got := rd.buf[rd.r:rd.w]
	n := min(len(got), len(wire.Preface))
	if string(got[:n]) != wire.Preface[:n] {
		rd.c.end(&PrefaceError{Got: append([]byte(nil), got[:min(len(got), 64)]...)})
		return false
	}
	if n < len(wire.Preface) {
		return false
	}
	rd.r += n
	rd.c.mu.Lock()
	rd.c.preface = true
	rd.c.flushAndUnlock(false) // a server sends its preface after it has received the client's
	return true
}

// maxDeliveries is how many replies are delivered together. It is large enough to make the cost of
// the lock negligible. It is small enough that no caller waits long, and that all frames stay in
// the processor's nearest cache.
const maxDeliveries = 64

// queueDelivery appends a final frame to those that deliver will pass on.
func (rd *reader) queueDelivery(h wire.Header, frame []byte) {
	rd.deliveries = append(rd.deliveries, delivery{id: h.ID, frame: frame})
}

// deliver wakes the waiters of the replies in deliveries. It takes the lock once for all of them,
// wakes them one by one, and then makes one write for the requests that the woken callers send
// next. It returns false when another reader has taken over. That reader wakes the rest.
func (rd *reader) deliver() bool {
	if len(rd.deliveries) == 0 {
		return true
	}
	c := rd.c
	c.mu.Lock()
	callers := 0
	for i := rd.delivered; i < len(rd.deliveries); i++ {
		e := &rd.deliveries[i]
		if e.id != 0 { // otherwise the previous reader has taken its waiter
			e.takeWaiterLocked(c)
		}
		if e.w != nil {
			callers++
		}
	}
	// the reader does not run user code before it flushes
	gathers := callers == len(rd.deliveries) && c.gatherLocked(callers)
	c.endDrainedLocked()
	c.mu.Unlock()
	for rd.delivered < len(rd.deliveries) {
		e := &rd.deliveries[rd.delivered]
		rd.delivered++
		if !rd.wake(e) {
			return false
		}
	}
	clear(rd.deliveries)
	rd.deliveries, rd.delivered = rd.deliveries[:0], 0
	if gathers {
		c.flushGathered()
	}
	return true
}

// takeWaiterLocked frees the slot of the call, and stores the call's waiter in e.
func (e *delivery) takeWaiterLocked(c *Conn) {
	id := e.id
	e.id = 0
	s := c.slotLocked(id)
	if s == nil {
		// The call was never made. The frame is skipped, because c.mu is held and breach needs it.
		return
	}
	w := s.waiter
	c.freeSlotLocked(s)
	if w == nil || !w.id.CompareAndSwap(id, 0) {
		return // the caller no longer waits
	}
	if w.to == nil {
		e.w = w
		return
	}
	e.to, e.stop = w.to, w.stop
	c.idleWaiterLocked(w)
}

// wake passes one reply to its waiter.
func (rd *reader) wake(e *delivery) bool {
	w := e.w
	if w != nil {
		w.err = e.part.broken()
		if w.answer.own = e.part != nil && w.err == nil; w.answer.own {
			w.buf = e.part.buf
		} else {
			w.buf = append(w.buf[:0], e.frame...)
		}
		w.answer.At = time.Duration(rd.arrival())
		rd.c.self.sawCaller(w)
		w.wake <- struct{}{}
		return true
	}
	if e.to == nil {
		return true
	}
	frame := e.frame
	if rd.answer.own = e.part != nil; rd.answer.own {
		frame = e.part.buf
	}
	rd.answer.At = time.Duration(rd.arrival())
	return rd.complete(e.to, e.stop, frame, e.part.broken())
}

// frame handles any frame except a whole reply.
func (rd *reader) frame(h wire.Header, frame []byte) bool {
	c := rd.c
	if c.greeting.Load() && h.Type != wire.Settings {
		c.breach("the first frame is not Settings")
		return false
	}
	payload := frame[wire.HeaderSize:]
	switch h.Type {
	case wire.Settings:
		return c.onSettings(payload)
	case wire.Method:
		rd.answered = true
		return c.onMethod(h, payload)
	case wire.MethodInfo:
		return c.onMethodInfo(h, payload)
	case wire.Request:
		return rd.request(h, frame)
	case wire.Reply:
		return c.onLargeReply(h, frame)
	case wire.Data:
		return rd.data(h, frame)
	case wire.Cancel:
		rd.answered = true
		c.onCancel(h)
	case wire.Credit:
		return c.onCredit(h, payload)
	case wire.Ping:
		rd.answered = true
		return c.onPing(payload)
	case wire.Pong:
		c.onPong(payload)
	case wire.GoAway:
		return c.onGoAway(h, payload)
	default:
		if h.Type < wire.FirstSkippable {
			c.breach(fmt.Sprintf("a frame of unknown type %d", h.Type))
			return false
		}
	}
	return true
}

// request handles a frame that opens a call.
func (rd *reader) request(h wire.Header, frame []byte) bool {
	c := rd.c
	c.received.Add(1)
	if !c.validOpening(h) {
		c.breach(fmt.Sprintf("a request with id %d and flags %#x", h.ID, h.Flags))
		return false
	}
	method := c.targets.at(int(h.Arg))
	if method == nil || method.target == nil {
		c.breach(fmt.Sprintf("a request for method number %d, which was not announced", h.Arg))
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
			r.nested = c.serves(r)
		}
	}
	r.bytes, r.memory = len(msg), requestCost+len(frame)
	if method.kind == wire.Unary {
		r.ordered = newOrdered(r.Fields)
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
	if inline && r.stream == nil && r.ordered == nil && !c.draining.Load() && !c.refusing.Load() && !rd.outputFull && r.bytes <= c.cfg.MaxMessage {
		return rd.runInline(r, timed)
	}
	r.Arrived = time.Duration(rd.arrival())
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	r.hold(c.cfg.Pool, fields)
	c.dispatch(r)
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
func (c *Conn) validOpening(h wire.Header) bool {
	if h.ID == 0 {
		return h.Flags&(wire.OneWay|wire.More) == wire.OneWay // Data frames need an id
	}
	// The table is as large as the highest slot. A slot beyond the limit would waste memory.
	return h.ID>>wire.SlotBits != 0 && int(wire.Slot(h.ID)) < maxSlots(c.cfg.MaxOpen)
}

// maxTimeout bounds the timeout of a request, in microseconds, so that it fits in a time.Duration.
// It is about 146 years.
const maxTimeout = 1<<62/1000 - 1

// readFields parses the block of fields and returns the timeout. Most calls have only the usual
// fields. The struct for all fields is large, so it is allocated on first use.
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
// whether the connection goes on.
func (rd *reader) accept(r *Request) (ok, alive bool) {
	c := rd.c
	c.mu.Lock()
	if r.alone() {
		c.awaitRequestRoomRelocking(r) // a request without an id cannot be refused, so the reader waits for room
	}
	switch errorID, text := c.objectionLocked(r); {
	case c.err != nil:
		c.mu.Unlock()
		return false, false
	case c.findSlotLocked(r.id) != nil && !r.alone():
		c.mu.Unlock()
		c.breach(fmt.Sprintf("a request with id %d, which is open", r.id))
		return false, false
	case errorID != "":
		c.refuseLocked(r, errorID, text)
	case !c.takeLocked(r.memory):
		c.refuseLocked(r, catalogue.NoMemory, memoryText)
	default:
		if r.stream != nil && r.collected == nil { // a stream may be open for ever
			r.bytes = 0 // it may be open for ever
		}
		c.enterTableLocked(r)
		c.mu.Unlock()
		return true, true
	}
	if r.ordered != nil {
		c.seldomLocked().order.breakLocked(r.ordered)
	}
	c.mu.Unlock()
	rd.answered = true // the refusal goes out at the end of the batch
	return false, true
}

// objectionLocked returns why r is refused: the ID and the text of an error. An empty ID means that
// r is not refused.
func (c *Conn) objectionLocked(r *Request) (errorID, text string) {
	switch limit := c.cfg.MaxMessage; {
	case r.ordered != nil && c.seldomLocked().order.brokenLocked(r.ordered):
		return catalogue.EarlierRefused, skippedText
	case r.bytes > limit:
		return catalogue.RequestTooLarge, fmt.Sprintf("the request has %d bytes, the server's limit is %d", r.bytes, limit)
	case r.nested:
	// The reader counts a request before it comes here. So the drain notice may have promised that
	// this request is processed.
	case c.refusing.Load(), c.draining.Load() && !r.OneWay && c.received.Load() > c.promised:
		return catalogue.ShuttingDown, shuttingDown
	}
	open, bytes, maxOpen, maxBytes := c.openLocked(r)
	switch {
	case r.alone(): // awaitRequestRoomRelocking has decided about it
	case open >= maxOpen:
		return catalogue.TooManyOpen, fmt.Sprintf("%d requests are open on this connection, the limit is %d", open, maxOpen)
	case bytes > 0 && bytes+r.bytes > maxBytes:
		return catalogue.TooManyOpen, fmt.Sprintf("the open requests on this connection hold %d bytes, the limit is %d", bytes, maxBytes)
	}
	if !r.nested && !r.alone() && !c.budgetAllowsLocked(r, open, bytes) {
		return catalogue.TooManyOpen, fmt.Sprintf("%d requests are open on this connection, and the server has no room for more than it allowed", open)
	}
	return "", ""
}

// openLocked returns how many requests of r's kind are open, their bytes, and the limits of that
// kind. One-way requests are counted separately, because the peer does not count them in its
// window, and they must not use up the window. Requests that serve calls of this side are counted
// separately too.
func (c *Conn) openLocked(r *Request) (open, bytes, maxOpen, maxBytes int) {
	limit := &c.cfg.Limits
	switch {
	case r.alone():
		// the peer's window does not bound these, so the granted budget does
		return len(c.oneWay), c.oneWayBytes, c.limit, c.limitBytes
	case r.nested:
		return c.inNested, c.inNestBytes, extraOpen(limit.MaxOpen), extraBytes(limit.MaxOpenBytes)
	}
	return c.inOpen - len(c.oneWay) - c.inNested, c.inBytes - c.oneWayBytes - c.inNestBytes, limit.MaxOpen, limit.MaxOpenBytes
}

// memoryText is the text of the refusal when there is no memory for a request.
const memoryText = "the server has no memory left for what its peers make it hold"

// hold copies a request out of the read buffer.
func (r *Request) hold(p *Pool, fields []byte) {
	n := len(r.Body) + len(r.Attachment) + len(fields)
	if n == 0 {
		return
	}
	held := p.bufferOf(n)
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

// streamDataAndUnlock passes a frame to its stream, together with the following frames of the same
// stream. The caller holds c.mu, and streamDataAndUnlock unlocks it.
func (rd *reader) streamDataAndUnlock(st *Stream, h wire.Header, frame, payload []byte, err error) bool {
	what := ""
	if size, n := st.wholeLocked(rd.buf[rd.r-len(frame) : rd.w]); n > 0 {
		rd.r += size - len(frame)
		rd.c.count.framesIn.Add(uint64(n - 1))
	} else {
		what = st.dataLocked(h, payload, err)
	}
	rd.c.mu.Unlock()
	rd.answered = true // with credit; a peer that does not read credit soon has none left
	if what != "" {
		rd.c.breach(what)
	}
	return what == ""
}

// slotLocked returns the slot of a call that this side has open, or nil.
func (c *Conn) slotLocked(id uint32) *slot {
	if i := int(wire.Slot(id)); i < len(c.slots) && c.slots[i].taken && c.slots[i].id == id {
		return &c.slots[i]
	}
	return nil
}
