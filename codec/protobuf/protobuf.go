// SPDX-License-Identifier: Apache-2.0

// Package protobuf encodes messages as Protocol Buffers. The messages are those that protoc-gen-go
// generates. If a message has the faster methods of vtprotobuf, the codec uses them. Codec also
// takes those of older generators, such as gogo/protobuf.
package protobuf

import (
	"fmt"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/yodel-rpc/yodel"
)

// Codec is called "protobuf". Its messages are pointers to generated structs. Encoding a value
// costs a copy that encoding a pointer does not. Decode replaces the previous content of a message.
//
// Append refuses messages that are nested more than 1,000 deep, or contain themselves. Decode takes
// 10,000 levels, as package proto does.
//
// A message without the method ProtoReflect, which gogo/protobuf has generated, encodes and decodes
// itself by its methods Marshal and Unmarshal if it has them. Codec JSON leaves such a message to
// encoding/json.
var Codec yodel.Codec = new(codec)

type codec struct{}

// A vtMarshaler and a vtUnmarshaler have the methods that vtprotobuf generates.
type (
	vtMarshaler interface {
		SizeVT() int
		MarshalToSizedBufferVT(buf []byte) (int, error)
	}
	vtUnmarshaler interface {
		Reset()
		UnmarshalVT(src []byte) error
	}
)

func (*codec) Name() string { return "protobuf" }

func (*codec) Append(dst []byte, v any) ([]byte, error) {
	p := pointer(v)
	if err := checkNesting(p); err != nil {
		return nil, err
	}
	if m, ok := p.(vtMarshaler); ok {
		size := m.SizeVT()
		if err := checkSize(v, size); err != nil {
			return nil, err
		}
		b := slices.Grow(dst, size)[:len(dst)+size]
		if _, err := m.MarshalToSizedBufferVT(b[len(dst):]); err != nil {
			return nil, fmt.Errorf("protobuf: encode %T: %w", v, err)
		}
		return b, nil
	}
	m := message(p)
	if m == nil {
		return nil, notMessage(v)
	}
	if err := checkSize(v, proto.Size(m)); err != nil {
		return nil, err
	}
	b, err := proto.MarshalOptions{UseCachedSize: true, Deterministic: true}.MarshalAppend(dst, m)
	if err != nil {
		return nil, fmt.Errorf("protobuf: encode %T: %w", v, err)
	}
	return b, nil
}

// message returns v as a message. It is nil if v is none.
func message(v any) proto.Message {
	switch m := v.(type) {
	case proto.Message:
		return m
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m)
	}
	return nil
}

// pointer returns v, or a pointer to a copy of it.
func pointer(v any) any {
	value := reflect.ValueOf(v)
	if value.Kind() != reflect.Struct {
		return v
	}
	twin := reflect.New(value.Type())
	twin.Elem().Set(value)
	return twin.Interface()
}

func (*codec) Decode(src []byte, v any) error {
	m := message(v)
	if m == nil || reflect.ValueOf(v).IsNil() {
		return notMessage(v)
	}
	if err := checkDepth(src, v); err != nil {
		return broken(v, err)
	}
	var err error
	if fast, ok := v.(vtUnmarshaler); ok && !deep(src, m) {
		fast.Reset()
		err = fast.UnmarshalVT(src)
	} else {
		err = proto.Unmarshal(src, m)
	}
	if err != nil {
		return broken(v, err)
	}
	return nil
}

func broken(v any, err error) error { return fmt.Errorf("protobuf: decode %T: %w", v, err) }

// CheckType returns why the codec cannot encode messages of a type: see yodel.Codec.
func (*codec) CheckType(t reflect.Type) error { return checkType(t) }

func checkType(t reflect.Type) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	switch {
	case p.Implements(reflect.TypeFor[proto.Message]()), p.Implements(reflect.TypeFor[protoadapt.MessageV1]()):
		return nil
	case t.Kind() == reflect.Struct:
		return fmt.Errorf("protobuf: %v is not a generated message: number its fields, as in `pb:\"1\"`, and use pbstruct.With(protobuf.Codec)", t)
	}
	return fmt.Errorf("protobuf: %v is not a generated message", t)
}

func notMessage(v any) error {
	if t := reflect.TypeOf(v); t != nil && checkType(t) != nil {
		return checkType(t)
	}
	return fmt.Errorf("protobuf: %T is not a pointer to a generated message, or is nil", v)
}
