// SPDX-License-Identifier: Apache-2.0

// Package grpcstatus has the names of gRPC's codes. It reads the statuses of errors that have a
// method GRPCStatus, such as those of grpc-go's package status, without an import of grpc-go.
package grpcstatus

import (
	"fmt"
	"math"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// names are the names of the codes.
var names = [...]string{
	"ok", "canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
	"permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented",
	"internal", "unavailable", "data_loss", "unauthenticated",
}

// unnamed begins the names of other codes, as in connect-go.
const unnamed = "code_"

// CodeName returns the name of a code, for example "not_found", or "code_42" for one that gRPC does
// not have.
func CodeName(code uint16) string {
	if int(code) < len(names) {
		return names[code]
	}
	return unnamed + strconv.Itoa(int(code))
}

// CodeNamed returns the code for a name that CodeName returned.
func CodeNamed(name string) (uint16, error) {
	if i := slices.Index(names[:], name); i >= 0 {
		return uint16(i), nil //nolint:gosec // there are 17
	}
	if number, ok := strings.CutPrefix(name, unnamed); ok {
		if n, err := strconv.ParseUint(number, 10, 16); err == nil && int(n) >= len(names) {
			return uint16(n), nil
		}
	}
	return 0, fmt.Errorf("unknown error code %q", name)
}

// unknown is the code of an error without a code that yodel can carry.
const unknown = 2

// A Status is what an error says to callers of gRPC.
type Status struct {
	Code    uint16 // not OK; 2, which is Unknown, for a number over 65535
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
	if n := code.Uint(); n != 0 && n <= math.MaxUint16 {
		s.Code = uint16(n)
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
