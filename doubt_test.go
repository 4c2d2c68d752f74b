// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A fleet is servers on a network in memory, and a client that a settable resolver names them to.
type fleet struct {
	network  *mem.Network
	resolver *settable
	client   *yodel.Client
	stops    map[string]func()
	mu       sync.Mutex
	conns    map[string][]net.Conn // of the client

	dials, dialling, most atomic.Int64 // attempts to connect: all, at the same time, and the most at the same time
}

func startFleet(t *testing.T, addrs ...string) *fleet {
	t.Helper()
	f := &fleet{network: mem.New(), resolver: newSettable(addrs...), stops: make(map[string]func()), conns: make(map[string][]net.Conn)}
	for _, addr := range addrs {
		f.start(t, addr)
	}
	f.client = yodel.NewClient(f.resolver, &yodel.ClientOptions{Transport: transportFunc(f.dial), Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		f.client.Close()
		for _, stop := range f.stops {
			stop()
		}
	})
	for range 2 * len(addrs) { // all are connected
		f.call(t)
	}
	return f
}

func (f *fleet) dial(ctx context.Context, addr string) (net.Conn, error) {
	f.dials.Add(1)
	now := f.dialling.Add(1)
	defer f.dialling.Add(-1)
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); {
		most = f.most.Load()
	}
	if hangs(addr) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := f.network.Dial(ctx, addr)
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.conns[addr] = append(f.conns[addr], conn)
	}
	return conn, err
}

// cut ends the client's connections to a server.
func (f *fleet) cut(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns[addr] {
		_ = conn.Close() // it may have ended
	}
	f.conns[addr] = nil
}

func (f *fleet) start(t *testing.T, addr string) {
	t.Helper()
	f.serve(t, addr, yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}))
}

func (f *fleet) serve(t *testing.T, addr string, s *yodel.Server) {
	t.Helper()
	l, err := f.network.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	f.stops[addr] = func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
}

func (f *fleet) stop(addr string) {
	f.stops[addr]()
	delete(f.stops, addr)
}

func (f *fleet) call(t *testing.T) {
	t.Helper()
	if _, err := inspect.Ping.Call(t.Context(), f.client, &inspect.Empty{}); err != nil {
		t.Error(err)
	}
}

// knows checks the client's endpoints, when all is quiet.
func (f *fleet) knows(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(time.Second)
	var got []string
	for _, ep := range f.client.Endpoints() {
		got = append(got, ep.Addr())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the client knows %q, want %q", got, want)
	}
}

func TestAnEmptySetEvictsNobodyWhoAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c")
		f.resolver.set()
		f.knows(t, "a", "b", "c")
		f.call(t)
		f.stop("b") // withdrawn or not
		f.knows(t, "a", "b", "c")
		f.call(t) // of the others
		time.Sleep(time.Minute)
		f.knows(t, "a", "c") // it answers no more
		f.call(t)
		f.resolver.set("a", "b", "c", "d") // the registry has its memory back
		f.knows(t, "a", "b", "c", "d")
	})
}

func TestASetThatShrinksSharplyEvictsNobodyWhoAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c", "d", "e")
		f.resolver.set("a", "b")
		f.knows(t, "a", "b", "c", "d", "e")
		f.stop("c")
		f.stop("d")
		f.stop("e")
		time.Sleep(time.Minute)
		f.knows(t, "a", "b")
		f.resolver.set("a") // two are the set now, and half of it is not much less
		f.knows(t, "a")
	})
}

// The registry was restarted without its data. Servers announce themselves one after another.
func TestARegistryThatWasAwayEvictsNobodyWhoAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c")
		f.resolver.fail(errors.New("connection refused"))
		f.knows(t, "a", "b", "c")
		f.resolver.set("a", "b")
		f.knows(t, "a", "b", "c")
		f.resolver.set("b", "a")
		f.knows(t, "a", "b", "c")
		f.resolver.set("a", "b", "c")
		f.knows(t, "a", "b", "c")
		f.resolver.set("a", "b") // now that is an operator's decision
		f.knows(t, "a", "b")
		f.resolver.fail(errors.New("connection refused"))
		f.knows(t, "a", "b")
		f.resolver.set("a")
		time.Sleep(40 * time.Second)
		f.knows(t, "a")
	})
}

func TestASetThatShrinksBitByBitIsNotBelievedForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []string{"a", "b", "c", "d", "e", "f"}
		f := startFleet(t, all...)
		for left := 5; left >= 0; left-- { // as when leases end one after the other
			f.resolver.set(all[:left]...)
			time.Sleep(5 * time.Second)
		}
		f.knows(t, "a", "b", "c")
		f.call(t)
	})
}

func TestASlightlySmallerSetIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c")
		f.resolver.set("a", "b")
		f.knows(t, "a", "b")
		time.Sleep(5 * time.Minute) // that there were three is long ago
		f.resolver.set("a")
		f.knows(t, "a")
	})
}

func TestUnlistedInstancesThatNeverAnsweredAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		f.resolver.set("a", "b", "nowhere", "silent")
		f.knows(t, "a", "b", "nowhere", "silent")
		f.resolver.set()
		f.knows(t, "a", "b")
	})
}

// While an unlisted endpoint answers, it may lose its connection. What listens at its address after
// a restart has to be named again.
func TestAnUnlistedInstanceIsKnownByItsIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c")
		f.resolver.set()
		for range 3 {
			f.cut("a")
			f.knows(t, "a", "b", "c")
			time.Sleep(40 * time.Second)
			f.knows(t, "a", "b", "c")
		}
		f.stop("a")
		f.start(t, "a")
		f.knows(t, "b", "c")
		f.resolver.set("a", "b", "c")
		f.knows(t, "a", "b", "c")
	})
}

