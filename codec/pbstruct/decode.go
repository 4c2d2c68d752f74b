// SPDX-License-Identifier: Apache-2.0

package pbstruct

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/internal/room"
)

// A decoder decodes messages.
type decoder struct {
	room room.Room
}

var (
	errVarint   = errors.New("a varint has more than 64 bits")
	errNumber   = errors.New("a field has an invalid number")
	errWireType = errors.New("a field has an unknown wire type")
	errGroup    = errors.New("a group ends that has not begun")
	errPacked   = errors.New("packed numbers have a wrong length")
	errTime     = errors.New("a time is not within the years 1 to 9999")
	errDuration = errors.New("a duration is not valid, or not within 292 years")
)

// allocate counts memory before it is allocated.
func (d *decoder) allocate(size uintptr) error {
	if !d.room.Take(1, size) {
		return room.ErrNone
	}
	return nil
}

// A token is the value of a field on the wire: a number, or data with a length.
type token struct {
	wire   wireType
	number uint64
	data   []byte
}

// next reads the next field of a message. Groups are skipped, and their token has no value.
func next(src []byte, depth int) (number int32, t token, rest []byte, err error) {
	tag, n := binary.Uvarint(src)
	if n <= 0 {
		return 0, t, nil, broken(n)
	}
	if tag>>3 < 1 || tag>>3 > 1<<29-1 {
		return 0, t, nil, errNumber
	}
	number, t.wire, src = int32(tag>>3), wireType(tag&7), src[n:]
	switch t.wire {
	case wireVarint:
		if t.number, n = binary.Uvarint(src); n <= 0 {
			return 0, t, nil, broken(n)
		}
	case wireFixed32:
		if n = 4; len(src) < n {
			return 0, t, nil, io.ErrUnexpectedEOF
		}
		t.number = uint64(binary.LittleEndian.Uint32(src))
	case wireFixed64:
		if n = 8; len(src) < n {
			return 0, t, nil, io.ErrUnexpectedEOF
		}
		t.number = binary.LittleEndian.Uint64(src)
	case wireBytes:
		length, size := binary.Uvarint(src)
		if size <= 0 {
			return 0, t, nil, broken(size)
		}
		if length > uint64(len(src)-size) {
			return 0, t, nil, io.ErrUnexpectedEOF
		}
		n = size + int(length) //nolint:gosec // at most len(src)
		t.data = src[size:n]
	case wireStartGroup:
		rest, err = skipGroup(src, number, depth+1)
		return number, t, rest, err
	case wireEndGroup:
		return number, t, src, nil
	default:
		return 0, t, nil, errWireType
	}
	return number, t, src[n:], nil
}

// broken returns the error of a varint of which binary.Uvarint says n.
func broken(n int) error {
	if n == 0 {
		return io.ErrUnexpectedEOF
	}
	return errVarint
}

// skipGroup skips a group whose beginning is read.
func skipGroup(src []byte, group int32, depth int) (rest []byte, err error) {
	if depth >= maxDepth {
		return nil, errTooDeep
	}
	for {
		number, t, rest, err := next(src, depth)
		if err != nil {
			return nil, err
		}
		if src = rest; t.wire != wireEndGroup {
			continue
		}
		if number != group {
			return nil, errGroup
		}
		return src, nil
	}
}

// content decodes the fields of a message into v, which is addressable. Depth is the number of
// messages around it.
func (d *decoder) content(s *shape, v reflect.Value, src []byte, depth int) error {
	switch s.form { //nolint:exhaustive // the other forms are not messages
	case formTime:
		return decodeTime(v, src, depth)
	case formDuration:
		return decodeDuration(v, src, depth)
	}
	for len(src) > 0 {
		number, t, rest, err := next(src, depth)
		switch {
		case err != nil:
			return fmt.Errorf("%v: %w", s.goType, err)
		case t.wire == wireEndGroup:
			return errGroup
		}
		src = rest
		if f := s.field(number); f != nil {
			if err = d.field(f.shape, v.Field(f.index), t, depth); err != nil {
				return fmt.Errorf("%v.%s (field %d): %w", s.goType, f.name, number, err)
			}
		}
	}
	return nil
}

