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
	"github.com/yodel-rpc/yodel/internal/wire"
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

// A call that stays is sent again to the endpoint that was picked for it, and is told when that can
// be; used again, it may be sent anywhere.
func TestACallThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		executed := map[string]int{}
		for _, addr := range []string{"a", "b"} {
			s := yodel.NewServer(nil)
			relay.Handle(s, func(context.Context, *int) (*int, error) {
				executed[addr]++
				return nil, yodel.Unavailable
			})
			l, err := network.Listen(addr)
			must(t, err)
			start(t, s, l)
		}
		stays := true
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{Transport: network, Middleware: []yodel.Middleware{
			func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if stays {
						call.Attempts().Pin()
					}
					for range 3 {
						_ = next(ctx, call)
					}
					return nil
				}
			},
		}})
		defer c.Close()
		must(t, c.Ready(t.Context()))
		synctest.Wait() // both are connected
		call := &yodel.Call{Method: string(relay), Args: new(int)}
		for _, want := range []int{3, 0, 3} { // round robin
			before := executed["a"]
			must(t, c.Do(t.Context(), call))
			if n := executed["a"] - before; n != want && n != 3-want {
				t.Errorf("a has executed %d of 3 attempts", n)
			}
		}
		stays = false
		before := executed["a"]
		must(t, c.Do(t.Context(), call))
		must(t, c.Do(t.Context(), call))
		if n := executed["a"] - before; n != 3 {
			t.Errorf("a has executed %d of 6 attempts that may go anywhere, want 3", n)
		}
	})
}

func TestAPinnedCallIsToldWhenItsEndpointIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := yodel.NewClient(discovery.Static("nobody"), &yodel.ClientOptions{Transport: mem.New()})
		defer c.Close()
		call := &yodel.Call{Method: string(relay), Args: new(int), Endpoint: c.Endpoints()[0]}
		_ = c.Do(t.Context(), call) // connects, in vain
		err := c.Do(t.Context(), call)
		e, ok := err.(*yodel.Error)
		if !ok || e.RetryAfter <= 0 || e.RetryAfter > 2*time.Second || !e.NotProcessed {
			t.Errorf("got %#v", err)
		}
		if call.Endpoint.Connected() {
			t.Error("it is connected to nobody")
		}
	})
}

// What a client does in the background ends with it, and begins no more when it is closed.
func TestWhatRunsInTheBackgroundEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := yodel.NewClient(discovery.Static(), nil)
		ended := false
		if !c.Background(func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
		}) {
			t.Error("it does not begin")
		}
		c.Close()
		if !ended {
			t.Error("Close has not waited")
		}
		if c.Background(func(context.Context) { t.Error("it runs") }) {
			t.Error("it begins when the client is closed")
		}
	})
}

// Endpoint middleware may begin something in the background when it is made, which is when the set
// of endpoints is.
func TestEndpointMiddlewareBeginsInTheBackground(t *testing.T) {
	begun := make(chan struct{}, 1)
	made := make(chan *yodel.Client, 1)
	go func() {
		made <- yodel.NewClient(discovery.Static("a"), &yodel.ClientOptions{
			Transport: mem.New(),
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				ep.Client().Background(func(context.Context) { begun <- struct{}{} })
				return next
			}},
		})
	}()
	receive(t, begun, "it begins")
	c := receive(t, made, "the client is made")
	c.Close()
}

// A student is a round robin that notes how attempts end.
type student struct {
	yodel.Picker
	notes *notes
}

type notes struct {
	mu   sync.Mutex
	ends []end
}

type end struct {
	ep   *yodel.Endpoint
	took time.Duration
	err  error
}

func (s *student) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	s.notes.ends = append(s.notes.ends, end{ep, took, err})
}

func (n *notes) balancer(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
	if s, ok := last.(*student); ok {
		last = s.Picker
	}
	return &student{yodel.RoundRobin(all, last), n}
}

func (n *notes) take() []end {
	n.mu.Lock()
	defer n.mu.Unlock()
	ends := n.ends
	n.ends = nil
	return ends
}

