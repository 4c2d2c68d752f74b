// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
)

// The tests of this page run schedules of faults during which a server answers at every moment, and
// allow no failed call.

var schedules = flag.Duration("schedules", 0, "how long each schedule of faults runs, beside its short form")

// scheduled returns how long a schedule runs: an eighth as long with the race detector, with which
// it takes ten times as long.
func scheduled(short time.Duration) time.Duration {
	if raceEnabled {
		short /= 8
	}
	return max(short, *schedules)
}

// A tally counts the calls of a schedule.
type tally struct {
	calls, succeeded, failed, inDoubt atomic.Int64
	longest                           atomic.Int64
}

// callers has n goroutines call c, each after a pause, until stop is called, which waits for them.
// What may have been executed is in doubt and not failed.
func (y *tally) callers(t *testing.T, c *yodel.Client, n int, pause time.Duration) (stop func()) {
	ended := make(chan struct{})
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for !isClosed(ended) {
				began := time.Now()
				_, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{})
				took := int64(time.Since(began))
				for longest := y.longest.Load(); took > longest && !y.longest.CompareAndSwap(longest, took); {
					longest = y.longest.Load()
				}
				y.calls.Add(1)
				switch {
				case err == nil:
					y.succeeded.Add(1)
				case !yodel.NotProcessed(err):
					y.inDoubt.Add(1)
				case y.failed.Add(1) <= 3:
					t.Errorf("call %d: %+v", y.calls.Load(), err)
				}
				time.Sleep(pause)
			}
		})
	}
	return func() {
		close(ended)
		wg.Wait()
	}
}

func (y *tally) log(t *testing.T) {
	t.Helper()
	t.Logf("%d calls, %d failed, %d in doubt, longest %v", y.calls.Load(), y.failed.Load(), y.inDoubt.Load(), time.Duration(y.longest.Load()))
}

func named3(kind string, n int) []string {
	addrs := []string{"a", "b", "c"}
	for i := range n {
		addrs = append(addrs, fmt.Sprintf("%s-%d", kind, i))
	}
	return addrs
}

// Three servers answer, and the resolver names instances besides that refuse or are silent. No call
// waits for those.
func TestInstancesThatDoNotAnswerCostNoCall(t *testing.T) {
	many := 2000
	if raceEnabled {
		many = 200
	}
	for _, s := range []struct {
		kind string
		n    int
	}{{"refusing", 3}, {"silent", 3}, {"refusing", many}, {"silent", many}} {
		t.Run(fmt.Sprint(s.n, s.kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startFleet(t, "a", "b", "c")
				var y tally
				stop := y.callers(t, f.client, 4, 10*time.Millisecond)
				time.Sleep(time.Second)
				f.resolver.set(named3(s.kind, s.n)...)
				time.Sleep(max(20*time.Second, *schedules)) // less would not let the pauses between attempts grow
				if n := f.most.Load(); n > 80 {
					t.Errorf("%d connections were being made at the same time", n)
				}
				dials := f.dials.Load()
				time.Sleep(10 * time.Second)
				if n := f.dials.Load() - dials; n > 2000 {
					t.Errorf("%d attempts to connect were made in 10 s", n)
				}
				f.resolver.set("a", "b", "c")
				f.knows(t, "a", "b", "c")
				stop()
				if y.longest.Load() > 0 {
					t.Errorf("a call took %v", time.Duration(y.longest.Load()))
				}
				y.log(t)
			})
		})
	}
}

// A new client finds the servers among instances that do not answer.
func TestANewClientFindsWhoAnswers(t *testing.T) {
	for _, s := range []struct {
		kind string
		n    int
	}{{"refusing", 2000}, {"silent", 30}} {
		t.Run(fmt.Sprint(s.n, s.kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startFleet(t, "a", "b", "c")
				for range 10 {
					c := yodel.NewClient(discovery.Static(named3(s.kind, s.n)...), &yodel.ClientOptions{Transport: transportFunc(f.dial)})
					began := time.Now()
					for range 20 {
						if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); err != nil {
							t.Error(err)
						}
					}
					if took := time.Since(began); took > 2*time.Second {
						t.Errorf("20 calls took %v", took)
					}
					c.Close()
				}
			})
		})
	}
}

// Two servers take turns: one is told to end when the other one, which was away, listens again.
func TestTwoServersThatTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		var y tally
		stop := y.callers(t, f.client, 8, time.Millisecond)
		here, away := "a", "b"
		f.stop(away)
		for end := time.Now().Add(scheduled(time.Minute)); time.Now().Before(end); {
			time.Sleep(500*time.Millisecond + rand.N(1500*time.Millisecond))
			f.start(t, away)
			f.stop(here)
			here, away = away, here
		}
		stop()
		y.log(t)
	})
}

// The connections to a single server are cut again and again. Calls that were not executed wait for
// the next one.
func TestResetsOfASingleServer(t *testing.T) {
	for _, every := range []time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 2 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startFleet(t, "a")
				var y tally
				stop := y.callers(t, f.client, 8, time.Millisecond)
				for end := time.Now().Add(scheduled(20 * time.Second)); time.Now().Before(end); {
					time.Sleep(every)
					f.cut("a")
				}
				stop()
				y.log(t)
			})
		})
	}
}

// The same through sockets, with resets.
func TestResetsOfASingleServerThroughSockets(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	var mu sync.Mutex
	var conns []*net.TCPConn
	c := newClient(t, &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler), Transport: transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := yodel.TCP.Dial(ctx, addr)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, conn.(*net.TCPConn))
		}
		return conn, err
	})}, addr)
	var y tally
	stop := y.callers(t, c, 8, time.Millisecond)
	for end := time.Now().Add(scheduled(3 * time.Second)); time.Now().Before(end); {
		before := y.succeeded.Load()
		time.Sleep(40 * time.Millisecond)
		until(t, "a call succeeds between two cuts", func() bool { return y.succeeded.Load() > before })
		mu.Lock()
		for _, conn := range conns {
			_ = conn.SetLinger(0)
			_ = conn.Close()
		}
		conns = nil
		mu.Unlock()
	}
	stop()
	y.log(t)
}

// A call that was certainly not executed, because its connection broke the protocol, goes to
// another endpoint.
func TestAConnectionThatBrokeTheProtocolCostsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{
			Transport: f.network,
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if ep.Addr() == "a" {
						return &yodel.Error{Code: yodel.Internal, ID: "YDL1106", Message: "it sent nonsense", NotProcessed: true}
					}
					return next(ctx, call)
				}
			}},
		})
		defer c.Close()
		for range 10 {
			if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call without a deadline does not wait for ever for servers that are gone. Each of its attempts
// waits for one search, which begins to dial within 300 ms. Once a call has failed at both, further
// calls make one attempt.
func TestCallsDoNotWaitForAServerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		f.stop("a")
		f.stop("b")
		for i := range 50 {
			began := time.Now()
			_, err := inspect.Ping.Call(t.Context(), f.client, &inspect.Empty{})
			longest := 300 * time.Millisecond
			if i == 0 {
				longest *= 2
			}
			if !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) || time.Since(began) > longest {
				t.Errorf("call %d: got %v after %v", i, err, time.Since(began))
			}
		}
		f.start(t, "b")
		if _, err := inspect.Ping.Call(t.Context(), f.client, &inspect.Empty{}); err != nil {
			t.Error(err)
		}
	})
}

// hangs reports whether nobody answers at addr, and the network does not say so.
func hangs(addr string) bool { return strings.HasPrefix(addr, "silent") }
