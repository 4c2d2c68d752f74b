// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"log/slog"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// A handler is a slog.Handler that cannot end the process or the goroutine that logs.
type handler struct{ slog.Handler }

// Logger returns a logger that writes to log and cannot end the process or the goroutine that logs.
// Without log, it writes to what slog.Default returns when a line is logged. It starts a goroutine
// for each line, which is acceptable because the framework logs rarely.
func Logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(handler{current{}})
	}
	return slog.New(handler{log.Handler()})
}

// A current passes lines to the handler of slog.Default, which a program may set after it has made
// its servers and clients.
type current struct{}

func (current) Enabled(ctx context.Context, level slog.Level) bool {
	return slog.Default().Handler().Enabled(ctx, level)
}

func (current) Handle(ctx context.Context, r slog.Record) error {
	return slog.Default().Handler().Handle(ctx, r)
}

func (current) WithAttrs(attrs []slog.Attr) slog.Handler {
	return slog.Default().Handler().WithAttrs(attrs)
}

func (current) WithGroup(name string) slog.Handler { return slog.Default().Handler().WithGroup(name) }

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	return isolate.Call(func() error { return h.Handler.Handle(ctx, r) }, unlogged)
}

// Enabled implements slog.Handler.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	enabled := true
	_ = isolate.Call(func() error { // it returns no error
		enabled = h.Handler.Enabled(ctx, level)
		return nil
	}, unlogged)
	return enabled
}

// unlogged ignores a panic of a slog.Handler, because a failure of the log cannot be logged.
func unlogged(any) error { return nil }

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
