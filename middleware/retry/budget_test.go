// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// answer ends a chain with an outcome.
func answer(f func(call *yodel.Call) error) yodel.Middleware {
	return func(yodel.Handler) yodel.Handler {
		return func(_ context.Context, call *yodel.Call) error { return f(call) }
	}
}

// grpc-go's TestRetryThrottling: what a client may retry is used up, and comes back.
func TestAClientsShareForRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var executed atomic.Int32
		var failing atomic.Bool
		serve(t, network, "a", nil, func(context.Context) error {
			executed.Add(1)
			if failing.Load() {
				return yodel.Unavailable
			}
			return nil
		})
		c := dial(t, network, []string{"a"}, retry.Times(3))
		calls := func(n int, every time.Duration) int32 {
			before := executed.Load()
			for range n {
				if err := c.Do(t.Context(), idempotent()); (err != nil) != failing.Load() {
					t.Errorf("got %v", err)
				}
				time.Sleep(every)
			}
			return executed.Load() - before - int32(n)
		}
		failing.Store(true)
		if retries := calls(5, 0); retries != 10 {
			t.Errorf("a quiet client retried 5 calls %d times, want 10", retries)
		}
		if retries := calls(100, 0); retries > 11 {
			t.Errorf("when its reserve is used up 100 calls were retried %d times, want 10 of a tenth, and 1 for the second", retries)
		}
		if retries := calls(1000, 10*time.Millisecond); retries < 90 || retries > 125 {
			t.Errorf("1000 calls in 10 s were retried %d times, want a tenth and 1 a second", retries)
		}
		failing.Store(false)
		calls(1000, 2*time.Millisecond)
		failing.Store(true)
		if retries := calls(200, 0); retries < 40 || retries > 60+20 {
			t.Errorf("after calls that went well, 200 were retried %d times, want what a tenth of a second's traffic is, and a tenth", retries)
		}
	})
}

// The share is the client's: a new chain begins where the old one was.
func TestTheShareSurvivesANewChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		fail := answer(func(*yodel.Call) error { attempts++; return yodel.Unavailable })
		middle := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				return retry.Times(2)(fail(next))(ctx, call) // a chain for each call
			}
		}
		c := dial(t, mem.New(), nil, middle)
		for range 100 {
			if c.Do(t.Context(), idempotent()) == nil {
				t.Error("want an error")
			}
		}
		if attempts < 110 || attempts > 120 {
			t.Errorf("100 calls had %d attempts, want the reserve of 10 besides", attempts)
		}
	})
}

func TestOptionsOfTheShare(t *testing.T) {
	for _, test := range []struct {
		options retry.Options
		want    int // attempts of 100 calls at once
	}{
		{retry.Options{}, 110},
		{retry.Options{Share: -1, Reserve: -1}, 110},
		{retry.Options{Share: math.NaN()}, 110},
		{retry.Options{Share: 0.5, Reserve: 30}, 130}, // the share is of attempts that reach an endpoint
		{retry.Options{Share: 1}, 300},
		{retry.Options{Share: math.Inf(1)}, 300},
	} {
		synctest.Test(t, func(t *testing.T) {
			var attempts atomic.Int32
			c := dial(t, mem.New(), nil, retry.With(&test.options), answer(func(*yodel.Call) error { attempts.Add(1); return yodel.Unavailable }))
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { _ = c.Do(t.Context(), idempotent()) })
			}
			wg.Wait()
			if n := int(attempts.Load()); n != test.want {
				t.Errorf("%+v: got %d attempts, want %d", test.options, n, test.want)
			}
		})
	}
}

func TestTheBudgetOfTheTree(t *testing.T) {
	for _, test := range []struct{ budget, times, want int }{{0, 3, 3}, {1, 3, 1}, {2, 3, 2}, {9, 3, 3}, {2, 1, 1}} {
		for name, m := range map[string]yodel.Middleware{"failover": retry.Times(test.times), "failtry": retry.Same(test.times)} {
			synctest.Test(t, func(t *testing.T) {
				attempts, inside := 0, 0
				c := dial(t, mem.New(), nil, m, answer(func(call *yodel.Call) error {
					attempts++
					inside = call.Budget
					return yodel.Unavailable
				}))
				call := idempotent()
				call.Budget = test.budget
				if err := c.Do(t.Context(), call); err != yodel.Unavailable {
					t.Error(err)
				}
				if want := max(test.budget, (1-min(test.budget, 1))*test.times); inside != want || call.Budget != test.budget {
					t.Errorf("%s %+v: the attempts have a budget of %d, and afterwards the call has %d", name, test, inside, call.Budget)
				}
				if attempts != test.want {
					t.Errorf("%s %+v: got %d attempts", name, test, attempts)
				}
			})
		}
	}
}

