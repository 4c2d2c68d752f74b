// SPDX-License-Identifier: Apache-2.0

package jsoncodec

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// unknownField matches the error for a field that the type does not have.
var unknownField = regexp.MustCompile(`unknown field "[^"]*"`)

// goName matches what names a type of Go, such as "shop.Order", or one of its fields. The full name
// of a field in a .proto file, such as "shop.Order.item", does not match.
var goName = regexp.MustCompile(`\bGo (struct|value)|(^|[^\w.])\*?[a-z]\w*\.[A-Z]\w*([^\w.]|$)`)

// anyType matches what may be a type of Go or one of its fields, such as "shop.order.Qty", "chan
// int" and "[]byte". Errors of encoders are about the program that makes the message, so it does
// not matter that other texts match too.
var anyType = regexp.MustCompile(`\b(chan|func|struct|interface|map|type) |[\[\]{}*]|\bfunc\(|[A-Za-z]\w*\.[A-Za-z_]`)

// Public returns the text about an error of a codec for callers that must not see types and fields
// of Go, or "" if they may see the text of the error. Unencoded says that the message could not be
// encoded. Otherwise it is a request that could not be decoded.
func Public(method string, unencoded bool, err error) string {
	switch why := Misfit(err); {
	case !unencoded && why != "":
		return method + ": the request does not fit the method: " + why
	case !unencoded:
		return method + ": the request does not fit the method"
	case anyType.MatchString(err.Error()):
		return method + ": a message could not be encoded"
	}
	return ""
}

// Misfit returns what an error of a codec says about the message, in terms of JSON if the codec is
// JSON. It names no type and no field of Go. It returns "" if the error says nothing else.
func Misfit(err error) string {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return strings.TrimPrefix(e.Error(), "json: ")
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at := "it"
		if e.Field != "" {
			at = fmt.Sprintf("%q", e.Field)
		}
		return fmt.Sprintf("%s is %s, want %s", at, e.Value, kindOf(e.Type))
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if text := err.Error(); !goName.MatchString(text) {
			return text
		} else if field := unknownField.FindString(text); field != "" {
			return field
		}
	}
	return ""
}

// kindOf returns what JSON has for a type.
func kindOf(t reflect.Type) string {
	if t == nil {
		return "another value"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("an integer of %d bits", t.Bits())
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	default:
		return "another value"
	}
}
