// SPDX-License-Identifier: Apache-2.0

package thriftwire

import (
	"errors"
	"fmt"
)

// This file is about values that stand alone, as codec/thrift encodes them. A struct is encoded as
// in a field. Any other value follows a byte with its type, which cannot begin a struct:
//
//	binary    0x80 + type
//	compact   type in the upper half; for a Bool this is also the value, and nothing follows
//
// A zero byte alone is an empty struct, and also stands for a value that the sender has left out.
// The arguments of a method of Thrift are a struct after the byte 0xff, or 0xf0 in the compact
// protocol. The decoder knows whether its type is that struct, or the type of its only field.

// ArgsMark returns the byte before the arguments of a method.
func (f Format) ArgsMark() byte {
	if f == Compact {
		return 0xf0
	}
	return 0xff
}

// Mark returns the byte before a Value that is no struct. In the compact protocol this is the
// whole encoding of a Bool.
func (f Format) Mark(t Type, isTrue bool) byte {
	switch {
	case f == Binary:
		return 0x80 | byte(t)
	case t == Bool:
		return truth(isTrue) << 4
	}
	return compactNumbers[t] << 4
}

// Marked returns the type of which b is the mark. It reports false if b begins a struct.
func (f Format) Marked(b byte) (t Type, ok bool) {
	if f == Binary {
		t = Type(b &^ 0x80)
		return t, b&0x80 != 0 && t.known() && t != Struct
	}
	t = compactTypes[b>>4]
	return t, b&0xf == 0 && t != Stop && t != Struct
}

// Open prepares r to read an encoded value. It returns the type. The value follows.
func (r *Reader) Open() (Type, error) {
	if r.At == len(r.Bytes) {
		return Stop, errors.New("an empty message")
	}
	b := r.Bytes[r.At]
	t, ok := r.Format.Marked(b)
	if !ok {
		return Struct, nil
	}
	r.At++
	if t == Bool && r.Format == Compact {
		r.truth = b >> 4
	}
	return t, nil
}

// AppendFieldOf appends a field with a value that stands alone in encoded. If encoded begins with
// the byte of ArgsMark, AppendFieldOf fails.
func AppendFieldOf(dst []byte, f Format, encoded []byte, id, last int16) ([]byte, error) {
	if len(encoded) == 0 {
		return dst, errors.New("an empty message")
	}
	switch t, ok := f.Marked(encoded[0]); {
	case ok && t == Bool && f == Compact:
		return appendCompactField(dst, encoded[0]>>4, id, last), nil
	case ok:
		return append(AppendField(dst, f, t, id, last), encoded[1:]...), nil
	case encoded[0] == f.ArgsMark():
		return dst, errors.New("the arguments of a method cannot be a part of others")
	}
	return append(AppendField(dst, f, Struct, id, last), encoded...), nil
}

// Fields calls f with the number and the type of each field of a struct, and with its value encoded
// so that it stands alone. It overwrites the headers of the fields for that. It returns the first
// error of f. The struct must end with the bytes of r.
func (r *Reader) Fields(f func(id int16, t Type, encoded []byte) error) error {
	for last := int16(0); ; {
		t, id, err := r.Field(last)
		if err != nil {
			return err
		}
		if t == Stop {
			break
		}
		isTrue, at := r.truth == compactTrue, r.At
		if err = r.Skip(t, 1); err != nil {
			return fmt.Errorf("field %d: %w", id, err)
		}
		if t != Struct {
			at--
			r.Bytes[at] = r.Format.Mark(t, isTrue)
		}
		if err = f(id, t, r.Bytes[at:r.At]); err != nil {
			return err
		}
		last = id
	}
	if n := len(r.Bytes) - r.At; n > 0 {
		return fmt.Errorf("%d bytes follow the struct", n)
	}
	return nil
}
