// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// This file determines which definitions of types a value needs. A client of net/rpc defines a type
// once for each connection, before the first value of the type. The types of interface values are
// defined within a value. Each call is decoded independently of other calls. Therefore its value
// gets all definitions that it needs in front. The documentation of encoding/gob describes the
// format.

const (
	// maxDefinitions limits the definitions of one connection, in bytes.
	maxDefinitions = 256 << 10
	// maxNeeded limits the definitions that one value needs, in bytes. Even for a call of a few
	// bytes, the codec reads all of them.
	maxNeeded = 16 << 10
	// typeCost is about how many bytes of memory a byte of a definition takes, including the maps.
	typeCost = 16
	// maxDepth limits how deep a value is nested, as package codec/gob does.
	maxDepth = 10_000
)

// firstDefined is the lowest number of a type that is not built in.
const firstDefined = 64

// These are the kinds of types. The first ones have the numbers of their fields in a definition.
type kind int

const (
	arrayKind kind = iota
	sliceKind
	structKind
	mapKind
	gobKind // encoded by its own method
	binaryKind
	textKind
	undefinedKind
	numberKind
	complexKind
	bytesKind
	interfaceKind
)

// A wireType is a type that values of a connection can have.
type wireType struct {
	id         int64
	kind       kind
	parts      []int64 // the types of the fields of a struct, the key and the elements of others
	definition []byte  // the message that defines it; nil for a built-in type
	sent       bool    // whether the decoder of headers has the definition

	needed []byte // the definitions that its values need; nil if not known
	open   bool   // valid if needed is not nil: whether its values can contain interfaces
}

// builtin are the types that need no definition.
var builtin = map[int64]*wireType{
	1: {kind: numberKind}, // bool
	2: {kind: numberKind}, // int
	3: {kind: numberKind}, // uint
	4: {kind: numberKind}, // float
	5: {kind: bytesKind},  // []byte
	6: {kind: bytesKind},  // string
	7: {kind: complexKind},
	8: {kind: interfaceKind},
}

// A typeTable is the set of types that a client has defined on a connection.
type typeTable struct {
	types   map[int64]*wireType
	bytes   int // of definitions
	reserve func(n int) bool
}

var (
	errDamaged   = errors.New("a gob is damaged")
	errUndefined = errors.New("a gob has a type that was not defined")
	errMemory    = errors.New("the server has no memory left for definitions of types")
)

// find returns a type, or nil.
func (t *typeTable) find(id int64) *wireType {
	if w := builtin[id]; w != nil {
		return w
	}
	return t.types[id]
}

// define adds the type with the number -id. c reads its definition. define returns the type.
func (t *typeTable) define(id int64, c *cursor) (*wireType, error) {
	w := &wireType{id: -id, kind: undefinedKind}
	before := c.rest
	c.definition(w)
	if c.err != nil {
		return nil, c.err
	}
	body := before[:len(before)-len(c.rest)]
	if w.id < firstDefined || t.find(w.id) != nil || w.kind == undefinedKind {
		return nil, errDamaged
	}
	number := appendUint(nil, uint64(-id)<<1-1) //nolint:gosec // id is negative; gob encodes it like this
	w.definition = append(append(appendUint(nil, uint64(len(number)+len(body))), number...), body...)
	if t.bytes += len(w.definition); t.bytes > maxDefinitions {
		return nil, fmt.Errorf("the definitions of types have more than %d bytes", maxDefinitions)
	}
	if !t.reserve(typeCost * len(w.definition)) {
		return nil, errMemory
	}
	if t.types == nil {
		t.types = make(map[int64]*wireType)
	}
	t.types[w.id] = w
	return w, nil
}

// needs returns the definitions that values of a type need, and whether such a value can contain
// interfaces. If it does, the value needs further definitions.
func (t *typeTable) needs(id int64) (definitions []byte, open bool, err error) {
	w := t.find(id)
	switch {
	case w == nil:
		return nil, false, errUndefined
	case w.definition == nil:
		return nil, w.kind == interfaceKind, nil
	case w.needed != nil:
		return w.needed, w.open, nil
	}
	definitions, open, err = t.collect(nil, []int64{id}, nil)
	if err == nil && t.reserve(len(definitions)) {
		w.needed, w.open = definitions, open
	}
	return definitions, open, err
}

// collect appends to dst the definitions of types and of their parts, each once, except for the
// types in have.
func (t *typeTable) collect(dst []byte, ids []int64, have map[int64]bool) (definitions []byte, open bool, err error) {
	seen := make(map[int64]bool)
	for len(ids) > 0 {
		id := ids[0]
		ids = ids[1:]
		if seen[id] {
			continue
		}
		seen[id] = true
		w := t.find(id)
		if w == nil {
			return nil, false, errUndefined
		}
		open = open || w.kind == interfaceKind
		if !have[id] {
			dst = append(dst, w.definition...)
		}
		if len(dst) > maxNeeded {
			return nil, false, fmt.Errorf("a value needs definitions of more than %d bytes", maxNeeded)
		}
		ids = append(ids, w.parts...)
	}
	return dst, open, nil
}

