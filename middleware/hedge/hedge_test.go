// SPDX-License-Identifier: Apache-2.0

package hedge_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// work answers with the name of the server, behind what it was sent.
const work yodel.Method[string, string] = "Test.Work"

// A reply is how a server answers: after a while, with an error or without.
type reply struct {
	after time.Duration
	err   error
}

// A server counts what it does.
type server struct {
	*yodel.Server

	name     string
	executed atomic.Int32
	canceled atomic.Int32
	reply    atomic.Pointer[reply]
}

func (s *server) work(ctx context.Context, in *string) (*string, error) {
	s.executed.Add(1)
	r := s.reply.Load()
	select {
	case <-time.After(r.after):
	case <-ctx.Done():
		s.canceled.Add(1)
		return nil, ctx.Err()
	}
	out := *in + " " + s.name
	return &out, r.err
}

// serve runs servers a, b, … for the length of the test.
func serve(t *testing.T, replies ...reply) (*mem.Network, []*server) {
	t.Helper()
	network := mem.New()
	var servers []*server
	for i, r := range replies {
		s := &server{name: string(rune('a' + i)), Server: yodel.NewServer(nil)}
		s.reply.Store(&r)
		work.Handle(s.Server, s.work)
		l, err := network.Listen(s.name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		t.Cleanup(func() {
			cancel()
			if err := <-served; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
		servers = append(servers, s)
	}
	return network, servers
}

// dial returns a client that prefers the servers in their order.
func dial(t *testing.T, network *mem.Network, n int, ms ...yodel.Middleware) *yodel.Client {
	t.Helper()
	var addrs []string
	for i := range n {
		addrs = append(addrs, string(rune('a'+i)))
	}
	c := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{Transport: network, Balancer: firstOf, Middleware: ms})
	t.Cleanup(c.Close)
	return c
}

func firstOf(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return first(endpoints) }

type first []*yodel.Endpoint

func (f first) Pick(call *yodel.Call) *yodel.Endpoint {
	if i := slices.IndexFunc(f, func(ep *yodel.Endpoint) bool { return !call.Attempts().Avoids(ep) }); i >= 0 {
		return f[i]
	}
	return nil
}

// call makes an idempotent call, and returns the reply.
func call(ctx context.Context, c *yodel.Client) (string, error) {
	in, out := "hello", ""
	err := c.Do(ctx, &yodel.Call{Method: string(work), Args: &in, Reply: &out, Idempotent: true})
	return out, err
}

func TestTheFirstGoodAnswerWins(t *testing.T) {
	t.Attr("rerun", "never")
	const ms = time.Millisecond
	bad := yodel.Errorf(yodel.Unavailable, "bad")
	worse := yodel.Errorf(yodel.Internal, "worse")
	for _, test := range []struct {
		name     string
		a, b     reply
		want     string
		err      yodel.Code
		took     time.Duration
		executed int32
	}{
		{"the first is fast", reply{10 * ms, nil}, reply{}, "hello a", 0, 10 * ms, 1},
		{"the second wins", reply{time.Hour, nil}, reply{10 * ms, nil}, "hello b", 0, 30 * ms, 2},
		{"the first wins after all", reply{30 * ms, nil}, reply{time.Hour, nil}, "hello a", 0, 30 * ms, 2},
		{"the first fails, then the second succeeds", reply{30 * ms, bad}, reply{20 * ms, nil}, "hello b", 0, 40 * ms, 2},
		{"the second fails, then the first succeeds", reply{50 * ms, nil}, reply{10 * ms, bad}, "hello a", 0, 50 * ms, 2},
		{"both fail, the first one first", reply{30 * ms, bad}, reply{20 * ms, worse}, "", yodel.Unavailable, 40 * ms, 2},
		{"both fail, the second one first", reply{50 * ms, bad}, reply{20 * ms, worse}, "", yodel.Unavailable, 50 * ms, 2},
		{"the first fails before there is a second", reply{10 * ms, bad}, reply{}, "", yodel.Unavailable, 10 * ms, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, servers := serve(t, test.a, test.b)
				c := dial(t, network, 2, hedge.After(20*ms))
				for range 5 {
					servers[0].executed.Store(0)
					servers[1].executed.Store(0)
					began := time.Now()
					got, err := call(t.Context(), c)
					if took := time.Since(began); got != test.want || yodel.CodeOf(err) != test.err || took != test.took {
						t.Errorf("got %q, %v after %v, want %q, %v after %v", got, err, took, test.want, test.err, test.took)
					}
					if n := servers[0].executed.Load() + servers[1].executed.Load(); n != test.executed {
						t.Errorf("it was executed %d times, want %d", n, test.executed)
					}
					synctest.Wait()
				}
			})
		})
	}
}