func TestTheServersPatience(t *testing.T) {
	for _, test := range []struct {
		after     time.Duration
		attempts  int
		low, high time.Duration
	}{
		{0, 2, 0, 50 * time.Millisecond},
		{time.Second, 2, time.Second, 1050 * time.Millisecond},
		{2 * time.Second, 2, 2 * time.Second, 2050 * time.Millisecond},
		{time.Hour, 1, 0, 0}, // more than MaxBackoff
	} {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			executed := 0
			serve(t, network, "a", nil, func(context.Context) error {
				if executed++; executed == 1 {
					return &yodel.Error{Code: yodel.Unavailable, Message: "busy", RetryAfter: test.after}
				}
				return nil
			})
			c := dial(t, network, []string{"a"}, retry.Times(3))
			began := time.Now()
			err := c.Do(t.Context(), idempotent())
			if took := time.Since(began); executed != test.attempts || took < test.low || took > test.high || (err != nil) != (test.attempts == 1) {
				t.Errorf("%v: got %v after %v and %d attempts", test.after, err, took, executed)
			}
		})
	}
}

// In three tiers that each try three times, the last one is asked three times when it fails, not 27
// times.
func TestThreeTiersOfThreeAttempts(t *testing.T) {
	t.Attr("rerun", "never")
	for name, middleware := range map[string]func() yodel.Middleware{
		"failover": func() yodel.Middleware { return retry.Times(3) },
		"failtry":  func() yodel.Middleware { return retry.Same(3) },
		"no bound of the client's": func() yodel.Middleware {
			return retry.With(&retry.Options{Share: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				var executed [4]atomic.Int32 // at each tier
				var next [4]*yodel.Client    // of its servers
				for tier := 3; tier >= 1; tier-- {
					addrs := []string{fmt.Sprint(tier, "a"), fmt.Sprint(tier, "b"), fmt.Sprint(tier, "c")}
					for _, addr := range addrs {
						s := serve(t, network, addr, nil, func(ctx context.Context) error {
							executed[tier].Add(1)
							if tier == 3 {
								return yodel.Errorf(yodel.Unavailable, "the last tier fails")
							}
							return next[tier+1].Do(ctx, idempotent())
						})
						s.MarkIdempotent(string(work))
					}
					next[tier] = dial(t, network, addrs, middleware())
				}
				for range 4 { // which a client's reserve allows
					before := executed[3].Load()
					if err := next[1].Do(t.Context(), idempotent()); yodel.CodeOf(err) != yodel.Unavailable {
						t.Errorf("got %v", err)
					}
					if n := executed[3].Load() - before; n > 3 || n < 1 {
						t.Errorf("the last tier executed it %d times, want at most 3", n)
					}
				}
				t.Logf("4 calls were executed %d, %d, %d times", executed[1].Load(), executed[2].Load(), executed[3].Load())
			})
		})
	}
}

func TestSameStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		addrs := []string{"a", "b", "c"}
		var executed [3]atomic.Int32
		for i, addr := range addrs {
			serve(t, network, addr, nil, func(context.Context) error {
				executed[i].Add(1)
				return yodel.Errorf(yodel.Unavailable, "%s is tired", addr)
			})
		}
		c := dial(t, network, addrs, retry.Same(3)) // round robin
		call := idempotent()
		for i := range addrs {
			if err := c.Do(t.Context(), call); yodel.CodeOf(err) != yodel.Unavailable {
				t.Errorf("got %v", err)
			}
			var counts []int32
			for j := range executed {
				counts = append(counts, executed[j].Load())
			}
			slices.Sort(counts)
			// round robin begins anywhere
			if want := [][]int32{{0, 0, 3}, {0, 3, 3}, {3, 3, 3}}[i]; !slices.Equal(counts, want) {
				t.Errorf("after %d calls the servers had %d attempts, want %d", i+1, counts, want)
			}
		}
	})
}

