// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"errors"
	"reflect"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// answer sends the outcome of a call: the error e, or else the reply. It sends nothing for a
// one-way call.
func (q *incoming) answer(e *yodel.Error) {
	c, v := q.conn, q.served
	if e != nil && e.Code == yodel.Unauthenticated {
		c.refuse()
	}
	if q.is(oneWay) {
		return
	}
	metadata, buffer := c.metadata(v), takeBuffer()
	returned := false
	defer func() {
		if !returned { // a method of the reply ended the goroutine
			q.fail(metadata, nil, v.Outcome())
		}
	}()
	if e == nil {
		e = q.succeed(metadata, buffer)
	}
	var body []byte
	if e != nil {
		body = c.beside((*buffer)[:0], v)
	}
	if returned = true; e != nil {
		q.fail(metadata, body, e)
	}
	giveBuffer(buffer)
}

// buffers has the memory of replies that were sent.
var buffers sync.Pool

// keepBuffer is the size up to which a buffer is reused.
const keepBuffer = 64 << 10

func takeBuffer() *[]byte {
	if buffer, ok := buffers.Get().(*[]byte); ok {
		return buffer
	}
	return new([]byte)
}

func giveBuffer(buffer *[]byte) {
	if cap(*buffer) <= keepBuffer {
		buffers.Put(buffer)
	}
}

// succeed sends the reply of a call, unless it returns an error, with which the call has failed. It
// uses the memory of buffer.
func (q *incoming) succeed(metadata []byte, buffer *[]byte) *yodel.Error {
	v := q.served
	if err := unsendable(v.Call()); err != nil {
		return v.Fail(err)
	}
	reply := q.reply(metadata)
	frame := reply.append((*buffer)[:0])
	size := len(frame)
	frame, packed, e := v.AppendReply(frame)
	if *buffer = frame[:0]; e != nil {
		return e
	}
	setPayload(frame, len(frame)-size)
	if packed {
		setFlag(frame, gzipped)
	}
	q.conn.replies.Reply(v, frame)
	return nil
}

// fail sends the error of a call, and what its method has left as a reply.
func (q *incoming) fail(metadata, body []byte, e *yodel.Error) {
	text := rpcxwire.TextOf(q.conn.session, q.served, q.path, q.method, q.serialize, e)
	reply := q.reply(append(errorMetadata(nil, text, e), metadata...))
	reply.flags |= failed
	reply.payload = len(body)
	q.conn.replies.Reply(q.served, reply.append(nil), body)
}

// reply returns the head of the reply to a request, without a payload.
func (q *incoming) reply(metadata []byte) head {
	return head{
		version: q.version, flags: response | q.flags&(heartbeat|oneWay), serialize: q.serialize, seq: q.seq,
		path: q.path, method: q.method, metadata: string(metadata),
	}
}

// unsendable returns why a reply cannot be sent by this protocol, or nil.
func unsendable(call *yodel.Call) error {
	if call.ReplyAttachment != nil {
		return errors.New("the reply has an attachment, which rpcx cannot carry")
	}
	return nil
}

// beside appends the reply that a method has left when it failed. The reply is missing if there is
// none, or if it cannot be sent.
func (c *conn) beside(dst []byte, v *yodel.Served) (body []byte) {
	call := v.Call()
	if !call.Executed() || call.Codec == nil || call.Reply == nil {
		return nil
	}
	defer func() {
		if recover() != nil { // a method of the reply; the error is more important
			body = nil
		}
	}()
	var err error
	switch reply := call.Reply.(type) {
	case *yodel.Encoded:
		body = append(dst, reply.Body...)
	case yodel.Values:
		return nil
	default:
		if p := reflect.ValueOf(reply); p.Kind() == reflect.Pointer && p.IsNil() {
			return nil
		}
		body, err = call.Codec.Append(dst, reply)
	}
	if err != nil || len(body) > c.limits.MaxMessage {
		return nil
	}
	return body
}

// metadata returns the metadata of a reply, without what rpcx cannot carry.
func (c *conn) metadata(v *yodel.Served) (b []byte) {
	for _, pair := range metakeys.Pairs(v, c.limits, rpcxwire.Obstacle) {
		b = appendPair(b, pair[0], pair[1])
	}
	return b
}
