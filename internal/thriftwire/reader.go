// SPDX-License-Identifier: Apache-2.0

package thriftwire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A Reader reads values from its Bytes. If it has a Source, it gets the bytes from there.
type Reader struct {
	Format Format
	Bytes  []byte
	At     int // offset of the next byte in Bytes

	source *Source
	truth  byte // the value of a Bool field of the compact protocol, which is in the field's header
}

// take returns the next n bytes, which are valid until the next call.
func (r *Reader) take(n int) ([]byte, error) {
	if n > len(r.Bytes)-r.At {
		if err := r.more(n); err != nil {
			return nil, err
		}
	}
	b := r.Bytes[r.At : r.At+n]
	r.At += n
	return b, nil
}

// Byte reads a byte.
func (r *Reader) Byte() (byte, error) {
	if r.At == len(r.Bytes) {
		if err := r.more(1); err != nil {
			return 0, err
		}
	}
	b := r.Bytes[r.At]
	r.At++
	return b, nil
}

func (r *Reader) uvarint() (x uint64, err error) {
	for shift := 0; shift < 64; shift += 7 {
		b, err := r.Byte()
		if err != nil {
			return 0, err
		}
		if shift == 63 && b > 1 {
			return 0, errVarint
		}
		x |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return x, nil
		}
	}
	return 0, errVarint
}

// Int reads an integer of type I8, I16, I32 or I64.
func (r *Reader) Int(t Type) (int64, error) {
	if t == I8 {
		b, err := r.Byte()
		return int64(int8(b)), err //nolint:gosec // the bits
	}
	if r.Format == Compact {
		u, err := r.uvarint()
		x := int64(u>>1) ^ -int64(u&1)
		if err == nil && (t == I16 && x != int64(int16(x)) || t == I32 && x != int64(int32(x))) { //nolint:gosec // this checks the sizes
			err = fmt.Errorf("%d is no %s", x, t)
		}
		return x, err
	}
	b, err := r.take(Binary.fixed(t))
	if err != nil {
		return 0, err
	}
	switch t {
	case I16:
		return int64(int16(binary.BigEndian.Uint16(b))), nil //nolint:gosec // the bits
	case I32:
		return int64(int32(binary.BigEndian.Uint32(b))), nil //nolint:gosec // the bits
	default:
		return int64(binary.BigEndian.Uint64(b)), nil //nolint:gosec // the bits
	}
}

// Bool reads a Bool: the field whose header was read last, or an element.
func (r *Reader) Bool() (bool, error) {
	if r.truth != 0 {
		b := r.truth
		r.truth = 0
		return b == compactTrue, nil
	}
	b, err := r.Byte()
	if r.Format == Binary {
		return b != 0, err
	}
	return b == compactTrue, err
}

// Double reads a Double.
func (r *Reader) Double() (float64, error) {
	b, err := r.take(8)
	if err != nil {
		return 0, err
	}
	if r.Format == Compact {
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
	}
	return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
}

// Data reads a String. The result is valid until the next call. It fails for a Reader with a
// Source, which may not hold that much: see Skip.
func (r *Reader) Data() ([]byte, error) {
	n, err := r.length()
	if err != nil {
		return nil, err
	}
	if n > len(r.Bytes)-r.At {
		return nil, errShort
	}
	return r.take(n)
}

// UUID reads a UUID. The result is valid until the next call.
func (r *Reader) UUID() ([]byte, error) { return r.take(16) }

// length reads the length of a String, or the number of elements of a container in the long form.
func (r *Reader) length() (int, error) {
	if r.Format == Compact {
		n, err := r.uvarint()
		if err == nil && n > math.MaxInt32 {
			err = errNegative
		}
		return int(n), err //nolint:gosec // checked
	}
	b, err := r.take(4)
	if err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(b)
	if n > math.MaxInt32 {
		return 0, errNegative
	}
	return int(n), nil
}