func TestALearnerIsToldOfEachAttempt(t *testing.T) {
	const Count yodel.Feed[int, int] = "Count"
	s := newServer(t, nil)
	handle(t, s, "Fail", func(context.Context, *Empty) (*Empty, error) {
		return nil, yodel.Errorf(yodel.NotFound, "there is none")
	})
	handle(t, s, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) { <-ctx.Done(); return nil, ctx.Err() })
	Count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	told := &notes{}
	c := connect(t, s, &yodel.ClientOptions{Balancer: told.balancer})
	must(t, c.Ready(t.Context()))
	async := func(call *yodel.Call) error {
		done := make(chan error, 1)
		c.Go(t.Context(), call, func(err error) { done <- err })
		return receive(t, done, "the call ends")
	}
	mul := func(call yodel.Call) *yodel.Call {
		call.Method, call.Args, call.Reply = string(Mul), &Args{6, 7}, &Reply{}
		return &call
	}
	for _, kind := range []struct {
		name  string
		make  func() error
		code  yodel.Code
		timed bool
	}{
		{"a call", func() error { return c.Do(t.Context(), mul(yodel.Call{})) }, 0, true},
		{"a call that is pinned", func() error { return c.Do(t.Context(), mul(yodel.Call{Endpoint: c.Endpoints()[0]})) }, 0, true},
		{"an error", func() error { return c.Call(t.Context(), "Fail", &Empty{}, nil) }, yodel.NotFound, true},
		{"asynchronous", func() error { return async(mul(yodel.Call{})) }, 0, true},
		{"an asynchronous error", func() error { return async(&yodel.Call{Method: "Fail", Args: &Empty{}}) }, yodel.NotFound, true},
		{"ordered", func() error { return c.Do(t.Context(), mul(yodel.Call{Ordered: true})) }, 0, true},
		{"ordered and asynchronous", func() error { return async(mul(yodel.Call{Ordered: true})) }, 0, true},
		{"an ordered error", func() error { return async(&yodel.Call{Method: "Fail", Args: &Empty{}, Ordered: true}) }, yodel.NotFound, true},
		{"too late", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return c.Call(ctx, "Wait", &Empty{}, nil)
		}, yodel.DeadlineExceeded, true},
		{"a stream", func() error {
			n := 3
			for _, err := range Count.Call(t.Context(), c, &n) {
				if err != nil {
					return err
				}
			}
			return nil
		}, 0, false},
		{"a stream that is not served", func() error {
			_, err := yodel.Feed[int, int]("None").Call(t.Context(), c, new(int)).Next()
			return err
		}, yodel.Unimplemented, false},
	} {
		t.Run(kind.name, func(t *testing.T) {
			if err := kind.make(); yodel.CodeOf(err) != kind.code {
				t.Fatalf("got %v, want the code %v", err, kind.code)
			}
			ends := told.take()
			if len(ends) != 1 {
				t.Fatalf("it was told %v, want one end", ends)
			}
			e := ends[0]
			if e.ep != c.Endpoints()[0] || yodel.CodeOf(e.err) != kind.code || e.took > 0 != kind.timed {
				t.Errorf("it was told %+v, want the code %v", e, kind.code)
			}
			if _, ok := errors.AsType[*yodel.Error](e.err); e.err != nil && !ok {
				t.Errorf("the error is a %T", e.err)
			}
		})
	}
	must(t, c.Notify(t.Context(), string(Mul), &Args{}))
	must(t, async(mul(yodel.Call{OneWay: true})))
	if ends := told.take(); len(ends) > 0 {
		t.Errorf("it was told %v of one-way calls", ends)
	}
}

func TestALearnerCostsNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newServer(t, nil)
	const calls = 5000
	cost := func(b yodel.Balancer) float64 {
		c := connect(t, s, &yodel.ClientOptions{Balancer: b})
		in, out := Args{6, 7}, Reply{}
		work := func() {
			for range calls {
				must(t, c.Call(t.Context(), string(Mul), &in, &out))
			}
		}
		work()
		least := float64(mallocs(work)) / calls
		for range 4 {
			least = min(least, float64(mallocs(work))/calls)
		}
		return least
	}
	without := cost(nil)
	with := cost(func(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker { return deaf{yodel.RoundRobin(all, last)} })
	if with > without+allocSlack {
		t.Errorf("a call makes %.3f allocations, and without a learner %.3f", with, without)
	}
}

// A deaf learner forgets at once.
type deaf struct{ yodel.Picker }

func (deaf) Ended(*yodel.Endpoint, time.Duration, error) {}

