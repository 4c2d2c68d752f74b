// SPDX-License-Identifier: Apache-2.0

// Package otel traces the calls of yodel's servers and clients with OpenTelemetry.
//
//	server := yodel.NewServer(&yodel.ServerOptions{Observers: []yodel.Observer{otel.Server(nil)}})
//	client := yodel.NewClient(resolver, &yodel.ClientOptions{Observers: []yodel.Observer{otel.Client(nil)}})
//	slog.SetDefault(slog.New(otel.LogHandler(handler)))
//
// A call has a span on the client and another one on the server, with the attributes of the
// semantic conventions for RPC (rpc.system.name is yodel). Calls that a handler makes with its
// context are children of the handler's span. The trace context travels in yodel.Call.Trace, as in
// the W3C recommendation Trace Context. docs/wires.md says which protocols carry it. What else the
// propagator carries, such as baggage or the headers of B3, travels in the metadata of the request.
//
// The sampler of the TracerProvider decides about each span. A span that is not sampled costs no
// attributes and no events, and servers learn that it is not sampled.
package otel

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options configures the spans. The zero value works.
type Options struct {
	// TracerProvider makes the spans. Default: the global one of package
	// go.opentelemetry.io/otel.
	TracerProvider trace.TracerProvider
	// Propagator carries more than the trace context, such as baggage. Default: the global one of
	// package go.opentelemetry.io/otel, which carries nothing unless the program sets it.
	Propagator propagation.TextMapPropagator
	// NoMessages leaves out the events for the messages of streams.
	NoMessages bool
}

const scope = "github.com/yodel-rpc/yodel/trace/otel"

// A tracer makes the spans of one side.
type tracer struct {
	trace.Tracer

	propagator propagation.TextMapPropagator

	kind   trace.SpanKind
	system attribute.KeyValue
}

func (o *Options) tracer(kind trace.SpanKind) *tracer {
	provider := otel.GetTracerProvider()
	if o != nil && o.TracerProvider != nil {
		provider = o.TracerProvider
	}
	propagator := otel.GetTextMapPropagator()
	if o != nil && o.Propagator != nil {
		propagator = o.Propagator
	}
	return &tracer{provider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)), propagator, kind, semconv.RPCSystemNameKey.String("yodel")}
}

// A callSpan is the span of a call. It is a value of the call's context.
type callSpan struct {
	trace.Span

	mu       sync.Mutex
	attempts []trace.SpanContext // of the attempts in flight, if Attempts makes spans of them
	sent     int                 // messages of a stream
	received int
}

// spanKey is the context key of the callSpan of one side.
type spanKey trace.SpanKind

func (t *tracer) spanOf(ctx context.Context) *callSpan {
	s, _ := ctx.Value(spanKey(t.kind)).(*callSpan)
	return s
}

// Server returns an observer for yodel.ServerOptions.Observers. O may be nil.
//
// The span is an error if the code says that the server is to blame: unknown, deadline_exceeded,
// unimplemented, internal, unavailable and data_loss. A call of a method that does not exist has
// the method _OTHER.
func Server(o *Options) yodel.Observer {
	t := o.tracer(trace.SpanKindServer)
	return t.observer(o, func(ctx context.Context, call *yodel.Call) context.Context {
		name, method := call.Method, semconv.RPCMethod(call.Method)
		if call.Kind() == "" {
			name, method = "yodel", semconv.RPCMethod("_OTHER")
		}
		ctx = extract(t.received(ctx, call), call.Trace)
		ctx, span := t.start(ctx, call, name, method)
		if !span.IsRecording() {
			return ctx
		}
		if call.Kind() == "" {
			span.SetAttributes(semconv.RPCMethodOriginal(call.Method))
		}
		if peer := call.Peer(); peer != nil && peer.Addr != nil {
			span.SetAttributes(address(peer.Addr.String(), semconv.NetworkPeerAddressKey, semconv.NetworkPeerPortKey)...)
		}
		if call.Attempt > 0 {
			span.SetAttributes(attribute.Int("yodel.previous_attempts", call.Attempt))
		}
		return ctx
	})
}

