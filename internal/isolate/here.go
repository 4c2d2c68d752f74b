// SPDX-License-Identifier: Apache-2.0

package isolate

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/yodel-rpc/yodel/internal/grpcstatus"
)

// Transfer calls a Read or a Write with b on the goroutine of the caller. If it panics, or returns
// what cannot be used, Transfer returns the error of failed, which gets the value of the panic. If
// it ends the goroutine, Transfer calls failed with nil, and the goroutine ends.
func Transfer(f func(b []byte) (int, error), b []byte, failed func(value any) error) (n int, err error) {
	returned := false
	defer func() {
		if !returned {
			n, err = 0, failed(recover())
		}
	}()
	if n, err = f(b); err != nil { // which is rare
		try(err)
	}
	if n < 0 || n > len(b) {
		panic(fmt.Sprintf("it returned %d for %d bytes", n, len(b)))
	}
	returned = true
	return n, err
}

// try panics if a method of err panics or ends its goroutine.
func try(err error) {
	var harm any
	_ = Call(func() error { return Tried(err) }, func(value any) error { // harm has the outcome
		harm = cmp.Or(value, any("a method of the error ended its goroutine"))
		return nil
	})
	if harm != nil {
		panic(harm)
	}
}

// Tried returns err after it has called the methods that the framework calls of errors, which are
// user code too. That of a nil pointer in an error, a common mistake, panics.
func Tried(err error) error {
	if err != nil {
		_ = err.Error()
		_ = errors.Is(err, io.EOF)
		_, _ = errors.AsType[*probe](err)
		grpcstatus.Of(err)
	}
	return err
}

// A probe is an error that no error wraps.
type probe struct{ error }
