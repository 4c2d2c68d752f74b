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
// Each direction has a window, which is the number of bytes that the receiver has agreed to hold. A
// sender waits when the window is full, so a slow receiver costs a bounded amount of memory. A
// window grows if a fast receiver has to wait because the window is too small.
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

	sending   sending
	receiving receiving

	traffic Traffic // guarded by conn.mu
	taken   int     // bytes that the owner has counted with Take; guarded by conn.mu
	ended   bool    // the call has ended; guarded by conn.mu

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

const (
	// defaultStreamWindow is the window of a side whose settings name none.
	defaultStreamWindow = 64 << 10
	// minStreamWindow is the smallest window: frames smaller than half of it would be mostly
	// headers.
	minStreamWindow = 4 << 10
	// maxStreamWindow is the largest window. It allows 40 MB/s with a round-trip time of 100 ms.
	maxStreamWindow = 4 << 20
	// sizeFieldSize is an upper bound of the fields that hold the size of a message.
	sizeFieldSize = 2 + 1 + binary.MaxVarintLen64
)

var (
	errNoSize      = errors.New("a message in pieces does not say its size")
	errStreamEnded = io.EOF // senders get it once the call has ended; the call's outcome has the reason
)

// NewStream returns a stream, which Start opens.
func NewStream() *Stream {
	st := &Stream{opener: true, done: make(chan struct{})}
	st.init()
	return st
}

// init connects the directions of a new stream to it.
func (st *Stream) init() {
	st.sending.st, st.receiving.st = st, st
	st.receiving.wake = make(chan struct{}, 1)
}

// openerSends and receiverSends report which sides send messages for a kind of method.
func openerSends(kind uint64) bool   { return kind == wire.Upload || kind == wire.Duplex }
func receiverSends(kind uint64) bool { return kind == wire.Feed || kind == wire.Duplex }

// newIncomingStream returns the stream of a call that the peer opened.
func newIncomingStream(c *Conn, kind uint64, id uint32, flags wire.Flags) *Stream {
	st := &Stream{conn: c, kind: kind, id: id, mark: flags&wire.HasChecksum | wire.OfReply}
	st.init()
	st.receiving.window = uint64(c.streams.streamWindow())
	if receiverSends(kind) {
		st.sending.room = uint64(c.streams.peerStream) //nolint:gosec // at least minStreamWindow
		st.sending.credit = st.sending.room
	}
	return st
}

// endLocked ends the stream with its call. Nothing more is sent or received, and all reserved
// memory is given back.
func (st *Stream) endLocked(why error) {
	if st.sending.sendErr == nil {
		st.sending.sendErr = why
	}
	st.sending.sendChangedLocked()
	c := st.conn
	st.ended = true
	if st.sending.busy { // Send may wait for space
		c.writing.spaceChangedLocked()
	}
	if !st.opener { // the opener's messages end with the outcome: see Complete
		st.receiving.closeReceiveLocked(why)
	}
	st.receiving.doneWithPartLocked()
	for _, n := range [...]*int{&st.receiving.kept, &st.receiving.held, &st.receiving.grown} {
		c.streams.unreserveLocked(n)
	}
	c.memory.Give(st.receiving.least + st.taken)
	st.receiving.least, st.taken = 0, 0
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
	st.receiving.closeReceiveLocked(closed)
	st.endLocked(errStreamEnded)
	c.writing.flushAndUnlock(false)
	close(st.done)
}

// Cancel ends a call that this side opened, unless it has ended. It tells the peer. The outcome is
// err.
func (st *Stream) Cancel(err error) { st.conn.callsOut.giveUp(st.id, st.nth, context.Canceled, err) }

// Wait waits for the end of a call that this side opened. It returns the answer or an error.
func (st *Stream) Wait() (*Answer, error) {
	<-st.done
	return st.answer, st.err
}

// Accepted waits until the peer accepts messages. An error means that the peer will never accept
// them. Wait returns the reason.
func (st *Stream) Accepted(ctx context.Context) error {
	return st.sending.awaitAccept(ctx)
}

// Send sends a message, and keeps no reference to msg. It waits while the peer's window or the
// connection's output is full. It returns an error when ctx or the stream ends. The error io.EOF
// means that the call has ended.
func (st *Stream) Send(ctx context.Context, flags wire.Flags, msg []byte) error {
	return st.sending.send(ctx, flags, msg)
}

// End says that this side sends no more messages. A message that is already being sent is sent
// completely first.
func (st *Stream) End() {
	st.sending.end()
}

// Accept allows the peer, which opened the stream, to send. Until then the peer sends no message,
// so that a refused call can be sent to another server from its first message. The window is small
// if the streams of the connection already hold much.
func (st *Stream) Accept() {
	st.receiving.accept()
}

// Receive returns the next message, which is valid until the next Receive. It waits for a message,
// until ctx or the stream ends. The error io.EOF is the regular end of the stream.
func (st *Stream) Receive(ctx context.Context) (msg []byte, flags wire.Flags, err error) {
	return st.receiving.receive(ctx)
}

// Buffered returns how many bytes of messages Receive can return without taking c.mu, headers
// included.
func (st *Stream) Buffered() int {
	return st.receiving.buffered()
}
