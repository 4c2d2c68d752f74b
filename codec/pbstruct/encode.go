// SPDX-License-Identifier: Apache-2.0

package pbstruct

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/nesting"
)

// An encoder appends values to b.
type encoder struct {
	b     []byte
	depth int
	start int // of the message in b
}

// content appends the fields of a message.
func (e *encoder) content(s *shape, v reflect.Value) error {
	switch s.form { //nolint:exhaustive // the other forms are not messages
	case formTime:
		return e.time(v)
	case formDuration:
		d := v.Int()
		e.seconds(d/int64(time.Second), d%int64(time.Second))
		return nil
	}
	for i := range s.fields {
		f := &s.fields[i]
		if err := e.field(f, v.Field(f.index)); err != nil {
			return fmt.Errorf("%v.%s: %w", s.goType, f.name, err)
		}
	}
	return nil
}

// The years that google.protobuf.Timestamp has.
var (
	firstSecond = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	lastSecond  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()
)

func (e *encoder) time(v reflect.Value) error {
	t, _ := reflect.TypeAssert[time.Time](v)
	seconds := t.Unix()
	if seconds < firstSecond || seconds > lastSecond {
		return fmt.Errorf("a time in the year %d is not within the years 1 to 9999", t.UTC().Year())
	}
	e.seconds(seconds, int64(t.Nanosecond()))
	return nil
}

// seconds appends the fields of a google.protobuf.Timestamp or Duration.
func (e *encoder) seconds(seconds, nanos int64) {
	if seconds != 0 {
		e.b = binary.AppendUvarint(append(e.b, 1<<3), uint64(seconds)) //nolint:gosec // the bits
	}
	if nanos != 0 {
		e.b = binary.AppendUvarint(append(e.b, 2<<3), uint64(nanos)) //nolint:gosec // the bits
	}
}

// field appends a field with its tag, unless it is left out.
func (e *encoder) field(f *field, v reflect.Value) error {
	s := f.shape
	start := len(e.b)
	switch s.form { //nolint:exhaustive // the rest is handled below
	case formSlice:
		return e.slice(f, v)
	case formMap:
		return e.mapping(f, v)
	case formPointer:
		if v.IsNil() {
			return nil
		}
	case formScalar:
		if isZero(v) {
			return nil
		}
	case formTime, formDuration:
		if v.IsZero() {
			return nil
		}
	}
	e.b = binary.AppendUvarint(e.b, f.tag)
	before := len(e.b)
	err := e.value(s, v)
	if s.form == formStruct && len(e.b) == before+1 { // it has no content
		e.b = e.b[:start]
	}
	return err
}

// isZero reports whether a scalar has the value that proto3 leaves out. Negative zero is another
// value.
func isZero(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice:
		return v.Len() == 0
	case reflect.Float32, reflect.Float64:
		return math.Float64bits(v.Float()) == 0
	default:
		return v.IsZero()
	}
}

func (e *encoder) slice(f *field, v reflect.Value) error {
	n := v.Len()
	if n == 0 {
		return nil
	}
	elem := f.shape.elem
	if !f.shape.packed() {
		for i := range n {
			e.b = binary.AppendUvarint(e.b, f.tag)
			if err := e.value(elem, v.Index(i)); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
		return nil
	}
	e.b = binary.AppendUvarint(e.b, f.tag)
	start := e.open()
	for i := range n {
		if err := e.value(elem, v.Index(i)); err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	e.close(start)
	return nil
}

func (e *encoder) mapping(f *field, v reflect.Value) error {
	if v.Len() == 0 {
		return nil
	}
	s := f.shape
	key, elem := reflect.New(s.key.goType).Elem(), reflect.New(s.elem.goType).Elem()
	first, ends := len(e.b), make([]int, 0, v.Len())
	for i := v.MapRange(); i.Next(); {
		key.SetIterKey(i)
		elem.SetIterValue(i)
		e.b = binary.AppendUvarint(e.b, f.tag)
		start := e.open()
		e.b = append(e.b, 1<<3|byte(s.key.typ.wire()))
		if err := e.value(s.key, key); err != nil {
			return fmt.Errorf("a key: %w", err)
		}
		e.b = append(e.b, 2<<3|byte(s.elem.typ.wire()))
		if err := e.value(s.elem, elem); err != nil {
			return fmt.Errorf("the value of a key: %w", err)
		}
		e.close(start)
		ends = append(ends, len(e.b))
	}
	carries.Sort(e.b[first:], first, ends) // so that equal maps have equal encodings
	return nil
}

// open begins a value with a length, and returns where it begins.
func (e *encoder) open() (start int) {
	e.b = append(e.b, 0)
	return len(e.b)
}

// close ends a value that begins at start. It moves the value if its length takes more than a byte.
func (e *encoder) close(start int) {
	n := len(e.b) - start
	if n < 0x80 {
		e.b[start-1] = byte(n) //nolint:gosec // less than 0x80
		return
	}
	var length [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(length[:], uint64(n))
	e.b = append(e.b, length[1:size]...) // make room
	copy(e.b[start-1+size:], e.b[start:start+n])
	copy(e.b[start-1:], length[:size])
}

// value appends a value without a tag.
func (e *encoder) value(s *shape, v reflect.Value) error {
	if err := nesting.CheckBytes(len(e.b) - e.start); err != nil {
		return err
	}
	switch s.form { //nolint:exhaustive // messages follow
	case formScalar:
		return e.scalar(s.typ, v)
	case formPointer:
		if v.IsNil() {
			return errNil
		}
		return e.value(s.elem, v.Elem())
	}
	if e.depth++; e.depth >= maxDepth {
		return errTooDeep
	}
	start := e.open()
	if err := e.content(s, v); err != nil {
		return err
	}
	e.depth--
	e.close(start)
	return nil
}

// scalar appends a number, a bool, a string or bytes.
func (e *encoder) scalar(t fieldType, v reflect.Value) error {
	switch t { //nolint:exhaustive // messages are no scalars
	case typeBool:
		n := byte(0)
		if v.Bool() {
			n = 1
		}
		e.b = append(e.b, n)
	case typeInt32, typeInt64:
		e.b = binary.AppendUvarint(e.b, uint64(v.Int())) //nolint:gosec // the bits
	case typeSint32, typeSint64:
		e.b = binary.AppendVarint(e.b, v.Int())
	case typeUint32, typeUint64:
		e.b = binary.AppendUvarint(e.b, v.Uint())
	case typeSfixed32:
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(v.Int())) //nolint:gosec // the bits
	case typeSfixed64:
		e.b = binary.LittleEndian.AppendUint64(e.b, uint64(v.Int())) //nolint:gosec // the bits
	case typeFixed32:
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(v.Uint())) //nolint:gosec // the kind has 32 bits
	case typeFixed64:
		e.b = binary.LittleEndian.AppendUint64(e.b, v.Uint())
	case typeFloat:
		e.b = binary.LittleEndian.AppendUint32(e.b, math.Float32bits(float32(v.Float())))
	case typeDouble:
		e.b = binary.LittleEndian.AppendUint64(e.b, math.Float64bits(v.Float()))
	case typeString:
		text := v.String()
		if !utf8.ValidString(text) {
			return errUTF8
		}
		e.b = append(binary.AppendUvarint(e.b, uint64(len(text))), text...)
	case typeBytes:
		e.b = append(binary.AppendUvarint(e.b, uint64(v.Len())), v.Bytes()...)
	}
	return nil
}
