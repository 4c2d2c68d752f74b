// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// The tests of this file call the client or the server from code that it calls itself. See
// docs/decisions/0040-user-code-runs-without-our-locks.md.

// returns fails the test unless f returns in time.
func returns(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	receive(t, done, what)
}

func TestUpdateInstanceMayCallTheServer(t *testing.T) {
	s := newServer(t, nil)
	addr := serve(t, s)
	must(t, newClient(t, nil, addr).Ready(t.Context()))
	returns(t, "UpdateInstance returns", func() {
		s.UpdateInstance(func(in *discovery.Instance) {
			until(t, "the server knows its peer", func() bool { return len(s.Peers()) == 1 })
			if s.Addr().String() != addr {
				t.Errorf("the server listens at %v, want %s", s.Addr(), addr)
			}
			in.Weight = 7
		})
	})
}

// Each change sees those before it, and one that panics changes nothing.
func TestNoUpdateOfAnInstanceIsLost(t *testing.T) {
	t.Attr("rerun", "never")
	const updates = 100
	registry := memory.New(nil)
	s := newServer(t, &yodel.ServerOptions{
		Registrars: []discovery.Registrar{registry},
		Instance:   discovery.Instance{Metadata: yodel.Metadata{"rack": "1"}},
	})
	serve(t, s)
	var wg sync.WaitGroup
	for range updates {
		wg.Go(func() {
			s.UpdateInstance(func(in *discovery.Instance) {
				in.Weight++
				in.Metadata["rack"] += "1"
			})
		})
	}
	wg.Wait()
	func() {
		defer func() { _ = recover() }()
		s.UpdateInstance(func(in *discovery.Instance) {
			in.Weight = -1
			panic("no")
		})
	}()
	s.UpdateInstance(func(in *discovery.Instance) {
		if in.Weight != updates || len(in.Metadata["rack"]) != updates+1 {
			t.Errorf("after %d updates the weight is %d, and the metadata has grown by %d", updates, in.Weight, len(in.Metadata["rack"])-1)
		}
	})
}

// askingKeys is a memory whose Scope asks the server.
type askingKeys struct{ ask func() }

func (askingKeys) Guard(next yodel.Handler) yodel.Handler { return next }

func (k askingKeys) Scope() (string, time.Duration) {
	k.ask()
	return "here", time.Minute
}

func TestTheScopeOfAKeyMemoryMayCallTheServer(t *testing.T) {
	var s *yodel.Server
	s = newServer(t, &yodel.ServerOptions{Keys: askingKeys{func() { s.Peers() }}})
	c := connect(t, s, nil)
	returns(t, "a call returns", func() {
		if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
			t.Error(err)
		}
	})
}

// While the memory of one connection is asked, others begin and end.
func TestAKeyMemoryThatIsSlowHoldsUpOnlyItsConnection(t *testing.T) {
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	var once sync.Once
	begun := make(chan struct{})
	s := newServer(t, &yodel.ServerOptions{Keys: askingKeys{func() {
		select {
		case <-begun:
			slow := false
			once.Do(func() { slow = true })
			if slow {
				asked <- struct{}{}
				<-answer
			}
		default: // the server begins to serve
		}
	}}})
	addr := serve(t, s)
	until(t, "the server listens", func() bool { return s.Addr() != nil })
	must(t, newClient(t, nil, addr).Ready(t.Context()))
	close(begun)
	late := newClient(t, nil, addr)
	ready := make(chan error, 1)
	go func() { ready <- late.Ready(t.Context()) }()
	receive(t, asked, "the memory is asked")
	returns(t, "another client's call returns", func() {
		if _, err := Mul.Call(t.Context(), newClient(t, nil, addr), &Args{2, 3}); err != nil {
			t.Error(err)
		}
	})
	close(answer)
	must(t, receive(t, ready, "the connection begins"))
}

// askingListener is a listener whose methods ask the server.
type askingListener struct {
	net.Listener
	ask func()
}

func (l askingListener) Addr() net.Addr {
	l.ask()
	return l.Listener.Addr()
}

func (l askingListener) Close() error {
	l.ask()
	return l.Listener.Close()
}

