// SPDX-License-Identifier: Apache-2.0

package pipelined

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
)

// A Link is the client's side of a connection. It implements yodel.Link except for Do, and a Wire
// embeds it in its own Link. One goroutine reads replies and passes them to the waiting calls. One
// goroutine writes requests. Replies of type R should be decoded by the goroutine that waits for
// them.
type Link[R any] struct {
	Addr   string
	Limits yodel.Limits
	Memory framebody.Memory // counts the replies
	// Reader reads the connection. Only the function that Start gets uses it.
	Reader *bufio.Reader

	conn     net.Conn
	next     func() error // reads one reply
	received atomic.Int64 // bytes that were read
	passed   atomic.Int64 // bytes that were passed to a Write of the connection

	encoding sync.Mutex // held while a request is encoded and queued; before mu

	closing chan struct{} // closed when no more calls are accepted
	lost    chan struct{} // closed when read has ended
	done    chan struct{} // closed when read and write have ended
	queued  chan struct{} // capacity 1: has an element when queue is not empty

	mu       sync.Mutex
	number   uint64                     // of the last request
	pending  map[uint64]*pendingCall[R] // calls that wait for a reply
	queue    []byte                     // requests to be written
	size     int64                      // of all that was ever queued
	writing  bool                       // whether write is writing a part of the queue
	written  chan struct{}              // closed and replaced after each write
	closed   bool                       // whether closing is closed
	whenIdle bool                       // whether the connection ends when no call is pending
	err      error
}

// A pendingCall is a call that waits for its reply.
type pendingCall[R any] struct {
	number uint64
	end    int64  // where the request ends, in all that was ever queued
	reply  chan R // capacity 1; closed if the connection is lost
	held   int    // bytes that Memory counts for the reply; valid once reply has it
	unsent bool   // the request did not leave whole; valid once reply is closed
}

var (
	errClosed = errors.New("the connection was closed")
	errSilent = errors.New("the server does not answer heartbeats")
)

// NewLink returns a Link that owns conn, a connection to addr. Memory counts the replies. Start
// must be called next.
func NewLink[R any](conn net.Conn, addr string, limits yodel.Limits, memory framebody.Memory) *Link[R] {
	l := &Link[R]{
		Addr: addr, Limits: limits, Memory: memory,
		conn: conn, pending: make(map[uint64]*pendingCall[R]), closing: make(chan struct{}), lost: make(chan struct{}),
		done: make(chan struct{}), queued: make(chan struct{}, 1), written: make(chan struct{}),
	}
	l.Reader = bufio.NewReaderSize(countingReader{conn, &l.received}, 32<<10)
	return l
}

// A countingReader counts the bytes that are read.
type countingReader struct {
	io.Reader
	count *atomic.Int64
}

func (r countingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.count.Add(int64(n))
	return n, err
}

// Start begins to read and write. Next reads one reply and passes it to Deliver. An error of next
// ends the connection. Heartbeat sends a heartbeat and does not wait for its answer. Start calls it
// when the server has been silent for Limits.KeepAlive, and ends the connection when the server has
// been silent for twice that time. It is nil in a protocol without heartbeats.
func (l *Link[R]) Start(next func() error, heartbeat func()) {
	l.next = next
	var both sync.WaitGroup
	both.Go(l.read)
	both.Go(l.write)
	if heartbeat != nil && l.Limits.KeepAlive > 0 {
		both.Go(func() { l.keepAlive(heartbeat) })
	}
	go func() {
		both.Wait()
		close(l.done)
	}()
}

// keepAlive sends heartbeats until the connection ends.
func (l *Link[R]) keepAlive(heartbeat func()) {
	ticker := time.NewTicker(l.Limits.KeepAlive)
	defer ticker.Stop()
	last, silent := l.received.Load(), false
	for {
		select {
		case <-l.lost:
			return
		case <-ticker.C:
		}
		now := l.received.Load()
		switch {
		case now != last:
			last, silent = now, false
		case silent:
			l.GiveUp(errSilent)
			return
		default:
			silent = true
			heartbeat()
		}
	}
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
		full, written, closed, why := len(l.queue) > l.Limits.MaxUnsent, l.written, l.closed, l.err
		l.mu.Unlock()
		if closed {
			return linkerror.Unsent(why)
		}
		if !full {
			return nil
		}
		select {
		case <-written:
		case <-l.closing: // write may end without a signal
		case <-ctx.Done():
			return linkerror.Unsent(context.Cause(ctx))
		}
	}
}

// enqueue queues a request, and registers p for its reply if p is not nil.
func (l *Link[R]) enqueue(p *pendingCall[R], b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return linkerror.Unsent(l.err)
	}
	l.queue = append(l.queue, b...)
	l.size += int64(len(b))
	if p != nil {
		p.end = l.size
		l.pending[p.number] = p
	}
	select {
	case l.queued <- struct{}{}:
	default: // write has a signal already
	}
	return nil
}

// Await waits for the reply of a call and passes it to take. It returns the error of take. When
// take has returned, the reply does not count any more. Await returns the cause of ctx if ctx ends
// before the reply arrives, and the error of the connection if that ends. That one says whether the
// request left whole: a server executes no other.
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
		err := fmt.Errorf("the connection was lost: %w", l.Err())
		if p.unsent {
			return linkerror.Unsent(err)
		}
		return err
	}
	if p.held > 0 {
		defer l.Memory.Release(p.held)
	}
	return take(reply)
}

// Receive reads the n bytes of the body of a reply, and delivers the reply that the function reply
// returns for them, behind prefix. If the body is too large, or if there is no memory for it, reply
// gets the error, and Receive skips the body. Method is that of the call, or "" if the protocol
// does not say it. The error of Receive is that of Reader.
func (l *Link[R]) Receive(number uint64, method string, prefix []byte, n int, reply func(body []byte, err error) R) error {
	if n > l.Limits.MaxMessage {
		l.Deliver(number, reply(nil, linkerror.LargeReply(method, l.Addr, strconv.Itoa(n), l.Limits.MaxMessage)), 0)
		return framebody.Skip(l.Reader, n)
	}
	body, err := framebody.Read(prefix, l.Reader, n, l.Memory)
	if refused, ok := errors.AsType[*framebody.RefusedError](err); ok {
		l.Deliver(number, reply(nil, linkerror.NoMemory(l.Addr)), 0) // before the rest, which may take long
		return framebody.Skip(l.Reader, refused.Left)
	} else if err != nil {
		return err
	}
	l.Deliver(number, reply(body, nil), cap(body))
	return nil
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
		l.Memory.Release(held)
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
			if l.Limits.KeepAlive > 0 {
				_ = l.conn.SetWriteDeadline(time.Now().Add(2 * l.Limits.KeepAlive)) // the write fails as well
			}
			l.passed.Add(int64(len(piece)))
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
	_ = l.conn.Close() // no more replies can arrive, and a later Write sends nothing
	passed := l.passed.Load()
	for _, p := range lost {
		p.unsent = p.end > passed
		close(p.reply)
	}
	close(l.lost)
}
