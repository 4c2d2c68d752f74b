// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
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
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestRoundRobinKeepsTheContract(t *testing.T) { yodeltest.TestBalancer(t, yodel.RoundRobin) }

func TestStaticKeepsTheContract(t *testing.T) {
	yodeltest.TestResolver(t, discovery.Static("127.0.0.1:1", "127.0.0.1:2"), nil, nil)
}

// endpoints returns n endpoints that no call reaches. All are ready, because nobody tries to
// connect.
func endpoints(t testing.TB, n int) []*yodel.Endpoint {
	t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("nobody:%d", i+1)
	}
	nowhere := transportFunc(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody listens") })
	c := newClient(t, &yodel.ClientOptions{Transport: nowhere}, addrs...)
	until(t, "the endpoints are known", func() bool { return len(c.Endpoints()) == n })
	return c.Endpoints()
}

// picks counts which endpoints n calls get that avoid some.
func picks(p yodel.Picker, n int, avoid ...*yodel.Endpoint) map[*yodel.Endpoint]int {
	counts := make(map[*yodel.Endpoint]int)
	call := &yodel.Call{}
	for _, ep := range avoid {
		call.Attempts().Avoid(ep)
	}
	for range n {
		counts[p.Pick(call)]++
	}
	return counts
}

func TestRoundRobinTakesTurns(t *testing.T) {
	all := endpoints(t, 5)
	p := yodel.RoundRobin(all, nil)
	for round := range 100 {
		counts := picks(p, len(all))
		for _, ep := range all {
			if counts[ep] != 1 {
				t.Fatalf("round %d: %s was picked %d times", round, ep.Addr(), counts[ep])
			}
		}
	}
}

// An instance that comes or goes with every few calls must not make the turn begin anew.
func TestRoundRobinGoesOnAfterAChange(t *testing.T) {
	all := endpoints(t, 5)
	var p yodel.Picker
	counts := make(map[*yodel.Endpoint]int)
	const each = 100
	for range each * len(all) { // a change for every pick
		p = yodel.RoundRobin(all, p)
		counts[p.Pick(&yodel.Call{})]++
	}
	for _, ep := range all {
		if counts[ep] != each {
			t.Errorf("%s was picked %d times, want %d", ep.Addr(), counts[ep], each)
		}
	}
}

func TestNewRoundRobinsBeginAnywhere(t *testing.T) {
	all := endpoints(t, 4)
	counts := make(map[*yodel.Endpoint]int)
	const clients = 4000
	for range clients {
		counts[yodel.RoundRobin(all, nil).Pick(&yodel.Call{})]++
	}
	wantEven(t, counts, all, clients)
}

// The load of an endpoint that is avoided must not become its neighbour's.
func TestCallsThatAvoidAnEndpointSpreadOverTheOthers(t *testing.T) {
	all := endpoints(t, 5)
	const calls = 4000
	p := yodel.RoundRobin(all, nil)
	wantEven(t, picks(p, calls, all[1]), []*yodel.Endpoint{all[0], all[2], all[3], all[4]}, calls)
	wantEven(t, picks(p, calls, all[0], all[1], all[4]), all[2:4], calls)

	all[3].SetReady("test", false)
	defer all[3].SetReady("test", true)
	wantEven(t, picks(p, calls, all[0]), []*yodel.Endpoint{all[1], all[2], all[4]}, calls)
}

// wantEven checks that the endpoints share the picks, each within a fifth: more than 6 standard
// deviations.
func wantEven(t *testing.T, counts map[*yodel.Endpoint]int, among []*yodel.Endpoint, picks int) {
	t.Helper()
	total := 0
	for _, ep := range among {
		total += counts[ep]
		if share := picks / len(among); counts[ep] < share*4/5 || counts[ep] > share*6/5 {
			t.Errorf("%s was picked %d times, want about %d", ep.Addr(), counts[ep], share)
		}
	}
	if total != picks {
		t.Errorf("%d of %d picks went elsewhere", picks-total, picks)
	}
}

// A call is tried with each endpoint as long as one of them may be there. When there is none, one
// attempt says so.
func TestWhenNoServerIsThereOneAttemptIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int32
		c := newClient(t, &yodel.ClientOptions{
			Transport: transportFunc(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody listens") }),
			EndpointMiddleware: []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					attempts.Add(1)
					return next(ctx, call)
				}
			}},
		}, "a", "b", "c", "d")
		for i, want := range []struct {
			attempts int32
			says     string
		}{
			{4, "4 attempts at "}, // nobody knows yet
			{1, "; no other of 4 endpoints is connected"},
			{1, "; no other of 4 endpoints is connected"},
		} {
			attempts.Store(0)
			err := c.Call(t.Context(), "Try", &struct{}{}, nil)
			if n := attempts.Load(); n != want.attempts || !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) || !strings.Contains(err.Error(), want.says) {
				t.Errorf("call %d: %d attempts, %v; want %d, and %q", i, n, err, want.attempts, want.says)
			}
		}
	})
}

