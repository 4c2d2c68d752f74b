// SPDX-License-Identifier: Apache-2.0

// Package aside runs user code for middleware that works in the background. The user code can then
// end neither the process nor the goroutine of the middleware.
package aside

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// Do calls f on a separate goroutine and waits until it returns. It returns nil, or an error if f
// panicked or ended its goroutine. Do logs that error. what names f. log may be nil.
func Do(what string, log *slog.Logger, f func()) error {
	if log == nil {
		log = slog.Default()
	}
	return isolate.Call(func() error {
		f()
		return nil
	}, func(value any) error {
		if value == nil {
			log.Error("yodel: " + what + " ended its goroutine")
			return fmt.Errorf("%s ended its goroutine", what)
		}
		log.Error("yodel: "+what+" panicked", "panic", value)
		log.Debug("yodel: the stack of a panic", "stack", string(debug.Stack()))
		return fmt.Errorf("%s panicked", what)
	})
}
