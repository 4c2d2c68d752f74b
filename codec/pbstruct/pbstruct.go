// SPDX-License-Identifier: Apache-2.0

// Package pbstruct encodes Go structs as Protocol Buffers, without generated code. A message is a
// struct whose fields have numbers, as in a .proto file:
//
//	type Item struct {
//		SKU   string    `pb:"1"`
//		Count int32     `pb:"2"`
//		Price int64     `pb:"3,zigzag"`
//		Note  *string   `pb:"4"`
//		Tags  []string  `pb:"5"`
//		At    time.Time `pb:"6"`
//	}
//
// Every exported field needs a number of its own, from 1 to 536870911 without 19000 to 19999. The
// tag "-" leaves a field out. The codec checks a type when it is first used. The types correspond
// as follows:
//
//	bool, string, bytes     bool, string, []byte
//	float, double           float32, float64
//	int64, int32            int and int64; int32, int16 and int8
//	sint64, sint32          the same with the option zigzag
//	sfixed64, sfixed32      the same with the option fixed
//	uint64, uint32          uint and uint64; uint32, uint16 and uint8
//	fixed64, fixed32        the same with the option fixed
//	enum                    a type based on int32
//	message                 a struct or a pointer to one
//	optional                a pointer to another type
//	repeated                a slice; numbers are packed
//	map                     a map
//	google.protobuf         time.Time for Timestamp, time.Duration for Duration
//
// An option applies to the numbers of a slice too. Fields are encoded as in proto3: a zero value is
// left out, unless the field is a pointer. A zero time.Time is left out. A nested struct without
// content is left out too.
//
// Decode replaces the previous content of a message. It skips fields that it does not know, and
// those with another type on the wire than expected. It decodes times in UTC. Strings must be
// UTF-8. Decode fails if a number is too large for its field, and if a time is not within the years
// 1 to 9999. Messages may be nested 100 deep. Decode limits its memory to a multiple of the length
// of the message.
package pbstruct

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/room"
)

// Codec encodes numbered structs, and struct{} as an empty message. Encoding any other value fails.
// It is called "protobuf".
var Codec = With(nil)

// With returns a codec that encodes numbered structs, and struct{}, as Codec does. It passes all
// other values to the codec other, for example to protobuf.Codec. A server with this codec has both
// methods with numbered structs and methods with generated messages.
func With(other yodel.Codec) yodel.Codec { return &codec{other: other} }

type codec struct {
	other yodel.Codec // nil for none
	plans sync.Map    // from reflect.Type to *plan
}

// A plan says how the codec encodes a type.
type plan struct {
	shape *shape // nil if err is set, or if the type is not for this package
	err   error
}

// Name implements yodel.Codec.
func (*codec) Name() string { return "protobuf" }

// Append implements yodel.Codec.
func (c *codec) Append(dst []byte, v any) ([]byte, error) {
	value := reflect.ValueOf(v)
	if !value.IsValid() {
		return dst, errNothing
	}
	p := c.planOf(value.Type())
	switch {
	case p.err != nil:
		return dst, p.err
	case p.shape == nil:
		return c.other.Append(dst, v)
	}
	for value.Kind() == reflect.Pointer {
		if value.IsNil() {
			return dst, fmt.Errorf("pbstruct: cannot encode a nil %T", v)
		}
		value = value.Elem()
	}
	e := encoder{b: dst, start: len(dst)}
	if err := e.content(p.shape, value); err != nil {
		return dst, fmt.Errorf("pbstruct: %w", err)
	}
	return e.b, nil
}

// Decode implements yodel.Codec.
func (c *codec) Decode(src []byte, v any) error {
	target := reflect.ValueOf(v)
	if !target.IsValid() {
		return errNothing
	}
	p := c.planOf(target.Type())
	switch {
	case p.err != nil:
		return p.err
	case p.shape == nil:
		return c.other.Decode(src, v)
	case target.Kind() != reflect.Pointer || target.IsNil():
		return fmt.Errorf("pbstruct: cannot decode into %T, or it is nil", v)
	}
	target.Elem().SetZero()
	for target.Kind() == reflect.Pointer {
		if target.IsNil() {
			target.Set(reflect.New(target.Type().Elem()))
		}
		target = target.Elem()
	}
	d := decoder{room: room.For(len(src))}
	if err := d.content(p.shape, target, src, 0); err != nil {
		return fmt.Errorf("pbstruct: %w", err)
	}
	return nil
}

// CheckType returns why the codec cannot encode messages of a type: see yodel.Codec.
func (c *codec) CheckType(t reflect.Type) error {
	p := c.planOf(t)
	if p.err == nil && p.shape == nil {
		return carries.Check(c.other, t)
	}
	return p.err
}

// planOf returns the plan for values of a type, or of pointers to it.
func (c *codec) planOf(t reflect.Type) *plan {
	if p, ok := c.plans.Load(t); ok {
		return p.(*plan) //nolint:forcetypeassert // it stores nothing else
	}
	base := nesting.Base(t)
	p := new(plan)
	switch {
	case base.Kind() == reflect.Pointer:
		p.err = fmt.Errorf("pbstruct: %v: %w", t, nesting.ErrPointers)
	case isMessage(base):
		if p.shape, p.err = make(builder).message(base); p.err != nil {
			p.shape, p.err = nil, fmt.Errorf("pbstruct: %w", p.err)
		}
	case c.other == nil && carries.IsGenerated(base):
		p.err = fmt.Errorf("pbstruct: %v is a message of the protobuf library: use the codec pbstruct.With(protobuf.Codec)", base)
	case c.other == nil && base.Kind() == reflect.Struct:
		p.err = fmt.Errorf("pbstruct: %v is a plain struct: number its fields, as in `pb:\"1\"`, or use another codec such as JSON", base)
	case c.other == nil:
		p.err = fmt.Errorf("pbstruct: %v is not a struct, so it cannot be a message", base)
	}
	stored, _ := c.plans.LoadOrStore(t, p)
	return stored.(*plan) //nolint:forcetypeassert // it stores nothing else
}

// isMessage reports whether a type is a message for this package: struct{}, or a struct of which at
// least one field has a tag.
func isMessage(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		if _, ok := t.Field(i).Tag.Lookup("pb"); ok {
			return true
		}
	}
	return t.NumField() == 0
}

// maxDepth is how deep messages may be nested, as in the implementations of Protocol Buffers in C++
// and Java.
const maxDepth = 100

var (
	errNothing = errors.New("pbstruct: nil is not a message")
	errTooDeep = fmt.Errorf("messages are nested deeper than %d", maxDepth)
	errUTF8    = errors.New("a string is not UTF-8")
	errNil     = errors.New("a nil pointer among the elements")
)
