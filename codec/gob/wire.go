// SPDX-License-Identifier: Apache-2.0

package gob

import "errors"

// This file checks a gob without decoding it. The standard decoder trusts the message: it allocates
// as many elements of a map as the message announces, and nests as deep as the message does. Either
// can end the process, for lack of memory or stack. A message that passes the check has every
// element that it announces, and a depth for which the stack suffices.
//
// The check must read each byte as the standard decoder does, or be stricter. The documentation of
// encoding/gob describes the format.

var (
	errDamaged   = errors.New("damaged message")
	errDeep      = errors.New("nested too deep")
	errInterface = errors.New("there is an interface in the message, and none in the type that it is decoded into")
)

// maxDepth is the maximum depth of a message, as in encoding/json.
const maxDepth = 10_000

// A wireType is a type that a message defines.
type wireType struct {
	kind   kind
	key    *wireType   // of a map
	elem   *wireType   // of an array, a slice or a map
	length uint64      // of an array
	fields []*wireType // of a struct
}

// A kind is the kind of a wireType. A kind that a message can define has the number of its field in
// the definition.
type kind int

const (
	arrayKind kind = iota
	sliceKind
	structKind
	mapKind
	gobKind // encoded by its own method
	binaryKind
	textKind
	undefined
	numberKind
	complexKind
	bytesKind
	interfaceKind
)

// firstDefined is the lowest number of a type that is not built in.
const firstDefined = 64

// builtin returns the types that need no definition.
func builtin() map[int64]*wireType {
	number, text := &wireType{kind: numberKind}, &wireType{kind: bytesKind}
	return map[int64]*wireType{
		1: number, // bool
		2: number, // int
		3: number, // uint
		4: number, // float
		5: text,   // []byte
		6: text,   // string
		7: {kind: complexKind},
		8: {kind: interfaceKind},
	}
}

// definitions returns the beginning of src with the definitions of types.
func definitions(src []byte) []byte {
	c := cursor{rest: src}
	n := len(src)
	for {
		before := len(c.rest)
		size := c.uint()
		message := cursor{rest: c.rest}
		if message.int() >= 0 || message.err != nil {
			return src[:n-before]
		}
		c.skip(size)
		if c.err != nil {
			return src[:n-before]
		}
	}
}

// parse returns the types of messages that begin with definitions, by their number.
func parse(definitions []byte) (map[int64]*wireType, error) {
	types := builtin()
	find := func(id int64) *wireType {
		if types[id] == nil {
			types[id] = &wireType{kind: undefined}
		}
		return types[id]
	}
	c := cursor{rest: definitions}
	for len(c.rest) > 0 {
		size := c.uint()
		after := cursor{rest: c.rest}
		after.skip(size)
		id := -c.int()
		t := find(id)
		if id < firstDefined || t.kind != undefined {
			return nil, errDamaged
		}
		c.definition(t, find)
		if c.err != nil || after.err != nil || len(c.rest) != len(after.rest) {
			return nil, errDamaged
		}
	}
	return types, nil
}

// check returns an error unless message is exactly one value of a type that s defines.
func (s *stream) check(message []byte) error {
	c := cursor{rest: message}
	if size := c.uint(); size != uint64(len(c.rest)) {
		return errDamaged
	}
	t := s.types[c.int()]
	if t == nil {
		return errDamaged
	}
	if t.kind != structKind && c.uint() != 0 {
		return errDamaged
	}
	c.value(t, 0)
	if c.err == nil && len(c.rest) > 0 {
		return errDamaged
	}
	return c.err
}

// A cursor reads a gob. After an error it is at the end, and all further reads return zero.
type cursor struct {
	rest []byte
	err  error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.rest, c.err = nil, err
	}
}

func (c *cursor) uint() uint64 {
	if len(c.rest) == 0 {
		c.fail(errDamaged)
		return 0
	}
	first := c.rest[0]
	if first < 0x80 {
		c.rest = c.rest[1:]
		return uint64(first)
	}
	n := 0x100 - int(first) // number of the following bytes, highest first
	if n > 8 || n >= len(c.rest) {
		c.fail(errDamaged)
		return 0
	}
	var u uint64
	for _, b := range c.rest[1 : 1+n] {
		u = u<<8 | uint64(b)
	}
	c.rest = c.rest[1+n:]
	return u
}

func (c *cursor) int() int64 {
	u := c.uint()
	if u&1 != 0 {
		return ^int64(u >> 1)
	}
	return int64(u >> 1)
}

func (c *cursor) skip(n uint64) {
	if n > uint64(len(c.rest)) {
		c.fail(errDamaged)
		return
	}
	c.rest = c.rest[n:]
}

// count reads a number of elements, each of which has at least one byte.
func (c *cursor) count() uint64 {
	n := c.uint()
	if n > uint64(len(c.rest)) {
		c.fail(errDamaged)
		return 0
	}
	return n
}

// fields calls read with the number of each field of a struct that is present.
func (c *cursor) fields(number uint64, read func(field int)) {
	var next uint64 // the number of the field after the last one
	for {
		delta := c.uint()
		if delta == 0 {
			return
		}
		if delta > number-next {
			c.fail(errDamaged)
			return
		}
		next += delta
		read(int(next - 1)) //nolint:gosec // G115: it is less than number
	}
}

// definition reads the definition of t. find returns other types by their number, even if they are
// not defined yet.
func (c *cursor) definition(t *wireType, find func(id int64) *wireType) {
	c.fields(uint64(undefined), func(field int) {
		if t.kind != undefined {
			c.fail(errDamaged)
		}
		t.kind = kind(field)
		c.fields(3, func(field int) {
			switch {
			case field == 0:
				c.named()
			case field == 1 && t.kind == structKind:
				for range c.count() {
					t.fields = append(t.fields, find(c.named()))
				}
			case field == 1 && t.kind == mapKind:
				t.key = find(c.int())
			case field == 1 && (t.kind == arrayKind || t.kind == sliceKind), field == 2 && t.kind == mapKind:
				t.elem = find(c.int())
			case field == 2 && t.kind == arrayKind:
				t.length = c.uint() / 2 // the encoding of a signed number that is not negative
			default:
				c.fail(errDamaged)
			}
		})
	})
}

// named reads the name of a type or a field, and returns the number of its type.
func (c *cursor) named() (id int64) {
	c.fields(2, func(field int) {
		if field == 0 {
			c.skip(c.uint())
		} else {
			id = c.int()
		}
	})
	return id
}

// value skips a value of type t, which is depth levels below the message.
func (c *cursor) value(t *wireType, depth int) {
	if depth > maxDepth {
		c.fail(errDeep)
		return
	}
	switch t.kind {
	case numberKind:
		c.uint()
	case complexKind:
		c.uint()
		c.uint()
	case bytesKind, gobKind, binaryKind, textKind:
		c.skip(c.uint())
	case structKind:
		c.fields(uint64(len(t.fields)), func(field int) { c.value(t.fields[field], depth+1) })
	case arrayKind, sliceKind, mapKind:
		c.elements(t, depth)
	case interfaceKind:
		if c.uint() != 0 { // the length of the name of its type
			c.fail(errInterface)
		}
	case undefined:
		c.fail(errDamaged)
	}
}

func (c *cursor) elements(t *wireType, depth int) {
	n := c.count()
	if t.kind == arrayKind && n != t.length || t.elem == nil || t.kind == mapKind && t.key == nil {
		c.fail(errDamaged)
	}
	for ; n > 0 && c.err == nil; n-- {
		if t.kind == mapKind {
			c.value(t.key, depth+1)
		}
		c.value(t.elem, depth+1)
	}
}
