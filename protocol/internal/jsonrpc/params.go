// SPDX-License-Identifier: Apache-2.0

package jsonrpc

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/yodel-rpc/yodel"
)

// requestOf returns the encoded request of a call for the parameters that came. It returns an error
// if the parameters do not fit the method.
func requestOf(v *yodel.Served, params []byte, version1 bool) ([]byte, error) {
	in, _ := v.Types()
	switch {
	case v.Positional():
		list, err := positional(params, len(in))
		if err != nil {
			return nil, err
		}
		var values yodel.Encoded
		values.SetValues(list...)
		return values.Body, nil
	case in == nil: // the method takes any request
		return params, nil
	}
	return single(in[0], params, version1)
}

var errPositional = errors.New("the method takes its parameters by position: give an array")

// positional returns the values for a method that takes n of them.
func positional(params []byte, n int) ([][]byte, error) {
	switch {
	case params == nil:
		return nil, nil
	case params[0] == '[':
		return elements(params, n+1), nil // the server refuses more than n values
	case n == 0 && !(&members{rest: params[1:]}).next():
		return nil, nil
	}
	return nil, errPositional
}

// single returns the body for a method with one argument of type t.
func single(t reflect.Type, p []byte, version1 bool) ([]byte, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if p != nil && p[0] == '{' {
		return p, nil
	}
	var list [][]byte
	if p != nil {
		list = elements(p, 2)
	}
	switch {
	case len(list) == 1 && (version1 || list[0][0] == '[' || string(list[0]) == "null" || !isArray(t)):
		return list[0], nil
	case p != nil && (isArray(t) || decodesItself(t)):
		return p, nil
	case p == nil && decodesItself(t):
		return []byte("null"), nil
	case len(list) == 0 && isEmpty(t):
		return []byte("{}"), nil
	case len(list) == 0:
		return nil, errors.New("the parameters are missing: give an object, or an array with one value")
	}
	return nil, errors.New("there are several parameters: give an object, or an array with one value")
}

// isArray reports whether a value of type t is a JSON array.
func isArray(t reflect.Type) bool {
	if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
		return false
	}
	return (t.Kind() == reflect.Array || t.Elem().Kind() != reflect.Uint8) && !decodesItself(t)
}

// decodesItself reports whether the JSON of a value of type t is unknown, because the type decodes
// itself or is an interface.
func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Interface || p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// isEmpty reports whether t is a struct without exported fields, which a method without arguments
// takes.
func isEmpty(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || decodesItself(t) {
		return false
	}
	for field := range t.Fields() {
		if field.IsExported() {
			return false
		}
	}
	return true
}
