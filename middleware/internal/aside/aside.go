// SPDX-License-Identifier: Apache-2.0

// Package aside runs the code of users where middleware works in the background, so that such code
// can neither end the process nor the goroutine that works.
package aside

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// Do calls f on a goroutine of its own and waits until it returns. It returns nil, or an error if f
// panicked or ended its goroutine, which it logs. What names f; log may be nil.
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