// rpcx's Failbackup returns success with an empty reply when the second attempt cannot be placed
// while the first one is pending.
func TestASecondAttemptThatCannotBePlacedIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, _ := serve(t, reply{100 * time.Millisecond, nil})
		c := dial(t, network, 2, hedge.After(20*time.Millisecond)) // nobody listens at b
		if got, err := call(t.Context(), c); got != "hello a" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// When no server is there, a hedge would find none either.
func TestNothingIsHedgedWhenNoEndpointIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		c := dial(t, mem.New(), 2, hedge.After(20*time.Millisecond), func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				attempts++
				err := next(ctx, call)
				time.Sleep(50 * time.Millisecond) // as retry does
				return err
			}
		})
		_, err := call(t.Context(), c)
		e, _ := errors.AsType[*yodel.Error](err)
		if attempts != 1 || e == nil || e.Report == nil || !strings.Contains(e.Report.String(), "no second attempt: no endpoint is ready") {
			t.Errorf("%d attempts, %+v", attempts, err)
		}
	})
}

func TestTheLoserIsCanceledAndHasEndedWhenTheCallReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, servers := serve(t, reply{time.Hour, nil}, reply{})
		var running atomic.Int32
		c := dial(t, network, 2, hedge.After(20*time.Millisecond), func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				running.Add(1)
				defer running.Add(-1)
				return next(ctx, call)
			}
		})
		if got, err := call(t.Context(), c); got != "hello b" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		if n := running.Load(); n != 0 {
			t.Errorf("%d attempts run when the call has returned", n)
		}
		synctest.Wait()
		if servers[0].canceled.Load() != 1 {
			t.Error("the loser's server does not know that it has lost")
		}
	})
}

func TestTheCallerMayGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, servers := serve(t, reply{time.Hour, nil}, reply{time.Hour, nil})
		c := dial(t, network, 2, hedge.After(20*time.Millisecond))
		for _, after := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond} {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(after, cancel)
			began := time.Now()
			if _, err := call(ctx, c); !errors.Is(err, context.Canceled) || time.Since(began) != after {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
			ctx, cancel = context.WithTimeout(t.Context(), after)
			if _, err := call(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			cancel()
		}
		synctest.Wait()
		if a, b := servers[0].canceled.Load(), servers[1].canceled.Load(); a != 4 || b != 2 {
			t.Errorf("%d and %d methods know that they were given up, want 4 and 2", a, b)
		}
	})
}

func TestOnlyCallsAreHedgedThatMayBe(t *testing.T) {
	t.Attr("rerun", "never")
	for _, test := range []struct {
		name   string
		n      int
		change func(c *yodel.Call)
		want   int32 // executions
	}{
		{"idempotent", 2, func(*yodel.Call) {}, 2},
		{"a key that no server remembers", 2, func(c *yodel.Call) { c.Idempotent, c.IdempotencyKey = false, "order 7" }, 1},
		{"not idempotent", 2, func(c *yodel.Call) { c.Idempotent = false }, 1},
		{"one-way", 2, func(c *yodel.Call) { c.OneWay = true }, 1},
		{"ordered", 2, func(c *yodel.Call) { c.Ordered, c.Key = true, "k" }, 1},
		{"a single endpoint", 1, func(*yodel.Call) {}, 1},
		{"kept on its endpoint", 2, func(call *yodel.Call) { call.Attempts().Pin() }, 1},
		{"pinned", 2, func(c *yodel.Call) { c.Key = "pin" }, 1},
		{"a budget of one attempt", 2, func(c *yodel.Call) { c.Budget = 1 }, 1},
		{"a budget of two", 2, func(c *yodel.Call) { c.Budget = 2 }, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const slow = 100 * time.Millisecond
				network, servers := serve(t, reply{slow, nil}, reply{slow, nil})
				c := dial(t, network, test.n, hedge.After(20*time.Millisecond))
				in, out := "hello", ""
				call := &yodel.Call{Method: string(work), Args: &in, Reply: &out, Idempotent: true}
				test.change(call)
				if call.Key == "pin" {
					if err := c.Ready(t.Context()); err != nil {
						t.Fatal(err)
					}
					call.Endpoint = c.Endpoints()[0]
				}
				if err := c.Do(t.Context(), call); err != nil || !call.OneWay && out != "hello a" {
					t.Errorf("got %q, %v", out, err)
				}
				time.Sleep(time.Second)
				if n := servers[0].executed.Load() + servers[1].executed.Load(); n != test.want {
					t.Errorf("it was executed %d times, want %d", n, test.want)
				}
			})
		})
	}
}

