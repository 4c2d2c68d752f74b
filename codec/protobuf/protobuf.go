// SPDX-License-Identifier: Apache-2.0

// Package protobuf encodes messages as Protocol Buffers. The messages are those that protoc-gen-go
// generates. If a message has the faster methods of vtprotobuf, the codec uses them.
package protobuf

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/yodel-rpc/yodel"
)

// Codec is called "protobuf". Its messages are pointers to generated structs. Encoding a value
// costs a copy that encoding a pointer does not. Decode replaces the previous content of a message.
var Codec yodel.Codec = new(codec)

type codec struct{ cyclic sync.Map } // from protoreflect.FullName to the result of cyclic

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
	switch m := pointer(v).(type) {
	case vtMarshaler:
		size := m.SizeVT()
		b := slices.Grow(dst, size)[:len(dst)+size]
		if _, err := m.MarshalToSizedBufferVT(b[len(dst):]); err != nil {
			return nil, fmt.Errorf("protobuf: encode %T: %w", v, err)
		}
		return b, nil
	case proto.Message:
		b, err := proto.MarshalOptions{}.MarshalAppend(dst, m)
		if err != nil {
			return nil, fmt.Errorf("protobuf: encode %T: %w", v, err)
		}
		return b, nil
	}
	return nil, notMessage(v)
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

func (c *codec) Decode(src []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok || reflect.ValueOf(v).IsNil() {
		return notMessage(v)
	}
	var err error
	if fast, ok := v.(vtUnmarshaler); ok && !c.deep(src, m) {
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

// deep reports whether src could nest messages so deep that UnmarshalVT exhausts the stack, which
// ends the process. Package proto refuses more than 10,000 levels, but UnmarshalVT does not count
// them. A level takes at least two bytes of src, and about 500 bytes of the stack.
func (c *codec) deep(src []byte, m proto.Message) bool {
	if len(src) <= 64<<10 {
		return false
	}
	d := m.ProtoReflect().Descriptor()
	known, ok := c.cyclic.Load(d.FullName())
	if !ok {
		known = cyclic(d, map[protoreflect.FullName]bool{})
		c.cyclic.Store(d.FullName(), known)
	}
	return known == true
}

// cyclic reports whether a message of type d can contain a message of its own type, or of another
// cyclic type. walked has the types between the first message and d, as true, and the types whose
// check has ended, as false.
func cyclic(d protoreflect.MessageDescriptor, walked map[protoreflect.FullName]bool) bool {
	if above, ok := walked[d.FullName()]; ok {
		return above
	}
	walked[d.FullName()] = true
	for i := range d.Fields().Len() {
		if f := d.Fields().Get(i).Message(); f != nil && cyclic(f, walked) {
			return true
		}
	}
	walked[d.FullName()] = false
	return false
}

// CheckType returns why the codec cannot encode messages of a type: see yodel.Codec.
func (*codec) CheckType(t reflect.Type) error { return checkType(t) }

func checkType(t reflect.Type) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[proto.Message]()):
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
