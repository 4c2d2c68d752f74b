// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/internal/schema"
)

// This file makes a JSON object of path values and the parameters of a query.

// A node is a field of a request, with a value or with nested fields.
type node struct {
	value  json.RawMessage
	nested map[string]*node
}

// maxDepth is how deep fields may be nested.
const maxDepth = 16

// fieldsOf returns the JSON object that parameters make for a message of the type in. If that is
// not known, all values are strings.
func fieldsOf(in []reflect.Type, parameters map[string][]string) ([]byte, error) {
	var message reflect.Type
	if len(in) == 1 {
		message = in[0]
	}
	root := new(node)
	for name, values := range parameters {
		if i := slices.IndexFunc(values, func(v string) bool { return !utf8.ValidString(v) }); i >= 0 || !utf8.ValidString(name) {
			return nil, fmt.Errorf("the parameter %.100q is not UTF-8", name)
		}
		path := strings.Split(name, ".")
		if len(path) > maxDepth {
			return nil, fmt.Errorf("the parameter %.100q is nested too deep", name)
		}
		if err := root.set(message, path, values); err != nil {
			return nil, fmt.Errorf("the parameter %.100q: %w", name, err)
		}
	}
	return root.append(nil), nil
}

var (
	errNoField  = errors.New("the request has no such field")
	errTwice    = errors.New("it is given twice, once with nested fields")
	errRepeated = errors.New("the field takes one value")
)

// set sets the field at a path. T is the type that has it, or nil if that is not known.
func (n *node) set(t reflect.Type, path, values []string) error {
	if len(path) == 0 {
		if n.nested != nil || n.value != nil {
			return errTwice
		}
		var err error
		n.value, err = valueOf(t, values)
		return err
	}
	field, name, err := fieldOf(t, path[0])
	if err != nil {
		return err
	}
	if n.value != nil {
		return errTwice
	}
	if n.nested == nil {
		n.nested = make(map[string]*node)
	}
	if n.nested[name] == nil {
		n.nested[name] = new(node)
	}
	return n.nested[name].set(field, path[1:], values)
}

// append appends the JSON of the node. The members are in the order of their names.
func (n *node) append(dst []byte) []byte {
	if n.value != nil {
		return append(dst, n.value...)
	}
	dst = append(dst, '{')
	for i, name := range slices.Sorted(maps.Keys(n.nested)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, quoted(name)...), ':')
		dst = n.nested[name].append(dst)
	}
	return append(dst, '}')
}

// fieldOf returns the type of the field of t with a name in JSON, and the name as the type has it.
// As in package encoding/json, a name may differ in case.
func fieldOf(t reflect.Type, name string) (reflect.Type, string, error) {
	t = pointee(t)
	switch {
	case t == nil || t.Kind() == reflect.Interface:
		return nil, name, nil
	case t.Kind() == reflect.Map:
		return t.Elem(), name, nil
	case t.Kind() != reflect.Struct || hasOwnJSON(t):
		return nil, "", errNoField
	}
	var found reflect.Type
	foundName := ""
	for named, of := range schema.Fields(t) {
		if named == name {
			return of, named, nil
		}
		if found == nil && strings.EqualFold(named, name) {
			found, foundName = of, named
		}
	}
	if found == nil {
		return nil, "", errNoField
	}
	return found, foundName, nil
}

// maxPointers is how many pointers are followed to the type that they point to. A type may point to
// itself without end.
const maxPointers = 8

// pointee returns the type that t points to, or t.
func pointee(t reflect.Type) reflect.Type {
	for n := 0; t != nil && t.Kind() == reflect.Pointer && n < maxPointers; n++ {
		t = t.Elem()
	}
	return t
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// hasOwnJSON reports whether a type decodes its JSON by itself. Its values are strings.
func hasOwnJSON(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler)
}

// valueOf returns the JSON of the values of a parameter whose field has type t.
func valueOf(t reflect.Type, values []string) (json.RawMessage, error) {
	t = pointee(t)
	list := t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() != reflect.Uint8 && !hasOwnJSON(t)
	if !list && (len(values) == 1 || t != nil && t.Kind() != reflect.Interface) {
		if len(values) != 1 {
			return nil, errRepeated
		}
		return literal(t, values[0])
	}
	var elem reflect.Type
	if list {
		elem = t.Elem()
	}
	out := json.RawMessage("[")
	for i, value := range values {
		if i > 0 {
			out = append(out, ',')
		}
		one, err := literal(pointee(elem), value)
		if err != nil {
			return nil, err
		}
		out = append(out, one...)
	}
	return append(out, ']'), nil
}

// literal returns the JSON of one value.
func literal(t reflect.Type, value string) (json.RawMessage, error) {
	if t == nil || hasOwnJSON(t) {
		return quoted(value), nil
	}
	switch t.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("%.100q is not true or false", value)
		}
		return strconv.AppendBool(nil, b), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(value, 10, t.Bits())
		if _, enum := t.MethodByName("EnumDescriptor"); err != nil && enum {
			return quoted(value), nil // the name of a value of an enum of Protocol Buffers
		}
		if err != nil {
			return nil, fmt.Errorf("%.100q is not an integer of the type %s", value, t)
		}
		return strconv.AppendInt(nil, n, 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		n, err := strconv.ParseUint(value, 10, t.Bits())
		if err != nil {
			return nil, fmt.Errorf("%.100q is not an integer of the type %s", value, t)
		}
		return strconv.AppendUint(nil, n, 10), nil
	case reflect.Float32, reflect.Float64:
		n, err := strconv.ParseFloat(value, t.Bits())
		number, invalid := json.Marshal(n)
		if err != nil || invalid != nil { // JSON has no infinity
			return nil, fmt.Errorf("%.100q is not a number", value)
		}
		return number, nil
	case reflect.String, reflect.Interface, reflect.Slice, reflect.Array: // bytes are base64
		return quoted(value), nil
	}
	return nil, fmt.Errorf("its type %s has fields: name one of them behind a dot", t)
}

func quoted(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string has JSON
	}
	return b
}
