// SPDX-License-Identifier: Apache-2.0

package gob

import (
	"errors"

	"github.com/yodel-rpc/yodel/internal/gobwire"
)

// This file checks a gob without decoding it. The standard decoder trusts the message: it allocates
// as many elements of a map as the message announces, and nests as deep as the message does. Either
// can end the process, for lack of memory or stack. A message that passes the check has every
// element that it announces, and a depth for which the stack suffices.
//
// The check must read each byte as the standard decoder does, or be stricter.

var errInterface = errors.New("there is an interface in the message, and none in the type that it is decoded into")

// A wireType is a type that a message defines.
type wireType struct {
	kind   gobwire.Kind
	length uint64      // of an array
	parts  []*wireType // the fields of a struct, the key and the elements of others
}

// definitions returns the beginning of src with the definitions of types.
func definitions(src []byte) []byte {
	c := cursor{gobwire.Cursor{Rest: src}}
	n := len(src)
	for {
		before := len(c.Rest)
		size := c.Uint()
		message := cursor{gobwire.Cursor{Rest: c.Rest}}
		if message.Int() >= 0 || message.Err != nil {
			return src[:n-before]
		}
		c.Skip(size)
		if c.Err != nil {
			return src[:n-before]
		}
	}
}

// parse returns the types of messages that begin with definitions, by their number.
func parse(definitions []byte) (map[int64]*wireType, error) {
	types := make(map[int64]*wireType)
	find := func(id int64) *wireType { // also a type that is not defined yet
		if types[id] == nil {
			types[id] = &wireType{kind: gobwire.Builtin(id)}
		}
		return types[id]
	}
	for id := range int64(gobwire.FirstDefined) {
		if gobwire.Builtin(id) != gobwire.Undefined {
			find(id)
		}
	}
	c := cursor{gobwire.Cursor{Rest: definitions}}
	for len(c.Rest) > 0 {
		size := c.Uint()
		after := cursor{gobwire.Cursor{Rest: c.Rest}}
		after.Skip(size)
		id := -c.Int()
		t := find(id)
		if id < gobwire.FirstDefined || t.kind != gobwire.Undefined {
			return nil, gobwire.ErrDamaged
		}
		d := c.Definition()
		if c.Err != nil || after.Err != nil || len(c.Rest) != len(after.Rest) {
			return nil, gobwire.ErrDamaged
		}
		t.kind, t.length = d.Kind, d.Length
		for _, part := range d.Parts {
			t.parts = append(t.parts, find(part))
		}
	}
	return types, nil
}

// check returns an error unless message is exactly one value of a type that s defines.
func (s *stream) check(message []byte) error {
	c := cursor{gobwire.Cursor{Rest: message}}
	if size := c.Uint(); size != uint64(len(c.Rest)) {
		return gobwire.ErrDamaged
	}
	t := s.types[c.Int()]
	if t == nil {
		return gobwire.ErrDamaged
	}
	if t.kind != gobwire.Struct && c.Uint() != 0 {
		return gobwire.ErrDamaged
	}
	c.value(t, 0)
	if c.Err == nil && len(c.Rest) > 0 {
		return gobwire.ErrDamaged
	}
	return c.Err
}

// A cursor reads a gob.
type cursor struct{ gobwire.Cursor }

// value skips a value of type t, which is depth levels below the message.
func (c *cursor) value(t *wireType, depth int) {
	if depth > gobwire.MaxDepth {
		c.Fail(gobwire.ErrDeep)
		return
	}
	if c.Scalar(t.kind) {
		return
	}
	switch t.kind {
	case gobwire.Struct:
		c.Fields(len(t.parts), func(field int) { c.value(t.parts[field], depth+1) })
	case gobwire.Array, gobwire.Slice, gobwire.Map:
		c.elements(t, depth)
	case gobwire.Interface:
		if c.Uint() != 0 { // the length of the name of its type
			c.Fail(errInterface)
		}
	default:
		c.Fail(gobwire.ErrDamaged)
	}
}

func (c *cursor) elements(t *wireType, depth int) {
	n := c.Count()
	if t.kind == gobwire.Array && n != t.length {
		c.Fail(gobwire.ErrDamaged)
	}
	for ; n > 0 && c.Err == nil; n-- {
		for _, part := range t.parts {
			c.value(part, depth+1)
		}
	}
}
