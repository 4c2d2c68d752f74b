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

// A reader is the goroutine that reads a connection, with all it owns. When a handler holds it up,
// a new reader takes over: see handover.go.
type reader struct {
	c   *Conn
	buf []byte
	r   int // buf[r:w] is read and not handled
	w   int

	clock   int64     // see now; 0 when nobody has looked
	arrived int64     // see arrival
	replies []byte    // frames of inline replies, to be written when the batch ends
	since   int64     // when the first of them was made
	nReply  uint64    // how many
	settled []settled // replies of a batch, on their way to their waiters
	told    int       // how many of them have been told
	inline  int       // requests of the batch that ran inline

	piece     piece      // of a large message, which is read to where it belongs; see large.go
	expecting bool       // another one is likely to come next
	ahead     *readAhead // made when a piece has come; nil where the system cannot

	err   error // what the last caller met that read with it
	quiet bool  // no request of the peer was open when the batch ended

	drowsy   int  // how many batches there may be until it is laid down again
	answered bool // the batch made this side answer something
	crowded  bool // the peer does not read its answers

	// state is what the reader is doing: a counter of inline calls shifted by stateBits, and one of
	// the states. It decides between the reader and who takes its place.
	state   atomic.Uint64
	current *Request // being served inline; nil for a Completer
	used    *Request // the last one that ran inline to its end; nil when it is in use
	scratch []byte
	lostAt  atomic.Int64 // when another reader took over

	answer Answer // for Completers
}

// A settled is a final frame whose slot is free again and whose waiter has yet to be told.
type settled struct {
	w     *waiter   // nil when nobody waits
	to    Completer // instead of w
	stop  func() bool
	id    uint32
	frame []byte
	part  *collector // instead of frame, for a message that came in pieces
}

// loop reads until the connection ends or another reader has taken over.
func (rd *reader) loop() {
	if lent := rd.read(); !lent && rd.state.Load()&handedOver == 0 {
		rd.c.hush()
	}
}

