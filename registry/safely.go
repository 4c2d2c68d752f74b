// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// safely calls f, which is the code of a user, on a goroutine of its own, and returns its error. If
// f panics or ends its goroutine, that is the error.
func safely(what string, f func() error) error {
	ended := make(chan error, 1)
	go func() {
		returned, err := false, error(nil)
		defer func() {
			switch value := recover(); {
			case returned:
			case value == nil:
				err = fmt.Errorf("%s ended its goroutine", what)
			default:
				err = fmt.Errorf("%s panicked: %v", what, value)
				slog.Debug("yodel: the stack of a panic", "what", what, "stack", string(debug.Stack()))
			}
			ended <- err
		}()
		err = f()
		returned = true
	}()
	return <-ended
}