// TestSlowHandlersDoNotDelayShortOnes has, on one connection and with no option set, a method that
// always sleeps, and one that was short for 10,000 calls and then sleeps 100 ms once in 1,000. A
// short method beside them is not delayed by more than 10 ms: without the race detector, on a
// loaded machine with 2 cores, the worst of 11,000 calls took 9.6 ms with GOMAXPROCS 1, and of
// 16,000 calls 5.0 ms with 2.
func TestSlowHandlersDoNotDelayShortOnes(t *testing.T) {
	if raceEnabled {
		t.Skip("it judges time")
	}
	for _, procs := range []int{1, 2} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			s := newServer(t, nil)
			n := 0
			var mu sync.Mutex
			handle(t, s, "Moody", func(context.Context, *Empty) (*Empty, error) {
				mu.Lock()
				n++
				sleeps := n > 10_000 && n%1000 == 0
				mu.Unlock()
				if sleeps {
					<-time.After(100 * time.Millisecond)
				}
				return nil, nil
			})
			handle(t, s, "Sleep", func(context.Context, *Empty) (*Empty, error) {
				<-time.After(20 * time.Millisecond)
				return nil, nil
			})
			c := connect(t, s, nil)
			for range 10_000 {
				must(t, c.Call(t.Context(), "Moody", &Empty{}, nil))
			}
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for _, method := range []string{"Moody", "Sleep", "Sleep"} {
				wg.Go(func() {
					for !isClosed(stop) {
						if err := c.Call(t.Context(), method, &Empty{}, nil); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			var took []time.Duration
			slept := func() int {
				mu.Lock()
				defer mu.Unlock()
				return n
			}
			for slept() < 13_000 {
				began := time.Now()
				if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
					t.Error(err)
				}
				took = append(took, time.Since(began))
			}
			close(stop)
			wg.Wait()
			slices.Sort(took)
			worst, most := took[len(took)-1], took[len(took)*95/100]
			t.Logf("GOMAXPROCS %d: %d short calls: median %v, 99.9th percentile %v, at worst %v",
				procs, len(took), took[len(took)/2], took[len(took)*999/1000], worst)
			// On a machine of its own the worst stays below 10 ms. One that does something else
			// delays a few of them, but a handler that holds the connection up would delay nearly
			// all.
			if most > 10*time.Millisecond {
				t.Errorf("GOMAXPROCS %d: one short call in 20 took %v and more", procs, most)
			}
		}()
	}
}

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

// noting is a middleware that asks for the time of a call, so that the call reads the clock.
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

// A ledger notes how often each call was executed.
type ledger struct {
	mu       sync.Mutex
	executed map[int]int
}

func (l *ledger) note(id int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.executed[id]++
}

func (l *ledger) times(id int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.executed[id]
}

// retryOnce tries a call that may be repeated once more, elsewhere.
func retryOnce(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if err != nil && yodel.CodeOf(err) == yodel.Unavailable && call.Attempts().NoRepeat(err) == "" {
			err = next(ctx, call)
		}
		return err
	}
}

