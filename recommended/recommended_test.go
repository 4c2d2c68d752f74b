// SPDX-License-Identifier: Apache-2.0

package recommended_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const (
	look yodel.Method[int, int] = "Shelf.Look" // idempotent
	take yodel.Method[int, int] = "Shelf.Take"
)

func Example() {
	r := memory.New(nil)
	// region use
	c := yodel.NewClient(r.Service("Shelf"), recommended.Client(&yodel.ClientOptions{Timeout: time.Second}))
	s := yodel.NewServer(recommended.Server(nil))
	// endregion use
	c.Close()
	_ = s.Shutdown(context.Background()) // nothing is open
	// Output:
}

// newShelves returns addresses of servers on loopback, the first of which is unwell, and how often
// each method was executed on all.
func newShelves(t testing.TB, n int, o *yodel.ServerOptions, unwell func() error) (addrs []string, executed *atomic.Int64) {
	t.Helper()
	executed = new(atomic.Int64)
	for i := range n {
		s := yodel.NewServer(o)
		f := func(_ context.Context, in *int) (*int, error) {
			executed.Add(1)
			if i == 0 && unwell != nil {
				return in, unwell()
			}
			return in, nil
		}
		look.Handle(s, f)
		take.Handle(s, f)
		s.MarkIdempotent(string(look))
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
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, executed
}

func newClient(t testing.TB, addrs []string, o *yodel.ClientOptions) *yodel.Client {
	t.Helper()
	c := yodel.NewClient(discovery.Static(addrs...), o)
	t.Cleanup(c.Close)
	return c
}

// Calls that may be repeated do not fail with one of three servers, and those that must not be
// executed twice are not.
func TestOneServerThatFailsIsNoticedByNobodyWhoMayRepeat(t *testing.T) {
	t.Attr("rerun", "never")
	addrs, executed := newShelves(t, 3, recommended.Server(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}), func() error {
		return yodel.Errorf(yodel.Unavailable, "unwell")
	})
	c := newClient(t, addrs, recommended.Client(&yodel.ClientOptions{Timeout: 10 * time.Second}))
	const calls = 300
	for i := range calls {
		if out, err := look.Call(t.Context(), c, &i); err != nil || *out != i {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if n := executed.Load(); n > calls+calls/10+10 {
		t.Errorf("%d calls were executed %d times", calls, n)
	}
	executed.Store(0)
	failed := 0
	for i := range calls {
		if _, err := take.Call(t.Context(), c, &i); err != nil {
			failed++
		}
	}
	if n := executed.Load(); n > calls || failed > calls/10 {
		t.Errorf("of %d calls that must not be executed twice %d failed, and there were %d executions", calls, failed, n)
	}
}

// Options are kept, and those of the caller are not changed.
func TestOptionsAreKept(t *testing.T) {
	called := 0
	count := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error { called++; return next(ctx, call) }
	}
	so := &yodel.ServerOptions{Middleware: []yodel.Middleware{count}}
	co := &yodel.ClientOptions{Middleware: []yodel.Middleware{count}, Timeout: time.Second}
	addrs, _ := newShelves(t, 1, recommended.Server(so), nil)
	c := newClient(t, addrs, recommended.Client(co))
	n := 7
	if _, err := look.Call(t.Context(), c, &n); err != nil || called != 2 || len(so.Middleware) != 1 || len(co.Middleware) != 1 || co.EndpointMiddleware != nil {
		t.Errorf("got %v, %d, %v, %v", err, called, so, co)
	}
}

// What both chains cost: BenchmarkCall/chain beside BenchmarkCall/bare.
func BenchmarkCall(b *testing.B) {
	for name, options := range map[string]struct {
		client *yodel.ClientOptions
		server *yodel.ServerOptions
	}{
		"bare":  {&yodel.ClientOptions{Timeout: time.Second}, nil},
		"chain": {recommended.Client(&yodel.ClientOptions{Timeout: time.Second}), recommended.Server(nil)},
	} {
		for _, method := range []yodel.Method[int, int]{take, look} {
			b.Run(name+"/"+string(method), func(b *testing.B) {
				addrs, _ := newShelves(b, 3, options.server, nil)
				c := newClient(b, addrs, options.client)
				b.ReportAllocs()
				b.SetParallelism(50)
				b.RunParallel(func(pb *testing.PB) {
					in, out := 7, 0
					for pb.Next() {
						if err := c.Call(context.Background(), string(method), &in, &out); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
