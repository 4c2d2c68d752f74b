// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/methodname"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// A conn is the server's side of a connection.
type conn struct {
	*yodel.Session
	limits  yodel.Limits
	frames  frameReader
	replies *pipelined.Replies
	codec   yodel.Codec
	methods *methodname.Finder
}

// next reads one frame. If it is a request, next starts its execution.
func (c *conn) next() error {
	h, err := c.frames.head()
	switch {
	case err != nil:
		return err
	case h.is(event):
		return c.event(h)
	case !h.is(request):
		return errResponse
	case h.flags&serialization != hessian2:
		c.refuse(h, statusBadRequest, fmt.Sprintf("this server speaks Hessian 2 (serialization 2), not serialization %d", h.flags&serialization))
		return c.frames.skip(h.body)
	}
	names, err := c.frames.names(h.body)
	if err != nil {
		return err
	}
	if names.method == echoMethod && names.parameters == 1 {
		return c.echo(h, &names)
	}
	v, err := c.begin(&names, h)
	if err != nil {
		return err
	}
	call := &call{Served: v, conn: c, head: h, names: names}
	arrived := time.Now()
	body, skip, e, err := framebody.Receive(v, c.Session, nil, c.frames, h.body)
	if err != nil {
		call.end()
		return err
	}
	if e == nil {
		e = call.reserve()
	}
	if e != nil {
		defer call.end()
		call.answer(e)
		return c.frames.skip(skip)
	}
	call.body = body
	v.Go(func() {
		defer call.end()
		if e := call.prepare(arrived); e != nil {
			call.answer(e)
			return
		}
		defer func() { call.answer(v.Outcome()) }() // deferred, because the handler may end the goroutine
		_ = v.Run()                                 // Outcome returns the error
	})
	return nil
}

// event answers a heartbeat, and ignores any other event.
func (c *conn) event(h head) error {
	if h.body > maxEvent {
		return errEventLarge
	}
	body, err := c.frames.body(h.body)
	if err == nil && h.is(request) && h.is(twoWay) {
		reply := head{flags: h.flags &^ (request | twoWay), status: statusOK, number: h.number}
		c.replies.Send(reply.append(nil, len(body)), body)
	}
	return err
}

// echo answers a call of $echo, which every interface has, with its argument.
func (c *conn) echo(h head, n *names) error {
	if h.body > c.limits.MaxMessage || !c.Reserve(h.body) {
		c.refuse(h, statusExhausted, "$echo: the request is too large")
		return c.frames.skip(h.body)
	}
	defer c.Release(h.body)
	body, err := c.frames.body(h.body)
	if err != nil {
		return err
	}
	values, done := c.reader(body[n.size:])
	defer done()
	switch err = values.Skip(); {
	case errors.Is(err, hessian.ErrMemory):
		c.refuse(h, statusExhausted, framebody.NoMemory("$echo").Message)
		return nil
	case err != nil:
		c.refuse(h, statusBadRequest, err.Error())
		return nil
	}
	if h.is(twoWay) {
		value := body[n.size:][:values.At()]
		c.reply(nil, h, statusOK, hessian.AppendInt(nil, kindValue), value)
	}
	return nil
}

// reader returns a Reader whose memory counts as that of the client until done is called.
func (c *conn) reader(b []byte) (r *hessian.Reader, done func()) {
	held := 0
	r = hessian.NewReader(b)
	r.Reserve = func(n int) bool {
		ok := c.Reserve(n)
		if ok {
			held += n
		}
		return ok
	}
	return r, func() { c.Release(held) }
}

// begin begins the call of a request.
func (c *conn) begin(n *names, h head) (v *yodel.Served, err error) {
	method := n.method
	if n.isGeneric() {
		b, err := c.frames.Peek(min(h.body, maxNames))
		if err != nil {
			return nil, framebody.Unexpected(err)
		}
		if method, err = hessian.NewReader(b[n.size:]).Text(); err != nil {
			return nil, fmt.Errorf("the name of a generic call: %w", err)
		}
	}
	v = c.methods.Begin(n.path, method, c.codec)
	v.Call().OneWay = !h.is(twoWay)
	return v, nil
}

// A call is a request that is executed and answered.
type call struct {
	*yodel.Served
	conn     *conn
	head     head
	names    names
	body     []byte
	reserved int
}

// end ends the call.
func (c *call) end() {
	c.End()
	c.conn.Release(c.reserved)
}

// reserve counts the memory for copies of the arguments, which a call with several has.
func (c *call) reserve() *yodel.Error {
	if c.names.parameters < 2 {
		return nil // the only argument needs no copy
	}
	n := copyRoom(c.head.body)
	if !c.conn.Reserve(n) {
		return c.noMemory()
	}
	c.reserved = n
	return nil
}

