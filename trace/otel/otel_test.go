// SPDX-License-Identifier: Apache-2.0

package otel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/trace/otel"
)

var quiet = slog.New(slog.DiscardHandler)

// newTracer returns options whose spans the recorder gets.
func newTracer(t testing.TB, o ...sdk.TracerProviderOption) (*otel.Options, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(append(o, sdk.WithSpanProcessor(recorder))...)
	return &otel.Options{TracerProvider: provider}, recorder
}

// serve runs a server on loopback until the test ends.
func serve(t testing.TB, s *yodel.Server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func newServer(o *otel.Options) *yodel.Server {
	return yodel.NewServer(&yodel.ServerOptions{Observers: []yodel.Observer{otel.Server(o)}, Logger: quiet})
}

func newClient(t testing.TB, o *otel.Options, opts yodel.ClientOptions, addrs ...string) *yodel.Client {
	t.Helper()
	opts.Logger = quiet
	opts.Observers = []yodel.Observer{otel.Client(o)}
	c := yodel.NewClient(discovery.Static(addrs...), &opts)
	t.Cleanup(c.Close)
	return c
}

// ended waits until n spans have ended. A server's span ends after the reply was sent.
func ended(t testing.TB, r *tracetest.SpanRecorder, n int) []sdk.ReadOnlySpan {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for len(r.Ended()) < n {
		if time.Now().After(deadline) {
			t.Fatalf("got %d spans, want %d", len(r.Ended()), n)
		}
	}
	return r.Ended()
}

// span returns the span with a kind and a name.
func span(t testing.TB, spans []sdk.ReadOnlySpan, kind trace.SpanKind, name string) sdk.ReadOnlySpan {
	t.Helper()
	for _, s := range spans {
		if s.SpanKind() == kind && s.Name() == name {
			return s
		}
	}
	t.Fatalf("no span %v %s", kind, name)
	return nil
}

func attributeOf(s sdk.ReadOnlySpan, key attribute.Key) string {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

var (
	front = yodel.Method[int, string]("Front.Get")
	back  = yodel.Method[int, string]("Back.Get")
	fail  = yodel.Method[int, string]("Back.Fail")
	count = yodel.Feed[int, int]("Back.Count")
)

// chain starts a server behind a server, and returns the address of the first.
func chain(t testing.TB, o *otel.Options, log *slog.Logger) (addr string) {
	t.Helper()
	last := newServer(o)
	back.Handle(last, func(ctx context.Context, _ *int) (*string, error) {
		log.InfoContext(ctx, "in the handler")
		return &yodel.CallFrom(ctx).Trace, nil
	})
	between := newClient(t, o, yodel.ClientOptions{}, serve(t, last))
	first := newServer(o)
	front.Handle(first, func(ctx context.Context, n *int) (*string, error) { return back.Call(ctx, between, n) })
	return serve(t, first)
}

func TestSpansOfThreeHops(t *testing.T) {
	var log bytes.Buffer
	o, recorder := newTracer(t)
	c := newClient(t, o, yodel.ClientOptions{}, chain(t, o, slog.New(otel.LogHandler(slog.NewJSONHandler(&log, nil)))))
	got, err := front.Call(t.Context(), c, new(int))
	if err != nil {
		t.Fatal(err)
	}
	spans := ended(t, recorder, 4)
	want := []sdk.ReadOnlySpan{
		span(t, spans, trace.SpanKindClient, "Front.Get"), span(t, spans, trace.SpanKindServer, "Front.Get"),
		span(t, spans, trace.SpanKindClient, "Back.Get"), span(t, spans, trace.SpanKindServer, "Back.Get"),
	}
	for i, s := range want {
		if i > 0 && (s.Parent().SpanID() != want[i-1].SpanContext().SpanID() || s.SpanContext().TraceID() != want[0].SpanContext().TraceID()) {
			t.Errorf("span %d: the parent is %v, want %v", i, s.Parent(), want[i-1].SpanContext())
		}
		if s.Parent().IsRemote() != (s.SpanKind() == trace.SpanKindServer) {
			t.Errorf("span %d: remote parent %t", i, s.Parent().IsRemote())
		}
		if attributeOf(s, "rpc.system.name") != "yodel" || attributeOf(s, "rpc.method") != s.Name() || attributeOf(s, "rpc.response.status_code") != "ok" || s.Status().Code != codes.Unset {
			t.Errorf("span %d: got %v, %v", i, s.Attributes(), s.Status())
		}
		where := attribute.Key("server.address")
		if s.SpanKind() == trace.SpanKindServer {
			where = "network.peer.address"
		}
		if attributeOf(s, where) != "127.0.0.1" {
			t.Errorf("span %d: got %v", i, s.Attributes())
		}
	}
	at := want[3].SpanContext()
	if *got != "00-"+at.TraceID().String()+"-"+at.SpanID().String()+"-01" {
		t.Errorf("the handler has the trace %q, and its span is %v", *got, at)
	}
	var line struct {
		Trace string `json:"trace_id"`
		Span  string `json:"span_id"`
	}
	if err := json.Unmarshal(log.Bytes(), &line); err != nil || line.Trace != at.TraceID().String() || line.Span != at.SpanID().String() {
		t.Errorf("the log has %s", &log)
	}
}

func TestParentsComeFromTheContextOrTheCall(t *testing.T) {
	o, recorder := newTracer(t)
	c := newClient(t, o, yodel.ClientOptions{}, chain(t, o, quiet))
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	var reply string
	call := &yodel.Call{Method: string(front), Args: new(int), Reply: &reply, Trace: parent + " vendor=1"}
	if err := c.Do(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	if call.Trace != parent+" vendor=1" || !strings.HasPrefix(reply, parent[:36]) || !strings.HasSuffix(reply, " vendor=1") {
		t.Errorf("the last handler has the trace %q, and the call has %q", reply, call.Trace)
	}
	if s := span(t, ended(t, recorder, 4), trace.SpanKindClient, "Front.Get"); s.Parent().SpanID().String() != parent[36:52] {
		t.Errorf("the parent is %v", s.Parent())
	}
	recorder.Reset()
	ctx, above := o.TracerProvider.Tracer("test").Start(t.Context(), "above")
	if err := c.Do(ctx, call); err != nil {
		t.Fatal(err)
	}
	above.End()
	if s := span(t, ended(t, recorder, 5), trace.SpanKindClient, "Front.Get"); s.Parent().SpanID() != above.SpanContext().SpanID() {
		t.Errorf("the parent is %v", s.Parent())
	}
}

func TestSamplingIsRespected(t *testing.T) {
	o, recorder := newTracer(t, sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	c := newClient(t, o, yodel.ClientOptions{}, chain(t, o, quiet))
	for _, sampled := range []string{"00", "01"} {
		var reply string
		call := &yodel.Call{Method: string(front), Args: new(int), Reply: &reply, Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-" + sampled}
		if err := c.Do(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(reply, call.Trace[:36]) || !strings.HasSuffix(reply, "-"+sampled) {
			t.Errorf("got the trace %q for %q", reply, call.Trace)
		}
	}
	if got := ended(t, recorder, 4); len(got) != 4 {
		t.Errorf("got %d spans, want those of the sampled trace", len(got))
	}
}

func TestErrors(t *testing.T) {
	o, recorder := newTracer(t)
	s := newServer(o)
	fail.Handle(s, func(_ context.Context, n *int) (*string, error) { return nil, yodel.Errorf(yodel.Code(*n), "no") })
	c := newClient(t, o, yodel.ClientOptions{}, serve(t, s))
	for code := yodel.Code(1); code <= yodel.Unauthenticated; code++ {
		n := int(code)
		if _, err := fail.Call(t.Context(), c, &n); yodel.CodeOf(err) != code {
			t.Fatal(err)
		}
		spans := ended(t, recorder, 2)
		ofServer := slices.Contains([]yodel.Code{yodel.Unknown, yodel.DeadlineExceeded, yodel.Unimplemented, yodel.Internal, yodel.Unavailable, yodel.DataLoss}, code)
		for _, s := range spans {
			want := codes.Unset
			if ofServer || s.SpanKind() == trace.SpanKindClient {
				want = codes.Error
			}
			if s.Status().Code != want || attributeOf(s, "error.type") != code.String() || attributeOf(s, "rpc.response.status_code") != code.String() {
				t.Errorf("%v: %v has %v, %v", code, s.SpanKind(), s.Status(), s.Attributes())
			}
		}
		recorder.Reset()
	}
	if err := c.Call(t.Context(), "Back.Nothing", new(int), nil); yodel.CodeOf(err) != yodel.Unimplemented {
		t.Error(err)
	}
	s1 := span(t, ended(t, recorder, 2), trace.SpanKindServer, "yodel")
	if attributeOf(s1, "rpc.method") != "_OTHER" || attributeOf(s1, "rpc.method_original") != "Back.Nothing" {
		t.Errorf("got %v", s1.Attributes())
	}
}

func TestMessagesAreEvents(t *testing.T) {
	for _, quietly := range []bool{false, true} {
		o, recorder := newTracer(t)
		o.NoMessages = quietly
		s := newServer(o)
		count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
			for i := range *n {
				if err := send(&i); err != nil {
					return err
				}
			}
			return nil
		})
		c, n := newClient(t, o, yodel.ClientOptions{}, serve(t, s)), 3
		for _, err := range count.Call(t.Context(), c, &n) {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range ended(t, recorder, 2) {
			kind, want := "RECEIVED", 3
			if s.SpanKind() == trace.SpanKindServer {
				kind = "SENT"
			}
			if quietly {
				want = 0
			}
			got := 0
			for _, e := range s.Events() {
				if e.Name == "rpc.message" && e.Attributes[0].Value.AsString() == kind {
					got++
				}
			}
			if got != want {
				t.Errorf("without messages %t: %v has the events %v", quietly, s.SpanKind(), s.Events())
			}
		}
	}
}

// retried is a middleware that makes a second attempt after a failure.
func retried(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if err := next(ctx, call); err == nil {
			return nil
		}
		return next(ctx, call)
	}
}

func TestAttemptsAreEvents(t *testing.T) {
	o, recorder := newTracer(t)
	s, calls := newServer(o), 0
	back.Handle(s, func(ctx context.Context, _ *int) (*string, error) {
		if calls++; calls == 1 {
			return nil, yodel.Errorf(yodel.Unavailable, "later")
		}
		return &yodel.CallFrom(ctx).Trace, nil
	})
	c := newClient(t, o, yodel.ClientOptions{Middleware: []yodel.Middleware{retried}}, serve(t, s))
	if _, err := back.Call(t.Context(), c, new(int)); err != nil {
		t.Fatal(err)
	}
	spans := ended(t, recorder, 3)
	of := span(t, spans, trace.SpanKindClient, "Back.Get")
	events := of.Events()
	if len(events) != 2 || events[0].Name != "yodel.attempt" || attributeOf(of, "yodel.attempts") != "2" {
		t.Fatalf("got %v, %v", events, of.Attributes())
	}
	for i, want := range []string{"unavailable", "ok"} {
		if !slices.Contains(events[i].Attributes, attribute.String("rpc.response.status_code", want)) {
			t.Errorf("attempt %d: got %v", i, events[i].Attributes)
		}
	}
	// The span of an attempt may end on the server after the next attempt has ended.
	second := slices.IndexFunc(spans, func(s sdk.ReadOnlySpan) bool {
		return s.SpanKind() == trace.SpanKindServer && attributeOf(s, "yodel.previous_attempts") == "1"
	})
	if second < 0 || attributeOf(spans[second], "rpc.response.status_code") == "unavailable" {
		t.Errorf("the second attempt on the server: got %v", spans)
	}
}

// hedged is a middleware that makes two attempts at the same time. The first one waits until the
// second one has reached its server.
func hedged(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		call.Attempts().Forkable()
		fork := call.Attempts().Fork()
		forked := make(chan error)
		go func() { forked <- next(ctx, fork) }()
		err := next(ctx, call)
		<-forked
		fork.Attempts().Join(false)
		return err
	}
}

func TestHedgesAreLinked(t *testing.T) {
	o, recorder := newTracer(t)
	arrived := make(chan struct{}, 2)
	release := make(chan struct{})
	var addrs []string
	for range 2 {
		s := newServer(o)
		back.Handle(s, func(ctx context.Context, _ *int) (*string, error) {
			arrived <- struct{}{}
			<-release
			return &yodel.CallFrom(ctx).Trace, nil
		})
		addrs = append(addrs, serve(t, s))
	}
	go func() {
		<-arrived
		<-arrived
		close(release)
	}()
	c := newClient(t, o, yodel.ClientOptions{Middleware: []yodel.Middleware{hedged}, EndpointMiddleware: []yodel.EndpointMiddleware{otel.Attempts(o)}}, addrs...)
	if _, err := back.Call(t.Context(), c, new(int)); err != nil {
		t.Fatal(err)
	}
	spans := ended(t, recorder, 5)
	call := span(t, spans, trace.SpanKindClient, "Back.Get").SpanContext()
	attempts, linked := map[trace.SpanID]sdk.ReadOnlySpan{}, 0
	for _, s := range spans {
		if s.Name() == "Back.Get attempt" {
			attempts[s.SpanContext().SpanID()] = s
		}
	}
	for _, s := range attempts {
		if s.Parent().SpanID() != call.SpanID() {
			t.Errorf("the parent of an attempt is %v", s.Parent())
		}
		for _, l := range s.Links() {
			if linked++; attempts[l.SpanContext.SpanID()] == nil || l.SpanContext.SpanID() == s.SpanContext().SpanID() {
				t.Errorf("the attempt %v has a link to %v", s.SpanContext(), l.SpanContext)
			}
		}
	}
	if len(attempts) != 2 || linked != 1 {
		t.Errorf("got %d attempts and %d links, want 2 and 1", len(attempts), linked)
	}
	for _, s := range spans {
		if s.SpanKind() == trace.SpanKindServer {
			if attempts[s.Parent().SpanID()] == nil {
				t.Errorf("the parent of the server's span is %v", s.Parent())
			}
			delete(attempts, s.Parent().SpanID())
		}
	}
	if len(attempts) != 0 {
		t.Error("both servers have the same parent")
	}
}

func TestLogsWithoutATracer(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(otel.LogHandler(slog.NewTextHandler(&log, nil))).With("a", 1).WithGroup("g")
	s := yodel.NewServer(&yodel.ServerOptions{Logger: quiet})
	back.Handle(s, func(ctx context.Context, _ *int) (*string, error) {
		logger.InfoContext(ctx, "in the handler")
		return new(string), nil
	})
	c := yodel.NewClient(discovery.Static(serve(t, s)), &yodel.ClientOptions{Logger: quiet})
	defer c.Close()
	call := &yodel.Call{Method: string(back), Args: new(int), Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}
	if err := c.Do(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	logger.Info("elsewhere")
	lines := strings.Split(log.String(), "\n")
	if !strings.Contains(lines[0], "a=1 g.trace_id=4bf92f3577b34da6a3ce929d0e0e4736 g.span_id=00f067aa0ba902b7") || strings.Contains(lines[1], "trace_id") {
		t.Errorf("got %s", &log)
	}
}
