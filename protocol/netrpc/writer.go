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

// A writer is the writing side of a connection. If no goroutine is writing, a reply is written
// immediately. Replies that are encoded during that write go out together in the next one.
type writer struct {
	session *yodel.Session
	limits  yodel.Limits

	encoding sync.Mutex // held while a reply is encoded and queued; before mu
	encoder  *gob.Encoder
	encoded  messages

	mu      sync.Mutex
	queue   []byte
	counted int // bytes of queue that Session.Reserve has counted
	spare   []byte
	writing bool
	written *sync.Cond // signaled after each write; nil until a goroutine waits
	err     error
}

// A messages collects the output of a gob.Encoder. Each Write is one message.
type messages struct {
	bytes.Buffer
	last int // offset of the last message
}

func (m *messages) Write(b []byte) (int, error) {
	m.last = m.Len()
	return m.Buffer.Write(b)
}

// invalid is the reply of a failed call, as in net/rpc.
var invalid = struct{}{}

// reply sends the outcome of a call: the error e, or else the reply.
func (w *writer) reply(header *rpc.Request, v *yodel.Served, e *yodel.Error) {
	value := any(invalid)
	if e == nil {
		if value, e = v.Reply(); value == nil {
			value = invalid
		}
	}
	returned := false
	defer func() {
		if !returned { // a method of the reply ended the goroutine
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
	// The reply is encoded first, so that the header can report an encoding error. The definitions
	// of types that the encoder has written are sent in either case, even if encoding the reply
	// ended its goroutine, because the encoder does not write them again.
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

// fail ends the connection. The encoder failed in the middle of a message and cannot be used any
// more.
func (w *writer) fail(err error) {
	_ = w.session.Conn.Close() // then the reader returns an error
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = cmp.Or(w.err, err)
}

// flush writes the queue until it is empty.
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

// keepBuffer is the size up to which a buffer is reused.
const keepBuffer = 64 << 10
