// SPDX-License-Identifier: Apache-2.0

// Package jsonrpc reads, executes and answers the messages of JSON-RPC 2.0 and 1.0. It does not
// depend on how the messages travel. Server executes a message and makes the bytes of its reply.
// Reader finds the messages in a stream of bytes.
package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
)

// A Server executes the messages of a session. A message is a request, or a batch of them. Its
// methods may be called concurrently. Its fields must not be changed then.
//
// Requests and replies are in the codec "json" of the yodel server.
type Server struct {
	// Session is the connection to the client.
	Session *yodel.Session
	// Wait says that calls wait for room, as at yodel.Served.Admit. The methods must then be called
	// by the goroutine that reads Session.Reader.
	Wait bool
	// Version1 says that a single request without the member "jsonrpc" is of version 1.0. Otherwise
	// it is not valid.
	Version1 bool
	// Prepare sets the metadata, the deadline and so on of each call before it is admitted. Each
	// call needs a map of its own. Nil sets nothing.
	Prepare func(v *yodel.Served)
	// Ran is called for each call that has run, before its reply is encoded, for example to read
	// the trailer. It may call Served.Fail. It is called concurrently for the calls of a batch. Nil
	// is not called.
	Ran func(v *yodel.Served)
}

// Do executes a message and returns its reply. The reply is empty if all requests are
// notifications. If message is not JSON, the reply is an error. When ctx ends, the contexts of the
// calls end. The message belongs to the Server.
func (s *Server) Do(ctx context.Context, message []byte) []byte {
	if err := validate(message); err != nil {
		return Fault(&ParseError{err})
	}
	reply := make(chan []byte, 1)
	s.Start(ctx, bytes.TrimLeft(message, " \t\r\n"), func(parts ...[]byte) { reply <- bytes.Join(parts, nil) })
	return <-reply
}

// Start executes a message, which is a valid JSON value without space before it. It returns when
// all its calls are admitted or refused. Done is called once, with the parts of the reply, which it
// may change, perhaps on another goroutine and before Start returns. There are no parts if all
// requests are notifications. Calls count as open until done has returned. When ctx ends, the
// contexts of the calls end. The message belongs to the Server. When Start has returned, admitted
// calls count its memory.
func (s *Server) Start(ctx context.Context, message []byte, done func(parts ...[]byte)) {
	if message[0] == '[' {
		s.startBatch(ctx, message, done)
		return
	}
	q := parse(message, s.Version1)
	s.start(ctx, q, message, true, func(reply []byte) {
		if reply == nil {
			done()
			return
		}
		done(reply)
	})
}

// start executes a request. Done gets the reply, or nil for a notification. If owned is set, the
// request's memory belongs to the call.
func (s *Server) start(ctx context.Context, q *request, raw []byte, owned bool, done func(reply []byte)) {
	if q.invalid != "" {
		done(q.invalidReply())
		return
	}
	c, e := s.admit(ctx, q, len(raw))
	if e != nil {
		done(q.errorReply(e))
		return
	}
	if !owned {
		q.id, q.params = bytes.Clone(q.id), bytes.Clone(q.params)
	}
	c.Body, c.Several, c.Owned = q.params, c.Positional(), true
	c.Transform = func(params []byte) ([]byte, error) { return requestOf(c.Served, params, q.version1) }
	q.params = nil
	s.Session.Go(func() { s.run(c, q, done) })
}

// A call is a Served whose context ends with that of its message.
type call struct {
	*yodel.Served
	stop  func() bool   // nil if the message's context does not end
	ended chan struct{} // closed when Cancel has returned
}

// end ends the call.
func (c *call) end() {
	if c.stop != nil && !c.stop() {
		<-c.ended
	}
	c.End()
}

