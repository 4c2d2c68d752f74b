// SPDX-License-Identifier: Apache-2.0

package otel_test

import (
	"context"
	"maps"
	"testing"

	gotel "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/trace/otel"
)

// A oneHeader propagator has the trace ID and the span ID in a header of its own, as that of B3.
type oneHeader struct{}

func (oneHeader) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	at := trace.SpanContextFromContext(ctx)
	c.Set("X-One", at.TraceID().String()+"-"+at.SpanID().String())
}

func (oneHeader) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	text := c.Get("X-One")
	if len(text) != 49 {
		return ctx
	}
	trace16, err := trace.TraceIDFromHex(text[:32])
	span8, err2 := trace.SpanIDFromHex(text[33:])
	if err != nil || err2 != nil {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace16, SpanID: span8, TraceFlags: trace.FlagsSampled}))
}

func (oneHeader) Fields() []string { return []string{"X-One"} }

// Baggage and the headers of other propagators reach the handler, and the server behind it. The
// metadata of the caller stays as it was.
func TestPropagators(t *testing.T) {
	all := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}, oneHeader{})
	for _, global := range []bool{false, true} {
		o, recorder := newTracer(t)
		o.Propagator = all
		if global {
			before := gotel.GetTextMapPropagator()
			defer gotel.SetTextMapPropagator(before)
			gotel.SetTextMapPropagator(all)
			o.Propagator = nil
		}
		last := newServer(o)
		back.Handle(last, func(ctx context.Context, _ *int) (*string, error) {
			got := baggage.FromContext(ctx).Member("tenant").Value() + " " + yodel.CallFrom(ctx).Metadata["x-one"]
			return &got, nil
		})
		between := newClient(t, o, yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{otel.Attempts(o)}}, serve(t, last))
		first := newServer(o)
		front.Handle(first, func(ctx context.Context, n *int) (*string, error) { return back.Call(ctx, between, n) })
		c := newClient(t, o, yodel.ClientOptions{}, serve(t, first))
		member, err := baggage.NewMember("tenant", "acme")
		if err != nil {
			t.Fatal(err)
		}
		bag, err := baggage.New(member)
		if err != nil {
			t.Fatal(err)
		}
		md := yodel.Metadata{"own": "1"}
		got := new(string)
		call := &yodel.Call{Method: string(front), Args: new(int), Reply: got, Metadata: md}
		err = c.Do(baggage.ContextWithBaggage(t.Context(), bag), call)
		if err != nil {
			t.Fatal(err)
		}
		spans := ended(t, recorder, 5)
		at := span(t, spans, trace.SpanKindClient, "Back.Get attempt").SpanContext()
		if want := "acme " + at.TraceID().String() + "-" + at.SpanID().String(); *got != want {
			t.Errorf("global %t: the last handler has %q, want %q", global, *got, want)
		}
		if !maps.Equal(md, yodel.Metadata{"own": "1"}) {
			t.Errorf("the metadata of the caller is %v", md)
		}
	}
}
