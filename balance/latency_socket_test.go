// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
)

// TestLowestLatencyPrefersTheNearServer measures round trips on real sockets: one of three servers
// is near, and proxies delay the others by 60 ms each way.
func TestLowestLatencyPrefersTheNearServer(t *testing.T) {
	const where yodel.Method[struct{}, string] = "Place.Where"
	serve := func(name string) (addr string) {
		s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
		where.Handle(s, func(context.Context, *struct{}) (*string, error) { return &name, nil })
		l, err := yodel.TCP.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, l) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
		return l.Addr().String()
	}
	addrs := []string{serve("near")}
	for range 2 {
		proxy := realserver.Between(t, serve("far"))
		proxy.Slow(60 * time.Millisecond)
		addrs = append(addrs, proxy.Addr)
	}
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
		Balancer: balance.LowestLatency, Logger: slog.New(slog.DiscardHandler),
	})
	defer c.Close()
	// The balancer looks once a second, and measures only endpoints that calls have connected. It
	// has found the near server when 100 calls in a row go there: chance alone does that once in
	// 3^100.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// Calls go to the near one alone at first, because it is connected before the others.
	measured := func() bool {
		return !slices.ContainsFunc(c.Endpoints(), func(ep *yodel.Endpoint) bool { return ep.RTT() == 0 })
	}
	for near := 0; near < 100 || !measured(); {
		got, err := where.Call(ctx, c, &struct{}{})
		if err != nil {
			t.Fatalf("after %d calls in a row to the near server: %v", near, err)
		}
		if near++; *got != "near" {
			near = 0
		}
	}
	for _, ep := range c.Endpoints() {
		if rtt := ep.RTT(); (ep.Addr() == addrs[0]) != (rtt < 60*time.Millisecond) || rtt == 0 {
			t.Errorf("%s (the near one is %s): the round trip is %v", ep.Addr(), addrs[0], rtt)
		}
	}
}