// admit begins a call and admits it. Size is that of its request in the message.
func (s *Server) admit(ctx context.Context, q *request, size int) (*call, *yodel.Error) {
	c := &call{Served: s.Session.Begin(q.method, s.Session.Codec("json"), nil)}
	c.Call().OneWay = q.silent
	if s.Prepare != nil {
		s.Prepare(c.Served)
	}
	if ctx.Done() != nil {
		c.ended = make(chan struct{})
		c.stop = context.AfterFunc(ctx, func() {
			defer close(c.ended)
			c.Cancel()
		})
	}
	// The limit is for the parameters. The rest of a message may come on top of it.
	size = max(min(size, s.Session.Limits().MaxMessage), len(q.params))
	if e := c.Admit(size, s.Wait); e != nil {
		c.end()
		return nil, e
	}
	return c, nil
}

// run executes an admitted call and passes its reply to done.
func (s *Server) run(c *call, q *request, done func(reply []byte)) {
	defer c.end()
	var reply []byte
	encoded := false
	defer func() {
		if !encoded { // encoding the reply has ended the goroutine
			reply = q.errorReply(outcome(c.Served))
		}
		done(reply)
	}()
	defer func() { // deferred, because the handler may end the goroutine
		if s.Ran != nil {
			s.Ran(c.Served)
		}
		reply = q.reply(c.Served)
		encoded = true
	}()
	_ = c.Run() // the reply gets the error from Outcome
}

// usualReply is the size of a reply with a small result, without its ID, in bytes.
const usualReply = 96

// outcome returns the error of a call, or nil. The protocol has no streams, so for its clients a
// method with a stream does not exist.
func outcome(v *yodel.Served) *yodel.Error {
	e := v.Outcome()
	if kind := v.Kind(); e != nil && e.NotProcessed && e.Code == yodel.InvalidArgument && kind != "" && kind != "unary" {
		e.Code = yodel.Unimplemented
	}
	return e
}

// reply returns the reply to a call that has run, or nil for a notification.
func (q *request) reply(v *yodel.Served) []byte {
	e := outcome(v)
	if q.silent {
		return nil
	}
	if e == nil && len(v.Call().ReplyAttachment) > 0 {
		e = v.Fail(errors.New("the reply has an attachment, which JSON-RPC does not carry"))
	}
	if e == nil {
		var reply []byte
		if reply, e = q.appendResult(q.appendID(make([]byte, 0, usualReply+len(q.id))), v); e == nil {
			return append(reply, q.end()...)
		}
	}
	return q.errorReply(e)
}

// appendResult appends the member "result".
func (q *request) appendResult(dst []byte, v *yodel.Served) ([]byte, *yodel.Error) {
	dst = append(dst, `,"result":`...)
	at := len(dst)
	encoded, _ := v.Call().Reply.(*yodel.Encoded)
	_, several := v.Call().Reply.(yodel.Values)
	if several = several || v.Positional() || encoded != nil && encoded.Several; several {
		body, _, e := v.AppendReply(nil)
		if e != nil {
			return nil, e
		}
		if dst, e = appendValues(dst, v, body); e != nil {
			return nil, e
		}
	} else {
		var e *yodel.Error
		if dst, _, e = v.AppendReply(dst); e != nil {
			return nil, e
		}
	}
	if len(dst) == at {
		return append(dst, "null"...), nil
	}
	if encoded != nil {
		if err := validate(dst[at:]); err != nil {
			return nil, v.Fail(fmt.Errorf("the encoded reply is not JSON: %w", err))
		}
	}
	return dst, nil
}

// appendValues appends the results of a method with several values: nothing, the only one, or an
// array.
func appendValues(dst []byte, v *yodel.Served, body []byte) ([]byte, *yodel.Error) {
	if len(body) == 0 {
		return dst, nil
	}
	values, err := (&yodel.Encoded{Body: body, Several: true}).Values()
	switch {
	case err != nil:
		return nil, v.Fail(err)
	case len(values) == 0:
		return dst, nil
	case len(values) == 1:
		return append(dst, values[0]...), nil
	}
	return append(append(append(dst, '['), bytes.Join(values, []byte(","))...), ']'), nil
}

// appendID appends the beginning of a reply up to its ID. The ID comes first, so that a client
// knows it before a result that is too large.
func (q *request) appendID(dst []byte) []byte {
	if !q.version1 {
		dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	} else {
		dst = append(dst, `{"id":`...)
	}
	if q.id == nil {
		return append(dst, "null"...)
	}
	return append(dst, q.id...)
}

