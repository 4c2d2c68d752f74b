// SPDX-License-Identifier: Apache-2.0

// Package thrift encodes messages in the binary or the compact protocol of Apache Thrift, without
// generated code. A message is a Go struct whose fields have numbers, as in Thrift's language:
//
//	type Work struct {
//		A       int32    `thrift:"a,1"`
//		B       int32    `thrift:"b,2,required"`
//		Comment *string  `thrift:"comment,3"`
//		Tags    []string `thrift:"tags,4,set"`
//	}
//
// A tag has the field's name, which is optional, its number, and options. Apache's compiler and
// thriftgo write tags of this form. The types correspond as follows:
//
//	bool, i8, i16, i32, i64   bool, int8 or uint8, int16, int32, int64 or int
//	enum                      a type based on int32, or on int or int64 with the option enum
//	double, string, binary    float64, string, []byte
//	uuid                      [16]byte
//	list                      a slice
//	set                       map[T]struct{}, or a slice or map[T]bool with the option set
//	map                       a map
//	struct                    a struct or a pointer to one
//
// A pointer is an optional field: it is left out if it is nil. A nil slice or map is left out too.
// The option optional leaves out a field with the zero value. The option required makes Append fail
// if the field is nil, and Decode fail if the field is missing. An exported field without a number
// is an error, because it would be lost. The tag "-" leaves a field out.
//
// A struct with a field _ struct{} `thrift:",union"` is a union: exactly one field is set. A struct
// with a field _ struct{} `thrift:",args"` has the arguments of a method of Thrift, which are its
// fields: see package protocol/thrift.
//
// Decode skips fields that it does not know. It fails if a field has another type than expected. It
// decodes a list as a set, and the other way round. It limits the depth of messages to 64, and its
// memory to a multiple of the message's length.
//
// A message may also be a single value of another type than a struct, for methods with such
// arguments or results. It is encoded as one byte that says the type, and the value as in a field.
// Types that Apache's compiler generates with methods Read and Write are encoded by their fields,
// which works as long as no field is a set or an enum. Package codec/apachethrift encodes all of
// them.
package thrift

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/room"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

// Codec encodes messages in the binary protocol. It is called "thrift".
var Codec yodel.Codec = &codec{name: "thrift", format: thriftwire.Binary, plans: new(plans)}

// Compact encodes messages in the compact protocol. It is called "thrift-compact".
var Compact yodel.Codec = &codec{name: "thrift-compact", format: thriftwire.Compact, plans: new(plans)}

type codec struct {
	name   string
	format thriftwire.Format
	plans  *plans
}

// plans has the shapes of types, from shapeKey to *shape.
type plans struct{ sync.Map }

// Name implements yodel.Codec.
func (c *codec) Name() string { return c.name }

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (c *codec) CheckType(t reflect.Type) error {
	base := nesting.Base(t)
	if base.Kind() == reflect.Pointer {
		return fmt.Errorf("thrift: %v: %w", t, nesting.ErrPointers)
	}
	_, err := c.plans.of(base)
	return err
}

// Append implements yodel.Codec.
func (c *codec) Append(dst []byte, v any) ([]byte, error) {
	value := reflect.ValueOf(v)
	if value.IsValid() && nesting.Base(value.Type()).Kind() == reflect.Pointer {
		return dst, fmt.Errorf("thrift: %T: %w", v, nesting.ErrPointers)
	}
	for value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	if !value.IsValid() {
		return dst, fmt.Errorf("thrift: cannot encode a nil %T", v)
	}
	s, err := c.plans.of(value.Type())
	if err != nil {
		return dst, err
	}
	e := encoder{format: c.format, b: dst, start: len(dst)}
	switch {
	case s.form == formStruct && s.isArgs:
		e.b = append(e.b, c.format.ArgsMark())
	case s.form == formBool && c.format == thriftwire.Compact:
		return append(dst, c.format.Mark(thriftwire.Bool, value.Bool())), nil
	case s.form != formStruct:
		e.b = append(e.b, c.format.Mark(s.typ, false))
	}
	if err := e.value(s, value); err != nil {
		return dst, fmt.Errorf("thrift: %w", err)
	}
	return e.b, nil
}

// Decode implements yodel.Codec.
func (c *codec) Decode(src []byte, v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("thrift: cannot decode into %T, or it is nil", v)
	}
	base := nesting.Base(target.Type())
	if base.Kind() == reflect.Pointer {
		return fmt.Errorf("thrift: %T: %w", v, nesting.ErrPointers)
	}
	s, err := c.plans.of(base)
	if err != nil {
		return err
	}
	target.Elem().SetZero()
	for target.Kind() == reflect.Pointer {
		if target.IsNil() {
			target.Set(reflect.New(target.Type().Elem()))
		}
		target = target.Elem()
	}
	d := decoder{Reader: thriftwire.Reader{Format: c.format, Bytes: src}, room: room.For(len(src))}
	if err := d.message(s, target); err != nil {
		return fmt.Errorf("thrift: %w", err)
	}
	if n := len(src) - d.At; n > 0 {
		return fmt.Errorf("thrift: %d bytes follow the message", n)
	}
	return nil
}

// message decodes a value that stands alone: see thriftwire.Reader.Open.
func (d *decoder) message(s *shape, v reflect.Value) error {
	if len(d.Bytes) > 0 && d.Bytes[0] == d.Format.ArgsMark() {
		d.At++
		return d.args(s, v)
	}
	t, err := d.Open()
	if err != nil {
		return err
	}
	if t == thriftwire.Struct && s.form != formStruct {
		if len(d.Bytes) == 1 && d.Bytes[0] == 0 { // the sender has left it out
			d.At++
			v.SetZero()
			return nil
		}
		return fmt.Errorf("the message is a struct, want %v", s.typ)
	}
	if err := s.matches(t); err != nil {
		return err
	}
	return d.value(s, v, 0)
}

// args decodes the arguments of a method. V is their struct, or the first and only one of them.
func (d *decoder) args(s *shape, v reflect.Value) error {
	whole := s.form == formStruct && s.isArgs
	if !whole {
		only, err := d.first(s.form == formStruct)
		if err != nil {
			return err
		}
		whole = s.form == formStruct && !only
	}
	if whole {
		return d.value(s, v, 0)
	}
	found := false
	for last := int16(0); ; {
		t, id, err := d.Field(last)
		switch {
		case err != nil:
			return err
		case t == thriftwire.Stop:
			if !found {
				v.SetZero()
			}
			return nil
		case id != 1:
			err = d.Skip(t, 1)
		default:
			if found = true; s.matches(t) != nil {
				return fmt.Errorf("argument 1: %w", s.matches(t))
			}
			err = d.value(s, v, 1)
		}
		if err != nil {
			return err
		}
		last = id
	}
}

// first reports whether the arguments have only field 1, and that is a struct. It leaves the
// position unchanged. It reads nothing unless look is set.
func (d *decoder) first(look bool) (only bool, err error) {
	if !look {
		return false, nil
	}
	at := d.At
	defer func() { d.At = at }()
	t, id, err := d.Field(0)
	if err != nil || t != thriftwire.Struct || id != 1 {
		d.Forget()
		return false, err
	}
	if err = d.Skip(t, 1); err != nil {
		return false, err
	}
	t, _, err = d.Field(1)
	d.Forget()
	return t == thriftwire.Stop, err
}