// read reports whether it has left the reading to callers.
func (rd *reader) read() (lent bool) {
	c := rd.c
	for {
		if !rd.handle() {
			return false
		}
		if !rd.endBatch() {
			return false
		}
		if rd.lend() || rd.drowsy > 0 && rd.dozeOff() {
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
			tired, down := rd.lieDown(err)
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

// space is where the next bytes go.
func (rd *reader) space() []byte {
	if rd.piece.left > 0 {
		return rd.piece.space()
	}
	rd.makeRoom()
	return rd.buf[rd.w:rd.limit()]
}

// await reads what comes next.
func (rd *reader) await(space []byte) (n int, err error) {
	c := rd.c
	l := &c.lone
	rd.clock, rd.arrived = 0, 0
	if c.socket == nil {
		return c.readBelow(space)
	}
	start := c.now()
	if rd.quiet {
		n, err = l.look(c.socket, start, c.cfg.Polling, space)
	}
	if n == 0 && err == nil {
		n, err = c.readBelow(space)
	}
	rd.clock = c.now()
	rd.arrived = rd.clock
	l.waited(rd.clock-start, c.cfg.Polling)
	return n, err
}

// got takes note of n bytes read. It returns false when this reader is done.
func (rd *reader) got(n int) bool {
	c := rd.c
	c.count.reads.Add(1)
	if n <= 0 {
		return true
	}
	c.count.bytesIn.Add(uint64(n))
	c.heard.Store(true)
	messagesCome()
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

// makeRoom gets the buffer ready for the next read: it moves what is left of a frame to the front,
// and doubles the buffer when the last read filled it, or a frame does not fit.
func (rd *reader) makeRoom() {
	size, left := len(rd.buf), rd.w-rd.r
	little := rd.w > size/2 // room behind w
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

// arrival is when the batch was read: what a request's deadline counts from.
func (rd *reader) arrival() int64 {
	if rd.arrived == 0 {
		rd.arrived = rd.now()
	}
	return rd.arrived
}

// now is the time of the batch, or of the last inline call in it.
func (rd *reader) now() int64 {
	if rd.clock == 0 {
		rd.clock = rd.c.now()
	}
	return rd.clock
}

// handle handles all complete frames in the buffer. It returns false when this reader is done:
// the connection has ended, or another one reads it now.
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
		if !whole && !rd.tell() {
			return false // who took over finds the frame in the buffer
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
			if rd.settle(h, frame); len(rd.settled) == maxSettled && !rd.tell() {
				return false
			}
		} else if !rd.frame(h, frame) {
			return false
		}
	}
	return rd.tell()
}

// alive reports whether the connection has not ended.
func (rd *reader) alive() bool { return !rd.c.over.Load() }

// readPreface checks as much of the preface as has come, so that a peer of another protocol is told
// from its first bytes.
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
	rd.c.flushLocked(false) // a server's preface has waited for the client's
	return true
}

// maxSettled is how many replies are told of at once: so many that the lock costs nothing, and so
// few that nobody waits for it for long and that all of them stay in the processor's nearest cache.
const maxSettled = 64

// settle frees the slot of a final frame and remembers whom to tell.
func (rd *reader) settle(h wire.Header, frame []byte) {
	rd.settled = append(rd.settled, settled{id: h.ID, frame: frame})
}

// tell gives the replies that have gathered to those who wait for them: one lock for all, then one
// wake-up for each, and one write for what those who were woken ask next. It returns false when
// another reader has taken over, which tells the rest.
func (rd *reader) tell() bool {
	if len(rd.settled) == 0 {
		return true
	}
	c := rd.c
	c.mu.Lock()
	callers := 0
	for i := rd.told; i < len(rd.settled); i++ {
		e := &rd.settled[i]
		if e.id != 0 { // else the reader before this one has been here
			e.settleLocked(c)
		}
		if e.w != nil {
			callers++
		}
	}
	gathers := callers == len(rd.settled) && c.gatherLocked(callers) // nothing holds the reader up before it flushes
	c.restLocked()
	c.mu.Unlock()
	for rd.told < len(rd.settled) {
		e := &rd.settled[rd.told]
		rd.told++
		if !rd.wake(e) {
			return false
		}
	}
	clear(rd.settled)
	rd.settled, rd.told = rd.settled[:0], 0
	if gathers {
		c.flushGathered()
	}
	return true
}

// settleLocked frees the slot of the call, and finds who waits for it.
func (e *settled) settleLocked(c *Conn) {
	id := e.id
	e.id = 0
	s := c.slotLocked(id)
	if s == nil {
		return // a call that was never made; c.mu is held, so it is skipped rather than punished
	}
	w := s.waiter
	c.freeSlotLocked(s)
	if w == nil || !w.id.CompareAndSwap(id, 0) {
		return // nobody waits any more
	}
	if w.to == nil {
		e.w = w
		return
	}
	e.to, e.stop = w.to, w.stop
	c.idleWaiterLocked(w)
}

// wake hands one reply over.
func (rd *reader) wake(e *settled) bool {
	w := e.w
	if w != nil {
		w.err = e.part.broken()
		if w.answer.own = e.part != nil && w.err == nil; w.answer.own {
			w.buf = e.part.buf
		} else {
			w.buf = append(w.buf[:0], e.frame...)
		}
		w.answer.At = time.Duration(rd.arrival())
		rd.c.lone.sawCaller(w)
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

// frame handles one frame that is not a whole reply.
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
		r.turn = newTurn(r.Fields)
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
	if inline && r.stream == nil && r.turn == nil && !c.draining.Load() && !c.refusing.Load() && !rd.crowded && r.bytes <= c.cfg.MaxMessage {
		return rd.serve(r, timed)
	}
	r.Arrived = time.Duration(rd.arrival())
	if ok, alive := rd.accept(r); !ok {
		return alive
	}
	r.hold(c.cfg.Pool, fields)
	c.dispatch(r)
	return true
}

// newRequest returns a request of t's. One that is used again keeps its memory for fields.
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

// validOpening reports whether id and flags of a request are possible.
func (c *Conn) validOpening(h wire.Header) bool {
	if h.ID == 0 {
		return h.Flags&(wire.OneWay|wire.More) == wire.OneWay // Data frames need an id
	}
	// The table is as large as the highest slot: one that the limit does not allow would cost
	// memory.
	return h.ID>>wire.SlotBits != 0 && int(wire.Slot(h.ID)) < maxSlots(c.cfg.MaxOpen)
}

// maxTimeout bounds a request's timeout to what a time.Duration holds: about 146 years, in
// microseconds.
const maxTimeout = 1<<62/1000 - 1

// readFields reads the block of fields and returns the timeout that is in it. Most calls have no
// more than the usual ones, and the others are large.
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

// openMessage takes an opening frame apart.
func openMessage(h wire.Header, frame []byte) (fields, msg []byte, err error) {
	payload, err := wire.Payload(frame)
	if err != nil {
		return nil, nil, err
	}
	return wire.SplitFields(h.Flags, payload)
}

// accept enters r in the table, unless it has to be refused. It reports whether it did, and whether
// the connection goes on.
func (rd *reader) accept(r *Request) (ok, alive bool) {
	c := rd.c
	c.mu.Lock()
	if r.alone() {
		c.roomLocked(r) // nobody could be told of a refusal: the reading waits
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
		if r.stream != nil && r.collected == nil {
			r.bytes = 0 // it may be open for ever
		}
		c.enterTableLocked(r)
		c.mu.Unlock()
		return true, true
	}
	if r.turn != nil {
		c.seldomLocked().order.breakLocked(r.turn)
	}
	c.mu.Unlock()
	rd.answered = true // it goes out at the end of the batch
	return false, true
}

// objectionLocked returns why r is refused: the ID of an error and its text, or an empty ID.
func (c *Conn) objectionLocked(r *Request) (errorID, text string) {
	switch limit := c.cfg.MaxMessage; {
	case r.turn != nil && c.seldomLocked().order.brokenLocked(r.turn):
		return catalogue.EarlierRefused, skippedText
	case r.bytes > limit:
		return catalogue.RequestTooLarge, fmt.Sprintf("the request has %d bytes, the server's limit is %d", r.bytes, limit)
	case r.nested:
	// The reader counts a request before it comes here, so that the drain notice may have promised
	// that this one is processed.
	case c.refusing.Load(), c.draining.Load() && !r.OneWay && c.received.Load() > c.promised:
		return catalogue.ShuttingDown, shuttingDown
	}
	open, bytes, maxOpen, maxBytes := c.openLocked(r)
	switch {
	case r.alone(): // roomLocked has decided
	case open >= maxOpen:
		return catalogue.TooManyOpen, fmt.Sprintf("%d requests are open on this connection, the limit is %d", open, maxOpen)
	case bytes > 0 && bytes+r.bytes > maxBytes:
		return catalogue.TooManyOpen, fmt.Sprintf("the open requests on this connection hold %d bytes, the limit is %d", bytes, maxBytes)
	}
	if !r.nested && !r.alone() && !c.bearsLocked(r, open, bytes) {
		return catalogue.TooManyOpen, fmt.Sprintf("%d requests are open on this connection, and the server has no room for more than it allowed", open)
	}
	return "", ""
}

// openLocked returns how many requests of r's kind are open, and their bytes, and the limits.
// One-way ones are counted by themselves: the peer does not count them in its window, and they must
// not use up what it counts on. So are those that serve calls of this side.
func (c *Conn) openLocked(r *Request) (open, bytes, maxOpen, maxBytes int) {
	limit := &c.cfg.Limits
	switch {
	case r.alone():
		// nobody else keeps these within what the budget grants
		return len(c.oneWay), c.oneWayBytes, c.limit, c.limitBytes
	case r.nested:
		return c.inNested, c.inNestBytes, extraOpen(limit.MaxOpen), extraBytes(limit.MaxOpenBytes)
	}
	return c.inOpen - len(c.oneWay) - c.inNested, c.inBytes - c.oneWayBytes - c.inNestBytes, limit.MaxOpen, limit.MaxOpenBytes
}

// memoryText refuses a request for which there is no memory.
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
		_, r.Broken = r.readFields(b) // they alias it
	}
}

// streamData gives a frame, and what belongs to the same stream behind it, to its stream. The
// caller holds c.mu, which it unlocks.
func (rd *reader) streamData(st *Stream, h wire.Header, frame, payload []byte, err error) bool {
	what := ""
	if size, n := st.wholeLocked(rd.buf[rd.r-len(frame) : rd.w]); n > 0 {
		rd.r += size - len(frame)
		rd.c.count.framesIn.Add(uint64(n - 1))
	} else {
		what = st.dataLocked(h, payload, err)
	}
	rd.c.mu.Unlock()
	rd.answered = true // with credit: who does not read that can say no more than it may anyway
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