// complete returns the definitions that a value with interfaces needs and that precede the value.
// It adds the definitions within the value to the table. message begins with the number of the
// type. After a definition within the value, the value may continue in the next message, which more
// reads.
func (t *typeTable) complete(message []byte, more func() ([]byte, error)) (definitions []byte, err error) {
	c := &cursor{rest: message, table: t, made: make(map[int64]bool), more: more}
	id := c.int()
	c.used = append(c.used, id)
	c.single(id, 0)
	if c.err != nil {
		return nil, c.err
	}
	if len(c.rest) > 0 {
		return nil, errDamaged
	}
	definitions, _, err = t.collect(nil, c.used, c.made)
	return definitions, err
}

// A cursor reads a gob. After an error it is at the end, and all further reads return zero.
type cursor struct {
	rest []byte
	err  error

	// The following fields are for values.
	table *typeTable
	used  []int64        // the types of the value and of the interfaces in it
	made  map[int64]bool // the types that are defined in the value
	more  func() ([]byte, error)
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.rest, c.err = nil, err
	}
}

func (c *cursor) uint() uint64 {
	x, n := uintOf(c.rest)
	if n <= 0 {
		c.fail(errDamaged)
		return 0
	}
	c.rest = c.rest[n:]
	return x
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
func (c *cursor) fields(number int, read func(field int)) {
	next := uint64(0)
	for {
		delta := c.uint()
		if delta == 0 {
			return
		}
		if delta > uint64(number)-next {
			c.fail(errDamaged)
			return
		}
		next += delta
		read(int(next - 1)) //nolint:gosec // less than number
	}
}

// definition reads the definition of w.
func (c *cursor) definition(w *wireType) {
	c.fields(int(undefinedKind), func(field int) {
		if w.kind != undefinedKind {
			c.fail(errDamaged)
		}
		w.kind = kind(field)
		c.fields(3, func(field int) {
			switch {
			case field == 0:
				c.named()
			case field == 1 && w.kind == structKind:
				for range c.count() {
					w.parts = append(w.parts, c.named())
				}
			case field == 1 && w.kind <= mapKind, field == 2 && w.kind == mapKind:
				w.parts = append(w.parts, c.int())
			case field == 2 && w.kind == arrayKind:
				c.uint() // the length
			default:
				c.fail(errDamaged)
			}
		})
	})
	if parts := len(w.parts); c.err == nil && (w.kind == arrayKind || w.kind == sliceKind) && parts != 1 || w.kind == mapKind && parts != 2 {
		c.fail(errDamaged)
	}
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

// single reads a value that is not part of another value.
func (c *cursor) single(id int64, depth int) {
	w := c.table.find(id)
	if w == nil {
		c.fail(errUndefined)
		return
	}
	if w.kind != structKind && c.uint() != 0 {
		c.fail(errDamaged)
	}
	c.value(id, depth)
}

// value reads a value that is depth levels below the message.
func (c *cursor) value(id int64, depth int) {
	w := c.table.find(id)
	switch {
	case w == nil:
		c.fail(errUndefined)
		return
	case depth > maxDepth:
		c.fail(errors.New("a gob is nested too deep"))
		return
	}
	switch w.kind {
	case numberKind:
		c.uint()
	case complexKind:
		c.uint()
		c.uint()
	case bytesKind, gobKind, binaryKind, textKind:
		c.skip(c.uint())
	case structKind:
		c.fields(len(w.parts), func(field int) { c.value(w.parts[field], depth+1) })
	case arrayKind, sliceKind, mapKind:
		for n := c.count(); n > 0 && c.err == nil; n-- {
			for _, part := range w.parts {
				c.value(part, depth+1)
			}
		}
	case interfaceKind:
		c.inside(depth)
	case undefinedKind:
		c.fail(errDamaged)
	}
}

// inside reads an interface: the name of the type in it, definitions of types, the number of the
// type, and the value with its length. An interface that is nil has an empty name.
func (c *cursor) inside(depth int) {
	size := c.uint()
	if c.skip(size); size == 0 || c.err != nil {
		return
	}
	id := c.int()
	for ; id < 0 && c.err == nil; id = c.int() {
		w, err := c.table.define(id, c)
		if err != nil {
			c.fail(err)
			return
		}
		c.made[w.id] = true
		if len(c.rest) > 0 {
			c.uint() // the size of the rest
		} else if c.rest, err = c.more(); err != nil {
			c.fail(err)
		}
	}
	c.used = append(c.used, id)
	c.uint() // the size of the value
	c.single(id, depth+1)
}

// appendUint appends a number in the encoding of gob.
func appendUint(dst []byte, x uint64) []byte {
	if x < 0x80 {
		return append(dst, byte(x))
	}
	size := (bits.Len64(x) + 7) / 8
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], x)
	return append(append(dst, byte(-size)), b[8-size:]...) //nolint:gosec // gob wants the negative size
}
