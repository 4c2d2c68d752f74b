// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A Handler replies to the requests of connections. Its methods are called concurrently.
type Handler interface {
	// Head decides how a request is served. It runs on the reader, so it must not block, and it
	// must not reply to the request. Serve does not follow if Reserve has no memory, if the client
	// resets the stream before the body that Serve waits for is whole, if that body is malformed or
	// late, or if the connection ends. So Head must not take what only Serve gives back.
	Head(s *Stream) Plan
	// Serve replies to a request, with Reply, or with Header, Write and End. When it returns, the
	// Stream must not be used any more, except as Retain permits. If it has not ended its reply,
	// the stream is reset. The connection's reader runs it if the Plan says so, and otherwise a
	// goroutine.
	Serve(s *Stream)
}

// A Plan says how a request is served.
type Plan struct {
	// Whole makes Serve wait until the whole body has arrived, if it has at most this many bytes.
	// Of a larger one, or one for which Reserve has no memory, Serve gets the beginning and reads
	// the rest.
	Whole int
	// Inline runs Serve on the reader if the whole body has arrived. With a Whole of zero, that is
	// for requests without a body.
	Inline bool
}

// streamCost is what Reserve is asked for a stream, beside its fields, its body and its reply.
const streamCost = 1024

// A Stream is a request and its reply. The methods for the reply are called by one goroutine at a
// time, and so are those for the body. Done, Err, Interrupt and Reset may be called concurrently
// with them.
type Stream struct {
	Head
	User any // for the Handler

	c    *Conn
	id   uint32
	plan Plan
	born uint32 // of Conn.ticks

	// Conn.mu guards begun from the time when the stream is in the table.
	begun int64 // of lifetime.now

	// Conn.mu guards what follows. A stream that is not in the table belongs to the reader.
	state    state
	listed   bool // in the table
	started  bool // Serve is or was called
	handling bool // Serve is called, and has not returned
	left     bool // the client has reset it
	retained bool // Retain was called
	inline   bool // the reader runs Serve, and writes the output when the batch ends
	err      error
	failed   interface{ Cancel() } // of OnFailure; nil for none
	waiting  *sync.Cond            // Read or Write waits; nil before the first wait
	done     chan struct{}         // of Done; nil before the first call
	cost     int                   // bytes of the stream without its body, which Reserve is asked for
	reserved int                   // bytes taken from Reserve for the stream and its body

	// The body.
	complete bool // the client has ended the request
	body     []byte
	read     int    // how many bytes of body the handler has read
	into     []byte // the rest of the memory of a Read that waits
	lost     bool   // a part that the handler has not read was dropped
	counted  int    // how many of the unread bytes Reserve has counted, so that no window stands for them
	window   int    // how many bytes the client may send
	back     int    // bytes that no WINDOW_UPDATE has given back
	got      int64  // bytes of the body so far
	readBy   time.Time
	trailers []Field

	// The reply.
	headed  bool   // HEADERS were sent
	delta   int64  // the client's window, relative to that of a new stream
	pending []byte // what waits for room
	held    int    // bytes taken from Reserve for pending
	writeBy time.Time
	ends    bool    // pending ends the reply
	trailer []Field // what is sent behind it
	queued  bool    // in the queue of sending
	prev    *Stream // the one before it there
	next    *Stream // the one behind it there
}

// ID returns the number of the stream.
func (s *Stream) ID() uint32 { return s.id }

// Whole reports whether the client has ended the request, so that the whole body and the trailer
// have arrived. It is false for a request that was reset before.
func (s *Stream) Whole() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.complete
}

// Body returns what was not read of a body that has arrived as a whole, and nil if it has not. The
// slice is valid until Serve returns, or Read is called.
func (s *Stream) Body() []byte {
	if !s.Whole() {
		return nil
	}
	return s.body[s.read:]
}

// Read reads the body. It waits for the client, and returns io.EOF at the end of the body. If the
// stream has ended before the body, it returns another error. See also SetReadDeadline.
func (s *Stream) Read(p []byte) (int, error) {
	c := s.c
	c.mu.Lock()
	if s.awaitsLocked(p) {
		s.flushRelocking()
	}
	s.into = p
	for s.awaitsLocked(p) && len(s.into) == len(p) {
		if passed(s.readBy) {
			s.into = nil
			c.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
		s.waitUntilRelocking(s.readBy)
	}
	n := len(p) - len(s.into)
	s.into = nil
	if n > 0 { // the reader has given it back
		s.flushReadAndUnlock()
		return n, nil
	}
	if n = copy(p, s.body[s.read:]); n == 0 {
		err := s.err
		switch {
		case err != nil || len(p) == 0:
		case s.complete && !s.lost:
			err = io.EOF
		default:
			err = errReplied // so the client was told to send no more
		}
		c.mu.Unlock()
		return 0, err
	}
	s.read += n
	counted := min(n, s.counted)
	s.counted -= counted
	c.giveBackLocked(n - counted)
	s.giveBackLocked(n - counted)
	if s.read == len(s.body) {
		s.body, s.read = recycle(s.body), 0
		if s.reserved > s.cost {
			c.cfg.Release(s.reserved - s.cost)
			s.reserved, s.body = s.cost, nil
		}
	}
	s.flushReadAndUnlock()
	return n, nil
}

// awaitsLocked reports whether a Read into p waits.
func (s *Stream) awaitsLocked(p []byte) bool {
	return s.read == len(s.body) && s.err == nil && s.state == open && len(p) > 0
}

// flushReadAndUnlock writes the WINDOW_UPDATE that a Read has brought about, unless flushSoon does.
func (s *Stream) flushReadAndUnlock() {
	if s.c.send.soon {
		s.c.mu.Unlock()
		return
	}
	s.flushAndUnlock()
}

// Trailers returns the fields behind the body, after Read has returned io.EOF or if Whole is true.
func (s *Stream) Trailers() []Field {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.trailers
}

// Done returns a channel that is closed when the client has reset the stream, or the connection has
// ended. A handler that runs on the reader gives up the reading with it.
func (s *Stream) Done() <-chan struct{} {
	s.HandOver()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
		if s.err != nil {
			close(s.done)
		}
	}
	return s.done
}

