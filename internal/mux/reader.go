// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A reader is a goroutine that reads a connection, and the state that it owns. If a handler blocks
// a reader, a new reader takes over: see inline.go. A field without another rule in its comment is
// used only by the reader's own goroutine, or by the caller that has taken the reader (see
// selfread.go).
type reader struct {
	c *Conn
	input
	ready
	largeInput
	inlineCall

	clock    int64 // see now; 0 before the first reading
	arrived  int64 // see arrival
	inline   int   // the number of requests of the batch that ran inline
	answered bool  // this side has sent frames because of the batch

	err        error // the error of the last caller that read with this reader
	quiet      bool  // no request of the peer was open when the batch ended
	outputFull bool  // the peer does not read its replies
	parkIn     int   // the number of further batches after which the connection is parked again

	answer Answer // the Answer for Completers
}

// input is the data that a reader has read.
type input struct {
	buf []byte
	r   int // buf[r:w] has been read and not handled
	w   int
}

// ready holds the replies that a reader has yet to write, and the final frames that it has yet to
// deliver. If another reader takes over, it gets all of them.
type ready struct {
	replies    []byte     // frames of the replies of inline requests, written when the batch ends
	since      int64      // when the first of replies was appended
	nReply     uint64     // the number of frames in replies
	deliveries []delivery // final frames of the batch whose waiters have not been woken
	delivered  int        // how many of deliveries are done
}

// largeInput is the large message that a reader reads directly into its memory, see pieces.go.
type largeInput struct {
	piece     piece      // the piece that is read in place
	expecting bool       // another piece is likely to follow
	ahead     *readAhead // created with the first piece; nil where vectored reads do not exist
}

// inlineCall is the user code that a reader runs, see inline.go.
type inlineCall struct {
	state   inline.State
	current *Request // the request that runs inline; nil for a Completer
	used    *Request // the last request that ran inline to its end; nil while it is reused
	scratch []byte
	lostAt  atomic.Int64 // when another reader took over
}

// loop reads until the connection ends, another reader has taken over, or the callers read for
// themselves.
func (rd *reader) loop() {
	if left := rd.read(); !left && !rd.state.Taken() {
		rd.c.reading.lingerAndClose()
	}
}

// read reads and handles batches. Left says that from now on callers read for themselves.
func (rd *reader) read() (left bool) {
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
		if err == nil && rd.ahead != nil && rd.fills() {
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
			interrupted, parked := rd.parkInterrupted(err)
			if parked {
				return true
			}
			if !interrupted {
				c.lifetime.end(readError(err))
				return false
			}
		}
	}
}

// space returns the memory for the next bytes.
func (rd *reader) space() []byte {
	if rd.fills() {
		return rd.piece.space()
	}
	rd.makeRoom()
	if left := rd.piece.left; left > 0 { // the buffer is empty
		return rd.buf[:min(len(rd.buf), left)]
	}
	return rd.buf[rd.w:rd.limit()]
}

// await reads the next bytes.
func (rd *reader) await(space []byte) (n int, err error) {
	c := rd.c
	l := &c.reading.self
	rd.clock, rd.arrived = 0, 0
	if !c.socket.Exists() {
		return c.reading.readBelow(space)
	}
	start := c.now()
	if rd.quiet {
		n, err = l.Poll(&c.rt.pollers, c.socket, start, c.cfg.Polling, space)
	}
	if n == 0 && err == nil {
		n, err = c.reading.readBelow(space)
	}
	rd.clock = c.now()
	rd.arrived = rd.clock
	l.Waited(rd.clock-start, c.cfg.Polling)
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
	c.reading.heard.Store(true)
	c.rt.spares.MessageArrived()
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
	if !c.reading.preface && !rd.readPreface() {
		return c.reading.reader.Load() == rd && rd.alive()
	}
	frames := uint64(0)
	defer func() { c.count.framesIn.Add(frames) }()
	for rd.w-rd.r >= wire.HeaderSize {
		h := wire.ParseHeader(rd.buf[rd.r:])
		whole := h.Type == wire.Reply && h.Flags&wire.More == 0 && h.Len <= maxFrame && !c.lifetime.greeting.Load()
		if !whole && !rd.deliver() {
			return false // the new reader finds the frame in the buffer
		}
		if h.Len > maxFrame {
			c.lifetime.breach(fmt.Sprintf("a frame of %d bytes, the limit is %d", h.Len, maxFrame))
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
func (rd *reader) alive() bool { return !rd.c.lifetime.hasEnded.Load() }

// readPreface checks the part of the preface that has arrived, so that a peer of another protocol
// is recognized by its first bytes.
func (rd *reader) readPreface() bool {
	got := rd.buf[rd.r:rd.w]
	n := min(len(got), len(wire.Preface))
	if string(got[:n]) != wire.Preface[:n] {
		if rd.c.socket.Exists() { // otherwise another goroutine would write, or not, before the end
			rd.c.mu.Lock()
			rd.c.writing.greetAndUnlock() // it tells a client of another protocol what it has reached
		}
		rd.c.lifetime.end(&PrefaceError{Got: append([]byte(nil), got[:min(len(got), 64)]...)})
		return false
	}
	if n < len(wire.Preface) {
		return false
	}
	rd.r += n
	rd.c.mu.Lock()
	rd.c.reading.preface = true
	rd.c.writing.greetAndUnlock() // a server sends its preface after it has received the client's
	return true
}

// frame handles any frame except a whole reply.
func (rd *reader) frame(h wire.Header, frame []byte) bool {
	c := rd.c
	if c.lifetime.greeting.Load() && h.Type != wire.Settings {
		c.lifetime.breach("the first frame is not Settings")
		return false
	}
	payload := frame[wire.HeaderSize:]
	switch h.Type {
	case wire.Settings:
		return c.lifetime.onSettings(payload)
	case wire.Method:
		rd.answered = true
		return c.callsIn.onMethod(h, payload)
	case wire.MethodInfo:
		return c.callsOut.onMethodInfo(h, payload)
	case wire.Request:
		return rd.request(h, frame)
	case wire.Reply:
		return c.callsOut.onLargeReply(h, frame)
	case wire.Data:
		return rd.data(h, frame)
	case wire.Cancel:
		rd.answered = true
		c.callsIn.onCancel(h)
	case wire.Credit:
		return c.callsOut.onCredit(h, payload)
	case wire.Ping:
		rd.answered = true
		return c.lifetime.onPing(payload)
	case wire.Pong:
		c.lifetime.onPong(payload)
	case wire.GoAway:
		return c.lifetime.onGoAway(h, payload)
	default:
		if h.Type < wire.FirstSkippable {
			c.lifetime.breach(fmt.Sprintf("a frame of unknown type %d", h.Type))
			return false
		}
	}
	return true
}
