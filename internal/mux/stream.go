// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Stream carries the messages of a call that has more than one message in a direction. It begins
// with Start, whose Out names it, or with a Request of the peer. It ends with the call: with the
// final frame, the deadline, the cancellation, or the end of the connection.
//
// Each direction has a window, which is what the receiver has agreed to hold. A sender waits when
// the window is full, so a slow receiver costs a bounded amount of memory. A window grows when it
// keeps a fast receiver waiting.
//
// Send and End may be called concurrently with each other and with Receive. Receive is for one
// goroutine at a time.
type Stream struct {
	conn   *Conn
	kind   uint64
	id     uint32
	mark   wire.Flags // of the frames that this side sends
	opener bool
	nth    uint64 // as in slot; 0 for a stream that the peer opened

	// The sending direction, guarded by conn.mu.
	sent        uint64        // bytes of frames, headers included
	credit      uint64        // how many bytes may be sent in all
	room        uint64        // the peer's window; the peer always grants half of it again
	sendErr     error         // why nothing more can be sent, or nil
	busy        bool          // a goroutine is sending a message
	ending      bool          // End was called during that message
	sendChanged chan struct{} // closed when one of these changes; nil when no goroutine waits

	// The receiving direction, guarded by conn.mu.
	window   uint64        // how many bytes may arrive beyond those consumed
	granted  uint64        // how many bytes may arrive in all, as the peer knows
	received uint64        // how many bytes have arrived
	consumed uint64        // how many of them have been consumed
	in       []byte        // records of messages; the last one may be incomplete
	complete int           // bytes of in that are complete records
	want     int           // the size of the incomplete message, or 0
	pending  uint64        // the cost of its pieces that is not consumed yet
	closed   error         // why nothing more can arrive, or nil
	waiting  bool          // the consumer waits for a message
	wake     chan struct{} // capacity 1
	reserved int           // the part of conn.reserved for the incomplete message
	kept     int           // the part of conn.reserved for complete messages
	grown    int           // the part of conn.reserved for the window
	taken    int           // bytes that the owner has counted with Take
	least    int           // bytes counted for the window without a reservation
	queued   bool          // the stream waits for a reservation
	ended    bool          // the call has ended

	traffic Traffic // guarded by conn.mu

	// Owned by the consumer, the goroutine that calls Receive.
	out       []byte // records that the consumer has taken from in
	at        int    // how much of out Receive has returned
	uncounted uint64 // the cost of those messages that consumed does not include yet
	half      uint64 // half of the window
	held      int    // the part of conn.reserved for a message in out; guarded by conn.mu

	// The outcome of the call, valid once done is closed.
	done   chan struct{}
	answer *Answer
	err    error
}

// Traffic counts the complete messages that a stream has sent and received, and their bytes on the
// wire without headers.
type Traffic struct{ Sent, SentBytes, Received, ReceivedBytes int }

// Traffic returns what the stream has sent and received so far.
func (st *Stream) Traffic() Traffic {
	if st.conn == nil { // the stream was never opened
		return Traffic{}
	}
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	return st.traffic
}

func (t *Traffic) out(msg []byte) {
	t.Sent++
	t.SentBytes += len(msg)
}

func (t *Traffic) in(messages, bytes int) {
	t.Received += messages
	t.ReceivedBytes += bytes
}

// A record in the memory of a stream is a header and a message. A message that arrived as one
// frame, without fields and without a checksum, is kept with its frame header. So the messages of
// one read, often hundreds, are received by copying them. The record of any other message has the
// type gathered, and the cost of the message in place of an id.
const gathered wire.Type = 0

const (
	// defaultStreamWindow is the window of a side whose settings name none.
	defaultStreamWindow = 64 << 10
	// minStreamWindow is the smallest window: frames smaller than half of it would be mostly
	// headers.
	minStreamWindow = 4 << 10
	// maxStreamWindow is the largest window: 40 MB/s over a round trip of 100 ms.
	maxStreamWindow = 4 << 20
	// sizeFieldSize is an upper bound of the fields that hold the size of a message.
	sizeFieldSize = 2 + 1 + binary.MaxVarintLen64
)

var (
	errNoSize      = errors.New("a message in pieces does not say its size")
	errStreamEnded = io.EOF // senders get it once the call has ended; the call's outcome says more
)

// NewStream returns a stream, which Start opens.
func NewStream() *Stream {
	return &Stream{opener: true, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// openerSends and receiverSends report which sides send messages for a kind of method.
func openerSends(kind uint64) bool   { return kind == wire.Upload || kind == wire.Duplex }
func receiverSends(kind uint64) bool { return kind == wire.Feed || kind == wire.Duplex }

// newIncomingStream returns the stream of a call that the peer opened.
func newIncomingStream(c *Conn, kind uint64, id uint32, flags wire.Flags) *Stream {
	st := &Stream{conn: c, kind: kind, id: id, mark: flags&wire.HasChecksum | wire.OfReply, wake: make(chan struct{}, 1)}
	st.window = uint64(c.streams.streamWindow())
	if receiverSends(kind) {
		st.room = uint64(c.streams.peerStream) //nolint:gosec // at least minStreamWindow
		st.credit = st.room
	}
	return st
}

// endLocked ends the stream with its call. Nothing more is sent or received, and all reserved
// memory is given back.
func (st *Stream) endLocked(why error) {
	if st.sendErr == nil {
		st.sendErr = why
	}
	st.sendChangedLocked()
	c := st.conn
	st.ended = true
	if st.busy && c.writing.space != nil { // Send may wait for space
		close(c.writing.space)
		c.writing.space = nil
	}
	if !st.opener { // the opener's messages end with the outcome: see Complete
		st.closeReceiveLocked(why)
	}
	st.doneWithPartLocked()
	for _, n := range [...]*int{&st.kept, &st.held, &st.grown} {
		c.streams.unreserveLocked(n)
	}
	c.memory.give(st.least + st.taken)
	st.least, st.taken = 0, 0
}

// Complete implements Completer. It is called when the call that this side opened has ended.
func (st *Stream) Complete(a *Answer, err error) {
	c := st.conn
	c.mu.Lock()
	st.err = err
	closed := err
	if err == nil {
		closed = io.EOF
		st.answer = &Answer{
			Code: a.Code, Flags: a.Flags, Fields: slices.Clone(a.Fields), Body: slices.Clone(a.Body), Attachment: slices.Clone(a.Attachment),
		}
	}
	st.closeReceiveLocked(closed)
	st.endLocked(errStreamEnded)
	c.writing.flushAndUnlock(false)
	close(st.done)
}

// Ended reports whether a call that this side opened has ended.
func (st *Stream) Ended() bool {
	select {
	case <-st.done:
		return true
	default:
		return false
	}
}

// Cancel ends a call that this side opened, unless it has ended. It tells the peer. The outcome is
// err.
func (st *Stream) Cancel(err error) { st.conn.callsOut.giveUp(st.id, st.nth, context.Canceled, err) }

// Wait waits for the end of a call that this side opened. It returns the answer or an error.
func (st *Stream) Wait() (*Answer, error) {
	<-st.done
	return st.answer, st.err
}
