// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"fmt"
	"net/rpc"
	"sync"

	"github.com/yodel-rpc/yodel"
)

// A writer is the writing side of a connection. A reply that finds nobody writing is written at
// once; those that are encoded meanwhile go out together in the next write.
type writer struct {
	session *yodel.Session
	limits  yodel.Limits

	encoding sync.Mutex // held while a reply is encoded and queued; before mu
	encoder  *gob.Encoder
	encoded  messages

	mu      sync.Mutex
	queue   []byte
	counted int // of queue, by Session.Reserve
	spare   []byte
	writing bool
	written *sync.Cond // after each write; nil when nobody has waited
	err     error
}

// A messages collects what a gob.Encoder writes, one message with each Write.
type messages struct {
	bytes.Buffer
	last int // where the last message begins
}

func (m *messages) Write(b []byte) (int, error) {
	m.last = m.Len()
	return m.Buffer.Write(b)
}

// invalid stands for the reply of a call that failed, as in net/rpc.
var invalid = struct{}{}

// reply sends the outcome of a call: e, or else the reply.
func (w *writer) reply(header *rpc.Request, v *yodel.Served, e *yodel.Error) {
	value := any(invalid)
	if e == nil {
		if value, e = v.Reply(); value == nil {
			value = invalid
		}
	}
	returned := false
	defer func() {
		if !returned { // a method of the reply has ended the goroutine
			e = v.Fail(fmt.Errorf("%T ended its goroutine while it was encoded", value))
			if w.enqueue(header, v, invalid, e) {
				w.flush()
			}
		}
	}()
	flush := w.enqueue(header, v, value, e)
	returned = true
	if flush {
		w.flush()
	}
}

// enqueue encodes a reply and queues it. It reports whether the caller has to flush.
func (w *writer) enqueue(header *rpc.Request, v *yodel.Served, value any, e *yodel.Error) bool {
	w.encoding.Lock()
	defer w.encoding.Unlock()
	// The reply is encoded first, so that the header can say that this failed. Definitions of types
	// that came out of it are sent in either case, also those that a reply has left which ended its
	// goroutine: the encoder does not repeat them.
	err := w.encode(value)
	if size := w.encoded.Len() - w.encoded.last; err == nil && size > w.limits.MaxMessage {
		w.encoded.Truncate(w.encoded.last)
		err = fmt.Errorf("the reply has %d bytes, the server's limit is %d", size, w.limits.MaxMessage)
	}
	if err != nil {
		e = v.Fail(err)
		if err = w.encode(invalid); err != nil {
			w.fail(err)
			return false
		}
	}
	response := rpc.Response{ServiceMethod: header.ServiceMethod, Seq: header.Seq}
	if e != nil {
		response.Error = cmp.Or(textOf(header.ServiceMethod, e), "error")
	}
	reply := w.encoded.Len()
	if err := w.encoder.Encode(&response); err != nil {
		w.fail(err)
		return false
	}
	b := w.encoded.Bytes()
	defer func() {
		if w.encoded.Reset(); w.encoded.Cap() > keepBuffer {
			w.encoded.Buffer = bytes.Buffer{}
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	counted := w.session.Reserve(len(b))
	for w.writing && w.err == nil && (!counted || len(w.queue)+len(b) > w.limits.MaxUnsent && len(w.queue) > 0) { // the client does not read
		if w.written == nil {
			w.written = sync.NewCond(&w.mu)
		}
		w.written.Wait()
		counted = counted || w.session.Reserve(len(b))
	}
	if counted {
		w.counted += len(b)
	}
	if w.err != nil {
		return false
	}
	w.queue = append(append(w.queue, b[reply:]...), b[:reply]...)
	if w.writing {
		return false
	}
	w.writing = true
	return true
}

// encode encodes a value. User code in it may panic.
func (w *writer) encode(value any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%T panicked while it was encoded", value)
		}
	}()
	return w.encoder.Encode(value)
}

// fail ends a connection whose encoder is in the middle of something.
func (w *writer) fail(err error) {
	_ = w.session.Conn.Close() // the reader sees it
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = cmp.Or(w.err, err)
}

// flush writes what is queued until nothing is.
func (w *writer) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 && w.err == nil {
		b, counted := w.queue, w.counted
		w.queue, w.counted = w.spare[:0], 0
		w.mu.Unlock()
		_, err := w.session.Write(b)
		w.session.Release(counted)
		w.mu.Lock()
		if w.spare = b[:0]; cap(b) > keepBuffer {
			w.spare = nil
		}
		if err != nil {
			w.err = err
		}
		if w.written != nil {
			w.written.Broadcast()
		}
	}
	w.writing = false
}

// keepBuffer is how large a buffer may be that is kept.
const keepBuffer = 64 << 10