func TestAListenerMayCallTheServer(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Registrars: []discovery.Registrar{memory.New(nil)}})
	l := askingListener{listen(t), func() { s.Peers() }}
	serveOn(t, s, l)
	c := newClient(t, nil, l.Listener.Addr().String())
	returns(t, "the server works and ends", func() {
		if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
			t.Error(err)
		}
		if s.Addr() == nil {
			t.Error("the server has no address")
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A connection beyond the limit is refused without having been accepted.
func TestAConnectionBeyondTheLimitIsNotAccepted(t *testing.T) {
	var log hookLog
	network := mem.New()
	h := startHooked(t, network, &yodel.ServerOptions{MaxConns: 1, OnConn: log.event}, nil)
	h.works(t, 42)
	nc, err := network.Dial(t.Context(), "server")
	must(t, err)
	defer nc.Close()
	if _, err := nc.Read(make([]byte, 1)); err == nil {
		t.Error("the server sent something on a connection beyond its limit")
	}
	until(t, "the connection is refused", func() bool {
		log.mu.Lock()
		defer log.mu.Unlock()
		return len(log.lines) >= 2 && log.lines[len(log.lines)-1] == "refused"
	})
	log.is(t, "accepted", "refused")
}

// Connections whose hook is still running count.
func TestConnectionsThatAreBeingAcceptedCount(t *testing.T) {
	const limit, tries = 3, 8
	var log hookLog
	network := mem.New()
	goOn := make(chan struct{})
	startHooked(t, network, &yodel.ServerOptions{MaxConns: limit, OnConn: func(e introspect.ConnEvent) {
		log.event(e)
		if e.Kind == introspect.Accepted {
			<-goOn
		}
	}}, nil)
	decided(t, network, &log, tries)
	log.has(t, "accepted", "accepted", "accepted", "refused", "refused", "refused", "refused", "refused")
	close(goOn)
}

// decided makes connections, and waits until the log has a line about each.
func decided(t *testing.T, network *mem.Network, log *hookLog, tries int) {
	t.Helper()
	for range tries {
		nc, err := network.Dial(t.Context(), "server")
		must(t, err)
		t.Cleanup(func() { _ = nc.Close() })
	}
	until(t, "all connections are decided about", func() bool {
		log.mu.Lock()
		defer log.mu.Unlock()
		return len(log.lines) == tries
	})
}

// Connections that the Accept filter decides about count, so a slow filter runs for at most
// MaxConns of them.
func TestConnectionsInTheAcceptFilterCount(t *testing.T) {
	const limit, tries = 3, 8
	var log hookLog
	network := mem.New()
	goOn := make(chan struct{})
	startHooked(t, network, &yodel.ServerOptions{MaxConns: limit, OnConn: log.event, Accept: func(net.Conn) error {
		log.add("asked")
		<-goOn
		return errHook
	}}, nil)
	decided(t, network, &log, tries)
	log.has(t, "asked", "asked", "asked", "refused", "refused", "refused", "refused", "refused")
	close(goOn)
}

// With Protocols a client may be silent for long, but its place is not safe from another client.
func TestASilentConnectionGivesItsPlaceToAClientThatCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		h := startHooked(t, network, &yodel.ServerOptions{
			MaxConns: 1, Protocols: []yodel.Protocol{lines{codec: yodel.JSON}}, Limits: yodel.Limits{Handshake: 3 * time.Second},
		}, nil)
		nc, err := network.Dial(t.Context(), "server")
		must(t, err)
		defer nc.Close()
		synctest.Wait()
		time.Sleep(3 * time.Second)
		h.works(t, 42)
		if _, err := nc.Read(make([]byte, 1)); err == nil {
			t.Error("the silent connection is open")
		}
	})
}

// tryCall calls the server behind c, which is asked for by code that c calls.
func tryCall(t testing.TB, c *yodel.Client) {
	t.Helper()
	if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
		t.Error(err)
	}
}

func TestABalancerMayCallItsClient(t *testing.T) {
	first, second := serve(t, newServer(t, nil)), serve(t, newServer(t, nil))
	r := newSettable(first)
	built := make(chan int, 100)
	c := yodel.NewClient(r, &yodel.ClientOptions{Balancer: func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		of := endpoints[0].Client()
		if err := of.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		if last != nil { // else there is nobody yet who could choose
			tryCall(t, of)
			if len(of.Endpoints()) == 0 {
				t.Error("the client has no endpoints")
			}
		}
		built <- len(endpoints)
		return yodel.RoundRobin(endpoints, last)
	}})
	t.Cleanup(c.Close)
	if n := receive(t, built, "the Balancer returns"); n != 1 {
		t.Errorf("the Balancer got %d endpoints, want 1", n)
	}
	tryCall(t, c)
	r.set(first, second)
	receiveValue(t, built, 2, "the Balancer gets the second endpoint")
	tryCall(t, c)
}

