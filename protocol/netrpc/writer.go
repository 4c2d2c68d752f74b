// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"fmt"
	"net"
	"net/rpc"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A writer is the writing side of a connection. A reply that finds nobody writing is written at
// once; those that are encoded meanwhile go out together in the next write.
type writer struct {
	conn   net.Conn
	limits yodel.Limits

	encoding sync.Mutex // held while a reply is encoded and queued; before mu
	encoder  *gob.Encoder
	encoded  bytes.Buffer

	mu      sync.Mutex
	queue   []byte
	spare   []byte
	writing bool
	written *sync.Cond // after each write; nil when nobody has waited
	err     error
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
	if w.enqueue(header, v, value, e) {
		w.flush()
	}
}

// enqueue encodes a reply and queues it. It reports whether the caller has to flush.
func (w *writer) enqueue(header *rpc.Request, v *yodel.Served, value any, e *yodel.Error) bool {
	w.encoding.Lock()
	defer w.encoding.Unlock()
	w.encoded.Reset()
	// The reply is encoded first, so that the header can say that this failed. Definitions of types
	// that came out of it are sent in either case: the encoder does not repeat them.
	if err := w.encode(value); err != nil {
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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(append(w.queue, b[reply:]...), b[:reply]...)
	for w.writing && w.err == nil && len(w.queue) > w.limits.MaxUnsent { // the client does not read
		if w.written == nil {
			w.written = sync.NewCond(&w.mu)
		}
		w.written.Wait()
	}
	if w.writing || w.err != nil {
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
	_ = w.conn.Close() // the reader sees it
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = cmp.Or(w.err, err)
}

// flush writes what is queued until nothing is.
func (w *writer) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 && w.err == nil {
		b := w.queue
		w.queue = w.spare[:0]
		w.mu.Unlock()
		err := w.write(b)
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

const (
	keepBuffer = 64 << 10 // larger ones are not kept
	pieceSize  = 64 << 10 // must go out within twice Limits.KeepAlive
)

func (w *writer) write(b []byte) error {
	for len(b) > 0 {
		piece := b[:min(len(b), pieceSize)]
		_ = w.conn.SetWriteDeadline(time.Now().Add(2 * w.limits.KeepAlive)) // else the write says it
		if _, err := w.conn.Write(piece); err != nil {
			_ = w.conn.Close() // the reader sees it
			return err
		}
		b = b[len(piece):]
	}
	return nil
}