// A changing resolver names what it is told.
type changing chan []discovery.Instance

func (r changing) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case set := <-r:
			update(set)
		case <-ctx.Done():
			return nil
		}
	}
}

// Calls are hedged as soon as there is a second endpoint, and no longer than there is one; also
// that of a call which is under way.
func TestASecondEndpointMayComeAndGo(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		const slow = 100 * time.Millisecond
		network, servers := serve(t, reply{slow, nil}, reply{slow, nil})
		r := make(changing)
		c := yodel.NewClient(r, &yodel.ClientOptions{
			Transport: network, Balancer: firstOf, Middleware: []yodel.Middleware{hedge.After(20 * time.Millisecond)},
		})
		defer c.Close()
		one, both := []discovery.Instance{{Addr: "a"}}, []discovery.Instance{{Addr: "a"}, {Addr: "b"}}
		for i, test := range []struct {
			before, during []discovery.Instance
			want           int32 // executions
		}{{one, nil, 1}, {both, nil, 2}, {one, nil, 1}, {both, one, 1}, {one, both, 1}, {both, nil, 2}} {
			for _, s := range servers {
				s.executed.Store(0)
			}
			r <- test.before
			synctest.Wait()
			if c.Several() != (len(test.before) > 1) {
				t.Errorf("%d: several: %t", i, c.Several())
			}
			if test.during != nil {
				time.AfterFunc(10*time.Millisecond, func() { r <- test.during })
			}
			if got, err := call(t.Context(), c); err != nil || got != "hello a" {
				t.Errorf("%d: got %q, %v", i, got, err)
			}
			time.Sleep(time.Second)
			if n := servers[0].executed.Load() + servers[1].executed.Load(); n != test.want {
				t.Errorf("%d: it was executed %d times, want %d", i, n, test.want)
			}
		}
	})
}

// slowTo is a network on which it takes a while to connect to one address.
type slowTo struct {
	*mem.Network

	addr string
	wait time.Duration
}

func (s slowTo) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if addr == s.addr {
		time.Sleep(s.wait)
	}
	return s.Network.Dial(ctx, addr)
}

// The second attempt waits for another endpoint that is not connected yet. Beside the first one it
// would wait for the same server.
func TestTheSecondAttemptWaitsForAnotherEndpoint(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		network, servers := serve(t, reply{10 * time.Second, nil}, reply{0, nil})
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{
			Transport: slowTo{network, "b", 100 * time.Millisecond}, Middleware: []yodel.Middleware{hedge.After(20 * time.Millisecond)},
		})
		defer c.Close()
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if got, err := call(t.Context(), c); err != nil || got != "hello b" {
			t.Errorf("got %q, %v", got, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if n := servers[0].executed.Load(); n != 1 {
			t.Errorf("the slow server has executed it %d times", n)
		}
	})
}

// What the server declares idempotent is, as soon as the client knows of it.
func TestAMethodThatItsServerDeclaresIdempotentIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, servers := serve(t, reply{time.Second, nil}, reply{})
		servers[0].MarkIdempotent(string(work))
		c := dial(t, network, 2, hedge.After(20*time.Millisecond))
		in := "hello"
		for i, want := range []string{"hello a", "hello b"} {
			if got, err := work.Call(t.Context(), c, &in); err != nil || *got != want {
				t.Errorf("call %d: got %v, %v, want %s", i, got, err, want)
			}
		}
	})
}

func TestTheExtraLoadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, servers := serve(t, reply{30 * time.Millisecond, nil}, reply{30 * time.Millisecond, nil})
		c := dial(t, network, 2, hedge.After(20*time.Millisecond))
		const callers, calls = 10, 300
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range calls {
					if _, err := call(t.Context(), c); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		hedges := servers[1].executed.Load()
		if most := int32(0.05*callers*calls) + 10 + 10; hedges > most || hedges < most/2 {
			t.Errorf("%d calls had %d second attempts, want at most %d, and half as many at least", callers*calls, hedges, most)
		}
	})
}

func TestThePercentileIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, servers := serve(t, reply{}, reply{})
		c := dial(t, network, 2, hedge.Percentile(90))
		for i := range 500 {
			servers[0].reply.Store(&reply{after: time.Duration(1+i%100) * time.Millisecond})
			if _, err := call(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
		servers[0].reply.Store(&reply{after: time.Hour})
		began := time.Now()
		got, err := call(t.Context(), c)
		if took := time.Since(began); got != "hello b" || err != nil || took < 90*time.Millisecond || took > 105*time.Millisecond {
			t.Errorf("got %q, %v after %v, want hello b after 90 ms and an eighth of it", got, err, took)
		}
	})
}

// The percentile of what was learned is that of the last calls, as a list of them that is sorted
// says.
func TestLatencyAgainstAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 14))
	for _, percentile := range []float64{50, 90, 95, 99} {
		l := &hedge.Latency{}
		var last []time.Duration
		for scale := range 5 { // what is typical changes
			typical := time.Duration(1+scale*scale) * time.Millisecond
			for range 6000 {
				took := time.Duration(float64(typical) * (0.5 + rng.ExpFloat64()))
				last = append(last, took)
				l.Add(took, percentile)
			}
			recent := slices.Sorted(slices.Values(last[len(last)-2000:]))
			at := percentile / 100
			low := recent[int(float64(len(recent))*(at-(1-at)*0.4))] // the model is another sample
			high := recent[min(int(float64(len(recent))*(at+(1-at)*0.4)), len(recent)-1)]
			if got := l.Delay(); got < low || got > high*9/8 {
				t.Errorf("scale %d: percentile %v is %v, want between %v and %v", scale, percentile, got, low, high*9/8)
			}
		}
	}
	var l hedge.Latency
	for range 99 {
		l.Add(time.Second, 95)
	}
	if l.Delay() != 0 {
		t.Error("99 calls are enough")
	}
	for _, took := range []time.Duration{-1, 0, 1, time.Hour * 1e6} {
		l.Add(took, 95)
	}
	if d := l.Delay(); d < time.Second || d > time.Second*9/8 {
		t.Errorf("got %v", d)
	}
}

// Whoever waits for the context of an attempt, in whichever way, is told when it has lost, and when
// the call has ended.
func TestContextsOfAttemptsEnd(t *testing.T) {
	type key struct{}
	for name, wait := range map[string]func(ctx context.Context){
		"Done": func(ctx context.Context) { <-ctx.Done() },
		"a derived one": func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			<-ctx.Done()
		},
		"AfterFunc": func(ctx context.Context) {
			done := make(chan struct{})
			context.AfterFunc(ctx, func() { close(done) })
			<-done
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, _ := serve(t, reply{}, reply{})
				attempts := atomic.Int32{}
				var kept [2]context.Context
				c := dial(t, network, 2, hedge.After(20*time.Millisecond), func(next yodel.Handler) yodel.Handler {
					return func(ctx context.Context, call *yodel.Call) error {
						i := attempts.Add(1) - 1
						kept[i] = ctx //nolint:fatcontext // of attempt i
						if ctx.Err() != nil || ctx.Value(key{}) != "value" {
							t.Errorf("attempt %d begins with %v, and the value %v", i, ctx.Err(), ctx.Value(key{}))
						}
						if i == 0 {
							wait(ctx)
							if !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(context.Cause(ctx), context.Canceled) {
								t.Errorf("it ended with %v, %v", ctx.Err(), context.Cause(ctx))
							}
							return ctx.Err()
						}
						return next(ctx, call)
					}
				})
				// a is free
				if got, err := call(context.WithValue(t.Context(), key{}, "value"), c); got != "hello a" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				for i, ctx := range kept {
					if wait(ctx); ctx.Err() == nil {
						t.Errorf("the context of attempt %d goes on", i)
					}
				}
			})
		})
	}
}

func TestAPanicReachesTheCaller(t *testing.T) {
	for _, which := range []int32{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			network, _ := serve(t, reply{time.Second, nil}, reply{time.Second, nil})
			attempts := atomic.Int32{}
			c := dial(t, network, 2, hedge.After(20*time.Millisecond), func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if attempts.Add(1)-1 == which {
						time.Sleep(30 * time.Millisecond)
						panic("at the disco")
					}
					return next(ctx, call)
				}
			})
			defer func() {
				if p := recover(); p != "at the disco" {
					t.Errorf("got the panic %v", p)
				}
				if got, err := call(t.Context(), c); got != "hello a" || err != nil {
					t.Errorf("the next call: got %q, %v", got, err)
				}
			}()
			_, err := call(t.Context(), c)
			t.Errorf("got %v", err)
		})
	}
}

