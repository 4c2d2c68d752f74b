// SPDX-License-Identifier: Apache-2.0

package prometheus_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/metrics/prometheus"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	resolver := discovery.Static("shop")
	// region metrics
	metrics := prometheus.New(nil)
	registry := client_golang.NewRegistry()
	registry.MustRegister(metrics)
	server := metrics.NewServer("shop", &yodel.ServerOptions{Transport: network})
	client := metrics.NewClient("prices", resolver, &yodel.ClientOptions{Transport: network})
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	// endregion metrics

	price := yodel.Method[string, int]("Shop.Price")
	price.Handle(server, func(_ context.Context, item *string) (*int, error) { return new(len(*item)), nil })
	l, err := network.Listen("shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	if _, err := price.Call(ctx, client, new("tea")); err != nil {
		fmt.Println(err)
	}
	page := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "yodel_client_calls_total") {
			fmt.Print(line)
		}
	}
	client.Close()
	stop()
	<-served
	// Output:
	// yodel_client_calls_total{client="prices",code="ok",method="Shop.Price"} 1
}