// end returns the end of the reply to a call that has succeeded.
func (q *request) end() string {
	if q.version1 {
		return `,"error":null}`
	}
	return "}"
}

// errorReply returns the reply to a call that has failed, or nil for a notification.
func (q *request) errorReply(e *yodel.Error) []byte {
	if q.silent {
		return nil
	}
	if q.version1 {
		return q.appendError(`,"result":null,"error":`, errortext.Format(q.method, e))
	}
	return q.appendError(`,"error":`, objectOf(e))
}

// invalidReply returns the reply to a request that is not valid.
func (q *request) invalidReply() []byte {
	what := "invalid request: " + q.invalid
	if q.version1 {
		return q.appendError(`,"result":null,"error":`, what)
	}
	return q.appendError(`,"error":`, errorObject{Code: invalidRequest, Message: what})
}

// appendError returns a reply with the member "error".
func (q *request) appendError(name string, value any) []byte {
	b, err := json.Marshal(value)
	if err != nil { // not possible
		b = []byte("null")
	}
	return append(append(append(q.appendID(nil), name...), b...), '}')
}

// Fault returns the reply for a message that could not be read because of a *ParseError or a
// *TooLargeError.
func Fault(err error) []byte {
	q := new(request)
	if large, ok := errors.AsType[*TooLargeError](err); ok {
		q.id, q.version1 = large.ID, large.Version1 && large.ID != nil
		e := &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL2201", NotProcessed: true, Message: large.Error() + ", which is over the server's limit"}
		if large.Memory {
			e.ID, e.Message = "YDL3007", large.Error()
		}
		return q.errorReply(e)
	}
	return q.appendError(`,"error":`, errorObject{Code: parseError, Message: clip(err.Error())})
}

// startBatch executes the requests of a batch concurrently.
func (s *Server) startBatch(ctx context.Context, message []byte, done func(parts ...[]byte)) {
	n, most := 0, s.Session.Limits().MaxOpen
	for rest := message[1:]; n <= most; n++ {
		var ok bool
		if _, rest, ok = cutValue(rest); !ok {
			break
		}
	}
	switch {
	case n == 0:
		done((&request{invalid: "the batch is empty"}).invalidReply())
		return
	case n > most:
		done((&request{invalid: fmt.Sprintf("the batch has more than %d requests", most)}).invalidReply())
		return
	}
	b := &batch{session: s.Session, done: done, left: n}
	rest := message[1:]
	for range n {
		var raw []byte
		raw, rest, _ = cutValue(rest)
		q := parse(raw, false)
		s.start(ctx, q, raw, false, func(reply []byte) { b.add(q, reply) })
	}
}

// A batch collects the replies to the requests of a batch.
type batch struct {
	session *yodel.Session
	done    func(parts ...[]byte)

	mu       sync.Mutex
	left     int      // requests without a reply
	parts    [][]byte // of the array
	reserved int
}

// partCost is how many bytes a reply of a batch counts in addition to its size.
const partCost = 64

// add adds the reply to a request, or nil for a notification. The last one completes the batch.
func (b *batch) add(q *request, reply []byte) {
	b.mu.Lock()
	if reply != nil {
		if n := len(reply) + partCost; b.session.Reserve(n) {
			b.reserved += n
		} else {
			reply = q.errorReply(&yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3007", Message: q.method + ": the server has no memory left for the replies of the batch"})
		}
		separator := []byte(",")
		if len(b.parts) == 0 {
			separator = []byte("[")
		}
		b.parts = append(b.parts, separator, reply)
	}
	b.left--
	last := b.left == 0
	b.mu.Unlock()
	if !last {
		return
	}
	b.session.Release(b.reserved) // done counts the bytes that wait to be written
	if len(b.parts) > 0 {
		b.parts = append(b.parts, []byte("]"))
	}
	b.done(slices.Clip(b.parts)...)
}
