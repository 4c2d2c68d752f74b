// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/accesslog"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/recovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A part is something of the chain that services have around their calls.
type part struct {
	name   string
	client yodel.ClientOptions // its Middleware and Observers
	server yodel.ServerOptions // likewise
}

// parts are those of the suite's scenarios chain-N, each by itself, and last all of them.
func parts() []part {
	rescue := recovery.With(func(context.Context, *yodel.Call, any, []byte) error { return nil })
	token := auth.Token("Bearer a-token-of-some-length")
	check := auth.Check(func(_ context.Context, _, token string) (context.Context, error) {
		if token != "a-token-of-some-length" {
			return nil, yodel.PermissionDenied
		}
		return nil, nil
	})
	silent := accesslog.To(slog.New(slog.DiscardHandler), nil)
	var nanoseconds atomic.Int64
	metrics := yodel.Observer{End: func(_ context.Context, call *yodel.Call, _ error) { nanoseconds.Add(int64(call.Took())) }}

	on := func(ms ...yodel.Middleware) yodel.ClientOptions { return yodel.ClientOptions{Middleware: ms} }
	list := []part{
		{name: "timeout", client: on(timeout.After(time.Minute))},
		{name: "retry", client: on(retry.Times(3))},
		{name: "recovery", client: on(rescue), server: yodel.ServerOptions{Middleware: []yodel.Middleware{rescue}}},
		{name: "auth", client: on(token), server: yodel.ServerOptions{Middleware: []yodel.Middleware{check}}},
		{name: "accesslog off", client: yodel.ClientOptions{Observers: []yodel.Observer{silent}}, server: yodel.ServerOptions{Observers: []yodel.Observer{silent}}},
		{name: "metrics", client: yodel.ClientOptions{Observers: []yodel.Observer{metrics}}, server: yodel.ServerOptions{Observers: []yodel.Observer{metrics}}},
	}
	all := part{name: "all"}
	for _, p := range list {
		all.client.Middleware = append(all.client.Middleware, p.client.Middleware...)
		all.client.Observers = append(all.client.Observers, p.client.Observers...)
		all.server.Middleware = append(all.server.Middleware, p.server.Middleware...)
		all.server.Observers = append(all.server.Observers, p.server.Observers...)
	}
	return append(list, all)
}

// The chain allocates nothing: neither what stands around a call, nor what it sends along, nor the
// clock.
func TestAllocationsOfTheChain(t *testing.T) {
	const Echo yodel.Method[[]byte, []byte] = "Alloc.Echo"
	if raceEnabled {
		t.Skip("the race detector allocates, and makes pools forget")
	}
	in := []byte("a request of some bytes, and the reply too")
	for _, p := range parts() {
		t.Run(p.name, func(t *testing.T) {
			s := newServer(t, &p.server)
			Echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
			p.client.Codec = raw.Codec
			a := allocations{
				method: string(Echo), args: &in,
				newReply: func() any { return new([]byte) },
				correct:  func(reply any) bool { return string(*reply.(*[]byte)) == string(in) },
				expected: 1.0/8 + 1 + 1, // as of a raw call without the chain
			}
			a.measure(t, a.oneByOne(t, connect(t, s, &p.client)))
		})
	}
}

