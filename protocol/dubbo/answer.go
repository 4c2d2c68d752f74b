// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"errors"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/callfields"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// exceptionClass is the class of the exceptions that consumers get. Every consumer has it.
const exceptionClass = "java.lang.RuntimeException"

// reply sends a response, whose body consists of parts. V is the call that it answers, or nil.
func (c *conn) reply(v *yodel.Served, h head, status byte, parts ...[]byte) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	reply := head{flags: hessian2, status: status, number: h.number}
	parts = append([][]byte{reply.append(nil, size)}, parts...)
	if v != nil {
		c.replies.Reply(v, parts...)
	} else {
		c.replies.Send(parts...)
	}
}

// refuse answers a request that is not executed. Nothing is sent for a one-way request.
func (c *conn) refuse(h head, status byte, text string) {
	if h.is(twoWay) {
		c.reply(nil, h, status, hessian.AppendText(nil, text))
	}
}

// answer sends the outcome of a call: the error e, or else the reply. It sends nothing for a
// one-way call.
func (c *call) answer(e *yodel.Error) {
	if !c.head.is(twoWay) {
		return
	}
	returned := false
	defer func() {
		if !returned { // a method of the reply ended the goroutine, or panicked
			c.failed(c.Fail(errors.New("the reply could not be encoded")), nil)
		}
	}()
	var value, attachments []byte
	if e == nil {
		value, e = c.result()
	}
	pairs := c.pairs(e)
	returned = true
	if e != nil {
		c.failed(e, pairs)
		return
	}
	kind := int32(kindValue)
	if value == nil {
		kind = kindNull
	}
	if len(pairs) > 0 {
		kind += withAttachments
		attachments = hessian.AppendPairs(nil, pairs...)
	}
	c.conn.reply(c.Served, c.head, statusOK, hessian.AppendInt(nil, kind), value, attachments)
}

// pairs returns the metadata of a reply with the error e, without what Dubbo cannot carry.
func (c *call) pairs(e *yodel.Error) [][2]string {
	switch {
	case c.names.version != version:
		metakeys.LeaveOut(c.Served, fmt.Sprintf("a client with the version %.20q of Dubbo's protocol does not take attachments", c.names.version))
		return nil
	case c.status(e) != statusOK:
		metakeys.LeaveOut(c.Served, "Dubbo's answer to a call that was not executed, or is late, has no attachments")
		return nil
	}
	return metakeys.Pairs(c.Served, c.conn.limits, obstacle)
}

// result returns the encoded result of a successful call. It is nil if the result is null, or if
// the method is void: it has no result, or a struct without fields.
func (c *call) result() ([]byte, *yodel.Error) {
	if c.Call().ReplyAttachment != nil {
		return nil, c.Fail(errors.New("the reply has an attachment, which Dubbo cannot carry"))
	}
	body, _, e := c.AppendReply(nil)
	if e != nil {
		return nil, e
	}
	_, out := c.Types()
	values, err := (&yodel.Encoded{Body: body, Several: c.Several}).Values()
	switch {
	case err != nil:
		return nil, c.Fail(err)
	case len(values) > 1:
		return nil, c.Fail(fmt.Errorf("the method returns %d values, and Java has one result", len(values)))
	case hasNoFields(out), len(values) == 0, len(values[0]) == 0, string(values[0]) == string(hessian.AppendNull(nil)):
		return nil, nil
	}
	return values[0], nil
}

// failed sends an error, with the attachments of the reply.
func (c *call) failed(e *yodel.Error, pairs [][2]string) {
	if status := c.status(e); status != statusOK {
		c.conn.refuse(c.head, status, e.Error())
		return
	}
	text := e.Error()
	if e.Code == yodel.Unknown && e.ID == "" {
		text = e.Message
	}
	kind, attachments := int32(kindException), []byte(nil)
	if pairs = append(callfields.ErrorPairs(e), pairs...); len(pairs) > 0 && c.names.version == version {
		kind += withAttachments
		attachments = hessian.AppendPairs(nil, pairs...)
	}
	exception := hessian.AppendObject(nil, exceptionClass, [2]string{"detailMessage", text})
	c.conn.reply(c.Served, c.head, statusOK, hessian.AppendInt(nil, kind), exception, attachments)
}

// status returns the status of the response. Of an error that the method itself has returned, it is
// statusOK: the body has the exception.
func (c *call) status(e *yodel.Error) byte {
	if e == nil {
		return statusOK
	}
	at := c.Call().Deadline
	switch {
	case e.Code == yodel.DeadlineExceeded && !at.IsZero() && time.Until(at) <= 0:
		return statusServerTimeout
	case e.NotProcessed:
		return statusOf(e)
	}
	return statusOK
}

// statusOf returns the status for an error of a call that was not executed.
func statusOf(e *yodel.Error) byte {
	switch e.Code { //nolint:exhaustive // the other codes have one status
	case yodel.Unimplemented:
		return statusServiceNotFound
	case yodel.InvalidArgument:
		return statusBadRequest
	}
	return statusExhausted
}

// sizeOf returns how many bytes the keys and the values have.
func sizeOf(pairs [][2]string) (n int) {
	for _, pair := range pairs {
		n += len(pair[0]) + len(pair[1])
	}
	return n
}
