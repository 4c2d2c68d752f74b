// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"net/rpc"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/gobwire"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// A writer is the writing side of a connection.
type writer struct {
	*pipelined.Replies
	limits yodel.Limits

	encoding sync.Mutex // held while a reply is encoded and queued
	encoder  *gob.Encoder
	encoded  messages
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
	metakeys.LeaveOut(v, "net/rpc has no metadata")
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
			w.enqueue(header, v, invalid, e)
			w.Flush()
		}
	}()
	w.enqueue(header, v, value, e)
	returned = true
	w.FlushFor(v)
}

// enqueue encodes a reply and queues it. The caller has to flush.
func (w *writer) enqueue(header *rpc.Request, v *yodel.Served, value any, e *yodel.Error) {
	w.encoding.Lock()
	defer w.encoding.Unlock()
	// The reply is encoded first, so that the header can report an encoding error. The definitions
	// of types that the encoder has written are sent in either case, even if encoding the reply
	// ended its goroutine, because the encoder does not write them again.
	failed := w.encode(v, value)
	if size := w.encoded.Len() - w.encoded.last; failed == nil && size > w.limits.MaxMessage {
		w.encoded.Truncate(w.encoded.last)
		failed = v.Fail(fmt.Errorf("the reply has %d bytes, the server's limit is %d", size, w.limits.MaxMessage))
	}
	if failed != nil {
		e = failed
		if failed = w.encode(v, invalid); failed != nil {
			w.Fail(failed)
			return
		}
	}
	response := rpc.Response{ServiceMethod: header.ServiceMethod, Seq: header.Seq}
	if e != nil {
		response.Error = errortext.Format(header.ServiceMethod, e)
	}
	reply := w.encoded.Len()
	if err := w.encoder.Encode(&response); err != nil {
		w.Fail(err)
		return
	}
	b := w.encoded.Bytes()
	defer func() {
		if w.encoded.Reset(); w.encoded.Cap() > keepBuffer {
			w.encoded.Buffer = bytes.Buffer{}
		}
	}()
	w.Queue(b[reply:], b[:reply])
}

// encode encodes the reply of a call. It returns the error for the caller. The reply's own code may
// panic.
func (w *writer) encode(v *yodel.Served, reply any) (e *yodel.Error) {
	defer func() {
		if p := recover(); p != nil {
			e = v.Panicked(p)
		}
	}()
	err := gobwire.Rules.Check(reply)
	if err == nil {
		err = w.encoder.Encode(reply)
	}
	if err != nil {
		return v.Fail(err)
	}
	return nil
}

// keepBuffer is the size up to which a buffer is reused.
const keepBuffer = 64 << 10
