// SPDX-License-Identifier: Apache-2.0

package pipelined

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Link is the client's side of a connection. It implements yodel.Link except for Do, and a Wire
// embeds it in its own Link. One goroutine reads replies and passes them to the waiting calls. One
// goroutine writes requests. Replies of type R should be decoded by the goroutine that waits for
// them.
type Link[R any] struct {
	conn   net.Conn
	limits yodel.Limits
	memory Memory
	next   func() error // reads one reply

	encoding sync.Mutex // held while a request is encoded and queued; before mu

	closing chan struct{} // closed when no more calls are accepted
	lost    chan struct{} // closed when read has ended
	done    chan struct{} // closed when read and write have ended
	queued  chan struct{} // capacity 1: has an element when queue is not empty

	mu       sync.Mutex
	number   uint64                     // of the last request
	pending  map[uint64]*pendingCall[R] // calls that wait for a reply
	queue    []byte                     // requests to be written
	writing  bool                       // whether write is writing a part of the queue
	written  chan struct{}              // closed and replaced after each write
	closed   bool                       // whether closing is closed
	whenIdle bool                       // whether the connection ends when no call is pending
	err      error
}

// A pendingCall is a call that waits for its reply.
type pendingCall[R any] struct {
	number uint64
	reply  chan R // capacity 1; closed if the connection is lost
	held   int    // bytes that Memory counts for the reply; valid once reply has it
}

var errClosed = errors.New("the connection was closed")

// NewLink returns a Link that owns conn. Memory counts the replies. Start must be called next.
func NewLink[R any](conn net.Conn, limits yodel.Limits, memory Memory) *Link[R] {
	return &Link[R]{
		conn: conn, limits: limits, memory: memory, pending: make(map[uint64]*pendingCall[R]), closing: make(chan struct{}), lost: make(chan struct{}),
		done: make(chan struct{}), queued: make(chan struct{}, 1), written: make(chan struct{}),
	}
}

// Start begins to read and write. Next reads one reply and passes it to Deliver. An error of next
// ends the connection.
func (l *Link[R]) Start(next func() error) {
	l.next = next
	var both sync.WaitGroup
	both.Go(l.read)
	both.Go(l.write)
	go func() {
		both.Wait()
		close(l.done)
	}()
}

// Closing implements yodel.Link.
func (l *Link[R]) Closing() <-chan struct{} { return l.closing }

// Done implements yodel.Link.
func (l *Link[R]) Done() <-chan struct{} { return l.done }

// Err implements yodel.Link.
func (l *Link[R]) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close implements yodel.Link.
func (l *Link[R]) Close(whenIdle bool) {
	l.mu.Lock()
	l.whenIdle = true
	now := !whenIdle || l.idleLocked()
	l.closeLocked(errClosed)
	l.mu.Unlock()
	if now {
		_ = l.conn.Close() // then read returns an error
	}
}

// Refuse makes the link accept no more calls because of err. The connection ends when the calls in
// flight have ended.
func (l *Link[R]) Refuse(err error) {
	l.mu.Lock()
	l.closeLocked(err)
	l.mu.Unlock()
	l.Close(true)
}

// GiveUp ends the connection because of err.
func (l *Link[R]) GiveUp(err error) {
	l.mu.Lock()
	l.closeLocked(err)
	l.mu.Unlock()
	_ = l.conn.Close() // then read returns an error
}

// idleLocked reports whether the connection can be closed, because no call needs it any more.
func (l *Link[R]) idleLocked() bool {
	return l.whenIdle && len(l.pending) == 0 && len(l.queue) == 0 && !l.writing
}

// closeLocked makes the link refuse further calls.
func (l *Link[R]) closeLocked(err error) {
	if !l.closed {
		l.closed, l.err = true, err
		close(l.closing)
	}
}

// Send sends a request. It calls encode with the number of the request, which is 1 for the first
// one. No other request is encoded or queued meanwhile. Send queues the bytes that encode returns,
// also if encode returns an error, and does not keep them. If Send returns an error, that is the
// error of encode, or an error that says that the request was not sent. Otherwise the caller waits
// for the reply with Await, unless expect is false. Send waits while the queue is too long, until
// ctx ends or the link refuses further calls.
func (l *Link[R]) Send(ctx context.Context, expect bool, encode func(number uint64) ([]byte, error)) (*pendingCall[R], error) {
	if err := l.room(ctx); err != nil {
		return nil, err
	}
	l.encoding.Lock()
	defer l.encoding.Unlock()
	l.mu.Lock()
	l.number++
	number := l.number
	l.mu.Unlock()
	b, err := encode(number)
	if err != nil {
		_ = l.enqueue(nil, b) // the next call gets the error
		return nil, err
	}
	var p *pendingCall[R]
	if expect {
		p = &pendingCall[R]{number: number, reply: make(chan R, 1)}
	}
	return p, l.enqueue(p, b)
}

