// SPDX-License-Identifier: Apache-2.0

// Package gencode encodes messages with the methods that github.com/andyleap/gencode generates for
// them. Messages are small and fast to encode. Both programs must have the same version of a type.
//
// The generated methods trust their input. If a method reads beyond the end of the input, it
// panics, and Decode returns an error. But a method also allocates slices of any length that the
// input announces, and follows pointers to its own type to any depth. Decode cannot bound this, and
// it can end the process. Numbers, strings, arrays and structs are safe. Accept types with slices,
// or with pointers to themselves, only from peers that you trust.
package gencode

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/yodel-rpc/yodel"
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
// nested more than 1,000 deep, or contain themselves.
var Codec yodel.Codec = codec{}

type message interface {
	Size() uint64
	Marshal(buf []byte) ([]byte, error)
	Unmarshal(buf []byte) (uint64, error)
}

type codec struct{}

// nested is for Marshal, which follows pointers by recursion.
var nested nesting.Rules

func (codec) Name() string { return "gencode" }

func (codec) Append(dst []byte, v any) ([]byte, error) {
	m, err := toMessage(v)
	if err != nil {
		return nil, err
	}
	if err := nested.Check(v); err != nil {
		return nil, fmt.Errorf("gencode: encode %w", err)
	}
	// Marshal gets the memory after dst, so that its result need not be copied.
	room := append(dst, make([]byte, m.Size())...)
	b, err := m.Marshal(room[len(dst):len(room):len(room)])
	if err != nil {
		return nil, fmt.Errorf("gencode: encode %T: %w", v, err)
	}
	return append(dst, b...), nil
}

func (codec) Decode(src []byte, v any) (err error) {
	m, ok := v.(message)
	if !ok || reflect.ValueOf(v).IsNil() {
		return notMessage(v)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("gencode: decode %T: %w", v, panics.Recovered(p))
		}
	}()
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