// Same connects again: it waits until the endpoint does.
func TestSameReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var elsewhere atomic.Int32
		serve(t, network, "b", nil, func(context.Context) error { elsewhere.Add(1); return nil })
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{
			Transport: network, Balancer: firstOf, Middleware: []yodel.Middleware{retry.Same(8)},
		})
		defer c.Close()
		ended := make(chan error, 1)
		go func() {
			_, err := work.Call(t.Context(), c, &struct{}{}) // certainly not executed
			ended <- err
		}()
		time.Sleep(time.Second)
		serve(t, network, "a", nil, func(context.Context) error { return nil })
		if err := <-ended; err != nil || elsewhere.Load() != 0 {
			t.Errorf("got %v, and %d calls went elsewhere", err, elsewhere.Load())
		}
	})
}

func TestAnyTakesTheFirstThatIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var got strings.Builder
		start := func(addr string) (stop func()) {
			l, err := network.Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			s := yodel.NewServer(nil)
			work.Handle(s, func(context.Context, *struct{}) (*struct{}, error) {
				got.WriteString(addr)
				return nil, nil
			})
			ctx, cancel := context.WithCancel(context.Background())
			served := make(chan error, 1)
			go func() { served <- s.Serve(ctx, l) }()
			return func() {
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
			}
		}
		c := yodel.NewClient(discovery.Static("a", "b", "c"), &yodel.ClientOptions{Transport: network, Balancer: retry.Any})
		defer c.Close()
		call := func(want string) {
			t.Helper()
			got.Reset()
			for range 3 {
				if err := c.Do(t.Context(), idempotent()); err != nil {
					t.Error(err)
				}
			}
			if got.String() != want {
				t.Errorf("got %s, want %s", got.String(), want)
			}
		}
		stopB, stopC := start("b"), start("c")
		if err := c.Do(t.Context(), idempotent()); err != nil { // by the one that is connected first
			t.Error(err)
		}
		synctest.Wait()
		call("bbb") // a is not there
		stopA := start("a")
		time.Sleep(3 * time.Second) // it connects again by itself
		call("aaa")
		c.Endpoints()[0].SetReady("test", false)
		call("bbb")
		c.Endpoints()[0].SetReady("test", true)
		call("aaa")
		stopA()
		call("bbb")
		stopB()
		call("ccc")
		stopC()
	})
}

// A primary that comes back to the registry, or that had no call for a while, is not connected, and
// is the one all the same.
func TestAnyComesBackToOneThatIsNotConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		counts := make(map[string]int)
		for _, addr := range []string{"a", "b"} {
			l, err := network.Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			s := yodel.NewServer(nil)
			work.Handle(s, func(context.Context, *struct{}) (*struct{}, error) {
				counts[addr]++
				return nil, nil
			})
			ctx, cancel := context.WithCancel(context.Background())
			served := make(chan error, 1)
			go func() { served <- s.Serve(ctx, l) }()
			defer func() {
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
			}()
		}
		r := make(roll)
		c := yodel.NewClient(r, &yodel.ClientOptions{Transport: network, Balancer: retry.Any, Limits: yodel.Limits{IdleTimeout: time.Minute}})
		defer c.Close()
		call := func(want string) {
			t.Helper()
			clear(counts)
			if err := c.Do(t.Context(), idempotent()); err != nil || counts[want] != 1 {
				t.Errorf("the call went to %v, want %s: %v", counts, want, err)
			}
		}
		r <- []string{"a", "b"}
		call("a")
		r <- []string{"b"}
		synctest.Wait()
		call("b")
		r <- []string{"a", "b"}
		synctest.Wait()
		call("b") // and a is connected to
		synctest.Wait()
		call("a")
		c.Endpoints()[0].SetReady("test", false)
		for range 8 { // 2 min
			time.Sleep(15 * time.Second)
			call("b")
		}
		c.Endpoints()[0].SetReady("test", true)
		if c.Endpoints()[0].Connected() {
			t.Error("the connection is idle, and is there")
		}
		call("b") // and a is connected to
		synctest.Wait()
		call("a")
	})
}

// A roll is a resolver that is told which addresses there are.
type roll chan []string

func (r roll) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case addrs := <-r:
			var all []discovery.Instance
			for _, addr := range addrs {
				all = append(all, discovery.Instance{Addr: addr})
			}
			update(all)
		case <-ctx.Done():
			return nil
		}
	}
}

func TestAny(t *testing.T) { yodeltest.TestBalancer(t, retry.Any) }
