// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// safely calls f, which is the code of a user, on a goroutine of its own, and returns its error. If
// f panics or ends its goroutine, that is the error.
func safely(what string, f func() error) error {
	return isolate.Call(f, func(value any) error {
		if value == nil {
			return fmt.Errorf("%s ended its goroutine", what)
		}
		slog.Debug("yodel: the stack of a panic", "what", what, "stack", string(debug.Stack()))
		return fmt.Errorf("%s panicked: %v", what, value)
	})
}
