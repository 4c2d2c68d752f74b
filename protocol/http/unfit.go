// SPDX-License-Identifier: Apache-2.0

package http

import (
	"errors"
	"reflect"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/internal/carries"
)

// unfit returns why Options.OnRequest has refused the call, or why the codec of its request cannot
// carry the messages of the method, or nil. The server lacks the codec called name if codec is nil.
// Protocol names the protocol of the request, and json is its content type for JSON.
func (x *exchange) unfit(codec yodel.Codec, name, protocol, json string) *yodel.Error {
	if x.v.Refusal != nil {
		return x.v.Refusal
	}
	checker, _ := codec.(interface{ CheckType(t reflect.Type) error })
	switch codec {
	case yodel.JSON:
		checker = noMessages{}
	case raw.Codec:
		checker = nil // the server refuses the call
	}
	if codec != nil && (checker == nil || x.v.Positional()) {
		return nil
	}
	method := x.v.Call().Method
	in, out := x.v.Types()
	for verb, types := range [...][]reflect.Type{in, out} {
		for _, t := range types {
			var err error
			if checker != nil {
				err = checker.CheckType(t)
			}
			switch takes := [...]string{"takes", "returns"}[verb]; {
			case name == "protobuf" && (err != nil || codec == nil) && isPlain(t):
				return unsupported("%s %s %v, a plain struct: over %s use %s, or number its fields (pb:\"1\") and add pbstruct.Codec", method, takes, t, protocol, json)
			case err != nil:
				return unsupported("%s %s %v: %v", method, takes, t, err)
			}
		}
	}
	if codec == nil {
		return unsupported("%s: this server does not have the codec %.40q: add it to ServerOptions.Codecs", method, name)
	}
	return nil
}

// noMessages is what yodel.JSON cannot encode as other implementations of Protocol Buffers do.
type noMessages struct{}

// CheckType returns an error for generated messages.
func (noMessages) CheckType(t reflect.Type) error {
	if carries.IsGenerated(t) {
		return errors.New("it is a generated message: add protobuf.JSON to ServerOptions.Codecs")
	}
	return nil
}

func unsupported(format string, args ...any) *yodel.Error {
	e := yodel.Errorf(yodel.Unimplemented, format, args...)
	e.ID, e.NotProcessed = "YDL2003", true
	return e
}

// isPlain reports whether t is a struct that says nothing about Protocol Buffers.
func isPlain(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || t.NumField() == 0 || carries.IsGenerated(t) {
		return false
	}
	for f := range t.Fields() {
		if _, numbered := f.Tag.Lookup("pb"); numbered {
			return false
		}
	}
	return true
}
