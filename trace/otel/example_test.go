// SPDX-License-Identifier: Apache-2.0

package otel_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/trace/otel"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	resolver := discovery.Static("shop")
	// region trace
	provider := sdk.NewTracerProvider() // with an exporter, for example otlptracegrpc
	o := &otel.Options{TracerProvider: provider}
	server := yodel.NewServer(&yodel.ServerOptions{
		Transport: network, Observers: []yodel.Observer{otel.Server(o)}, PeerObservers: []yodel.Observer{otel.Client(o)},
	})
	client := yodel.NewClient(resolver, &yodel.ClientOptions{
		Transport: network, Observers: []yodel.Observer{otel.Client(o)},
		EndpointMiddleware: []yodel.EndpointMiddleware{otel.Attempts(o)}, // a span for each attempt; may be left out
	})
	log := slog.New(otel.LogHandler(slog.NewTextHandler(os.Stderr, nil))) // adds trace_id and span_id
	// endregion trace

	hello := yodel.Method[string, int]("Shop.Hello")
	hello.Handle(server, func(ctx context.Context, name *string) (*int, error) {
		log.InfoContext(ctx, "hello", "name", *name)
		return new(len(yodel.CallFrom(ctx).Trace)), nil
	})
	l, err := network.Listen("shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	n, err := hello.Call(ctx, client, new("Ada"))
	if err == nil {
		fmt.Println("the handler has a traceparent of", *n, "characters")
	}
	client.Close()
	stop()
	<-served
	// Output:
	// the handler has a traceparent of 55 characters
}