// Client returns an observer for yodel.ClientOptions.Observers and
// yodel.ServerOptions.PeerObservers. O may be nil.
//
// The parent is the span in the context of the call, or else the one in yodel.Call.Trace. Attempts
// that fail, that are not the first, or that run beside another one, are events of the span. The
// span is an error if the call fails.
func Client(o *Options) yodel.Observer {
	t := o.tracer(trace.SpanKindClient)
	observer := t.observer(o, func(ctx context.Context, call *yodel.Call) context.Context {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = extract(ctx, call.Trace)
		}
		ctx, _ = t.start(ctx, call, call.Method, semconv.RPCMethod(call.Method))
		return ctx
	})
	observer.Attempt = func(ctx context.Context, call *yodel.Call, a *introspect.Attempt) {
		span := t.spanOf(ctx)
		if span == nil || !span.IsRecording() {
			return
		}
		where := address(a.Addr, semconv.ServerAddressKey, semconv.ServerPortKey)
		if a.Code == "" {
			span.SetAttributes(where...)
			if call.Attempt <= 1 && !a.Fork {
				return
			}
		}
		attributes := append(where, attribute.Int("yodel.attempt", call.Attempt), attribute.Bool("yodel.fork", a.Fork), semconv.RPCResponseStatusCode(codeName(a.Code)))
		span.AddEvent("yodel.attempt", trace.WithAttributes(attributes...))
	}
	return observer
}

// observer returns an observer whose spans start starts.
func (t *tracer) observer(o *Options, start func(context.Context, *yodel.Call) context.Context) yodel.Observer {
	observer := yodel.Observer{Start: start, End: func(ctx context.Context, call *yodel.Call, err error) {
		span := t.spanOf(ctx)
		if span == nil {
			return
		}
		if span.IsRecording() {
			span.SetAttributes(semconv.RPCResponseStatusCode(yodel.CodeOf(err).String()))
			if t.kind == trace.SpanKindClient && call.Attempt > 1 {
				span.SetAttributes(attribute.Int("yodel.attempts", call.Attempt))
			}
			t.fail(span, err)
		}
		span.End()
	}}
	if o == nil || !o.NoMessages {
		observer.Message = t.message
	}
	return observer
}

// start starts the span of a call, and makes it the call's trace context.
func (t *tracer) start(ctx context.Context, call *yodel.Call, name string, method attribute.KeyValue) (context.Context, trace.Span) {
	ctx, span := t.Start(ctx, name, trace.WithSpanKind(t.kind), trace.WithAttributes(t.system, method))
	call.Trace = inject(ctx, call.Trace)
	if t.kind == trace.SpanKindClient {
		t.send(ctx, call)
	}
	return context.WithValue(ctx, spanKey(t.kind), &callSpan{Span: span}), span
}

// message adds an event for a message of a stream.
func (t *tracer) message(ctx context.Context, _ *yodel.Call, sent bool, bytes int) {
	span := t.spanOf(ctx)
	if span == nil || !span.IsRecording() {
		return
	}
	kind, number := "RECEIVED", &span.received
	if sent {
		kind, number = "SENT", &span.sent
	}
	span.mu.Lock()
	*number++
	n := *number
	span.mu.Unlock()
	span.AddEvent("rpc.message", trace.WithAttributes(
		attribute.String("rpc.message.type", kind), attribute.Int("rpc.message.id", n), attribute.Int("rpc.message.uncompressed_size", bytes)))
}

// fail describes an error.
func (t *tracer) fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	code := yodel.CodeOf(err)
	span.SetAttributes(semconv.ErrorTypeKey.String(code.String()))
	if e, ok := err.(*yodel.Error); ok && e.ID != "" { //nolint:errorlint // the error itself, not one that it wraps
		span.SetAttributes(attribute.String("yodel.error.id", e.ID))
	}
	if t.kind == trace.SpanKindClient || ofServer(code) {
		span.SetStatus(codes.Error, err.Error())
	}
}

// ofServer reports whether the server is to blame for an error with this code.
func ofServer(code yodel.Code) bool {
	switch code { //nolint:exhaustive // the caller is to blame for the others
	case yodel.Unknown, yodel.DeadlineExceeded, yodel.Unimplemented, yodel.Internal, yodel.Unavailable, yodel.DataLoss:
		return true
	}
	return false
}