// With Static, the Balancer and the middleware run in NewClient.
func TestNewClientRunsCodeThatCallsTheClient(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	returns(t, "NewClient returns, and a call", func() {
		ready := func(c *yodel.Client) {
			if err := c.Ready(t.Context()); err != nil {
				t.Error(err)
			}
		}
		c := newClient(t, &yodel.ClientOptions{
			Balancer: func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
				ready(endpoints[0].Client())
				return yodel.RoundRobin(endpoints, last)
			},
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				ready(ep.Client())
				// on the way that is there already
				if err := ep.Client().Do(t.Context(), &yodel.Call{Method: string(Mul), Args: &Args{2, 3}, Reply: &Reply{}, Endpoint: ep}); err != nil {
					t.Error(err)
				}
				return next
			}},
		}, addr)
		if len(c.Endpoints()) != 1 {
			t.Errorf("NewClient returned a client with %d endpoints", len(c.Endpoints()))
		}
		tryCall(t, c)
	})
}

func TestABalancerMayCloseItsClient(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	returns(t, "NewClient and Close return", func() {
		c := newClient(t, &yodel.ClientOptions{Balancer: func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			endpoints[0].Client().Close()
			return yodel.RoundRobin(endpoints, last)
		}}, addr)
		_, err := Mul.Call(t.Context(), c, &Args{2, 3})
		wantError(t, err, yodel.Canceled, "YDL1007")
	})
}

// A Balancer that takes long holds up nobody who can do with the set before. When it has returned,
// the newest set is in use, whatever came between.
func TestASlowBalancerHoldsUpNobody(t *testing.T) {
	addrs := make([]string, 4)
	for i := range addrs {
		addrs[i] = serve(t, newServer(t, nil))
	}
	update := make(chan func([]discovery.Instance), 1)
	set := func(to func([]discovery.Instance), addrs ...string) {
		var all []discovery.Instance
		for _, addr := range addrs {
			all = append(all, discovery.Instance{Addr: addr})
		}
		to(all)
	}
	r := resolverFunc(func(ctx context.Context, to func([]discovery.Instance)) error {
		set(to, addrs[0])
		update <- to
		set(to, addrs[:2]...)
		<-ctx.Done()
		return nil
	})
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	var running, builds atomic.Int32
	var before yodel.Picker
	c := newClientOf(t, r, &yodel.ClientOptions{Balancer: func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		if running.Add(1) != 1 {
			t.Error("two Balancers run at the same time")
		}
		defer running.Add(-1)
		if last != before {
			t.Error("the Balancer was not given the picker that it made before")
		}
		if builds.Add(1) == 2 {
			begun <- struct{}{}
			<-goOn
		}
		before = yodel.RoundRobin(endpoints, last)
		return before
	}})
	receive(t, begun, "the Balancer runs")
	to := <-update
	returns(t, "calls and the resolver go on while the Balancer runs", func() {
		for range 10 {
			tryCall(t, c)
		}
		if err := c.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		err := c.Do(t.Context(), &yodel.Call{Method: "Arith.Nothing", Args: &Args{}, Explain: true})
		if yodel.CodeOf(err) != yodel.Unimplemented {
			t.Errorf("got %v, want unimplemented", err)
		}
		set(to, addrs[:3]...)
		set(to, addrs...)
	})
	if n := len(c.Endpoints()); n != 1 {
		t.Errorf("there are %d endpoints before the Balancer has returned", n)
	}
	close(goOn)
	until(t, "the newest set is in use", func() bool { return len(c.Endpoints()) == 4 })
	if n := builds.Load(); n != 3 {
		t.Errorf("the Balancer ran %d times, want 3: it need not see what has been replaced", n)
	}
	tryCall(t, c)
}

// newClientOf returns a client of what a resolver names, which is closed when the test ends.
func newClientOf(t testing.TB, r discovery.Resolver, o *yodel.ClientOptions) *yodel.Client {
	t.Helper()
	c := yodel.NewClient(r, o)
	t.Cleanup(c.Close)
	return c
}

// The connection that calls wait for is theirs although the Balancer has not heard of it yet.
func TestASlowBalancerDoesNotKeepAConnectionFromCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("there")
		must(t, err)
		start(t, newServer(t, nil), l)
		goOn := make(chan struct{})
		var builds, dials atomic.Int32
		c := newClient(t, &yodel.ClientOptions{
			Transport: transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
				if dials.Add(1) == 1 {
					return nil, errors.New("not yet")
				}
				return network.Dial(ctx, addr)
			}),
			Balancer: func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
				if builds.Add(1) > 1 {
					<-goOn
				}
				return yodel.RoundRobin(endpoints, last)
			},
		}, "there")
		_, err = Mul.Call(t.Context(), c, &Args{2, 3})
		wantError(t, err, yodel.Unavailable, "YDL1103") // it is a suspect now
		time.Sleep(5 * time.Second)                     // and answers
		if builds.Load() < 2 {
			t.Error("the Balancer was not told")
		}
		tryCall(t, c)
		close(goOn)
	})
}

