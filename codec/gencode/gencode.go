// SPDX-License-Identifier: Apache-2.0

// Package gencode encodes messages with the methods that github.com/andyleap/gencode generates for
// them. Messages are small and fast to encode. Both programs must have the same version of a type.
//
// The generated methods trust their input. If a method reads beyond the end of the input, it
// panics, and Decode returns an error. But a method also allocates slices of any length that the
// input announces, and follows pointers to its own type to any depth. A codec cannot bound this,
// and it can end the process. So Codec decodes only types without slices, interfaces and pointers
// to themselves. Trusting decodes all types.
package gencode

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/panics"
)

// Codec is called "gencode". Its messages are pointers to types with these methods:
//
//	Size() uint64                         // what Marshal needs
//	Marshal(buf []byte) ([]byte, error)   // into buf
//	Unmarshal(buf []byte) (uint64, error) // how much of buf it was
//
// Encoding a value costs a copy that encoding a pointer does not. Append refuses values that are
// nested more than 1,000 deep, or contain themselves. Decode refuses types whose methods could
// exhaust the memory or the stack.
var Codec yodel.Codec = codec{}

// Trusting is Codec for peers that the program trusts: it decodes all types. It is called "gencode"
// too.
var Trusting yodel.Codec = codec{trusting: true}

type message interface {
	Size() uint64
	Marshal(buf []byte) ([]byte, error)
	Unmarshal(buf []byte) (uint64, error)
}

type codec struct{ trusting bool }

// nested is for Marshal, which follows pointers by recursion.
var nested nesting.Rules

func (codec) Name() string { return "gencode" }

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (c codec) CheckType(t reflect.Type) error {
	p := reflect.PointerTo(nesting.Base(t))
	if !p.Implements(reflect.TypeFor[message]()) {
		return fmt.Errorf("gencode: %v is not a message with the methods Size, Marshal and Unmarshal", t)
	}
	if err := c.check(p); err != nil {
		return fmt.Errorf("gencode: decode %v: %w", p, err)
	}
	return nil
}

func (codec) Append(dst []byte, v any) ([]byte, error) {
	m, err := toMessage(v)
	if err != nil {
		return nil, err
	}
	if err := nested.Check(v); err != nil {
		return nil, fmt.Errorf("gencode: encode %w", err)
	}
	// Marshal gets the memory after dst, so that its result need not be copied.
	size := m.Size()
	if err := nesting.CheckBytes(int(min(size, math.MaxInt))); err != nil {
		return nil, fmt.Errorf("gencode: encode %T: %w", v, err)
	}
	room := append(dst, make([]byte, size)...)
	b, err := m.Marshal(room[len(dst):len(room):len(room)])
	if err != nil {
		return nil, fmt.Errorf("gencode: encode %T: %w", v, err)
	}
	return append(dst, b...), nil
}

func (c codec) Decode(src []byte, v any) (err error) {
	m, ok := v.(message)
	if !ok || reflect.ValueOf(v).IsNil() {
		return notMessage(v)
	}
	if err := c.check(reflect.TypeOf(v)); err != nil {
		return fmt.Errorf("gencode: decode %T: %w", v, err)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("gencode: decode %T: %w", v, panics.Recovered(p))
		}
	}()
	carries.Clear(v)
	// Without Clip, Unmarshal could slice src beyond its length and read other data behind it.
	n, err := m.Unmarshal(slices.Clip(src))
	if err != nil {
		return fmt.Errorf("gencode: decode %T: %w", v, err)
	}
	if n != uint64(len(src)) {
		return fmt.Errorf("gencode: decode %T: the message has %d bytes, not %d", v, n, len(src))
	}
	return nil
}

// check returns why values of type t are not decoded.
func (c codec) check(t reflect.Type) error {
	if c.trusting {
		return nil
	}
	why, ok := unsafeTypes.Load(t)
	if !ok {
		why = unbounded(t, nil)
		unsafeTypes.Store(t, why)
	}
	if why != "" {
		return fmt.Errorf("it has %s, whose size only the peer decides: use gencode.Trusting if you trust your peers", why)
	}
	return nil
}

// unsafeTypes has why values of a type are not decoded, a string by reflect.Type.
var unsafeTypes sync.Map

// unbounded returns the part of a type whose size the input decides. It is empty if there is none.
// Around are the types in which t is.
func unbounded(t reflect.Type, around []reflect.Type) string {
	if t == reflect.TypeFor[time.Time]() {
		return "" // gencode gives it 15 bytes
	}
	if slices.Contains(around, t) {
		return fmt.Sprintf("%v in itself", t)
	}
	around = append(around, t)
	switch t.Kind() {
	case reflect.Slice, reflect.Interface, reflect.Map:
		return t.String()
	case reflect.Pointer, reflect.Array:
		return unbounded(t.Elem(), around)
	case reflect.Struct:
		for f := range t.Fields() {
			if why := unbounded(f.Type, around); why != "" {
				return why
			}
		}
	}
	return ""
}

// toMessage returns v, or a pointer to a copy of it.
func toMessage(v any) (message, error) {
	value := reflect.ValueOf(v)
	if value.IsValid() && value.Kind() != reflect.Pointer {
		twin := reflect.New(value.Type())
		twin.Elem().Set(value)
		value = twin
	}
	if !value.IsValid() || value.IsNil() {
		return nil, notMessage(v)
	}
	m, ok := reflect.TypeAssert[message](value)
	if !ok {
		return nil, notMessage(v)
	}
	return m, nil
}

func notMessage(v any) error {
	return fmt.Errorf("gencode: %T is not a message with the methods Size, Marshal and Unmarshal, or is nil", v)
}