// The registry is restored to an older state: two addresses at which nobody listens instead of
// three that answer.
func TestDeadReplacementsEvictNobodyWhoAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c")
		for _, old := range [][]string{{"x", "y"}, {"x", "y", "z"}, {"u", "v", "w", "x", "y", "z"}} {
			f.resolver.set(old...)
			for range 120 {
				f.call(t)
				time.Sleep(time.Second)
			}
			f.knows(t, append(old, "a", "b", "c")...)
		}
		f.start(t, "x") // one of six is not half of them, and answers for long enough
		f.resolver.set("x", "y", "z")
		time.Sleep(time.Minute)
		f.knows(t, "x", "y", "z")
		f.call(t)
		f.resolver.set("a", "b", "c")
		f.knows(t, "a", "b", "c")
	})
}

// Someone edits a list from five instances to two, and the other three run on.
func TestAListThatShrinksSharplyIsBelievedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c", "d", "e")
		f.resolver.set("a", "b")
		time.Sleep(25 * time.Second)
		f.knows(t, "a", "b", "c", "d", "e")
		time.Sleep(5 * time.Second)
		f.knows(t, "a", "b")
		f.call(t)
		f.resolver.set("a")
		f.knows(t, "a")
	})
}

// Three of five servers are shut down, and a server of another service gets two of their addresses.
func TestAServerOfAnotherServiceAtAnOldAddressGetsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c", "d", "e")
		f.resolver.set("a", "b")
		for _, addr := range []string{"c", "d", "e"} {
			f.stop(addr)
		}
		var strange atomic.Int32
		for _, addr := range []string{"c", "d"} {
			f.serve(t, addr, yodel.NewServer(&yodel.ServerOptions{
				Logger: slog.New(slog.DiscardHandler),
				Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
					return func(context.Context, *yodel.Call) error {
						strange.Add(1)
						return yodel.Unimplemented
					}
				}},
			}))
		}
		for range 90 {
			f.call(t)
			time.Sleep(time.Second)
		}
		f.knows(t, "a", "b")
		if n := strange.Load(); n > 0 {
			t.Errorf("%d calls were sent to servers of another service", n)
		}
	})
}

// A record is of a server that died, and a server of another service listens at its address.
func TestARecordOfAServerThatDiedGetsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var strange atomic.Int32
		serve := func(addr, method string, executed *atomic.Int32) {
			s := yodel.NewServer(nil)
			must(t, s.Handle(method, func(*Empty) (*Empty, error) { executed.Add(1); return &Empty{}, nil }))
			l, err := network.Listen(addr)
			must(t, err)
			start(t, s, l)
		}
		var right atomic.Int32
		serve("a", "Stock.Get", &right)
		serve("b", "Other.Get", &strange)
		serve("c", "Stock.Get", &right) // it was started again, and its record is still the older one
		r := &named{settable: newSettable(), service: "Stock"}
		r.setInstances([]discovery.Instance{{Addr: "a"}, {Addr: "b", Incarnation: "00"}, {Addr: "c", Incarnation: "00"}})
		c := yodel.NewClient(r, &yodel.ClientOptions{Transport: network})
		defer c.Close()
		for range 30 {
			must(t, c.Call(t.Context(), "Stock.Get", &Empty{}, nil))
			time.Sleep(100 * time.Millisecond)
		}
		if n := right.Load(); n != 30 || strange.Load() != 0 {
			t.Errorf("the servers of the service executed %d of 30 calls, another one %d", n, strange.Load())
		}
		for _, ep := range c.Endpoints() {
			if ep.Connected() != (ep.Addr() != "b") {
				t.Errorf("%s: connected: %t", ep.Addr(), ep.Connected())
			}
		}
	})
}

func TestInactiveInstancesGetNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		set := func(states ...string) {
			var instances []discovery.Instance
			for i, state := range states {
				instances = append(instances, discovery.Instance{Addr: fmt.Sprintf("%c", 'a'+i), State: state})
			}
			f.resolver.setInstances(instances)
		}
		set("inactive", "active")
		f.knows(t, "b")
		set("inactive", "inactive") // that is not doubtful: it has been said
		f.knows(t)
		_, err := inspect.Ping.Call(t.Context(), f.client, &inspect.Empty{})
		if e := wantError(t, err, yodel.Unavailable, "YDL1001"); !strings.Contains(e.Message, "no instance is active of 2 that are known") {
			t.Errorf("a call fails with %v", e)
		}
		set("", "inactive")
		f.knows(t, "a")
	})
}

// A registry that has lost its memory learns again server by server. Nothing has changed, so no
// endpoint is replaced by another one, which knows nothing and has to connect.
func TestASetThatGrowsAgainReplacesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []string{"a", "b", "c", "d", "e", "f"}
		f := startFleet(t, all...)
		before := f.client.Endpoints()
		for known := range len(all) + 1 {
			f.resolver.set(all[:known]...)
			f.knows(t, all...)
		}
		for _, ep := range f.client.Endpoints() {
			if !slices.Contains(before, ep) {
				t.Errorf("%s is another endpoint than before", ep.Addr())
			}
		}
		f.resolver.set(all[:5]...) // it knows them all, and is believed again
		f.knows(t, all[:5]...)

		f.resolver.set()
		f.stop("e") // meanwhile
		f.resolver.set(all[:4]...)
		time.Sleep(time.Minute)
		f.knows(t, all[:4]...)
		f.resolver.set(all[:3]...) // the four were all
		f.knows(t, all[:3]...)
	})
}
