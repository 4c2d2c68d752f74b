// SPDX-License-Identifier: Apache-2.0

// Package panics describes panics of user code for the log, and carries them through the errors of
// codecs. A codec must not panic, because what it decodes may be hostile. A message's own code may
// still panic in it, and such a panic is counted and logged as any other.
package panics

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"
)

// An inCodec is the error of a codec in which the code of a message has panicked. Its text may
// reach the other side, so the value of the panic is not in it.
type inCodec struct{ said, frames string }

func (*inCodec) Error() string { return "it panicked" }

// Recovered returns the error of a codec that has recovered a panic with value. The deferred
// function that has recovered the panic calls it. An error of the runtime is returned as it is:
// generated code panics so when a message is damaged, and its text has nothing of the program.
func Recovered(value any) error {
	if e, ok := value.(runtime.Error); ok {
		return e
	}
	said, frames := Describe(value)
	return &inCodec{said, frames}
}

// Resume panics again if err is the error of a codec that has recovered a panic.
func Resume(err error) {
	if p, ok := errors.AsType[*inCodec](err); ok {
		panic(&resumed{p})
	}
}

// A resumed is the value of a panic that goes on.
type resumed struct{ *inCodec }

// Error implements error, for a panic that ends the process.
func (r *resumed) Error() string { return r.said + " [at " + r.frames + "]" }

// Describe returns the text of value, with which a function has panicked, and where: the function
// that panicked, and its callers outside of this framework and the runtime, as "file:line
// function". The deferred function that has recovered the panic calls it.
func Describe(value any) (said, frames string) {
	if r, ok := value.(*resumed); ok {
		return r.said, r.frames
	}
	return textOf(value), stack()
}

// textOf formats the value of a panic. The value's own methods may panic too.
func textOf(value any) (said string) {
	defer func() {
		if recover() != nil {
			said = fmt.Sprintf("%T, whose text cannot be had", value)
		}
	}()
	return fmt.Sprint(value)
}

// maxFrames is how many functions of a panic's stack are named.
const maxFrames = 8

// stack returns where the panic that is being recovered happened.
func stack() string {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var said []string
	panicked := false // the frames before the panic belong to the recovery
	for {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			panicked, said = true, nil // if a deferred function panicked too, the first panic counts
		case !panicked || strings.HasPrefix(f.Function, "runtime."):
		case len(said) == 0 || !ours(f.Function) && len(said) < maxFrames:
			said = append(said, fmt.Sprintf("%s:%d %s", path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line, path.Base(f.Function)))
		}
		if !more {
			return strings.Join(said, ", ")
		}
	}
}

// ours reports whether a function belongs to the framework or to package reflect.
func ours(function string) bool {
	const root = "github.com/yodel-rpc/yodel"
	return strings.HasPrefix(function, root+".") || strings.HasPrefix(function, root+"/internal/") || strings.HasPrefix(function, "reflect.")
}
