// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"github.com/yodel-rpc/yodel/internal/panics"
	"github.com/yodel-rpc/yodel/internal/values"
)

// An Encoded is a message, or Values, that is already encoded in the codec of its call. As
// arguments or as a reply it is sent unchanged. A client that sets Call.Reply to an *Encoded gets
// the reply without decoding. Its Body is always decompressed. See Call.Encode.
type Encoded struct {
	Body    []byte
	Several bool // of Values
}

// SetValues makes e the encoding of Values, each of which is already encoded.
func (e *Encoded) SetValues(encoded ...[]byte) {
	e.Several, e.Body = true, values.Join(e.Body[:0], encoded)
}

// Values returns the encoding of each value, without copying it. If e is one message, Values
// returns its body.
func (e *Encoded) Values() ([][]byte, error) {
	if !e.Several {
		return [][]byte{e.Body}, nil
	}
	return values.Split(e.Body)
}

// Encode encodes the message that this side of the call sends, and replaces the message with the
// result. On the client this message is the arguments, which the caller may change afterwards. On
// the server it is the reply, once the method has returned it. Encode waits for a late reply. A
// second Encode does nothing.
func (c *Call) Encode() (*Encoded, error) {
	codec, message := c.Encoding(), &c.Args
	if c.in != nil {
		message = &c.Reply
	}
	if c.stream != nil {
		return nil, Errorf(Internal, "%s: the messages of a stream are not one", c.Method)
	}
	if codec == nil {
		return nil, c.nobody()
	}
	if c.in != nil && c.in.late != nil && c.Reply == nil {
		if err := c.in.awaitLate(c.in.ctx); err != nil {
			return nil, err
		}
	}
	if e, ok := (*message).(*Encoded); ok {
		return e, nil
	}
	e := &Encoded{Several: several(*message)}
	if *message == nil && c.in != nil { // a method without a result
		*message = e
		return e, nil
	}
	body, err := appendBody(nil, codec, *message)
	if err != nil {
		return nil, c.unencoded(codec, err)
	}
	e.Body, *message = body, e
	return e, nil
}

func (c *Call) nobody() error {
	return Errorf(Internal, "%s: nobody carries the call out, and it names no codec", c.Method)
}

// unencoded returns the error of a message that cannot be encoded.
func (c *Call) unencoded(codec Codec, err error) error {
	id := "YDL2103"
	if c.in != nil {
		id = "YDL2104"
	}
	e := failure(id, "%s: %v (codec %s)", c.Method, err, codec.Name())
	e.NotProcessed, e.Cause = c.in == nil, err
	return e
}

// several reports whether a message belongs to a method with several arguments or results.
func several(message any) bool {
	switch m := message.(type) {
	case Values:
		return true
	case *Encoded:
		return m.Several
	}
	return false
}

// appendBody appends the encoding of v to dst.
func appendBody(dst []byte, c Codec, v any) ([]byte, error) {
	switch v := v.(type) {
	case Values:
		return values.Append(dst, c, v)
	case *Encoded:
		return append(dst, v.Body...), nil
	}
	return c.Append(dst, v)
}

// decodeBody decodes a body into v. Its stack frame is small, like the frames of all functions that
// call methods of generated messages, because such a method may itself need more than 1 KiB of
// stack. With a small frame, the stacks of 5000 callers of such a method have 4 KiB each instead of
// 8 KiB.
func decodeBody(body []byte, c Codec, v any) (err error) {
	if several, ok := v.(Values); ok {
		err = values.Decode(body, c, several)
	} else {
		err = c.Decode(body, v)
	}
	if err != nil {
		panics.Resume(err)
	}
	return err
}

// compressAbove is the default size from which bodies are compressed, in bytes.
const compressAbove = 1024
