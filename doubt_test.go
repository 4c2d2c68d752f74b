// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A fleet is servers on a network in memory, and a client that a settable resolver names them to.
type fleet struct {
	network  *mem.Network
	resolver *settable
	client   *yodel.Client
	stops    map[string]func()
}

func startFleet(t *testing.T, addrs ...string) *fleet {
	t.Helper()
	f := &fleet{network: mem.New(), resolver: newSettable(addrs...), stops: make(map[string]func())}
	for _, addr := range addrs {
		f.start(t, addr)
	}
	f.client = yodel.NewClient(f.resolver, &yodel.ClientOptions{Transport: f.network, Logger: slog.New(slog.DiscardHandler)})
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

func (f *fleet) start(t *testing.T, addr string) {
	t.Helper()
	l, err := f.network.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
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
	if _, err := yodel.Ping.Call(t.Context(), f.client, &yodel.Empty{}); err != nil {
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

func TestUnlistedInstancesThatWereNeverCalledAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a")
		f.start(t, "b")
		f.resolver.set("a", "b", "nowhere") // no call has been made to the last two
		f.knows(t, "a", "b", "nowhere")
		f.resolver.set()
		time.Sleep(time.Minute)
		f.knows(t, "a", "b")
	})
}

func TestAnUnlistedInstanceMayBeConnectedToAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b", "c")
		f.resolver.set()
		f.knows(t, "a", "b", "c")
		for range 3 {
			f.stop("a")
			time.Sleep(20 * time.Second)
			f.start(t, "a")
			time.Sleep(20 * time.Second)
			f.knows(t, "a", "b", "c")
		}
	})
}

func TestInactiveInstancesGetNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		set := func(states ...string) {
			var instances []yodel.Instance
			for i, state := range states {
				instances = append(instances, yodel.Instance{Addr: fmt.Sprintf("%c", 'a'+i), State: state})
			}
			f.resolver.setInstances(instances)
		}
		set("inactive", "active")
		f.knows(t, "b")
		set("inactive", "inactive") // that is not doubtful: it has been said
		f.knows(t)
		_, err := yodel.Ping.Call(t.Context(), f.client, &yodel.Empty{})
		if e := wantError(t, err, yodel.Unavailable, "YDL1001"); !strings.Contains(e.Message, "no instance is active of 2 that are known") {
			t.Errorf("a call fails with %v", e)
		}
		set("", "inactive")
		f.knows(t, "a")
	})
}

// A registry that has lost its memory learns again server by server. Nothing has changed, so no endpoint is replaced by another one, which knows nothing and has to connect.
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

// A registry that loses its memory does not make every client connect to every server, at once and for good.
func TestInstancesThatWereNeverCalledAreAskedLittleByLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("there")
		must(t, err)
		start(t, newServer(t, nil), l)
		addrs := make([]string, 600)
		for i := range addrs {
			addrs[i] = fmt.Sprint(i)
		}
		var dials atomic.Int32
		resolver := newSettable(addrs...)
		c := yodel.NewClient(resolver, &yodel.ClientOptions{Transport: transportFunc(func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			return network.Dial(ctx, "there")
		})})
		defer c.Close()
		synctest.Wait()
		resolver.set()
		time.Sleep(time.Second)
		if n := dials.Load(); n > 100 { // 20 on average
			t.Errorf("%d connections were made within a second", n)
		}
		time.Sleep(time.Minute + 5*time.Second)
		if n := dials.Load(); n != 600 {
			t.Errorf("%d of 600 were asked", n)
		}
		for _, ep := range c.Endpoints() {
			if ep.Connected() {
				t.Fatalf("%s has no call and stays connected", ep.Addr())
			}
		}
		if n := len(c.Endpoints()); n != 600 {
			t.Errorf("the client knows %d", n)
		}
	})
}