func (c *call) noMemory() *yodel.Error {
	return framebody.NoMemory(c.Call().Method)
}

// copyRoom is how large the arguments of a request of n bytes may be when each has its own copy of
// what they share.
func copyRoom(n int) int { return 2*n + 1<<10 }

// prepare sets the fields of the call from the attachments, which follow the arguments. It skips
// the arguments: the server makes the request of them when the middleware has passed the call. A
// deadline counts from the time at which the request arrived. If the arguments are damaged, the
// attachments cannot be found, and the call fails behind the middleware.
func (c *call) prepare(arrived time.Time) *yodel.Error {
	r, done := c.conn.reader(c.body[c.names.size:])
	defer done()
	r.Skims = true
	n, err := c.skip(r)
	r.Skims = false
	if err == nil {
		var attachments any
		limits := c.conn.limits
		if n := len(c.body) - c.names.size - r.At(); n > maxAttachments(limits) {
			return linkerror.Refused(yodel.ResourceExhausted, "YDL2203", "%s: the attachments have %d bytes when encoded; the server's limit is %d", c.Call().Method, n, maxAttachments(limits))
		}
		if attachments, err = r.Any(); err == nil {
			if e := describe(c.Call(), attachments, arrived, limits); e != nil {
				return e
			}
		}
	}
	if errors.Is(err, hessian.ErrMemory) {
		return c.noMemory()
	}
	in, out := c.Types()
	dynamic := in == nil && out == nil // HandleCall has registered it
	c.Owned, c.Several = true, c.Positional() || dynamic && n != 1
	switch {
	case err != nil:
		c.Refusal = c.damaged(err)
	case len(out) > 1:
		c.Refusal = linkerror.Refused(yodel.Unimplemented, "", "%s: the method returns %d values, and Java has one result", c.Call().Method, len(out))
	}
	c.Body, c.body = c.body, nil
	c.Transform = c.request
	return nil
}

// damaged returns the error of a request that cannot be read.
func (c *call) damaged(err error) *yodel.Error {
	e := linkerror.Refused(yodel.InvalidArgument, "YDL2101", "%s: the request is damaged: %v", c.Call().Method, err)
	e.Cause = err
	return e
}

// request returns the encoded request for the arguments in a body.
func (c *call) request(body []byte) ([]byte, error) {
	r, done := c.conn.reader(body[c.names.size:])
	defer done()
	values, err := c.arguments(r, body)
	switch {
	case errors.Is(err, hessian.ErrMemory):
		return nil, c.noMemory()
	case err != nil:
		return nil, c.damaged(err)
	}
	in, out := c.Types()
	dynamic := in == nil && out == nil
	var e yodel.Encoded
	switch {
	case c.Several && !dynamic && len(values) != len(in), !c.Several && len(values) != 1 && (len(values) != 0 || !hasNoFields(in)):
		return nil, linkerror.Refused(yodel.InvalidArgument, "YDL2101", "%s: the method takes %d values, and the request has %d", c.Call().Method, len(in), len(values))
	case c.Several:
		e.SetValues(values...)
	case len(values) == 1:
		e.Body = values[0]
	default:
		e.Body = hessian.AppendNull(nil)
	}
	return e.Body, nil
}

// hasNoFields reports whether a method takes or returns one struct without fields, which stands for
// no value.
func hasNoFields(types []reflect.Type) bool {
	return len(types) == 1 && types[0].Kind() == reflect.Struct && types[0].NumField() == 0
}

// open reads up to the first argument. It returns how many arguments there are.
func (c *call) open(r *hessian.Reader) (n int, err error) {
	if !c.names.isGeneric() {
		return c.names.parameters, nil
	}
	for range 2 { // the name of the method and the types of its parameters
		if err := r.Skip(); err != nil {
			return 0, err
		}
	}
	return r.List()
}

// skip skips the arguments, and returns how many there are.
func (c *call) skip(r *hessian.Reader) (n int, err error) {
	if n, err = c.open(r); err != nil {
		return 0, err
	}
	for range n {
		if err := r.Skip(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// arguments returns the encoded arguments of a body, each as a stream of its own.
func (c *call) arguments(r *hessian.Reader, body []byte) ([][]byte, error) {
	n, err := c.open(r)
	if err != nil {
		return nil, err
	}
	room := copyRoom(c.head.body)
	values := make([][]byte, 0, min(n, 64))
	for i := range n {
		if i == 0 && !c.names.isGeneric() { // there is nothing yet that it could share
			begin := c.names.size
			if err := r.Skip(); err != nil {
				return nil, err
			}
			values = append(values, body[begin:begin+r.At()])
			continue
		}
		value, err := r.Copy(nil, room)
		if err != nil {
			return nil, err
		}
		room -= len(value)
		values = append(values, value)
	}
	return values, nil
}
