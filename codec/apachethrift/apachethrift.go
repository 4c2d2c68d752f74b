// SPDX-License-Identifier: Apache-2.0

// Package apachethrift encodes the types that Apache Thrift's compiler for Go generates with their
// own methods Read and Write, in the binary or the compact protocol. So the generated structs,
// enums and exceptions can be arguments, replies and errors of yodel methods:
//
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:    []yodel.Codec{apachethrift.New(thriftcodec.Codec), apachethrift.New(thriftcodec.Compact)},
//		Protocols: []yodel.Protocol{thrift.New(&thrift.Options{Service: "Paints"})},
//	})
//	err := apachethrift.Register(server, "Paints", testthrift.NewPaintsProcessor(handler))
//
// Package protocol/thrift is the protocol. Client makes a generated client call through yodel.
//
// # Services
//
// Register registers a generated service. Server.Register would have to guess about its handler:
// which names its methods have in Thrift, and whether the second of two parameters is an argument.
// It refuses a handler whose second parameter may be meant as a result.
//
// # Types
//
// The codec encodes generated structs, unions, exceptions and enums, and lists and maps that have
// such elements, at any depth. It passes all other types to the codec that New got. A message of
// that codec cannot contain generated types: that is an error, because it would lose what only the
// generated code knows.
//
// Apache's compiler generates slices for sets. Within a generated struct the codec encodes sets as
// sets. A set that is itself an argument or a result of a method of your own needs another Go type:
// map[T]struct{}, which package codec/thrift encodes as a set.
//
// A generated struct with the arguments of a method, such as PaintsMixArgs, is encoded as all
// arguments of the method. A generated struct with its result, such as PaintsMixResult, is no
// message: the message is its field for success.
//
// Decode leaves fields unchanged that the message does not have, as the generated methods do. So it
// keeps the defaults of a struct that its generated constructor made. A struct that was used for
// another reply keeps its fields too, so make a new one for each call. The server makes the structs
// that a handler gets without that constructor.
//
// The codec checks the structure of a message, its depth of at most 64, and the announced sizes
// before the generated code reads the message. It does not limit what memory the generated code
// allocates: Limits.MaxMessage does.
package apachethrift

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

// New returns a codec for generated types, which passes all others to rest. Rest is a codec of
// package codec/thrift. The codec has the name of rest, which decides the protocol: "thrift" is the
// binary protocol, and "thrift-compact" the compact one.
func New(rest yodel.Codec) yodel.Codec { return newCodec(rest) }

func newCodec(rest yodel.Codec) *codec {
	c := &codec{Codec: rest, protocols: thrift.NewTBinaryProtocolFactoryConf(nil), kinds: new(kinds)}
	if rest.Name() == "thrift-compact" {
		c.format, c.protocols = thriftwire.Compact, thrift.NewTCompactProtocolFactoryConf(nil)
	}
	return c
}

type codec struct {
	yodel.Codec // of other types
	format      thriftwire.Format
	protocols   thrift.TProtocolFactory
	kinds       *kinds
}

// nested is for the generated methods, which follow pointers by recursion.
var nested = nesting.Rules{Max: thriftwire.MaxDepth}

// kinds has the kinds of types, from reflect.Type to known.
type kinds struct{ sync.Map }

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (c *codec) CheckType(t reflect.Type) error {
	base := nesting.Base(t)
	if base.Kind() == reflect.Pointer {
		return fmt.Errorf("apachethrift: %v: %w", t, nesting.ErrPointers)
	}
	of := base
	if isStruct(reflect.PointerTo(base)) {
		of = reflect.PointerTo(base)
	}
	k, err := c.kinds.of(of)
	switch {
	case err == nil && k == result:
		return fmt.Errorf("apachethrift: %v is the result of a method: use the type of its field Success instead", base)
	case err == nil && k == foreign:
		return carries.Check(c.Codec, t)
	}
	return err
}

// Append implements yodel.Codec.
func (c *codec) Append(dst []byte, v any) ([]byte, error) {
	value, k, err := c.of(v)
	if err != nil {
		return dst, err
	}
	switch k {
	case foreign:
		return c.Codec.Append(dst, v)
	case result:
		return dst, fmt.Errorf("apachethrift: %v is the result of a method: return its field Success instead", value.Type())
	case arguments:
		dst = append(dst, c.format.ArgsMark())
	case composed:
		dst = append(dst, c.format.Mark(wireType(typeOf(value.Type())), false))
	case message:
	}
	if err := nested.Check(v); err != nil {
		return dst, fmt.Errorf("apachethrift: encode %w", err)
	}
	ctx, b := context.Background(), bytes.NewBuffer(dst)
	p := c.protocols.GetProtocol(&thrift.TMemoryBuffer{Buffer: b})
	if err = write(ctx, p, value); err == nil {
		err = p.Flush(ctx)
	}
	if err != nil {
		return dst, fmt.Errorf("apachethrift: encode %T: %w", v, err)
	}
	return b.Bytes(), nil
}

