// SPDX-License-Identifier: Apache-2.0

// Package grpcstatus reads the statuses of errors that have a method GRPCStatus, such as those of
// grpc-go's package status, without an import of grpc-go.
package grpcstatus

import (
	"path"
	"reflect"
)

// Codes of grpc-go.
const (
	unknown = 2
	last    = 16
)

// A Status is what an error says to callers of gRPC.
type Status struct {
	Code    uint8 // one of grpc-go's codes other than OK; 2, which is Unknown, for any other number
	Message string
	Own     bool // the error itself has the status, and not an error that it wraps
	details reflect.Value
}

// Of returns the status of err, or else that of the first error in its tree that has one. It
// returns nil if there is none. It calls methods of the errors, which may panic.
func Of(err error) *Status {
	if err == nil {
		return nil
	}
	if s := read(err); s != nil {
		s.Own = true
		return s
	}
	var wrapped []error
	switch err := err.(type) { //nolint:errorlint // it walks the tree
	case interface{ Unwrap() error }:
		wrapped = []error{err.Unwrap()}
	case interface{ Unwrap() []error }:
		wrapped = err.Unwrap()
	}
	for _, inner := range wrapped {
		if s := Of(inner); s != nil {
			s.Own = false
			return s
		}
	}
	return nil
}

// read returns what the method GRPCStatus of err returns, or nil.
func read(err error) *Status {
	st, ok := call(reflect.ValueOf(err).MethodByName("GRPCStatus"))
	if !ok {
		return nil
	}
	text, ok := reflect.TypeAssert[interface{ Message() string }](st)
	code, hasCode := call(st.MethodByName("Code"))
	if !ok || !hasCode || code.Kind() != reflect.Uint32 {
		return nil
	}
	s := &Status{Code: unknown, Message: text.Message()}
	if n := code.Uint(); n != 0 && n <= last {
		s.Code = uint8(n)
	}
	if p, ok := call(st.MethodByName("Proto")); ok {
		s.details, _ = call(p.MethodByName("GetDetails"))
	}
	return s
}

// call calls a method without parameters that has one result. Its callers pass what MethodByName
// returns for a constant, so that the linker can leave out other methods.
func call(method reflect.Value) (result reflect.Value, ok bool) {
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return reflect.Value{}, false
	}
	result = method.Call(nil)[0]
	return result, result.Kind() != reflect.Pointer && result.Kind() != reflect.Interface || !result.IsNil()
}

// Details calls add with the type and the encoded value of each detail.
func (s *Status) Details(add func(name string, value []byte)) {
	for i := 0; s.details.Kind() == reflect.Slice && i < s.details.Len(); i++ {
		d, ok := reflect.TypeAssert[interface {
			GetTypeUrl() string
			GetValue() []byte
		}](s.details.Index(i))
		if ok {
			add(path.Base(d.GetTypeUrl()), d.GetValue())
		}
	}
}
