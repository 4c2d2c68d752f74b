// SPDX-License-Identifier: Apache-2.0

// Package reply handles the variables into which the replies of calls are decoded. A reply is a
// pointer, a slice of pointers if the method has several results, or nil.
package reply

import (
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
)

// Decodable reports whether v is a pointer that is not nil.
func Decodable(v any) bool {
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && !p.IsNil()
}

// several reports whether a reply is that of a method with several results.
func several(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Interface
}

// Fillable reports whether a reply is nil or consists of pointers that are not nil.
func Fillable(reply any) bool {
	if reply == nil {
		return true
	}
	v := reflect.ValueOf(reply)
	if !several(v) {
		return Decodable(reply)
	}
	for i := range v.Len() {
		if !Decodable(v.Index(i).Interface()) {
			return false
		}
	}
	return true
}

// New returns a reply like one that is fillable and not nil, with new variables.
func New(like any) any {
	v := reflect.ValueOf(like)
	if !several(v) {
		return reflect.New(v.Type().Elem()).Interface()
	}
	others := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
	for i := range v.Len() {
		others.Index(i).Set(reflect.ValueOf(New(v.Index(i).Interface())))
	}
	return others.Interface()
}

// Copy copies the variables of a reply to those of another one that New made for it, or from them.
// If one of both is nil, it does nothing.
func Copy(to, from any) {
	if to == nil || from == nil {
		return
	}
	t, f := reflect.ValueOf(to), reflect.ValueOf(from)
	if !several(t) {
		t.Elem().Set(f.Elem())
		return
	}
	for i := range t.Len() {
		Copy(t.Index(i).Interface(), f.Index(i).Interface())
	}
}

// Check returns the fault of a call of a method if codec cannot decode into one of the replies. The
// caller would learn that only after the method has been executed. Named says that they are the
// results of a method with several of them. Takes reports whether a reply takes any encoding.
func Check(method string, codec interface{ Name() string }, replies []any, named bool, takes func(any) bool) *fault.Fault {
	for i, to := range replies {
		if !Decodable(to) {
			what := "the reply"
			if named {
				what = fmt.Sprintf("result %d", i+1)
			}
			return fault.Of(catalogue.ReplyUnfit, method, "%s cannot be decoded into %s: give a pointer to it", what, kindOf(to)).NotProcessed()
		}
		if err := carries.Check(codec, reflect.TypeOf(to)); err != nil && !takes(to) {
			return fault.Of(catalogue.ReplyUnfit, method, "the reply cannot be decoded: %v (codec %s)", err, codec.Name()).NotProcessed()
		}
	}
	return nil
}

// kindOf describes a value into which a reply cannot be decoded.
func kindOf(v any) string {
	if reflect.ValueOf(v).Kind() == reflect.Pointer {
		return fmt.Sprintf("a nil %T", v)
	}
	return fmt.Sprintf("%T", v)
}