func TestTook(t *testing.T) {
	const Wait yodel.Method[int, int] = "Test.Wait"
	synctest.Test(t, func(t *testing.T) {
		var seen [2]sync.Map // durations, by what they are of
		note := func(i int, started, ended string) yodel.Observer {
			return yodel.Observer{
				Start: func(ctx context.Context, call *yodel.Call) context.Context {
					seen[i].Store(started, call.Took())
					return ctx
				},
				End: func(_ context.Context, call *yodel.Call, _ error) {
					time.Sleep(time.Second) // for the observers after this one
					seen[i].Store(ended+" of "+call.Method, call.Took())
				},
			}
		}
		observers := func(i int) []yodel.Observer {
			return []yodel.Observer{note(i, "outer start", "outer end"), note(i, "start", "end")}
		}
		network := mem.New()
		l, err := network.Listen("server")
		if err != nil {
			t.Fatal(err)
		}
		s := yodel.NewServer(&yodel.ServerOptions{Observers: observers(0)})
		Wait.Handle(s, func(ctx context.Context, in *int) (*int, error) {
			time.Sleep(2 * time.Second)
			*in = int(yodel.CallFrom(ctx).Took().Seconds())
			return in, nil
		})
		serveOn(t, s, l)
		for name, call := range map[string]func(*yodel.Client) (*int, error){
			"synchronous": func(c *yodel.Client) (*int, error) { return Wait.Call(t.Context(), c, new(int)) },
			"asynchronous": func(c *yodel.Client) (got *int, err error) {
				done := make(chan struct{})
				Wait.Then(t.Context(), c, new(int), func(out *int, e error) { got, err = out, e; close(done) })
				<-done
				return got, err
			},
		} {
			c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network, Observers: observers(1)})
			if got, err := call(c); err != nil || *got != 2 {
				t.Errorf("%s: the handler saw %v, %v", name, got, err)
			}
			synctest.Wait()
			time.Sleep(time.Minute) // the server's observers
			c.Close()
			for i := range seen {
				for what, want := range map[string]time.Duration{"outer start": 0, "start": 0, "end of Test.Wait": 2 * time.Second, "outer end of Test.Wait": 2 * time.Second} {
					if got, ok := seen[i].Load(what); !ok || got != want {
						t.Errorf("%s, side %d: at the %s a call took %v, want %v", name, i, what, got, want)
					}
				}
				seen[i].Clear()
			}
		}
		call := yodel.Call{Method: string(Wait), Args: new(int), Reply: new(int)}
		c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
		defer c.Close()
		if err := c.Do(t.Context(), &call); err != nil || call.Took() != 0 {
			t.Errorf("without observers a call took %v, %v", call.Took(), err)
		}
	})
}

// Middleware that asks for the time of a call gets when it was made, until its first attempt;
// afterwards the time.
func TestNow(t *testing.T) {
	const Wait yodel.Method[struct{}, struct{}] = "Test.Wait"
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("server")
		if err != nil {
			t.Fatal(err)
		}
		s := yodel.NewServer(nil)
		Wait.Handle(s, func(ctx context.Context, _ *struct{}) (*struct{}, error) {
			if deadline, _ := ctx.Deadline(); yodel.CallFrom(ctx).Now() != time.Now() || time.Until(deadline) > 3*time.Second {
				t.Errorf("on the server it is %v, and the deadline %v", yodel.CallFrom(ctx).Now(), deadline)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		serveOn(t, s, l)
		var made []time.Duration // since the call was made
		twice := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				began := time.Now()
				time.Sleep(time.Second)
				made = append(made, call.Now().Sub(began))
				_ = next(ctx, call)
				made = append(made, call.Now().Sub(began))
				return next(ctx, call)
			}
		}
		for name, observers := range map[string][]yodel.Observer{"watched": {{}}, "not watched": nil} {
			made = nil
			c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{
				Transport: network, Observers: observers, Middleware: []yodel.Middleware{noting, twice, timeout.After(3 * time.Second)},
			})
			began := time.Now()
			_, err := Wait.Call(t.Context(), c, &struct{}{})
			// The wait before the first attempt is part of its time, and the second one has its
			// own.
			if took := time.Since(began); took != 6*time.Second || yodel.CodeOf(err) != yodel.DeadlineExceeded {
				t.Errorf("%s: took %v, want 6s: %v", name, took, err)
			}
			if want := []time.Duration{0, 3 * time.Second}; !slices.Equal(made, want) {
				t.Errorf("%s: the time was %v after the call was made, want %v", name, made, want)
			}
			c.Close()
		}
	})
}

// noting makes a call take note of when it was made.
func noting(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		call.Now()
		return next(ctx, call)
	}
}