// of returns the value to encode, and its kind. The value of a struct is a pointer.
func (c *codec) of(v any) (reflect.Value, kind, error) {
	value := reflect.ValueOf(v)
	if value.IsValid() && nesting.Base(value.Type()).Kind() == reflect.Pointer {
		return value, foreign, fmt.Errorf("apachethrift: %T: %w", v, nesting.ErrPointers)
	}
	for value.Kind() == reflect.Pointer && !isStruct(value.Type()) {
		value = value.Elem()
	}
	if !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil() {
		return value, foreign, fmt.Errorf("apachethrift: cannot encode a nil %T", v)
	}
	if isStruct(reflect.PointerTo(value.Type())) {
		copied := reflect.New(value.Type())
		copied.Elem().Set(value)
		value = copied
	}
	k, err := c.kinds.of(value.Type())
	return value, k, err
}

// Decode implements yodel.Codec.
func (c *codec) Decode(src []byte, v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("apachethrift: cannot decode into %T, or it is nil", v)
	}
	base := target.Type()
	if nesting.Base(base).Kind() == reflect.Pointer {
		return fmt.Errorf("apachethrift: %T: %w", v, nesting.ErrPointers)
	}
	for base.Kind() == reflect.Pointer && !isStruct(base) {
		base = base.Elem()
	}
	k, err := c.kinds.of(base)
	switch {
	case err != nil:
		return err
	case k == foreign:
		return c.Codec.Decode(src, v)
	case k == result:
		return fmt.Errorf("apachethrift: %v is the result of a method: decode into the type of its field Success instead", base)
	}
	body, err := c.cut(src, base, k)
	if err != nil {
		return fmt.Errorf("apachethrift: decode %v: %w", base, err)
	}
	for target.Type() != base && target.Kind() == reflect.Pointer {
		if inner := target.Elem(); inner.Kind() == reflect.Pointer && inner.IsNil() && body != nil {
			inner.Set(reflect.New(inner.Type().Elem()))
		}
		target = target.Elem()
	}
	if body == nil {
		if target.CanSet() {
			target.SetZero()
		}
		return nil
	}
	b := bytes.NewBuffer(body)
	if err = read(context.Background(), c.protocols.GetProtocol(&thrift.TMemoryBuffer{Buffer: b}), target); err == nil && b.Len() > 0 {
		err = fmt.Errorf("%d bytes follow the value", b.Len())
	}
	if err != nil {
		return fmt.Errorf("apachethrift: decode %v: %w", base, err)
	}
	return nil
}

// cut returns the bytes of the value in a message, without what says its type, or nil if the sender
// has left the value out. It checks the structure of the whole message.
func (c *codec) cut(src []byte, base reflect.Type, k kind) (body []byte, err error) {
	r := thriftwire.Reader{Format: c.format, Bytes: src}
	want := wireType(typeOf(base))
	if len(src) > 0 && src[0] == c.format.ArgsMark() {
		r.At++
		if k == arguments {
			return rest(&r, thriftwire.Struct)
		}
		return argument(&r, want)
	}
	t, err := r.Open()
	switch {
	case err != nil:
		return nil, err
	case k == arguments:
		return nil, errors.New("the message is a value, want the arguments of a method")
	case t == thriftwire.Struct && want != t && len(src) == 1 && src[0] == 0:
		return nil, nil
	case !fits(t, want):
		return nil, fmt.Errorf("the message is %v, want %v", t, want)
	}
	return rest(&r, t)
}

// rest returns a value of type t that ends with the bytes of r.
func rest(r *thriftwire.Reader, t thriftwire.Type) ([]byte, error) {
	at := r.At
	if err := r.Skip(t, 0); err != nil {
		return nil, err
	}
	if n := len(r.Bytes) - r.At; n > 0 {
		return nil, fmt.Errorf("%d bytes follow the message", n)
	}
	return r.Bytes[at:], nil
}

// argument returns field 1 of the arguments of a method.
func argument(r *thriftwire.Reader, want thriftwire.Type) (body []byte, err error) {
	for last := int16(0); ; {
		t, id, err := r.Field(last)
		switch {
		case err != nil:
			return nil, err
		case t == thriftwire.Stop && len(r.Bytes) > r.At:
			return nil, fmt.Errorf("%d bytes follow the arguments", len(r.Bytes)-r.At)
		case t == thriftwire.Stop:
			return body, nil
		case id == 1 && !fits(t, want):
			return nil, fmt.Errorf("argument 1 is %v, want %v", t, want)
		}
		at := r.At
		if err = r.Skip(t, 1); err != nil {
			return nil, fmt.Errorf("argument %d: %w", id, err)
		}
		if id == 1 {
			body = r.Bytes[at:r.At]
		}
		last = id
	}
}

// fits reports whether a value of type t can be decoded as one of type want.
func fits(t, want thriftwire.Type) bool {
	isList := func(t thriftwire.Type) bool { return t == thriftwire.List || t == thriftwire.Set }
	return t == want || isList(t) && isList(want)
}

func wireType(t thrift.TType) thriftwire.Type { return thriftwire.Type(t) }
