// SPDX-License-Identifier: Apache-2.0

// Package pipelined carries many calls at once over one connection. It is for protocols whose
// requests and replies have numbers, so that replies may arrive in any order. Replies is the
// server's writing side, and Link the client's side.
package pipelined

import (
	"cmp"
	"errors"
	"sync"

	"github.com/yodel-rpc/yodel"
)

// A Replies writes the replies of a session. If no goroutine is writing, a reply is written
// immediately, or with those of other requests that have arrived. Replies that are queued during
// that write go out together in the next one. Its methods may be called concurrently.
type Replies struct {
	session *yodel.Session
	most    int // the length of the queue from which Queue waits

	mu      sync.Mutex
	queue   []byte
	counted int // bytes of queue that Session.Reserve has counted
	spare   []byte
	writing bool
	written *sync.Cond // signaled after each write; nil until a goroutine waits
	err     error
}

// NewReplies returns the Replies of a session.
func NewReplies(s *yodel.Session) *Replies { return &Replies{session: s, most: s.Limits().MaxUnsent} }

// Send queues and writes a reply, which consists of parts. It does not keep parts. It waits while
// the client does not read its replies. If the connection fails, Send discards the reply.
func (r *Replies) Send(parts ...[]byte) {
	r.Queue(parts...)
	r.Flush()
}

// Reply is Send for the outcome of a call. The reply may wait for those of other requests that have
// arrived: see yodel.Served.More. Session.Loop must have got Flush.
func (r *Replies) Reply(v *yodel.Served, parts ...[]byte) {
	r.Queue(parts...)
	r.FlushFor(v)
}

// FlushFor is Flush for the reply to a call that was queued: see Reply.
func (r *Replies) FlushFor(v *yodel.Served) {
	if !v.More() || r.length() >= keepBuffer {
		r.Flush()
	}
}

func (r *Replies) length() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue)
}

// Queue queues a reply, which consists of parts, behind all replies that were queued before. It
// does not keep parts. It waits while the client does not read its replies. The caller must call
// Flush or FlushFor.
func (r *Replies) Queue(parts ...[]byte) {
	size := 0
	for _, b := range parts {
		size += len(b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	counted := r.session.Reserve(size)
	for r.writing && r.err == nil && (!counted || len(r.queue)+size > r.most && len(r.queue) > 0) {
		r.awaitLocked()
		counted = counted || r.session.Reserve(size)
	}
	if counted {
		r.counted += size
	}
	if r.err != nil {
		return
	}
	for _, b := range parts {
		r.queue = append(r.queue, b...)
	}
}

// Flush writes the queue until it is empty, unless another goroutine does so. If the code of the
// connection panics, Flush passes the panic on, and the connection has failed.
func (r *Replies) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing || len(r.queue) == 0 {
		return
	}
	r.writing = true
	defer func() { r.writing = false }()
	for len(r.queue) > 0 && r.err == nil {
		r.writeLocked()
	}
}

// Drain waits until the queue is written, or the connection has failed. A protocol calls it before
// it ends a connection, so that the client gets the reply that says why.
func (r *Replies) Drain() {
	r.Flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.writing {
		r.awaitLocked()
	}
}

// awaitLocked waits until a write has ended.
func (r *Replies) awaitLocked() {
	if r.written == nil {
		r.written = sync.NewCond(&r.mu)
	}
	r.written.Wait()
}

// writeLocked writes the queue as it is now. It unlocks mu meanwhile.
func (r *Replies) writeLocked() {
	b, counted, err := r.queue, r.counted, errInterrupted
	r.queue, r.counted = r.spare[:0], 0
	r.mu.Unlock()
	defer func() {
		r.session.Release(counted)
		r.mu.Lock()
		if r.spare = b[:0]; cap(b) > keepBuffer {
			r.spare = nil
		}
		if err != nil {
			r.err = err
		}
		if r.written != nil {
			r.written.Broadcast()
		}
	}()
	_, err = r.session.Write(b)
}

// errInterrupted is the error of a write that did not return.
var errInterrupted = errors.New("the connection's Write panicked, or ended its goroutine")

// Fail ends the connection because of err. It discards the queue.
func (r *Replies) Fail(err error) {
	_ = r.session.Conn.Close() // then the reader returns an error
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = cmp.Or(r.err, err)
}

// keepBuffer is the size up to which a buffer is reused.
const keepBuffer = 64 << 10
