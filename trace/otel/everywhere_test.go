// SPDX-License-Identifier: Apache-2.0

package otel_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/everywhere"
	"github.com/yodel-rpc/yodel/trace/otel"
)

// A call over every wire is a span, on the server and on a client.
func TestSpansOverEveryWire(t *testing.T) {
	t.Attr("rerun", "never")
	type tracer struct {
		*otel.Options
		*tracetest.SpanRecorder
	}
	var all sync.Map // from *everywhere.Trial to *tracer
	of := func(tr *everywhere.Trial) *tracer {
		m, _ := all.Load(tr)
		return m.(*tracer)
	}
	everywhere.HoldTable(t, "OpenTelemetry", []everywhere.Guarantee{{
		Name: "calls are spans",
		Prepare: func(tr *everywhere.Trial) {
			o, recorder := newTracer(t)
			all.Store(tr, &tracer{o, recorder})
		},
		Server: func(_ *testing.T, tr *everywhere.Trial) {
			tr.Options.Observers = []yodel.Observer{otel.Server(of(tr).Options)}
		},
		Client: func(_ *testing.T, tr *everywhere.Trial) {
			tr.Client.Observers = []yodel.Observer{otel.Client(of(tr).Options)}
		},
		Check: func(ctx context.Context, c *everywhere.Cell) error {
			if _, err := c.Call(ctx, yodel.Call{}); err != nil {
				return err
			}
			return c.Seen(ctx, "the call is no span", func() bool {
				return slices.ContainsFunc(of(c.Trial).Ended(), func(s sdk.ReadOnlySpan) bool {
					kind := s.SpanKind()
					return s.Name() == c.Method() && (c.Side != "client" && kind == trace.SpanKindServer || c.Side != "server" && kind == trace.SpanKindClient)
				})
			})
		},
	}})
}
