// SPDX-License-Identifier: Apache-2.0

package apachethrift

import (
	"database/sql"
	"database/sql/driver"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/apache/thrift/lib/go/thrift"
)

// A kind is how a type is encoded.
type kind int

const (
	foreign   kind = iota // by the other codec
	message               // a generated struct
	arguments             // a generated struct with the arguments of a method
	result                // a generated struct with the result of a method
	composed              // an enum, or a list or a map that has generated types
)

type known struct {
	kind
	err error
}

// of returns the kind of a type. The type of a generated struct is a pointer.
func (k *kinds) of(t reflect.Type) (kind, error) {
	if found, ok := k.Load(t); ok {
		found := found.(known) //nolint:forcetypeassert // it stores nothing else
		return found.kind, found.err
	}
	found := known{kind: foreign}
	switch {
	case !isStruct(t):
		var has bool
		if has, found.err = contains(t, nil); has {
			found.kind = composed
		}
	// The compiler appends an underscore to all other names that end like these two.
	case strings.HasSuffix(t.Elem().Name(), "Args"):
		found.kind = arguments
	case strings.HasSuffix(t.Elem().Name(), "Result"):
		found.kind = result
	default:
		found.kind = message
	}
	k.Store(t, found)
	return found.kind, found.err
}

// isStruct reports whether t is a pointer to a generated struct.
func isStruct(t reflect.Type) bool {
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && t.Implements(reflect.TypeFor[thrift.TStruct]())
}

// isEnum reports whether t is a generated enum: it has the methods that the compiler writes for
// enums only.
func isEnum(t reflect.Type) bool {
	if t.Kind() != reflect.Int64 || t.PkgPath() == "" {
		return false
	}
	p := reflect.PointerTo(t)
	return t.Implements(reflect.TypeFor[fmt.Stringer]()) && t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) &&
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) && p.Implements(reflect.TypeFor[sql.Scanner]()) && p.Implements(reflect.TypeFor[driver.Valuer]())
}

// contains reports whether t is a generated type, or a list or a map with such elements. It returns
// an error if a struct that is not generated contains such a type. Within has the types around t.
func contains(t reflect.Type, within []reflect.Type) (bool, error) {
	if slices.Contains(within, t) {
		return false, nil
	}
	within = append(slices.Clip(within), t)
	switch {
	case isStruct(t), isEnum(t):
		return true, nil
	case t.Kind() == reflect.Map:
		if has, err := contains(t.Key(), within); has || err != nil {
			return has, err
		}
		return contains(t.Elem(), within)
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Pointer:
		return contains(t.Elem(), within)
	case t.Kind() != reflect.Struct:
		return false, nil
	}
	for f := range t.Fields() {
		if !f.IsExported() || f.Tag.Get("thrift") == "-" {
			continue
		}
		has, err := contains(f.Type, within)
		if err == nil && has {
			err = fmt.Errorf("apachethrift: %v.%s has a type that Apache's compiler has generated, and %v has not", t, f.Name, t)
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

var types = map[reflect.Kind]thrift.TType{
	reflect.Bool: thrift.BOOL, reflect.Int8: thrift.BYTE, reflect.Int16: thrift.I16, reflect.Int32: thrift.I32, reflect.Int64: thrift.I64,
	reflect.Float64: thrift.DOUBLE, reflect.String: thrift.STRING, reflect.Slice: thrift.LIST, reflect.Map: thrift.MAP,
}

// typeOf returns the type of Thrift for the Go type that the compiler generates for it, or STOP.
func typeOf(t reflect.Type) thrift.TType {
	switch {
	case isStruct(t):
		return thrift.STRUCT
	case isEnum(t):
		return thrift.I32
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return thrift.STRING
	case t == reflect.TypeFor[thrift.Tuuid]():
		return thrift.UUID
	case t.Kind() == reflect.Map && t.Elem() == reflect.TypeFor[struct{}]():
		return thrift.SET
	}
	return types[t.Kind()]
}
