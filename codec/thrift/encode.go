// SPDX-License-Identifier: Apache-2.0

package thrift

import (
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

// An encoder appends values to b.
type encoder struct {
	format thriftwire.Format
	b      []byte
	depth  int
	start  int // of the message in b
}

var (
	errNil  = errors.New("a nil pointer that is no optional field")
	errLong = errors.New("it has more than 2³¹-1 bytes or elements")
)

// value appends v, without a header.
func (e *encoder) value(s *shape, v reflect.Value) error {
	if err := nesting.CheckBytes(len(e.b) - e.start); err != nil {
		return err
	}
	switch s.form {
	case formBool:
		e.b = thriftwire.AppendBool(e.b, e.format, v.Bool())
	case formInt:
		n := v.Int()
		if s.typ == thriftwire.I32 && n != int64(int32(n)) { //nolint:gosec // an enum, whose size this checks
			return fmt.Errorf("%d is too large for an enum", n)
		}
		e.b = thriftwire.AppendInt(e.b, e.format, s.typ, n)
	case formUint8:
		e.b = append(e.b, byte(v.Uint())) //nolint:gosec // it is a uint8
	case formDouble:
		e.b = thriftwire.AppendDouble(e.b, e.format, v.Float())
	case formString:
		if uint64(v.Len()) > math.MaxInt32 {
			return errLong
		}
		e.b = thriftwire.AppendString(e.b, e.format, v.String())
	case formBytes:
		if uint64(v.Len()) > math.MaxInt32 {
			return errLong
		}
		e.b = append(thriftwire.AppendLength(e.b, e.format, v.Len()), v.Bytes()...)
	case formUUID:
		for i := range 16 {
			e.b = append(e.b, byte(v.Index(i).Uint())) //nolint:gosec // it is a uint8
		}
	case formPointer:
		if v.IsNil() {
			return errNil
		}
		return e.value(s.elem, v.Elem())
	default:
		if e.depth++; e.depth > thriftwire.MaxDepth {
			return thriftwire.ErrTooDeep
		}
		err := e.nested(s, v)
		e.depth--
		return err
	}
	return nil
}

// nested appends a struct or a container.
func (e *encoder) nested(s *shape, v reflect.Value) error {
	if s.form == formStruct {
		return e.structure(s, v)
	}
	n := v.Len()
	if uint64(n) > math.MaxInt32 {
		return errLong
	}
	switch s.form {
	case formSlice:
		e.b = thriftwire.AppendList(e.b, e.format, s.elem.typ, n)
		for i := range n {
			if err := e.value(s.elem, v.Index(i)); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
		return nil
	case formMap:
		e.b = thriftwire.AppendMap(e.b, e.format, s.key.typ, s.elem.typ, n)
	default:
		e.b = thriftwire.AppendList(e.b, e.format, s.key.typ, n)
	}
	if n == 0 {
		return nil
	}
	return e.entries(s, v, n)
}

// entries appends the entries of a map, or the keys of one that is a set. They are sorted, so that
// equal maps have equal encodings.
func (e *encoder) entries(s *shape, v reflect.Value, n int) error {
	key, elem := reflect.New(s.goType.Key()).Elem(), reflect.New(s.goType.Elem()).Elem()
	start, ends := len(e.b), make([]int, 0, n)
	for i := v.MapRange(); i.Next(); {
		key.SetIterKey(i)
		if err := e.value(s.key, key); err != nil {
			return fmt.Errorf("a key: %w", err)
		}
		elem.SetIterValue(i)
		switch s.form { //nolint:exhaustive // the others are sets without values
		case formMap:
			if err := e.value(s.elem, elem); err != nil {
				return fmt.Errorf("the value of a key: %w", err)
			}
		case formSetBool:
			if !elem.Bool() {
				return fmt.Errorf("the set %v has a key with the value false, which would be left out", s.goType)
			}
		}
		ends = append(ends, len(e.b))
	}
	carries.Sort(e.b[start:], start, ends)
	return nil
}

// structure appends a struct.
func (e *encoder) structure(s *shape, v reflect.Value) error {
	last, set := int16(0), 0
	for i := range s.fields {
		f := &s.fields[i]
		fv := v.Field(f.index)
		if absent := f.absent(fv); absent && f.required == 0 {
			continue
		} else if absent && f.shape.form == formPointer {
			return fmt.Errorf("%v.%s is required, and nil", s.goType, f.name)
		}
		set++
		if err := e.field(f, fv, last); err != nil {
			return fmt.Errorf("%v.%s: %w", s.goType, f.name, err)
		}
		last = f.id
	}
	if s.isUnion && set != 1 {
		return fmt.Errorf("%d fields of the union %v are set, want 1", set, s.goType)
	}
	e.b = append(e.b, byte(thriftwire.Stop))
	return nil
}

// absent reports whether the field is left out.
func (f *field) absent(v reflect.Value) bool {
	switch f.shape.form {
	case formPointer, formSlice, formBytes, formMap, formSetEmpty, formSetBool:
		return v.IsNil()
	default:
		return f.optional && v.IsZero()
	}
}

// field appends a field with its header.
func (e *encoder) field(f *field, v reflect.Value, last int16) error {
	s := f.shape
	if s.form == formPointer {
		s, v = s.elem, v.Elem()
	}
	if s.form == formBool {
		e.b = thriftwire.AppendBoolField(e.b, e.format, v.Bool(), f.id, last)
		return nil
	}
	e.b = thriftwire.AppendField(e.b, e.format, s.typ, f.id, last)
	return e.value(s, v)
}
