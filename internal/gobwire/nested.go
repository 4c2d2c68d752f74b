// SPDX-License-Identifier: Apache-2.0

package gobwire

import (
	"encoding"
	"encoding/gob"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

var nested = nesting.Rules{
	Methods:    []reflect.Type{reflect.TypeFor[gob.GobEncoder](), reflect.TypeFor[encoding.BinaryMarshaler]()},
	Strict:     true,
	Decoders:   []reflect.Type{reflect.TypeFor[gob.GobDecoder](), reflect.TypeFor[encoding.BinaryUnmarshaler]()},
	Interfaces: true,
}

// Rules say which messages arrive as they were sent.
var Rules rules

type rules struct{}

// CheckType returns why messages of a type do not arrive as they were sent.
func (rules) CheckType(t reflect.Type) error { return named(nested.CheckType(t)) }

// CheckTarget is CheckType for a pointer into which a message is decoded.
func (rules) CheckTarget(v any) error { return named(nested.CheckTarget(v)) }

// Check returns an error if encoding/gob would need too much stack to encode v, because v is nested
// too deep or contains itself. It also returns an error if v would not arrive as it is.
func (rules) Check(v any) error {
	if err := nested.Check(v); err != nil {
		return named(err)
	}
	return checkOptional(v)
}

func named(err error) error {
	if err != nil {
		return fmt.Errorf("gob: %w", err)
	}
	return nil
}
