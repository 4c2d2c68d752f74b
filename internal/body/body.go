// SPDX-License-Identifier: Apache-2.0

// Package body encodes and decodes the bodies of requests and replies, for clients and for servers.
// It compresses and decompresses them, bounds their sizes, and returns the fault of a body that
// cannot be sent or read. It knows no calls.
package body

import (
	"fmt"

	"github.com/yodel-rpc/yodel/internal/panics"
	"github.com/yodel-rpc/yodel/internal/rawcodec"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/values"
)

// A Codec is a yodel.Codec.
type Codec interface {
	Name() string
	Append(dst []byte, v any) ([]byte, error)
	Decode(src []byte, v any) error
}

// several is a type of messages that consist of several values, as yodel.Values does.
type several interface{ ~[]any }

// encoded is a type of messages that are already encoded, as a yodel.Encoded is. Several says that
// Body is the encoding of several values.
type encoded interface {
	~struct {
		Body    []byte
		Several bool
	}
}

// A plain is the underlying type of every type of encoded.
type plain = struct {
	Body    []byte
	Several bool
}

// A Format is how the bodies of a method are encoded and compressed. A message is a value of the
// codec, a V of such values, or an *E. The fields do not change after the first use. The methods
// may be called concurrently.
type Format[V several, E encoded] struct {
	Codec Codec
	Pack  unpack.Packer
	Side  *Side        // that encodes and decodes; nil is for encoding by a client only
	raw   rawcodec.Raw // the codec if its messages are bytes, otherwise nil
}

// Large is the size in bytes from which bodies of the raw codec are not copied. Such a copy costs
// more than all other work of a call. Smaller bodies are copied into memory that is reused.
const Large = 16 << 10

// Use sets the codec of f.
func (f *Format[V, E]) Use(codec Codec) {
	f.Codec = codec
	f.raw, _ = codec.(rawcodec.Raw)
}

// Raw reports whether the messages of the codec are bytes.
func (f *Format[V, E]) Raw() bool { return f.raw != nil }

// Several reports whether a message is a V or the encoding of one.
func Several[V several, E encoded](message any) bool {
	switch m := message.(type) {
	case V:
		return true
	case *E:
		return plain(*m).Several
	}
	return false
}

// Append appends the encoding of a message to dst.
func (f *Format[V, E]) Append(dst []byte, message any) ([]byte, error) {
	switch m := message.(type) {
	case V:
		return values.Append(dst, f.Codec, m)
	case *E:
		return append(dst, plain(*m).Body...), nil
	}
	return f.Codec.Append(dst, message)
}

// shared returns the body of a message that is already encoded, without a copy.
func (f *Format[V, E]) shared(message any) (body []byte, ok bool) {
	if m, ok := message.(*E); ok {
		return plain(*m).Body, true
	}
	if f.raw == nil {
		return nil, false
	}
	body, err := f.raw.Bytes(message)
	return body, err == nil
}

// Decode decodes a body into a message, which is no *E. Its stack frame is small, like the frames
// of all functions that call methods of generated messages, because such a method may need more
// than 1 KiB of stack.
func (f *Format[V, E]) Decode(body []byte, into any) (err error) {
	if m, ok := into.(V); ok {
		err = values.Decode(body, f.Codec, m)
	} else {
		err = f.Codec.Decode(body, into)
	}
	if err != nil {
		panics.Resume(err)
	}
	return err
}

// Fill decodes a body into a message. An *E becomes a copy of the body. Nil discards it.
// IsSeveral says that the body is the encoding of a V.
func (f *Format[V, E]) Fill(body []byte, isSeveral bool, into any) error {
	switch m := into.(type) {
	case nil:
		return nil
	case *E:
		*m = E(plain{append(plain(*m).Body[:0], body...), isSeveral})
		return nil
	}
	if _, want := into.(V); want != isSeveral {
		return fmt.Errorf("it is of several values: %v", isSeveral)
	}
	return f.Decode(body, into)
}

// Recipient returns the slice in a message that takes over a large body without a copy. It returns
// nil if the body has to be decoded or fits into the capacity of the message.
func (f *Format[V, E]) Recipient(body []byte, into any) *[]byte {
	if f.raw == nil || len(body) <= Large {
		return nil
	}
	if p := f.raw.Pointer(into); p != nil && len(body) > cap(*p) {
		return p
	}
	return nil
}
