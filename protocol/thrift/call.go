// SPDX-License-Identifier: Apache-2.0

package thrift

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// A call is a request that is executed and answered.
type call struct {
	*yodel.Served
	conn  *conn
	head  thriftwire.Header // of the reply, but for the type
	codec yodel.Codec
}

// execute runs the call, and sends the reply, perhaps later. Body has the arguments, and a byte
// before them.
func (c *call) execute() {
	before, done := c.conn.last, make(chan struct{})
	c.conn.last = done
	c.Go(func() {
		defer c.Free()
		defer close(done)
		if !c.conn.options.Concurrent {
			<-before
		}
		c.prepare()
		defer c.reply() // deferred, because the handler may end the goroutine
		_ = c.Run()     // Outcome returns the error
	})
}

// refuse answers a call that is not executed, and ends it. It does not return before the reply is
// queued, so that a client cannot make the server hold many refusals.
func (c *call) refuse(e *yodel.Error) {
	defer c.End()
	if !c.conn.options.Concurrent {
		<-c.conn.last
	}
	c.answer(nil, e)
}

// prepare makes the server make the request of the arguments, when the middleware has passed the
// call.
func (c *call) prepare() {
	c.Owned, c.Several, c.Body[0] = true, c.Positional(), c.head.Format.ArgsMark()
	in, out := c.Types()
	if len(out) > 1 {
		c.Refusal = &yodel.Error{Code: yodel.Unimplemented, NotProcessed: true, Message: fmt.Sprintf("%s: the method returns %d values, and Thrift has one result", c.Call().Method, len(out))}
	}
	if c.conn.HideErrors {
		c.Declared = func(err error) bool { return c.thrown(err) != nil }
	}
	if !c.Several {
		return // the codec knows what the argument is
	}
	c.Transform = func(body []byte) ([]byte, error) {
		var e yodel.Encoded
		if len(in) == 1 {
			e.SetValues(body)
			return e.Body, nil
		}
		values, err := c.values(body, len(in))
		if err != nil {
			return nil, &yodel.Error{Code: yodel.InvalidArgument, ID: "YDL2101", NotProcessed: true, Message: fmt.Sprintf("%s: the arguments are damaged: %v", c.Call().Method, err)}
		}
		e.SetValues(values...)
		return e.Body, nil
	}
}

// values returns n encoded arguments.
func (c *call) values(body []byte, n int) ([][]byte, error) {
	values := make([][]byte, n)
	for i := range values {
		values[i] = []byte{byte(thriftwire.Stop)} // the value is left out
	}
	r := thriftwire.Reader{Format: c.head.Format, Bytes: body, At: 1}
	err := r.Fields(func(id int16, _ thriftwire.Type, encoded []byte) error {
		if i := int(id) - 1; i >= 0 && i < n {
			values[i] = encoded
		}
		return nil
	})
	return values, err
}

// reply sends the outcome of the call.
func (c *call) reply() {
	answered := false
	defer func() {
		if !answered { // a method of the reply or of the error ended the goroutine, or panicked
			c.answer(nil, c.Fail(errors.New("the reply could not be encoded")))
		}
	}()
	metakeys.LeaveOut(c.Served, "Thrift has no metadata")
	if c.Call().OneWay { // the method may know better than the client
		c.head.Type = thriftwire.OneWay
	}
	e := c.Outcome()
	var result []byte
	if e == nil {
		result, e = c.result()
	} else if thrown := c.thrown(e); thrown != nil {
		result, e = thrown, nil
	}
	answered = true
	c.answer(result, e)
}