// A client hears on its replies how many calls of others its server is working on, and that there
// are none any more.
func TestAServerSaysHowBusyItIs(t *testing.T) {
	s := newServer(t, nil)
	release := make(chan struct{})
	begun := make(chan struct{})
	handle(t, s, "Wait", func(context.Context, *Empty) (*Empty, error) { begun <- struct{}{}; <-release; return &Empty{}, nil })
	addr := serve(t, s)
	busy, other := newClient(t, nil, addr), newClient(t, nil, addr)
	must(t, other.Ready(t.Context()))
	ep := other.Endpoints()[0]
	heard := func(want int) func() bool {
		return func() bool {
			_, err := Mul.Call(t.Context(), other, &Args{})
			must(t, err)
			return ep.Load() == want
		}
	}
	const n = 20
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := busy.Call(context.Background(), "Wait", &Empty{}, nil); err != nil {
				t.Error(err)
			}
		})
		receive(t, begun, "a call begins")
	}
	until(t, "the other client has heard of them", heard(n))
	if got := busy.Endpoints()[0].Load(); got != n {
		t.Errorf("the client that makes the calls takes the load for %d, want its own %d", got, n)
	}
	close(release)
	wg.Wait()
	until(t, "it has heard that they have ended", heard(0))
}

// A pingCounter counts the pings that are written by themselves, as they are on an idle connection.
type pingCounter struct {
	net.Conn
	pings *atomic.Int64
}

func (c pingCounter) Write(b []byte) (int, error) {
	if len(b) == wire.HeaderSize+8 && b[4] == byte(wire.Ping) {
		c.pings.Add(1)
	}
	return c.Conn.Write(b)
}

func TestRTTIsMeasuredWhenItIsAskedFor(t *testing.T) {
	var dials, pings atomic.Int64
	transport := transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		dials.Add(1)
		conn, err := yodel.TCP.Dial(ctx, addr)
		return pingCounter{conn, &pings}, err
	})
	c := newClient(t, &yodel.ClientOptions{Transport: transport}, serve(t, newServer(t, nil)))
	until(t, "the endpoint is known", func() bool { return len(c.Endpoints()) == 1 })
	ep := c.Endpoints()[0]
	if got := ep.RTT(); got != 0 || dials.Load() != 0 {
		t.Errorf("without a connection it is %v, and there were %d attempts to connect", got, dials.Load())
	}
	_, err := Mul.Call(t.Context(), c, &Args{})
	must(t, err)
	if pings.Load() != 0 {
		t.Error("there was a ping, and nobody has asked")
	}
	until(t, "it has been measured", func() bool { return ep.RTT() > 0 })
	first := ep.RTT()
	for range 1000 {
		if got := ep.RTT(); got != first {
			t.Fatalf("it was measured again at once: %v, then %v", first, got)
		}
	}
	if n := pings.Load(); n > 1 {
		t.Errorf("%d pings were written, want 1", n)
	}
}

// A tolerantPicker ignores readiness, and notes whether it would have mattered.
type tolerantPicker struct {
	ep      *yodel.Endpoint
	avoided *[]bool
}

func (p tolerantPicker) Pick(call *yodel.Call) *yodel.Endpoint {
	*p.avoided = append(*p.avoided, call.Attempts().Avoids(p.ep))
	call.Attempts().AllowUnready()
	if call.Attempts().Avoids(p.ep) {
		return nil
	}
	return p.ep
}

func TestAPickerCanIgnoreReadiness(t *testing.T) {
	var avoided []bool
	c := connect(t, newServer(t, nil), &yodel.ClientOptions{Balancer: func(all []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
		return tolerantPicker{all[0], &avoided}
	}})
	must(t, c.Ready(t.Context()))
	ep := c.Endpoints()[0]
	ep.SetReady("test", false)
	call := &yodel.Call{Method: string(Mul), Args: &Args{}, Reply: &Reply{}}
	for range 2 { // each pick begins anew
		must(t, c.Do(t.Context(), call))
	}
	if !slices.Equal(avoided, []bool{true, true}) {
		t.Errorf("the calls avoided the endpoint in their picks: %v, want that of both", avoided)
	}
	call.Attempts().AllowUnready()
	if call.Attempts().Avoids(ep) {
		t.Error("a tolerant call avoids what is not ready")
	}
	call.Attempts().Avoid(ep)
	if !call.Attempts().Avoids(ep) {
		t.Error("a tolerant call does not avoid what it was tried on")
	}
}
