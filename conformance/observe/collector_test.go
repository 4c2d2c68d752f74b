// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/trace/otel"
)

// collector starts the OTLP receiver of the OpenTelemetry Collector.
func collector(t *testing.T) (addr string, got *consumertest.TracesSink) {
	t.Helper()
	addr, got = realserver.FreeAddr(t), new(consumertest.TracesSink)
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	settings := map[string]any{"protocols": map[string]any{"grpc": map[string]any{"endpoint": addr}}}
	if err := confmap.NewFromStringMap(settings).Unmarshal(config); err != nil {
		t.Fatal(err)
	}
	receiver, err := factory.CreateTraces(t.Context(), receivertest.NewNopSettings(factory.Type()), config, got)
	if err != nil {
		t.Fatal(err)
	}
	if err = receiver.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := receiver.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return addr, got
}

// A process has a tracer of its own, as programs have.
type process struct {
	options  *otel.Options
	provider *sdk.TracerProvider
}

func newProcess(t *testing.T, name, collector string) *process {
	t.Helper()
	exporter, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpoint(collector), otlptracegrpc.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", name))))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &process{&otel.Options{TracerProvider: provider}, provider}
}

// The receiver of the OpenTelemetry Collector gets the spans of a call that passes three processes
// over two wires, yodel's own and gRPC, with the right parents.
func TestSpansReachACollector(t *testing.T) {
	addr, got := collector(t)
	processes := []*process{newProcess(t, "browser", addr), newProcess(t, "front", addr), newProcess(t, "back", addr)}
	front, back := yodel.Method[int, string]("Front.Get"), yodel.Method[int, string]("back.Store.Get")

	last := yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{http.New(nil)}, Observers: []yodel.Observer{otel.Server(processes[2].options)}, Logger: quiet,
	})
	back.Handle(last, func(context.Context, *int) (*string, error) { return new("done"), nil })
	between := yodel.NewClient(discovery.Static("grpc://"+serve(t, last)), &yodel.ClientOptions{
		Wires: []yodel.Wire{grpc.Wire}, Observers: []yodel.Observer{otel.Client(processes[1].options)}, Logger: quiet,
	})
	defer between.Close()
	first := yodel.NewServer(&yodel.ServerOptions{Observers: []yodel.Observer{otel.Server(processes[1].options)}, Logger: quiet})
	front.Handle(first, func(ctx context.Context, n *int) (*string, error) { return back.Call(ctx, between, n) })
	c := yodel.NewClient(discovery.Static(serve(t, first)), &yodel.ClientOptions{Observers: []yodel.Observer{otel.Client(processes[0].options)}, Logger: quiet})
	defer c.Close()

	if _, err := front.Call(t.Context(), c, new(int)); err != nil {
		t.Fatal(err)
	}
	if protocol := between.Stats().Endpoints[0].Protocol; protocol != "grpc" {
		t.Errorf("the second wire is %s", protocol)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for got.SpanCount() < 4 { // a server's span ends after the reply was sent
		for _, p := range processes {
			if err := p.provider.ForceFlush(ctx); err != nil {
				t.Fatalf("the collector has got %d spans: %v", got.SpanCount(), err)
			}
		}
	}
	type key struct{ service, name, kind string }
	spans := make(map[key]ptrace.Span)
	for _, batch := range got.AllTraces() {
		for _, of := range batch.ResourceSpans().All() {
			service, _ := of.Resource().Attributes().Get("service.name")
			for _, scope := range of.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					spans[key{service.Str(), s.Name(), s.Kind().String()}] = s
				}
			}
		}
	}
	above := ptrace.NewSpan()
	for i, want := range []key{
		{"browser", "Front.Get", "Client"}, {"front", "Front.Get", "Server"},
		{"front", "back.Store.Get", "Client"}, {"back", "back.Store.Get", "Server"},
	} {
		s, found := spans[want]
		if !found {
			t.Fatalf("no span %v among %v", want, spans)
		}
		if s.ParentSpanID() != above.SpanID() || i > 0 && s.TraceID() != above.TraceID() {
			t.Errorf("%v: the parent is %v of %v, want %v of %v", want, s.ParentSpanID(), s.TraceID(), above.SpanID(), above.TraceID())
		}
		above = s
	}
}
