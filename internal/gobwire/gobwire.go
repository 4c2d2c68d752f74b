// SPDX-License-Identifier: Apache-2.0

// Package gobwire reads the parts of a gob without decoding it: numbers, messages and definitions
// of types. The documentation of encoding/gob describes the format. Package codec/gob checks
// messages with it, and package protocol/netrpc finds the definitions that a value needs.
package gobwire

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// Errors of a Cursor.
var (
	ErrDamaged = errors.New("a gob is damaged")
	ErrDeep    = errors.New("a gob is nested too deep")
)

const (
	// MaxDepth is the maximum depth of a value, as in encoding/json.
	MaxDepth = 10_000
	// MaxUint is the maximum size of a number, in bytes.
	MaxUint = 9
	// FirstDefined is the lowest number of a type that is not built in.
	FirstDefined = 64
)

// A Kind is the kind of a type. A kind that a message can define has the number of its field in the
// definition.
type Kind int

// The kinds of types. Gob is encoded by the type's own method GobEncode, Binary by MarshalBinary
// and Text by MarshalText.
const (
	Array Kind = iota
	Slice
	Struct
	Map
	Gob
	Binary
	Text
	Undefined
	Number
	Complex
	Bytes
	Interface
)

// Builtin returns the kind of a type that needs no definition. It is Undefined for any other type.
func Builtin(id int64) Kind {
	switch id {
	case 1, 2, 3, 4: // bool, int, uint, float
		return Number
	case 5, 6: // []byte, string
		return Bytes
	case 7:
		return Complex
	case 8:
		return Interface
	}
	return Undefined
}

// A Definition is a type as a message defines it.
type Definition struct {
	Kind   Kind
	Parts  []int64 // the types of the fields of a struct, of the key and the elements of others
	Length uint64  // of an array
}

// Uint decodes a number. A number below 128 is one byte. A larger one is the negated count of the
// following bytes, and then these bytes, highest first. Uint returns the size of the number, 0 if b
// is too short, or -1 if b is invalid.
func Uint(b []byte) (x uint64, size int) {
	if len(b) == 0 {
		return 0, 0
	}
	if b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	n := 0x100 - int(b[0])
	if n > MaxUint-1 {
		return 0, -1
	}
	if len(b) <= n {
		return 0, 0
	}
	for _, c := range b[1 : 1+n] {
		x = x<<8 | uint64(c)
	}
	return x, 1 + n
}

// AppendUint appends the encoding of a number.
func AppendUint(dst []byte, x uint64) []byte {
	if x < 0x80 {
		return append(dst, byte(x))
	}
	size := (bits.Len64(x) + 7) / 8
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], x)
	return append(append(dst, byte(-size)), b[8-size:]...) //nolint:gosec // gob wants the negative size
}

// A Cursor reads a gob. After an error it is at the end, and all further reads return zero.
type Cursor struct {
	Rest []byte
	Err  error
}

// Fail sets the error of c, unless there is one.
func (c *Cursor) Fail(err error) {
	if c.Err == nil {
		c.Rest, c.Err = nil, err
	}
}

// Uint reads a number.
func (c *Cursor) Uint() uint64 {
	x, size := Uint(c.Rest)
	if size <= 0 {
		c.Fail(ErrDamaged)
		return 0
	}
	c.Rest = c.Rest[size:]
	return x
}

// Int reads a signed number.
func (c *Cursor) Int() int64 {
	u := c.Uint()
	if u&1 != 0 {
		return ^int64(u >> 1)
	}
	return int64(u >> 1)
}

// Skip skips n bytes.
func (c *Cursor) Skip(n uint64) {
	if n > uint64(len(c.Rest)) {
		c.Fail(ErrDamaged)
		return
	}
	c.Rest = c.Rest[n:]
}

// Count reads a number of elements, each of which has at least one byte.
func (c *Cursor) Count() uint64 {
	n := c.Uint()
	if n > uint64(len(c.Rest)) {
		c.Fail(ErrDamaged)
		return 0
	}
	return n
}

// Fields calls read with the number of each field that is present in a struct of number fields.
func (c *Cursor) Fields(number int, read func(field int)) {
	var next uint64 // the number of the field after the last one
	for {
		delta := c.Uint()
		if delta == 0 {
			return
		}
		if delta > uint64(number)-next {
			c.Fail(ErrDamaged)
			return
		}
		next += delta
		read(int(next - 1)) //nolint:gosec // G115: it is less than number
	}
}

// Scalar skips a value of a kind without parts. It reports false for any other kind.
func (c *Cursor) Scalar(k Kind) bool {
	switch k {
	case Number:
		c.Uint()
	case Complex:
		c.Uint()
		c.Uint()
	case Bytes, Gob, Binary, Text:
		c.Skip(c.Uint())
	default:
		return false
	}
	return true
}

// Definition reads the definition of a type.
func (c *Cursor) Definition() Definition {
	d := Definition{Kind: Undefined}
	c.Fields(int(Undefined), func(field int) {
		if d.Kind != Undefined {
			c.Fail(ErrDamaged)
		}
		d.Kind = Kind(field)
		c.Fields(3, func(field int) { c.part(&d, field) })
	})
	switch want := len(d.Parts); {
	case (d.Kind == Array || d.Kind == Slice) && want != 1, d.Kind == Map && want != 2, d.Kind == Undefined:
		c.Fail(ErrDamaged)
	}
	return d
}

// part reads a field of a definition: the name of the type, or what it consists of.
func (c *Cursor) part(d *Definition, field int) {
	switch {
	case field == 0:
		c.named()
	case field == 1 && d.Kind == Struct:
		for range c.Count() {
			d.Parts = append(d.Parts, c.named())
		}
	case field == 1 && d.Kind <= Map, field == 2 && d.Kind == Map:
		d.Parts = append(d.Parts, c.Int())
	case field == 2 && d.Kind == Array:
		d.Length = c.Uint() / 2 // the encoding of a signed number that is not negative
	default:
		c.Fail(ErrDamaged)
	}
}

// named reads the name of a type or a field, and returns the number of its type.
func (c *Cursor) named() (id int64) {
	c.Fields(2, func(field int) {
		if field == 0 {
			c.Skip(c.Uint())
		} else {
			id = c.Int()
		}
	})
	return id
}