// What the resolver names while the Balancer runs is in use at last, and nothing that it named
// before. Here the resolver names the next set because of the Balancer.
func TestTheNewestSetWins(t *testing.T) {
	const sets = 20
	instance := func(i int) []discovery.Instance { return []discovery.Instance{{Addr: fmt.Sprintf("server%d", i)}} }
	var update func([]discovery.Instance)
	var builds atomic.Int32
	c := newClientOf(t, resolverFunc(func(ctx context.Context, name func([]discovery.Instance)) error {
		update = name
		update(instance(0))
		<-ctx.Done()
		return nil
	}), &yodel.ClientOptions{Transport: mem.New(), Balancer: func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		if n := int(builds.Add(1)); n < sets {
			update(instance(n))
		}
		return yodel.RoundRobin(endpoints, last)
	}})
	until(t, "the last set is in use", func() bool {
		all := c.Endpoints()
		return len(all) == 1 && all[0].Addr() == instance(sets - 1)[0].Addr
	})
	if n := builds.Load(); n != sets {
		t.Errorf("the Balancer ran %d times for %d sets", n, sets)
	}
}

// Where the constructor of a middleware panics, calls fail. Others go elsewhere.
func TestAnEndpointMiddlewareThatPanicsTakesOneEndpointAway(t *testing.T) {
	good, bad := serve(t, newServer(t, nil)), serve(t, newServer(t, nil))
	c := newClient(t, &yodel.ClientOptions{
		Logger: slog.New(slog.DiscardHandler),
		EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			if ep.Addr() == bad {
				panic("no")
			}
			return next
		}},
	}, good, bad)
	for _, ep := range c.Endpoints() {
		err := c.Do(t.Context(), &yodel.Call{Method: string(Mul), Args: &Args{2, 3}, Endpoint: ep})
		if ep.Addr() == good {
			must(t, err)
		} else {
			wantError(t, err, yodel.Internal, "YDL5004")
		}
	}
}

// A call that names an endpoint whose chain is being built does not wait for it.
func TestACallMayComeBeforeTheChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		s := yodel.NewServer(nil)
		relay.Handle(s, func(_ context.Context, in *int) (*int, error) { return in, nil })
		l, err := network.Listen("a")
		must(t, err)
		start(t, s, l)
		passed := 0
		c := yodel.NewClient(discovery.Static("a"), &yodel.ClientOptions{
			Transport: network,
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				early := make(chan error, 1)
				ep.Go(func(ctx context.Context) {
					early <- ep.Client().Do(ctx, &yodel.Call{Method: string(relay), Args: new(int), Endpoint: ep})
				})
				must(t, <-early)
				return func(ctx context.Context, call *yodel.Call) error {
					passed++
					return next(ctx, call)
				}
			}},
		})
		defer c.Close()
		_, err = relay.Call(t.Context(), c, new(int))
		if must(t, err); passed != 1 {
			t.Errorf("%d calls passed through the chain, want 1", passed)
		}
	})
}

// askingError is an error whose text asks the client.
type askingError struct{ ask func() }

func (e askingError) Error() string {
	e.ask()
	return "the resolver is unwell"
}

func TestTheErrorOfAResolverMayCallTheClient(t *testing.T) {
	made := make(chan struct{})
	var c *yodel.Client
	failed := askingError{func() {
		<-made
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = c.Ready(ctx)
	}}
	c = newClientOf(t, resolverFunc(func(context.Context, func([]discovery.Instance)) error { return failed }), &yodel.ClientOptions{
		DialTimeout: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	close(made)
	returns(t, "a call returns", func() {
		until(t, "the client knows what is wrong", func() bool {
			_, err := Mul.Call(t.Context(), c, &Args{2, 3})
			return strings.Contains(err.Error(), "the resolver is unwell")
		})
	})
}

// A call that waits for the first picker says so.
func TestACallSaysThatItWaitedForTheBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		c := newClientOf(t, newSettable("nobody"), &yodel.ClientOptions{Balancer: func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			<-goOn
			return yodel.RoundRobin(endpoints, last)
		}})
		_, err := Mul.Call(t.Context(), c, &Args{2, 3})
		e := wantError(t, err, yodel.Unavailable, "YDL1002")
		if want := "the balancer has made no picker within 3s"; !strings.Contains(e.Message, want) {
			t.Errorf("got %q, want %q in it", e.Message, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = Mul.Call(ctx, c, &Args{2, 3})
		e = wantError(t, err, yodel.DeadlineExceeded, "YDL1005")
		if want := "after 1s of waiting for the balancer"; !strings.Contains(e.Message, want) {
			t.Errorf("got %q, want %q in it", e.Message, want)
		}
		close(goOn)
	})
}
