// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"errors"
	"reflect"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// answer sends the outcome of a call: the error e, or else the reply. It sends nothing for a
// one-way call.
func (c *conn) answer(h *head, v *yodel.Served, e *yodel.Error) {
	if e != nil && e.Code == yodel.Unauthenticated {
		c.refuse()
	}
	if h.is(oneWay) {
		return
	}
	returned := false
	defer func() {
		if !returned { // a method of the reply ended the goroutine
			c.send(h, v, nil, false, v.Outcome())
		}
	}()
	buffer, ok := c.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	body, packed := (*buffer)[:0], false
	if e == nil {
		if err := unsendable(v.Call()); err != nil {
			e = v.Fail(err)
		} else {
			body, packed, e = v.AppendReply(body)
		}
	}
	if e != nil {
		body, packed = c.beside(body[:0], v), false
	}
	returned = true
	c.send(h, v, body, packed, e)
	if *buffer = body[:0]; cap(body) <= keepBuffer {
		c.buffers.Put(buffer)
	}
}

// keepBuffer is the size up to which a buffer is reused.
const keepBuffer = 64 << 10

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

// send sends a frame with an outcome.
func (c *conn) send(h *head, v *yodel.Served, body []byte, packed bool, e *yodel.Error) {
	metadata := c.metadata(h, v, e)
	reply := head{
		version: h.version, flags: response | h.flags&(heartbeat|oneWay), serialize: h.serialize, seq: h.seq,
		path: h.path, method: h.method, metadata: string(metadata), payload: len(body),
	}
	if packed {
		reply.flags |= gzipped
	}
	if e != nil {
		reply.flags |= failed
	}
	c.replies.Send(reply.append(nil), body)
}

// metadata returns the metadata of a reply, without what rpcx cannot carry.
func (c *conn) metadata(h *head, v *yodel.Served, e *yodel.Error) (b []byte) {
	if e != nil {
		b = errorMetadata(b, rpcxwire.TextOf(c.session, v, h.path, h.method, h.serialize, e), e)
	}
	for _, pair := range metakeys.Pairs(v, c.limits, rpcxwire.Obstacle) {
		b = appendPair(b, pair[0], pair[1])
	}
	return b
}