// OnFailure makes the Conn call w.Cancel once, when it closes Done, or at once if Done is closed.
// The last w counts, until Reply is called or Serve returns; nil is for none. Cancel is called with
// a lock held, so it must neither block nor call the Conn.
func (s *Stream) OnFailure(w interface{ Cancel() }) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.failed = w; s.err != nil && w != nil {
		w.Cancel()
	}
}

// Err returns why the stream has ended before its reply, or nil.
func (s *Stream) Err() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.err
}

// Retain permits Interrupt, Reset, Err and Done after Serve has returned, such as by a timer that
// fires meanwhile. Without it the Conn uses the Stream for the next request of an inline handler.
// Serve calls it before it gives the Stream to another goroutine.
func (s *Stream) Retain() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.retained = true
}

// Interrupt makes Read and Write fail with err from now on, and closes Done. The reply can still
// be ended with End. A reply that is complete is sent.
func (s *Stream) Interrupt(err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.failLocked(err)
}

// failLocked makes Read and Write fail. What Write was sending is dropped. If the stream is closed,
// so is a reply that waits for the client.
func (s *Stream) failLocked(err error) {
	if len(s.pending) > 0 && (!s.ends || s.state == closed) {
		s.c.send.unholdLocked(s)
	}
	if s.err != nil {
		return
	}
	s.err = err
	if s.done != nil {
		close(s.done)
	}
	if s.failed != nil {
		s.failed.Cancel()
	}
	s.wakeLocked()
}

// abortLocked ends a stream that was reset, or whose connection has ended. The caller sends
// RST_STREAM if the client has to know.
func (s *Stream) abortLocked(err error) {
	if s.closeLocked(isReset); s.state != closed {
		return
	}
	s.failLocked(err)
	s.settleLocked()
	if n := len(s.body) - s.read - s.counted; s.complete && n > 0 && s.c.cfg.Reserve(n) {
		s.reserved += n
		s.counted += n
		s.c.giveBackLocked(n)
	}
}

// closeLocked changes the state for an event that closes the stream. It drops the part of an
// incomplete body that has arrived. It keeps a complete body, because the handler may be using it.
func (s *Stream) closeLocked(e event) {
	before := s.state
	if s.state = s.state.on(e); s.state != closed || before == closed {
		return
	}
	s.c.active.Add(-1)
	if !s.complete {
		s.dropBodyLocked()
	}
}

// errReset is the error of a stream that the client has reset.
var errReset = errors.New("the client has reset the stream")

// resetLocked resets the stream from this side.
func (s *Stream) resetLocked(code errorCode, err error) {
	if s.state == closed {
		return
	}
	s.c.send.out = appendReset(s.c.send.out, s.id, code)
	s.endEarlyLocked()
	s.abortLocked(err)
}

// Reset ends the stream without a reply, or amid one. Code is that of RST_STREAM (RFC 9113,
// section 7).
func (s *Stream) Reset(code uint32) {
	s.c.mu.Lock()
	s.resetLocked(errorCode(code), fmt.Errorf("the stream was reset with the code %d", code))
	s.flushAndUnlock()
}

// endEarlyLocked remembers a stream whose client may still send DATA.
func (s *Stream) endEarlyLocked() {
	if s.state == open {
		s.c.early.add(s.id)
	}
}

// endLocked ends the reply after all of it was appended, or appends the trailer that ends it. If
// the client has not ended its request, endLocked resets the stream with NO_ERROR, so that the
// client sends no more of the body.
func (s *Stream) endLocked(trailer bool) {
	c := s.c
	if trailer {
		c.send.appendHeadersLocked(s.id, s.trailer, true)
	}
	if s.state == open {
		c.send.out = appendReset(c.send.out, s.id, noError)
		s.endEarlyLocked()
	} else {
		c.earnResetsLocked(resetsPerReply)
	}
	s.closeLocked(replyEnds)
	s.settleLocked()
}

// settleLocked gives back what a closed stream has taken, when its handler has returned.
func (s *Stream) settleLocked() {
	c := s.c
	if s.state != closed || s.handling || !s.listed {
		return
	}
	s.listed = false
	c.streams.remove(s)
	c.open.Add(-1)
	s.dropBodyLocked()
	c.cfg.Release(s.reserved)
	s.reserved = 0
}

// dropBodyLocked drops what was not read of the body, and gives its share of the windows back.
func (s *Stream) dropBodyLocked() {
	n := len(s.body) - s.read - s.counted
	s.c.giveBackLocked(n)
	s.giveBackLocked(n)
	s.lost = s.lost || s.read < len(s.body) || !s.complete
	s.body, s.read, s.counted = nil, 0, 0
}

// waitRelocking waits until another goroutine changes the stream. It unlocks Conn.mu meanwhile.
func (s *Stream) waitRelocking() {
	if s.inline {
		s.c.mu.Unlock()
		s.HandOver()
		s.c.mu.Lock()
		return // the caller looks again: the state may have changed
	}
	if s.waiting == nil {
		s.waiting = sync.NewCond(&s.c.mu)
	}
	s.waiting.Wait()
}

func (s *Stream) wakeLocked() {
	if s.waiting != nil {
		s.waiting.Broadcast()
	}
}