// TestLostConnectionsExecuteNothingTwice cuts and resets connections under load. Every caller has
// one outcome. A call that was answered has been executed once, one that says so has not been
// executed, and no other was executed twice.
func TestLostConnectionsExecuteNothingTwice(t *testing.T) {
	t.Attr("rerun", "never")
	const callers, each = 16, 150
	s := yodel.NewServer(nil)
	l := &ledger{executed: make(map[int]int)}
	const Do yodel.Method[int, int] = "Do"
	Do.Handle(s, func(_ context.Context, id *int) (*int, error) { l.note(*id); return id, nil })
	addr := serve(t, s)
	proxies := []*proxy{newProxy(t, addr), newProxy(t, addr)}
	clients := []*yodel.Client{
		newClient(t, nil, proxies[0].addr(), proxies[1].addr()),
		newClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{retryOnce}}, proxies[0].addr(), proxies[1].addr()),
	}
	var ids, answered, unsent, unknown atomic.Int64
	check := func(id int, got *int, err error) {
		n := l.times(id)
		e, ok := errors.AsType[*yodel.Error](err)
		switch {
		case err == nil && (*got != id || n != 1):
			t.Errorf("call %d was answered with %d after %d executions", id, *got, n)
		case err == nil:
			answered.Add(1)
		case !ok || e.Code != yodel.Unavailable:
			t.Errorf("call %d: %v", id, err)
		case e.NotProcessed && n != 0:
			t.Errorf("call %d was executed and says it was not: %+v", id, err)
		case e.NotProcessed:
			unsent.Add(1)
		default:
			unknown.Add(1)
		}
	}
	var wg sync.WaitGroup
	for i := range callers {
		c := clients[i%2]
		wg.Go(func() {
			// a machine may be through before the first cut
			for k := 0; k < each || unknown.Load() == 0 && k < 50*each; k++ {
				id := int(ids.Add(1))
				if k%4 != 0 {
					got, err := Do.Call(t.Context(), c, &id)
					check(id, got, err)
					continue
				}
				outcomes := make(chan struct{}, 2)
				Do.Then(t.Context(), c, &id, func(got *int, err error) { check(id, got, err); outcomes <- struct{}{} })
				receive(t, outcomes, "an asynchronous call ends")
				if len(outcomes) != 0 {
					t.Errorf("call %d ended twice", id)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for round := 0; ; round++ {
		p := proxies[round%2]
		p.mu.Lock()
		before := p.made
		p.mu.Unlock()
		if round%4 < 2 {
			p.reset()
		} else {
			p.cut()
		}
		seen := ids.Load()
		until(t, "calls go on over a new connection", func() bool {
			p.mu.Lock()
			again := p.made > before && ids.Load() > seen+20
			p.mu.Unlock()
			return again || isClosed(done)
		})
		if isClosed(done) {
			break
		}
	}
	for id := 1; id <= int(ids.Load()); id++ {
		if n := l.times(id); n > 1 {
			t.Errorf("call %d was executed %d times", id, n)
		}
	}
	t.Logf("%d calls answered, %d certainly not executed, %d unknown", answered.Load(), unsent.Load(), unknown.Load())
	if unknown.Load() == 0 || answered.Load() < callers*each/2 {
		t.Error("the test did not interrupt calls, or too many")
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// What may be executed twice is told in four ways, and then a call is repeated that may have been
// executed.
func TestIdempotentCallsMayBeRepeated(t *testing.T) {
	for _, test := range []struct {
		name   string
		o      yodel.ClientOptions
		call   yodel.Call
		mark   bool
		repeat bool
	}{
		{"nothing said", yodel.ClientOptions{}, yodel.Call{}, false, false},
		{"by the call", yodel.ClientOptions{}, yodel.Call{Idempotent: true}, false, true},
		{"by a key that the server does not remember", yodel.ClientOptions{}, yodel.Call{IdempotencyKey: "42"}, false, false},
		{"by the client", yodel.ClientOptions{Idempotent: []string{"Other", "Work"}}, yodel.Call{}, false, true},
		{"by the server", yodel.ClientOptions{}, yodel.Call{}, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := yodel.NewServer(nil)
			l := &ledger{executed: make(map[int]int)}
			var victim atomic.Pointer[yodel.Peer]
			var known atomic.Bool // the client knows what the server says of the method
			handle(t, s, "Work", func(ctx context.Context, _ *Empty) (*Empty, error) {
				if !known.Load() {
					return nil, nil
				}
				l.note(1)
				if l.times(1) == 1 { // the connection breaks while the first attempt runs
					victim.Store(yodel.CallFrom(ctx).Peer())
					victim.Load().Conn.Close()
				}
				return nil, nil
			})
			if test.mark {
				s.MarkIdempotent("Work")
			}
			var may, attempts atomic.Int64
			test.o.Middleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					for {
						attempts.Add(1)
						err := next(ctx, call)
						if err == nil || call.Attempts().NoRepeat(err) != "" {
							return err
						}
						if !yodel.NotProcessed(err) {
							may.Add(1)
						}
					}
				}
			}}
			addr := serve(t, s)
			c := newClient(t, &test.o, addr, newProxy(t, addr).addr())
			must(t, c.Do(t.Context(), &yodel.Call{Method: "Work", Args: &Empty{}}))
			known.Store(true)
			call := test.call
			call.Method, call.Args = "Work", &Empty{}
			err := c.Do(t.Context(), &call)
			if test.repeat {
				if err != nil || l.times(1) != 2 || may.Load() != 1 {
					t.Errorf("got %v after %d executions, repeated %d times; want success after 2", err, l.times(1), may.Load())
				}
				return
			}
			if e := wantError(t, err, yodel.Unavailable, "YDL1104"); e.NotProcessed || l.times(1) != 1 {
				t.Errorf("got %v after %d executions, want 1", err, l.times(1))
			}
		})
	}
}
