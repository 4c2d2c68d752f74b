// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	e.Several = true
	e.Body = binary.AppendUvarint(e.Body[:0], uint64(len(encoded)))
	for _, value := range encoded {
		e.Body = append(binary.AppendUvarint(e.Body, uint64(len(value))), value...)
	}
}

// Values returns the encoding of each value, without copying it. If e is one message, Values
// returns its body.
func (e *Encoded) Values() ([][]byte, error) {
	if !e.Several {
		return [][]byte{e.Body}, nil
	}
	n, size := binary.Uvarint(e.Body)
	if size <= 0 || n > uint64(len(e.Body)) { // a value takes at least a byte
		return nil, errValues
	}
	values, rest := make([][]byte, 0, n), e.Body[size:]
	for range n {
		value, next, err := cutValue(rest)
		if err != nil {
			return nil, err
		}
		values, rest = append(values, value), next
	}
	if len(rest) > 0 {
		return nil, trailing(rest)
	}
	return values, nil
}

// cutValue returns the first of several encoded values, and the rest of them.
func cutValue(b []byte) (value, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, errValues
	}
	end := size + int(n) //nolint:gosec // n is at most len(b)
	return b[size:end], b[end:], nil
}

func trailing(rest []byte) error { return fmt.Errorf("%d bytes follow the last value", len(rest)) }

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

// The rest of this file turns messages into bodies and back, for both sides. It handles codecs,
// several values in one body, and compressors.

// appendBody appends the encoding of v to dst.
func appendBody(dst []byte, c Codec, v any) ([]byte, error) {
	values, ok := v.(Values)
	if !ok {
		if e, ok := v.(*Encoded); ok {
			return append(dst, e.Body...), nil
		}
		return c.Append(dst, v)
	}
	dst = binary.AppendUvarint(dst, uint64(len(values)))
	var scratch []byte
	for i, value := range values {
		var err error
		if scratch, err = c.Append(scratch[:0], value); err != nil {
			return dst, fmt.Errorf("value %d: %w", i+1, err)
		}
		dst = append(binary.AppendUvarint(dst, uint64(len(scratch))), scratch...)
	}
	return dst, nil
}

var errValues = errors.New("a broken list of values")

// decodeBody decodes a body into v. Its stack frame is small, like the frames of all functions that
// call methods of generated messages, because such a method may itself need more than 1 KiB of
// stack. With a small frame, the stacks of 5000 callers of such a method have 4 KiB each instead of
// 8 KiB.
func decodeBody(body []byte, c Codec, v any) error {
	if values, ok := v.(Values); ok {
		return decodeValues(body, c, values)
	}
	return c.Decode(body, v)
}

func decodeValues(body []byte, c Codec, values Values) error {
	n, size := binary.Uvarint(body)
	if size <= 0 {
		return errValues
	}
	if n != uint64(len(values)) {
		return fmt.Errorf("%d values came, %d are expected", n, len(values))
	}
	body = body[size:]
	for i, value := range values {
		encoded, rest, err := cutValue(body)
		if err != nil {
			return err
		}
		if err := c.Decode(encoded, value); err != nil {
			return fmt.Errorf("value %d: %w", i+1, err)
		}
		body = rest
	}
	if len(body) > 0 {
		return trailing(body)
	}
	return nil
}

// compressAbove is the default size from which bodies are compressed, in bytes.
const compressAbove = 1024