// Field reads the header of a field. Last is the number of the field before it, or 0. For a type
// of Stop, the struct has ended.
func (r *Reader) Field(last int16) (t Type, id int16, err error) {
	b, err := r.Byte()
	if err != nil {
		return Stop, 0, err
	}
	if r.Format == Binary {
		if t = Type(b); t == Stop {
			return Stop, 0, nil
		}
		if !t.known() {
			return Stop, 0, fmt.Errorf("a field has the unknown %v", t)
		}
		number, err := r.take(2)
		if err != nil {
			return Stop, 0, err
		}
		return t, int16(binary.BigEndian.Uint16(number)), nil //nolint:gosec // the bits
	}
	if b == 0 {
		return Stop, 0, nil
	}
	if t = compactTypes[b&0xf]; t == Stop {
		return Stop, 0, fmt.Errorf("a field has the unknown type %d", b&0xf)
	}
	if t == Bool {
		r.truth = b & 0xf
	}
	if delta := b >> 4; delta != 0 {
		return t, last + int16(delta), nil
	}
	number, err := r.Int(I16)
	return t, int16(number), err //nolint:gosec // Int checks it
}

// List reads the header of a List or a Set. If Bytes cannot hold n elements, it fails.
func (r *Reader) List() (elem Type, n int, err error) {
	b, err := r.Byte()
	if err != nil {
		return Stop, 0, err
	}
	if r.Format == Compact {
		if elem, n = compactTypes[b&0xf], int(b>>4); n == 15 {
			n, err = r.length()
		}
	} else {
		elem = Type(b)
		n, err = r.length()
	}
	if err == nil && n > 0 {
		err = r.fits(n, elem)
	}
	return elem, n, err
}

// Map reads the header of a Map. If Bytes cannot hold n entries, it fails.
func (r *Reader) Map() (key, value Type, n int, err error) {
	if r.Format == Compact {
		if n, err = r.length(); err != nil || n == 0 {
			return Stop, Stop, 0, err
		}
		b, err := r.Byte()
		if err != nil {
			return Stop, Stop, 0, err
		}
		key, value = compactTypes[b>>4], compactTypes[b&0xf]
		return key, value, n, r.fits(n, key, value)
	}
	b, err := r.take(2)
	if err != nil {
		return Stop, Stop, 0, err
	}
	key, value = Type(b[0]), Type(b[1])
	if n, err = r.length(); err == nil && n > 0 {
		err = r.fits(n, key, value)
	}
	return key, value, n, err
}

// fits returns an error unless n elements, which each have values of the given types, can follow.
func (r *Reader) fits(n int, types ...Type) error {
	least := 0
	for _, t := range types {
		if !t.known() {
			return fmt.Errorf("a container has elements of the unknown %v", t)
		}
		least += r.Format.Least(t)
	}
	if r.source == nil && n > (len(r.Bytes)-r.At)/least {
		return errShort
	}
	return nil
}

// Skip reads a value and discards it. Depth is the number of structs and containers around it.
func (r *Reader) Skip(t Type, depth int) error {
	switch t { //nolint:exhaustive // the others are handled together
	case Bool:
		_, err := r.Bool()
		return err
	case String:
		n, err := r.length()
		if err != nil {
			return err
		}
		return r.skip(n)
	case I16, I32, I64:
		_, err := r.Int(t)
		return err
	case I8, Double, UUID:
		return r.skip(r.Format.fixed(t))
	}
	if depth >= MaxDepth {
		return ErrTooDeep
	}
	switch t { //nolint:exhaustive // the others are handled together
	case Struct:
		for last := int16(0); ; {
			t, id, err := r.Field(last)
			if err != nil || t == Stop {
				return err
			}
			if err = r.Skip(t, depth+1); err != nil {
				return err
			}
			last = id
		}
	case List, Set:
		elem, n, err := r.List()
		if err != nil {
			return err
		}
		return r.skipElements(n, depth+1, elem)
	case Map:
		key, value, n, err := r.Map()
		if err != nil {
			return err
		}
		return r.skipElements(n, depth+1, key, value)
	}
	return fmt.Errorf("a value has the unknown %v", t)
}

// skipElements skips n times values of the given types.
func (r *Reader) skipElements(n, depth int, types ...Type) error {
	if size := r.Format.fixed(types[0]); size > 0 && len(types) == 1 {
		if n > math.MaxInt32/size {
			return errNegative
		}
		return r.skip(n * size)
	}
	for range n {
		for _, t := range types {
			if err := r.Skip(t, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// skip discards n bytes. From a Source it takes them in pieces.
func (r *Reader) skip(n int) error {
	if r.source == nil {
		if n > len(r.Bytes)-r.At {
			return errShort
		}
		r.At += n
		return nil
	}
	for n > 0 {
		b, err := r.take(min(n, piece))
		if err != nil {
			return err
		}
		n -= len(b)
	}
	return nil
}

// Forget discards the value of a Bool field of which only the header was read.
func (r *Reader) Forget() { r.truth = 0 }