// room waits until the queue is short enough for another request.
func (l *Link[R]) room(ctx context.Context) error {
	for {
		l.mu.Lock()
		full, written, closed, why := len(l.queue) > l.limits.MaxUnsent, l.written, l.closed, l.err
		l.mu.Unlock()
		if closed {
			return Unsent(why)
		}
		if !full {
			return nil
		}
		select {
		case <-written:
		case <-l.closing: // write may end without a signal
		case <-ctx.Done():
			return Unsent(context.Cause(ctx))
		}
	}
}

// enqueue queues a request, and registers p for its reply if p is not nil.
func (l *Link[R]) enqueue(p *pendingCall[R], b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return Unsent(l.err)
	}
	l.queue = append(l.queue, b...)
	if p != nil {
		l.pending[p.number] = p
	}
	select {
	case l.queued <- struct{}{}:
	default: // write has a signal already
	}
	return nil
}

// Unsent returns the error of a request that was not sent because of why.
func Unsent(why error) error {
	return &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Message: why.Error(), Cause: why}
}

// Await waits for the reply of a call and passes it to take. It returns the error of take. When
// take has returned, the reply does not count any more. Await returns the cause of ctx if ctx ends
// before the reply arrives, and the error of the connection if that ends.
func (l *Link[R]) Await(ctx context.Context, p *pendingCall[R], take func(R) error) error {
	select {
	case reply, ok := <-p.reply:
		return l.take(p, reply, ok, take)
	case <-ctx.Done():
	}
	if l.forget(p.number) == nil { // Deliver or the end of the connection was first
		reply, ok := <-p.reply
		return l.take(p, reply, ok, take)
	}
	return context.Cause(ctx)
}

func (l *Link[R]) take(p *pendingCall[R], reply R, ok bool, take func(R) error) error {
	if !ok {
		return fmt.Errorf("the connection was lost: %w", l.Err())
	}
	if p.held > 0 {
		defer l.memory.Release(p.held)
	}
	return take(reply)
}

// Expects reports whether a call waits for the reply with this number.
func (l *Link[R]) Expects(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending[number] != nil
}

// Deliver passes a reply to the call that waits for it. Memory counts held bytes for the reply. If
// no call waits for it, Deliver discards it.
func (l *Link[R]) Deliver(number uint64, reply R, held int) {
	p := l.forget(number)
	if p == nil {
		l.memory.Release(held)
		return
	}
	p.held = held
	p.reply <- reply
}

// forget removes and returns a call that gets its reply, or whose caller has stopped waiting. It
// returns nil if the call was removed before.
func (l *Link[R]) forget(number uint64) *pendingCall[R] {
	l.mu.Lock()
	p := l.pending[number]
	delete(l.pending, number)
	idle := l.idleLocked()
	l.mu.Unlock()
	if idle {
		_ = l.conn.Close() // then read returns an error
	}
	return p
}

// pieceSize is how many bytes must be written within twice Limits.KeepAlive. Otherwise the
// connection ends.
const pieceSize = 64 << 10

// write writes the queue, until the connection ends.
func (l *Link[R]) write() {
	var spare []byte
	for {
		select {
		case <-l.queued:
		case <-l.lost:
			return
		}
		l.mu.Lock()
		b := l.queue
		l.queue, l.writing = spare[:0], true
		l.mu.Unlock()
		for piece := range slices.Chunk(b, pieceSize) {
			if l.limits.KeepAlive > 0 {
				_ = l.conn.SetWriteDeadline(time.Now().Add(2 * l.limits.KeepAlive)) // the write fails as well
			}
			if _, err := l.conn.Write(piece); err != nil {
				l.GiveUp(err)
				return
			}
		}
		if spare = b; cap(b) > keepBuffer {
			spare = nil
		}
		l.mu.Lock()
		close(l.written)
		l.written, l.writing = make(chan struct{}), false
		idle := l.idleLocked()
		l.mu.Unlock()
		if idle {
			_ = l.conn.Close() // then read returns an error
		}
	}
}

// read reads replies until the connection ends.
func (l *Link[R]) read() {
	err := error(nil)
	for err == nil {
		err = l.next()
	}
	l.mu.Lock()
	l.closeLocked(err)
	lost := l.pending
	l.pending = nil
	l.mu.Unlock()
	_ = l.conn.Close() // no more replies can arrive
	for _, p := range lost {
		close(p.reply)
	}
	close(l.lost)
}
