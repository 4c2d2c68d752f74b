// SPDX-License-Identifier: Apache-2.0

package netrpc

import (
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel/internal/gobwire"
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
)

// A wireType is a type that values of a connection can have.
type wireType struct {
	gobwire.Definition
	id         int64
	definition []byte // the message that defines it; nil for a built-in type
	sent       bool   // whether the decoder of headers has the definition

	needed []byte // the definitions that its values need; nil if not known
	open   bool   // valid if needed is not nil: whether its values can contain interfaces
}

// builtin are the types that need no definition.
var builtin = func() map[int64]*wireType {
	types := make(map[int64]*wireType)
	for id := range int64(gobwire.FirstDefined) {
		if kind := gobwire.Builtin(id); kind != gobwire.Undefined {
			types[id] = &wireType{Definition: gobwire.Definition{Kind: kind}}
		}
	}
	return types
}()

// A typeTable is the set of types that a client has defined on a connection.
type typeTable struct {
	types   map[int64]*wireType
	bytes   int // of definitions
	reserve func(n int) bool
}

var (
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
	before := c.Rest
	w := &wireType{id: -id, Definition: c.Definition()}
	if c.Err != nil {
		return nil, c.Err
	}
	body := before[:len(before)-len(c.Rest)]
	if w.id < gobwire.FirstDefined || t.find(w.id) != nil {
		return nil, gobwire.ErrDamaged
	}
	number := gobwire.AppendUint(nil, uint64(-id)<<1-1) //nolint:gosec // id is negative; gob encodes it like this
	w.definition = append(append(gobwire.AppendUint(nil, uint64(len(number)+len(body))), number...), body...)
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
		return nil, w.Kind == gobwire.Interface, nil
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
		open = open || w.Kind == gobwire.Interface
		if !have[id] {
			dst = append(dst, w.definition...)
		}
		if len(dst) > maxNeeded {
			return nil, false, fmt.Errorf("a value needs definitions of more than %d bytes", maxNeeded)
		}
		ids = append(ids, w.Parts...)
	}
	return dst, open, nil
}

// complete returns the definitions that a value with interfaces needs and that precede the value.
// It adds the definitions within the value to the table. message begins with the number of the
// type. After a definition within the value, the value may continue in the next message, which more
// reads.
func (t *typeTable) complete(message []byte, more func() ([]byte, error)) (definitions []byte, err error) {
	c := &cursor{Cursor: gobwire.Cursor{Rest: message}, table: t, made: make(map[int64]bool), more: more}
	id := c.Int()
	c.used = append(c.used, id)
	c.single(id, 0)
	if c.Err != nil {
		return nil, c.Err
	}
	if len(c.Rest) > 0 {
		return nil, gobwire.ErrDamaged
	}
	definitions, _, err = t.collect(nil, c.used, c.made)
	return definitions, err
}

// A cursor reads the values of a connection.
type cursor struct {
	gobwire.Cursor
	table *typeTable
	used  []int64        // the types of the value and of the interfaces in it
	made  map[int64]bool // the types that are defined in the value
	more  func() ([]byte, error)
}

// single reads a value that is not part of another value.
func (c *cursor) single(id int64, depth int) {
	w := c.table.find(id)
	if w == nil {
		c.Fail(errUndefined)
		return
	}
	if w.Kind != gobwire.Struct && c.Uint() != 0 {
		c.Fail(gobwire.ErrDamaged)
	}
	c.value(id, depth)
}

// value reads a value that is depth levels below the message.
func (c *cursor) value(id int64, depth int) {
	w := c.table.find(id)
	switch {
	case w == nil:
		c.Fail(errUndefined)
		return
	case depth > gobwire.MaxDepth:
		c.Fail(gobwire.ErrDeep)
		return
	case c.Scalar(w.Kind):
		return
	}
	switch w.Kind {
	case gobwire.Struct:
		c.Fields(len(w.Parts), func(field int) { c.value(w.Parts[field], depth+1) })
	case gobwire.Array, gobwire.Slice, gobwire.Map:
		for n := c.Count(); n > 0 && c.Err == nil; n-- {
			for _, part := range w.Parts {
				c.value(part, depth+1)
			}
		}
	case gobwire.Interface:
		c.inside(depth)
	default:
		c.Fail(gobwire.ErrDamaged)
	}
}

// inside reads an interface: the name of the type in it, definitions of types, the number of the
// type, and the value with its length. An interface that is nil has an empty name.
func (c *cursor) inside(depth int) {
	size := c.Uint()
	if c.Skip(size); size == 0 || c.Err != nil {
		return
	}
	id := c.Int()
	for ; id < 0 && c.Err == nil; id = c.Int() {
		w, err := c.table.define(id, c)
		if err != nil {
			c.Fail(err)
			return
		}
		c.made[w.id] = true
		if len(c.Rest) > 0 {
			c.Uint() // the size of the rest
		} else if c.Rest, err = c.more(); err != nil {
			c.Fail(err)
		}
	}
	c.used = append(c.used, id)
	c.Uint() // the size of the value
	c.single(id, depth+1)
}
