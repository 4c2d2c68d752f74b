// SPDX-License-Identifier: Apache-2.0

package thrift

import (
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/room"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

// A decoder decodes values.
type decoder struct {
	thriftwire.Reader
	room room.Room
}

// allocate counts n elements of the given size before they are allocated.
func (d *decoder) allocate(n int, size uintptr) error {
	if !d.room.Take(n, size) {
		return room.ErrNone
	}
	return nil
}

// value decodes a value into v, which is addressable. Depth is the number of structs and containers
// around it.
func (d *decoder) value(s *shape, v reflect.Value, depth int) error {
	switch s.form { //nolint:exhaustive // the others are handled together
	case formBool:
		b, err := d.Bool()
		v.SetBool(b)
		return err
	case formInt:
		n, err := d.Int(s.typ)
		if err == nil && v.OverflowInt(n) {
			return fmt.Errorf("%d is too large for %v", n, s.goType)
		}
		v.SetInt(n)
		return err
	case formUint8:
		n, err := d.Int(thriftwire.I8)
		v.SetUint(uint64(byte(n))) //nolint:gosec // the bits
		return err
	case formDouble:
		x, err := d.Double()
		v.SetFloat(x)
		return err
	case formString:
		b, err := d.Data()
		v.SetString(string(b))
		return err
	case formBytes:
		b, err := d.Data()
		if err == nil {
			v.SetBytes(append(make([]byte, 0, len(b)), b...))
		}
		return err
	case formUUID:
		b, err := d.UUID()
		if err == nil {
			reflect.Copy(v, reflect.ValueOf(b))
		}
		return err
	case formPointer:
		if err := d.allocate(1, s.elem.goType.Size()); err != nil {
			return err
		}
		v.Set(reflect.New(s.elem.goType))
		return d.value(s.elem, v.Elem(), depth)
	}
	if depth >= thriftwire.MaxDepth {
		return thriftwire.ErrTooDeep
	}
	switch s.form {
	case formStruct:
		return d.structure(s, v, depth+1)
	case formSlice:
		return d.slice(s, v, depth+1)
	default:
		return d.mapped(s, v, depth+1)
	}
}

func (d *decoder) slice(s *shape, v reflect.Value, depth int) error {
	t, n, err := d.List()
	if err != nil {
		return err
	}
	if n > 0 {
		if err := s.elem.matches(t); err != nil {
			return err
		}
	}
	if err := d.allocate(n, s.elem.goType.Size()); err != nil {
		return err
	}
	v.Set(reflect.MakeSlice(s.goType, n, n))
	for i := range n {
		if err := d.value(s.elem, v.Index(i), depth); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	return nil
}

// mapped decodes a map, or a set that is a map.
func (d *decoder) mapped(s *shape, v reflect.Value, depth int) (err error) {
	var key, elem thriftwire.Type
	var n int
	if s.form == formMap {
		key, elem, n, err = d.Map()
	} else {
		key, n, err = d.List()
	}
	if err != nil {
		return err
	}
	if n > 0 {
		if err := s.key.matches(key); err != nil {
			return err
		}
		if s.form == formMap {
			if err := s.elem.matches(elem); err != nil {
				return err
			}
		}
	}
	if err := d.allocate(1, room.Map(s.goType, n)); err != nil {
		return err
	}
	v.Set(reflect.MakeMapWithSize(s.goType, n))
	if n == 0 {
		return nil
	}
	k, e := reflect.New(s.goType.Key()).Elem(), reflect.New(s.goType.Elem()).Elem()
	if s.form == formSetBool {
		e.SetBool(true)
	}
	for range n {
		k.SetZero()
		if err := d.value(s.key, k, depth); err != nil {
			return fmt.Errorf("a key: %w", err)
		}
		if s.form == formMap {
			e.SetZero()
			if err := d.value(s.elem, e, depth); err != nil {
				return fmt.Errorf("the value of a key: %w", err)
			}
		}
		v.SetMapIndex(k, e)
	}
	return nil
}

func (d *decoder) structure(s *shape, v reflect.Value, depth int) error {
	var seen [maxRequired / 64]uint64 // of the required fields
	required, known := 0, 0
	for last := int16(0); ; {
		t, id, err := d.Field(last)
		if err != nil {
			return err
		}
		if t == thriftwire.Stop {
			break
		}
		last = id
		f := s.field(id, known)
		if f == nil {
			if err = d.Skip(t, depth); err != nil {
				return fmt.Errorf("%v, field %d: %w", s.goType, id, err)
			}
			continue
		}
		if known++; f.required > 0 {
			if bit := uint64(1) << ((f.required - 1) % 64); seen[(f.required-1)/64]&bit == 0 {
				seen[(f.required-1)/64] |= bit
				required++
			}
		}
		if err = f.shape.matches(t); err == nil {
			err = d.value(f.shape, v.Field(f.index), depth)
		}
		if err != nil {
			return fmt.Errorf("%v.%s (field %d): %w", s.goType, f.name, id, err)
		}
	}
	if s.isUnion && known > 1 {
		return fmt.Errorf("%d fields of the union %v are set, want 1", known, s.goType)
	}
	if required < s.required {
		for i := range s.fields {
			if n := s.fields[i].required; n > 0 && seen[(n-1)/64]>>((n-1)%64)&1 == 0 {
				return fmt.Errorf("%v.%s (field %d) is required, and missing", s.goType, s.fields[i].name, s.fields[i].id)
			}
		}
	}
	return nil
}
