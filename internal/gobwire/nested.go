// SPDX-License-Identifier: Apache-2.0

package gobwire

import (
	"bytes"
	"encoding"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/panics"
)

var nested = nesting.Rules{
	Methods:    []reflect.Type{reflect.TypeFor[gob.GobEncoder](), reflect.TypeFor[encoding.BinaryMarshaler]()},
	Strict:     true,
	Decoders:   []reflect.Type{reflect.TypeFor[gob.GobDecoder](), reflect.TypeFor[encoding.BinaryUnmarshaler]()},
	Interfaces: true,
	KeyBytes:   keyBytes,
}

// keyBytes returns the encoding of a key. It begins with the definition of its type.
func keyBytes(key reflect.Value) (_ []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // a method of the key
			err = panics.Recovered(p)
		}
	}()
	if holdsPointer(key) {
		return nil, errors.New("a pointer in an interface arrives as what it points to, which may not be a key")
	}
	if leadsToNil(key) {
		return nil, errors.New("a nil pointer is no key in gob")
	}
	if key.Kind() == reflect.Interface {
		if key = key.Elem(); !key.IsValid() {
			return nil, nil
		}
	}
	var b bytes.Buffer
	err = gob.NewEncoder(&b).EncodeValue(key)
	return append(b.Bytes(), key.Type().String()...), err
}

// holdsPointer reports whether an interface in a key holds a pointer.
func holdsPointer(key reflect.Value) bool {
	switch key.Kind() {
	case reflect.Interface:
		return key.Elem().Kind() == reflect.Pointer || holdsPointer(key.Elem())
	case reflect.Array:
		for i := range key.Len() {
			if holdsPointer(key.Index(i)) {
				return true
			}
		}
	case reflect.Struct:
		for _, f := range key.Fields() {
			if holdsPointer(f) {
				return true
			}
		}
	}
	return false
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