// Above retry each of the two attempts is repeated, and below it each repetition is hedged.
func TestWithRetry(t *testing.T) {
	for name, ms := range map[string][]yodel.Middleware{
		"above": {timeout.After(10 * time.Second), hedge.After(20 * time.Millisecond), retry.Times(3)},
		"below": {timeout.After(10 * time.Second), retry.Times(3), hedge.After(20 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, servers := serve(t, reply{time.Hour, nil}, reply{5 * time.Millisecond, yodel.Unavailable}, reply{10 * time.Millisecond, nil})
				c := dial(t, network, 3, ms...)
				if name == "below" { // there the call has its error when both have failed
					servers[0].reply.Store(&reply{after: 50 * time.Millisecond, err: yodel.Unavailable})
				}
				if got, err := call(t.Context(), c); got != "hello c" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			})
		})
	}
}

func TestOffAndBadOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, servers := serve(t, reply{time.Second, nil}, reply{})
		for _, m := range []yodel.Middleware{hedge.After(0), hedge.After(-1), hedge.With(nil), hedge.Percentile(-3), hedge.Percentile(100)} {
			c := dial(t, network, 2, m)
			if got, err := call(t.Context(), c); got != "hello a" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		}
		if n := servers[1].executed.Load(); n != 0 {
			t.Errorf("%d second attempts", n)
		}
	})
}

// Everything at once, and each caller gets the answer to its own question, or an error.
func TestManyCallersAndRandomServers(t *testing.T) {
	network := mem.New()
	for i := range 3 {
		s := yodel.NewServer(nil)
		work.Handle(s, func(ctx context.Context, in *string) (*string, error) {
			switch rand.N(8) {
			case 0:
				return nil, yodel.Unavailable
			case 1, 2:
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(rand.N(4 * time.Millisecond)):
				}
			}
			return in, nil
		})
		l, err := network.Listen(string(rune('a' + i)))
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
	}
	c := dial(t, network, 3, hedge.With(&hedge.Options{Percentile: 60, Share: 1, AtLeast: 100 * time.Microsecond}))
	var wg sync.WaitGroup
	for caller := range 8 {
		wg.Go(func() {
			for i := range 300 {
				in, out := fmt.Sprint(caller, i), ""
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				err := c.Do(ctx, &yodel.Call{Method: string(work), Args: &in, Reply: &out, Idempotent: true})
				cancel()
				if err == nil && out != in || err != nil && (!errors.Is(err, yodel.Unavailable) || out != "") {
					t.Errorf("got %q, %v, want %q", out, err, in)
				}
			}
		})
	}
	wg.Wait()
}

// Each first attempt that is under way after its time has a second one, at that time exactly, and
// no other has: of many that begin and end in any order.
func TestWhoIsSlowIsSeenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after, callers, calls = 10 * time.Millisecond, 50, 40
		type attempt struct{ call, began time.Duration }
		begins := make(chan attempt, 2*callers*calls)
		epoch := time.Now()
		bottom := func(yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				takes := *call.Args.(*time.Duration)
				begins <- attempt{takes, time.Since(epoch)}
				select {
				case <-time.After(takes):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{Middleware: []yodel.Middleware{
			hedge.With(&hedge.Options{After: after, Share: 1}), bottom,
		}})
		defer c.Close()
		var wg sync.WaitGroup
		for caller := range callers {
			r := rand.New(rand.NewPCG(7, uint64(caller)))
			wg.Go(func() {
				for i := range calls {
					takes := time.Duration(r.Int64N(int64(2 * after)))
					// no two take as long, so that it tells the call
					takes = takes/callers/calls*callers*calls + time.Duration(caller*calls+i)
					if takes == after {
						takes++
					}
					if err := c.Do(context.Background(), &yodel.Call{Method: string(work), Args: &takes, Idempotent: true}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		close(begins)
		seen := make(map[time.Duration][]time.Duration)
		for a := range begins {
			seen[a.call] = append(seen[a.call], a.began)
		}
		if len(seen) != callers*calls {
			t.Errorf("%d calls were made, want %d", len(seen), callers*calls)
		}
		for takes, began := range seen {
			if takes < after && len(began) != 1 || takes > after && (len(began) != 2 || began[1]-began[0] != after) {
				t.Errorf("a call that takes %v had attempts at %v", takes, began)
			}
		}
	})
}