// field decodes one occurrence of a field. It ignores a value of another wire type.
func (d *decoder) field(s *shape, v reflect.Value, t token, depth int) error {
	switch {
	case s.packed() && t.wire == wireBytes:
		return d.packed(s, v, t.data)
	case t.wire != s.typ.wire():
		return nil
	case s.form == formSlice:
		if err := d.allocate(2 * s.elem.goType.Size()); err != nil {
			return err
		}
		n := v.Len()
		if n == v.Cap() {
			v.Grow(1)
		}
		v.SetLen(n + 1)
		return d.value(s.elem, v.Index(n), t, depth)
	case s.form == formMap:
		return d.entry(s, v, t.data, depth)
	}
	return d.value(s, v, t, depth)
}

// packed decodes packed numbers.
func (d *decoder) packed(s *shape, v reflect.Value, data []byte) error {
	count, size := 0, map[wireType]int{wireFixed32: 4, wireFixed64: 8}[s.typ.wire()]
	if size > 0 {
		if count = len(data) / size; len(data)%size != 0 {
			return errPacked
		}
	} else {
		for _, b := range data {
			if b < 0x80 {
				count++
			}
		}
	}
	if err := d.allocate(2 * uintptr(count) * s.elem.goType.Size()); err != nil {
		return err
	}
	n := v.Len()
	v.Grow(count)
	v.SetLen(n + count)
	for i := range count {
		t := token{wire: s.typ.wire()}
		switch size {
		case 4:
			t.number = uint64(binary.LittleEndian.Uint32(data))
		case 8:
			t.number = binary.LittleEndian.Uint64(data)
		default:
			t.number, size = binary.Uvarint(data)
			if size <= 0 {
				return broken(size)
			}
		}
		data = data[size:]
		if t.wire == wireVarint {
			size = 0
		}
		if err := setScalar(s.typ, v.Index(n+i), t); err != nil {
			return err
		}
	}
	if len(data) > 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// entry decodes an entry of a map.
func (d *decoder) entry(s *shape, v reflect.Value, data []byte, depth int) error {
	if err := d.allocate(room.Entry(v)); err != nil {
		return err
	}
	key, elem := reflect.New(s.key.goType).Elem(), reflect.New(s.elem.goType).Elem()
	for len(data) > 0 {
		number, t, rest, err := next(data, depth+1)
		switch {
		case err != nil:
		case t.wire == wireEndGroup:
			err = errGroup
		case number == 1 && t.wire == s.key.typ.wire():
			err = d.value(s.key, key, t, depth)
		case number == 2 && t.wire == s.elem.typ.wire():
			err = d.value(s.elem, elem, t, depth)
		}
		if err != nil {
			return err
		}
		data = rest
	}
	if s.elem.form == formPointer && elem.IsNil() {
		if err := d.fill(s.elem, elem); err != nil {
			return err
		}
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(s.goType))
	}
	v.SetMapIndex(key, elem)
	return nil
}

// fill sets a pointer to a new value.
func (d *decoder) fill(s *shape, v reflect.Value) error {
	if err := d.allocate(s.elem.goType.Size()); err != nil {
		return err
	}
	v.Set(reflect.New(s.elem.goType))
	return nil
}

// value decodes a value into v. The wire type is that of s.
func (d *decoder) value(s *shape, v reflect.Value, t token, depth int) error {
	switch s.form { //nolint:exhaustive // messages follow
	case formScalar:
		return setScalar(s.typ, v, t)
	case formPointer:
		if v.IsNil() {
			if err := d.fill(s, v); err != nil {
				return err
			}
		}
		return d.value(s.elem, v.Elem(), t, depth)
	}
	if depth+1 >= maxDepth {
		return errTooDeep
	}
	return d.content(s, v, t.data, depth+1)
}

