// SPDX-License-Identifier: Apache-2.0

// Package fault has the failures that the parts of the root find. These parts know no yodel.Error,
// and the root makes one of each Fault.
package fault

import "fmt"

// A Fault is why a call, or a message of its stream, failed.
type Fault struct {
	ID     string // of the catalogue of errors
	Method string // that was called
	Text   string // what happened, for people
	Cause  error

	Public      string // Text for callers that do not see types of the program; "" for Text itself
	Unprocessed bool   // the method was certainly not executed
	Misfit      bool   // Text may name types of the program, which not every caller sees
}

// Of returns the fault of a call of a method that may have been executed.
func Of(id, method, format string, args ...any) *Fault {
	return &Fault{ID: id, Method: method, Text: fmt.Sprintf(format, args...)}
}

// Error implements error. It begins with the method.
func (f *Fault) Error() string { return f.Method + ": " + f.Text }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

// Because sets the cause of f, and returns f.
func (f *Fault) Because(err error) *Fault {
	f.Cause = err
	return f
}

// ByCodec says that err, which is of a codec, is the cause of f, and returns f.
func (f *Fault) ByCodec(err error) *Fault {
	f.Misfit = true
	return f.Because(err)
}

// NotProcessed says that the method was not executed, and returns f.
func (f *Fault) NotProcessed() *Fault {
	f.Unprocessed = true
	return f
}
