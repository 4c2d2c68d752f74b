// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/yodel-rpc/yodel"
)

// LogHandler returns a handler that adds trace_id and span_id to the records of next. They come
// from the span in the context that is logged with. In a handler of a server without a tracer, they
// come from the trace context of the call. A record without either is unchanged. The attributes are
// in the group that is open in the logger, if there is one.
func LogHandler(next slog.Handler) slog.Handler { return &logHandler{next} }

type logHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	at := trace.SpanContextFromContext(ctx)
	if !at.IsValid() {
		if call := yodel.CallFrom(ctx); call != nil {
			at = trace.SpanContextFromContext(extract(ctx, call.Trace))
		}
	}
	if at.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", at.TraceID().String()), slog.String("span_id", at.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.Handler.WithGroup(name)}
}