// result returns the encoded field of a successful call's result. It is empty if the method has no
// result.
func (c *call) result() (result []byte, e *yodel.Error) {
	if c.head.Type == thriftwire.OneWay {
		return nil, nil
	}
	body, _, e := c.AppendReply(nil)
	if e != nil {
		return nil, e
	}
	values, err := (&yodel.Encoded{Body: body, Several: c.Several}).Values()
	switch {
	case err != nil:
		return nil, c.Fail(err)
	case len(values) > 1:
		return nil, c.Fail(fmt.Errorf("the method returns %d values, and Thrift has one result", len(values)))
	case len(values) == 0 || len(values[0]) == 0:
		return nil, nil
	}
	if result, err = thriftwire.AppendFieldOf(make([]byte, 0, len(body)+8), c.head.Format, values[0], 0, 0); err != nil {
		return nil, c.Fail(err)
	}
	return result, nil
}

// thrown returns the encoded field of the declared exception that err is, or nil.
func (c *call) thrown(err error) []byte {
	if field := c.detailed(err); field != nil {
		return field
	}
	declared := c.conn.options.Throws[c.Call().Method]
	ids := make([]int16, 0, len(declared))
	for id := range declared {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if declared[id] == nil {
			continue
		}
		found := reflect.New(reflect.TypeOf(declared[id]))
		if !errors.As(err, found.Interface()) {
			continue
		}
		encoded, err := c.codec.Append(nil, found.Elem().Interface())
		if err != nil {
			continue // the client gets the text
		}
		if field, err := thriftwire.AppendFieldOf(nil, c.head.Format, encoded, id, 0); err == nil {
			return field
		}
	}
	return nil
}

// detailed returns the encoded field of an exception that err has as a detail, or nil. Package
// codec/apachethrift and a Wire make such details, of which the encoding is that of the call.
func (c *call) detailed(err error) []byte {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok {
		return nil
	}
	for _, d := range e.Details {
		number, ok := strings.CutPrefix(d.Type, exceptionType)
		id, err := strconv.ParseInt(number, 10, 16)
		if !ok || err != nil || id <= 0 {
			continue
		}
		r := thriftwire.Reader{Format: c.head.Format, Bytes: d.Value}
		if t, err := r.Open(); err != nil || r.Skip(t, 0) != nil || r.At != len(d.Value) {
			continue // it is in another encoding
		}
		if field, err := thriftwire.AppendFieldOf(nil, c.head.Format, d.Value, int16(id), 0); err == nil {
			return field
		}
	}
	return nil
}

// The types of a TApplicationException that this package uses.
const (
	unknownMethod    = 1
	internalError    = 6
	protocolError    = 7
	firstUnsupported = 8 // from here on, a number says that one side lacks a protocol
)

// answer sends the result of a call, or the exception for e.
func (c *call) answer(result []byte, e *yodel.Error) {
	if c.head.Type == thriftwire.OneWay {
		return
	}
	h := c.head
	if h.Type = thriftwire.Reply; e != nil {
		h.Type = thriftwire.Exception
		result = appendException(nil, h.Format, e)
	}
	message := make([]byte, 4, 4+16+len(h.Name)+len(result))
	message = append(append(thriftwire.AppendHeader(message, &h), result...), byte(thriftwire.Stop))
	if !c.conn.framed {
		message = message[4:]
	} else {
		binary.BigEndian.PutUint32(message, uint32(len(message)-4)) //nolint:gosec // at most Limits.MaxMessage and a little
	}
	c.conn.replies.Reply(c.Served, message)
}

// appendException appends the fields of the TApplicationException for an error.
func appendException(dst []byte, f thriftwire.Format, e *yodel.Error) []byte {
	text, number := e.Error(), int64(internalError)
	switch {
	case e.Code == yodel.Unknown:
		text = cmp.Or(strings.TrimSpace(e.Message), "error")
	case e.Code == yodel.Unimplemented && e.NotProcessed:
		number = unknownMethod
	case e.Code == yodel.InvalidArgument && e.AboutMessage():
		number = protocolError
	}
	dst = thriftwire.AppendField(dst, f, thriftwire.String, 1, 0)
	dst = thriftwire.AppendString(dst, f, text)
	dst = thriftwire.AppendField(dst, f, thriftwire.I32, 2, 1)
	return thriftwire.AppendInt(dst, f, thriftwire.I32, number)
}