// Metadata that comes again is not parsed again, and yet every call has its own.
func TestMetadataThatComesAgain(t *testing.T) {
	const Tell yodel.Method[struct{}, yodel.Metadata] = "Test.Tell"
	var change atomic.Bool
	s := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			call.Trailer = maps.Clone(call.Metadata)
			if change.Load() && call.Metadata != nil {
				delete(call.Metadata, "tenant")
				call.Metadata["of"] = "another call"
			}
			return next(ctx, call)
		}
	}}})
	Tell.Handle(s, func(context.Context, *struct{}) (*yodel.Metadata, error) { return &yodel.Metadata{}, nil })
	kept := make(chan *yodel.Call, 1)
	handle(t, s, "Test.Keep", func(ctx context.Context, _ *struct{}) (*struct{}, error) {
		kept <- yodel.CallFrom(ctx)
		return &struct{}{}, nil
	})
	c := connect(t, s, nil)
	call := func(method string, md yodel.Metadata) yodel.Metadata {
		call := yodel.Call{Method: method, Args: &struct{}{}, Metadata: md}
		if err := c.Do(t.Context(), &call); err != nil {
			t.Error(err)
		}
		return call.Trailer
	}
	blue, red := yodel.Metadata{"tenant": "blue", "zone": "a"}, yodel.Metadata{"tenant": "red"}
	for i := range 50 {
		change.Store(i%3 == 1)
		for _, md := range []yodel.Metadata{blue, blue, red, {"n": strconv.Itoa(i)}, nil} {
			if got := call(string(Tell), md); !maps.Equal(got, md) {
				t.Fatalf("round %d: sent %v, got %v", i, md, got)
			}
		}
	}
	change.Store(false)
	call("Test.Keep", red)
	mine := (<-kept).Metadata
	change.Store(true)
	call(string(Tell), red)
	if !maps.Equal(mine, red) {
		t.Errorf("a call that was kept has %v, want %v", mine, red)
	}
}

// BenchmarkChain shows what each part costs a call, from many callers. What a scenario of the suite
// measures is CPU time; this is where to look for it.
func BenchmarkChain(b *testing.B) {
	const Echo yodel.Method[[]byte, []byte] = "Alloc.Echo"
	for _, p := range append([]part{{name: "none"}}, parts()...) {
		b.Run(p.name, func(b *testing.B) {
			s := newServer(b, &p.server)
			Echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
			p.client.Codec = raw.Codec
			c := connect(b, s, &p.client)
			ctx, in := context.Background(), make([]byte, 128) // nobody waits for the end of a context
			b.ReportAllocs()
			b.SetParallelism(64)
			b.RunParallel(func(pb *testing.PB) {
				var out []byte
				for pb.Next() {
					if err := c.Call(ctx, string(Echo), &in, &out); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// A greedy codec is raw and takes as much of the stack as the method that is generated for a large
// message.
type greedy struct{ yodel.Codec }

func (g greedy) Decode(src []byte, v any) error {
	var much [1200]byte
	n := copy(much[:], src)
	return g.Codec.Decode(append(make([]byte, 0, 64), much[:n]...), v)
}

// BenchmarkStacks shows how much of the stack many callers keep, which with a chain of middleware
// is easily twice as much.
func BenchmarkStacks(b *testing.B) {
	const callers = 1000
	const Echo yodel.Method[[]byte, []byte] = "Alloc.Echo"
	list := parts()
	for _, p := range []part{{name: "none"}, list[len(list)-1]} {
		b.Run(p.name, func(b *testing.B) {
			p.server.Codecs = []yodel.Codec{greedy{raw.Codec}}
			p.client.Codec = greedy{raw.Codec}
			s := newServer(b, &p.server)
			Echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
			c := connect(b, s, &p.client)
			ctx, in := context.Background(), make([]byte, 128)
			var before, during runtime.MemStats
			runtime.ReadMemStats(&before)
			var called, read, wg sync.WaitGroup
			called.Add(callers)
			read.Add(1)
			for range callers {
				wg.Go(func() {
					var out []byte
					for range b.N/callers + 1 {
						if err := c.Call(ctx, string(Echo), &in, &out); err != nil {
							b.Error(err)
							break
						}
					}
					called.Done()
					read.Wait()
				})
			}
			called.Wait()
			runtime.ReadMemStats(&during)
			read.Done()
			wg.Wait()
			b.ReportMetric(float64(during.StackInuse-before.StackInuse)/callers, "stack-B/caller")
		})
	}
}