// Attempts returns a middleware for yodel.ClientOptions.EndpointMiddleware that makes a span for
// each attempt of a call, as a child of the call's span. The server's span is then a child of the
// attempt's span. The span of an attempt that begins while others are in flight, such as a hedged
// request, has links to them. It needs Client among the observers. O may be nil.
func Attempts(o *Options) yodel.EndpointMiddleware {
	t := o.tracer(trace.SpanKindClient)
	return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			span := t.spanOf(ctx)
			if span == nil || !span.IsRecording() {
				return next(ctx, call)
			}
			return t.attempt(ctx, span, ep, next, call)
		}
	}
}

// attempt makes an attempt with a span.
func (t *tracer) attempt(ctx context.Context, of *callSpan, ep *yodel.Endpoint, next yodel.Handler, call *yodel.Call) error {
	of.mu.Lock()
	links := make([]trace.Link, 0, len(of.attempts))
	for _, other := range of.attempts {
		links = append(links, trace.Link{SpanContext: other})
	}
	attributes := append(address(ep.Addr(), semconv.ServerAddressKey, semconv.ServerPortKey), t.system, semconv.RPCMethod(call.Method))
	under := trace.ContextWithSpan(ctx, of.Span)
	under, span := t.Start(under, call.Method+" attempt", trace.WithSpanKind(t.kind), trace.WithAttributes(attributes...), trace.WithLinks(links...))
	of.attempts = append(of.attempts, span.SpanContext())
	of.mu.Unlock()
	before, metadata, ended := call.Trace, call.Metadata, false
	call.Trace = inject(under, before)
	t.send(under, call)
	defer func() { // also if next panics
		if !ended {
			span.SetStatus(codes.Error, "")
		}
		call.Trace, call.Metadata = before, metadata
		of.mu.Lock()
		of.attempts = slices.DeleteFunc(of.attempts, func(s trace.SpanContext) bool { return s.Equal(span.SpanContext()) })
		of.mu.Unlock()
		span.End()
	}()
	err := next(under, call)
	ended = true
	span.SetAttributes(semconv.RPCResponseStatusCode(yodel.CodeOf(err).String()))
	t.fail(span, err)
	return err
}

// codeName returns the name of a code of a record, in which success is empty.
func codeName(code string) string {
	if code == "" {
		return yodel.Code(0).String()
	}
	return code
}

// address returns the attributes of a network address.
func address(addr string, host, port attribute.Key) []attribute.KeyValue {
	name, number, err := net.SplitHostPort(addr)
	if err != nil {
		return []attribute.KeyValue{host.String(addr)}
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return []attribute.KeyValue{host.String(name)}
	}
	return []attribute.KeyValue{host.String(name), port.Int(n)}
}

// extract returns ctx with the span of a trace context as the remote parent. It returns ctx itself
// if the text is not a trace context.
func extract(ctx context.Context, text string) context.Context {
	if text == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, &carrier{text: text})
}

// inject returns the trace context of the span in ctx, or text if there is none.
func inject(ctx context.Context, text string) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return text
	}
	var c carrier
	propagation.TraceContext{}.Inject(ctx, &c)
	return c.text
}

// received returns ctx with what the propagator finds in a request.
func (t *tracer) received(ctx context.Context, call *yodel.Call) context.Context {
	if len(call.Metadata) == 0 || len(t.propagator.Fields()) == 0 {
		return ctx
	}
	return t.propagator.Extract(ctx, &carrier{call.Trace, call.Metadata})
}

// send adds to a request what the propagator finds in ctx, except the trace context. It does not
// change the map of the caller.
func (t *tracer) send(ctx context.Context, call *yodel.Call) {
	if len(t.propagator.Fields()) == 0 {
		return
	}
	c := carrier{metadata: make(yodel.Metadata)}
	t.propagator.Inject(ctx, &c)
	if len(c.metadata) > 0 {
		md := make(yodel.Metadata, len(call.Metadata)+len(c.metadata))
		maps.Copy(md, call.Metadata)
		maps.Copy(md, c.metadata)
		call.Metadata = md
	}
}
