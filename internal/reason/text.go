// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"errors"
	"net"
	"os"
	"strings"
	"time"
)

// Rounded rounds a duration for a message.
func Rounded(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	case d >= 10*time.Microsecond:
		return d.Round(10 * time.Microsecond)
	}
	return d
}

// Plain returns the text of the innermost cause of a network error, without its outer layers.
func Plain(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// unaddressed returns the text of err without the addresses and system calls of network errors. It
// keeps the text that a transport has added.
func unaddressed(err error) string {
	inner := errors.Unwrap(err)
	if inner == nil {
		return err.Error()
	}
	switch err.(type) { //nolint:errorlint // unwraps one layer at a time
	case *net.OpError, *os.SyscallError:
		return unaddressed(inner)
	}
	before, ok := strings.CutSuffix(err.Error(), inner.Error())
	if !ok { // the outer error does not end with the inner text
		return unaddressed(inner)
	}
	return before + unaddressed(inner)
}
