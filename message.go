// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// An Encoded is a message, or Values, that is encoded in the codec of its call, and is sent as it
// is: in place of arguments, or of a reply. As a client's Reply, it takes in the reply without
// decoding it, compressed or not. See Call.Encode.
type Encoded struct {
	Body    []byte
	Several bool // of Values
}

// Encode encodes what this side of the call sends, and puts it in place of that: on the client the
// arguments, which may be changed from then on, and on the server the reply, once the method has
// returned it. Encoding twice does nothing.
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

// unencoded says that what this side sends cannot be encoded.
func (c *Call) unencoded(codec Codec, err error) error {
	id := "YDL2103"
	if c.in != nil {
		id = "YDL2104"
	}
	e := failure(id, "%s: %v (codec %s)", c.Method, err, codec.Name())
	e.NotProcessed, e.Cause = c.in == nil, err
	return e
}

// several reports whether a message is that of a method with several arguments or results.
func several(message any) bool {
	switch m := message.(type) {
	case Values:
		return true
	case *Encoded:
		return m.Several
	}
	return false
}

// This file turns messages into bodies and back, the same on both sides: the codec, several values
// in one body, the compressor.

// appendBody encodes v behind dst.
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

// decodeBody decodes a body into v. It is small on purpose, as is all that stands below a generated
// message's own method on the stack of a caller: such a method may take more than a KiB of it. With
// 5000 callers of one that does, their stacks have 4 KiB each instead of 8.
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
		n, size := binary.Uvarint(body)
		if size <= 0 || n > uint64(len(body)-size) {
			return errValues
		}
		if err := c.Decode(body[size:size+int(n)], value); err != nil { //nolint:gosec // n is at most len(body)
			return fmt.Errorf("value %d: %w", i+1, err)
		}
		body = body[size+int(n):] //nolint:gosec // n is at most len(body)
	}
	if len(body) > 0 {
		return fmt.Errorf("%d bytes follow the last value", len(body))
	}
	return nil
}

// A packer compresses bodies that are worth it.
type packer struct {
	Compressor
	above int // bytes
}

// pack returns body compressed into scratch, and whether that made it smaller.
func (p packer) pack(scratch, body []byte) (packed []byte, ok bool, err error) {
	if p.Compressor == nil || len(body) < p.above {
		return scratch, false, nil
	}
	packed, err = p.Append(scratch[:0], body)
	if err != nil {
		return scratch, false, fmt.Errorf("compress with %s: %w", p.Name(), err)
	}
	return packed, len(packed) < len(body), nil
}

// An account counts bytes before they are allocated.
type account interface {
	Take(n int) bool
	Give(n int)
}

// unpack decompresses body behind memory, if that makes at most limit bytes and a has room for
// them. How many they are is not known before, so it tries with eight times the body first, and
// with eight times as much each time that this is not enough: that takes a seventh longer at most.
// The bytes of the result stay counted.
func (p packer) unpack(a account, memory, body []byte, limit int) ([]byte, error) {
	const first, factor = 4 << 10, 8
	for n := min(max(factor*len(body), first), limit); ; n = min(factor*n, limit) {
		out, err := p.unpackWithin(a, memory, body, n)
		if n == limit || !errors.Is(err, ErrTooLarge) {
			return out, err
		}
	}
}

// unpackWithin is unpack for at most n bytes. It gives them back also when the compressor panics or
// ends its goroutine.
func (p packer) unpackWithin(a account, memory, body []byte, n int) (out []byte, err error) {
	if !a.Take(n) {
		return nil, mux.ErrMemory
	}
	kept := 0
	defer func() { a.Give(n - kept) }()
	if out, err = p.Decompress(memory, body, n); err != nil {
		return nil, err
	}
	kept = len(out)
	return out, nil
}

// compressAbove is the size from which bodies are compressed when nothing else is said.
const compressAbove = 1024