// setScalar sets a number, a bool, a string or bytes.
func setScalar(typ fieldType, v reflect.Value, t token) error {
	switch typ { //nolint:exhaustive // messages are no scalars
	case typeBool:
		v.SetBool(t.number != 0)
	case typeInt32, typeSfixed32:
		return setInt(v, int64(int32(t.number))) //nolint:gosec // the lower bits count, as in all implementations
	case typeInt64, typeSfixed64:
		return setInt(v, int64(t.number)) //nolint:gosec // the bits
	case typeSint32:
		n := uint32(t.number) //nolint:gosec // the lower bits count
		return setInt(v, int64(n>>1)^-int64(n&1))
	case typeSint64:
		return setInt(v, int64(t.number>>1)^-int64(t.number&1))
	case typeUint32, typeFixed32:
		return setUint(v, uint64(uint32(t.number))) //nolint:gosec // the lower bits count
	case typeUint64, typeFixed64:
		return setUint(v, t.number)
	case typeFloat:
		v.SetFloat(float64(math.Float32frombits(uint32(t.number)))) //nolint:gosec // it has 32 bits
	case typeDouble:
		v.SetFloat(math.Float64frombits(t.number))
	case typeString:
		if !utf8.Valid(t.data) {
			return errUTF8
		}
		v.SetString(string(t.data))
	case typeBytes:
		v.SetBytes(append([]byte(nil), t.data...))
	}
	return nil
}

func setInt(v reflect.Value, n int64) error {
	if v.OverflowInt(n) {
		return fmt.Errorf("%d is too large for %v", n, v.Type())
	}
	v.SetInt(n)
	return nil
}

func setUint(v reflect.Value, n uint64) error {
	if v.OverflowUint(n) {
		return fmt.Errorf("%d is too large for %v", n, v.Type())
	}
	v.SetUint(n)
	return nil
}

// decodeTime decodes a google.protobuf.Timestamp. As in any message, a field that is missing keeps
// its value.
func decodeTime(v reflect.Value, src []byte, depth int) error {
	seconds, nanos := int64(0), int64(0)
	to, _ := reflect.TypeAssert[*time.Time](v.Addr())
	if !to.IsZero() {
		seconds, nanos = to.Unix(), int64(to.Nanosecond())
	}
	if err := readSeconds(src, &seconds, &nanos, depth); err != nil {
		return err
	}
	if seconds < firstSecond || seconds > lastSecond || nanos < 0 || nanos >= int64(time.Second) {
		return errTime
	}
	*to = time.Unix(seconds, nanos).UTC()
	return nil
}

// decodeDuration decodes a google.protobuf.Duration.
func decodeDuration(v reflect.Value, src []byte, depth int) error {
	const second = int64(time.Second)
	seconds, nanos := v.Int()/second, v.Int()%second
	if err := readSeconds(src, &seconds, &nanos, depth); err != nil {
		return err
	}
	valid := nanos > -second && nanos < second && (seconds <= 0 || nanos >= 0) && (seconds >= 0 || nanos <= 0)
	whole := seconds * second
	if sum := whole + nanos; valid && whole/second == seconds && (sum < 0) == (seconds < 0 || nanos < 0) {
		v.SetInt(sum)
		return nil
	}
	return errDuration
}

// readSeconds decodes the fields of a google.protobuf.Timestamp or Duration.
func readSeconds(src []byte, seconds, nanos *int64, depth int) error {
	for len(src) > 0 {
		number, t, rest, err := next(src, depth)
		switch {
		case err != nil:
			return err
		case t.wire == wireEndGroup:
			return errGroup
		case t.wire == wireVarint && number == 1:
			*seconds = int64(t.number) //nolint:gosec // the bits
		case t.wire == wireVarint && number == 2:
			*nanos = int64(int32(t.number)) //nolint:gosec // the lower bits count
		}
		src = rest
	}
	return nil
}
