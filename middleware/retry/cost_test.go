// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"net"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func TestAClientsSuccessAllocatesNothing(t *testing.T) {
	for name, m := range map[string]yodel.Middleware{"failover": retry.Times(3), "failtry": retry.Same(3), "failback": retry.Later(nil), "until connected": retry.UntilConnected} {
		c := dial(t, mem.New(), nil, m, answer(func(*yodel.Call) error { return nil }))
		call := idempotent()
		if n := testing.AllocsPerRun(1000, func() {
			if err := c.Do(t.Context(), call); err != nil {
				t.Error(err)
			}
		}); n != 0 && !raceEnabled {
			t.Errorf("%s: got %v allocations for each call, want 0", name, n)
		}
	}
}

func BenchmarkMiddleware(b *testing.B) {
	for name, ms := range map[string][]yodel.Middleware{"none": nil, "failover": {retry.Times(3)}, "failback": {retry.Later(nil)}} {
		b.Run(name, func(b *testing.B) {
			c := yodel.NewClient(discovery.Static(), &yodel.ClientOptions{Middleware: append(ms, answer(func(*yodel.Call) error { return nil }))})
			defer c.Close()
			call := idempotent()
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Do(b.Context(), call); err != nil {
					b.Error(err)
				}
			}
		})
	}
}

func connect(addr string, ms []yodel.Middleware) *yodel.Client {
	return yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Middleware: ms})
}

// A whole call, on loopback: what the budget of the tree adds to the request counts as well.
func BenchmarkLoopback(b *testing.B) {
	s := yodel.NewServer(nil)
	work.Handle(s, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()
	for _, m := range []struct {
		name string
		ms   []yodel.Middleware
	}{{"none", nil}, {"failover", []yodel.Middleware{retry.Times(3)}}} {
		b.Run(m.name, func(b *testing.B) {
			c := connect(l.Addr().String(), m.ms)
			defer c.Close()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				call := idempotent()
				for pb.Next() {
					if err := c.Do(ctx, call); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
