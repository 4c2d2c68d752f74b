// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// services is a source with fixed instances.
type services map[string][]discovery.Instance

func (s services) Services(context.Context) ([]string, error) {
	var names []string
	for name := range s {
		names = append(names, name)
	}
	return names, nil
}

func (s services) Service(name string) discovery.Resolver { return instances(s[name]) }

type instances []discovery.Instance

func (all instances) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	update(all)
	<-ctx.Done()
	return nil
}

// serve starts a server with two services and returns its address.
func serve(t *testing.T, o *yodel.ServerOptions) string {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	s := yodel.NewServer(o)
	yodel.Method[int, int]("shop.Cart.Add").Handle(s, func(_ context.Context, n *int) (*int, error) {
		if *n < 0 {
			return nil, yodel.Errorf(yodel.Internal, "negative")
		}
		return n, nil
	})
	echo(s, "shop.Pay.Charge")
	return listen(t, s)
}

// serveOwn starts a server whose built-in methods are those that register adds, and yodel.Health.
func serveOwn(t *testing.T, register func(s *yodel.Server)) string {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true, Logger: slog.New(slog.DiscardHandler)})
	inspect.Health.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Health, error) {
		return &introspect.Health{Serving: true}, nil
	})
	register(s)
	return listen(t, s)
}

// listen makes s serve until the test ends, and returns the address.
func listen(t *testing.T, s *yodel.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() { stop(); <-served })
	return l.Addr().String()
}

// echo registers a method that returns its argument.
func echo(s *yodel.Server, name string) {
	yodel.Method[int, int](name).Handle(s, func(_ context.Context, n *int) (*int, error) { return n, nil })
}

// refusing returns an address at which nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// silent returns an address at which something listens that answers nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func call(t *testing.T, addr, method string, n int) {
	t.Helper()
	c := yodel.Dial(addr)
	defer c.Close()
	var out int
	err := c.Call(t.Context(), method, &n, &out)
	if (err != nil) != (n < 0) {
		t.Fatal(err)
	}
}

func read(t *testing.T, f *fleet.Fleet) *fleet.View {
	t.Helper()
	view, err := f.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return view
}

func TestStatesOfInstances(t *testing.T) {
	good, disabled := serve(t, &yodel.ServerOptions{Diagnostics: true}), serve(t, &yodel.ServerOptions{})
	mute, dead, hanging := serve(t, &yodel.ServerOptions{NoIntrospection: true}), refusing(t), silent(t)
	f := fleet.New(services{
		"shop.Cart": {
			{Addr: good, Version: "v1.0.0"}, {Addr: disabled, State: "inactive"}, {Addr: mute, Version: "v1.1.0", Weight: 2},
			{Addr: dead}, {Addr: hanging}, {Addr: "10.0.0.1:1", Protocols: []string{"dubbo"}, Version: "v1.0.0"},
		},
		"shop.Pay":  {{Addr: good}},
		"shop.None": nil,
	}, &fleet.Options{Timeout: 300 * time.Millisecond})
	defer f.Close()
	view := read(t, f)
	var order []string
	for _, s := range view.Services {
		order = append(order, s.Name+" "+string(s.State))
	}
	if got := strings.Join(order, ", "); got != "shop.None down, shop.Cart degraded, shop.Pay idle" {
		t.Errorf("got the services %s", got)
	}
	cart := view.Service("shop.Cart")
	states := map[string]fleet.State{
		good: fleet.Up, disabled: fleet.Inactive, mute: fleet.Up, dead: fleet.Down, hanging: fleet.Silent, "10.0.0.1:1": fleet.Listed,
	}
	for _, in := range cart.Instances {
		if in.State != states[in.Addr] {
			t.Errorf("%s is %s (%s), want %s", in.Addr, in.State, in.Why, states[in.Addr])
		}
	}
	if cart.Up != 3 {
		t.Errorf("%d instances are up, want 3", cart.Up)
	}
	if got := cart.Versions; len(got) != 3 || got[1].Version != "v1.0.0" || got[1].Share != 0.5 || got[2].Share != 0.5 || got[0].Share != 0 {
		t.Errorf("got the versions %v", got)
	}
	for _, part := range []string{"1 of 6 instances cannot be reached: " + dead, "1 of 6 instances does not answer in time: " + hanging, "1 of 6 instances is disabled: " + disabled} {
		if !strings.Contains(cart.Note, part) {
			t.Errorf("the note %q does not contain %q", cart.Note, part)
		}
	}
	if note := view.Service("shop.None").Note; note != "no instance is registered" {
		t.Errorf("got the note %q", note)
	}
	if methods := view.Service("shop.Pay").Methods; len(methods) != 1 || methods[0].Name != "shop.Pay.Charge" {
		t.Errorf("got the methods %v", methods)
	}
}

// TestTraffic checks the values without live data: they come from the counters since the start of
// the server, and then from the difference of two reads.
func TestTraffic(t *testing.T) {
	without := func() *yodel.ServerOptions {
		return &yodel.ServerOptions{Diagnostics: true, OnRegister: func(method string) error {
			if method == string(inspect.Live) {
				return errors.New("this server has no live data")
			}
			return nil
		}}
	}
	a, b := serve(t, without()), serve(t, without())
	f := fleet.New(services{"shop.Cart": {{Addr: a}, {Addr: b}}}, nil)
	defer f.Close()
	for range 9 {
		call(t, a, "shop.Cart.Add", 1)
	}
	call(t, b, "shop.Cart.Add", -1)
	cart := read(t, f).Service("shop.Cart")
	if tr := cart.Traffic; !tr.Known || tr.Rate == 0 || tr.Errors["internal"] == 0 || tr.P99 == 0 || tr.P99 < tr.P50 {
		t.Errorf("got the traffic %+v", tr)
	}
	if cart.State != fleet.Degraded || !strings.Contains(cart.Note, "of the calls fail, mostly with internal") {
		t.Errorf("the service is %s, with the note %q", cart.State, cart.Note)
	}
	cart = read(t, f).Service("shop.Cart")
	if tr := cart.Traffic; !tr.Known || tr.Rate != 0 || tr.Failed != 0 || cart.State != fleet.Idle {
		t.Errorf("without calls between two reads, the service is %s, with the traffic %+v", cart.State, tr)
	}
}

// A caller that leaves a feed does not make the service degraded.
func TestTrafficOfCallersThatLeave(t *testing.T) {
	const ticks yodel.Feed[int, int] = "shop.Prices.Ticks"
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Logger: slog.New(slog.DiscardHandler), OnRegister: func(method string) error {
		if method == string(inspect.Live) {
			return errors.New("this server has no live data")
		}
		return nil
	}})
	ticks.Handle(s, func(ctx context.Context, n *int, send yodel.Send[int]) error {
		if err := send(n); err != nil {
			return err
		}
		if *n < 0 {
			return yodel.Errorf(yodel.Internal, "broken")
		}
		<-ctx.Done()
		return ctx.Err()
	})
	addr := listen(t, s)
	f := fleet.New(services{"shop.Prices": {{Addr: addr}}}, nil)
	defer f.Close()
	c := yodel.Dial(addr)
	defer c.Close()
	for _, of := range []struct {
		n     int
		code  string
		state fleet.State
	}{{1, "canceled", fleet.Healthy}, {-1, "internal", fleet.Degraded}} {
		n := of.n
		for range ticks.Call(t.Context(), c, &n) {
			if n > 0 {
				break
			}
		}
		end := time.Now().Add(10 * time.Second)
		for {
			prices := read(t, f).Service("shop.Prices")
			if tr := prices.Traffic; tr.Errors[of.code] > 0 {
				if prices.State != of.state || (tr.Failed > 0) != (of.state == fleet.Degraded) {
					t.Errorf("%s: the service is %s (%s), with the traffic %+v", of.code, prices.State, prices.Note, tr)
				}
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: no such call is in %+v", of.code, prices.Traffic)
			}
		}
	}
}

// TestStatisticsAreBounded reads a server that answers yodel.Stats itself, with more methods than
// any server has.
func TestStatisticsAreBounded(t *testing.T) {
	odd := &introspect.Stats{}
	for i := range 6000 {
		odd.Methods = append(odd.Methods, introspect.MethodStats{Name: fmt.Sprint("shop.Cart.", i), Calls: math.MaxUint64, Inflight: -1})
	}
	addr := serveOwn(t, func(s *yodel.Server) {
		inspect.Stats.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Stats, error) { return odd, nil })
	})
	f := fleet.New(services{"shop.Cart": {{Addr: addr}}}, &fleet.Options{Timeout: time.Minute})
	defer f.Close()
	for range 2 {
		in := read(t, f).Service("shop.Cart").Instances[0]
		if got := in.Stats; got == nil || len(got.Methods) != 5000 || in.Traffic.Inflight != 0 {
			t.Fatalf("got the instance %+v", in)
		}
	}
}

// Each service that fleet.Addresses finds is followed, so a server can name only so many. The list
// says that it is not complete.
func TestServicesAtAnAddressAreBounded(t *testing.T) {
	odd := &introspect.Info{}
	for i := range 6000 {
		odd.Methods = append(odd.Methods, introspect.Method{Name: fmt.Sprint("service", i, ".Do")})
	}
	addr := serveOwn(t, func(s *yodel.Server) {
		inspect.Info.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Info, error) { return odd, nil })
	})
	names, err := fleet.Addresses(nil, addr).Services(t.Context())
	if err == nil || !strings.Contains(err.Error(), "has 6000 methods, and the services of the first 5000 are listed") || len(names) != 5000 {
		t.Errorf("got %d services, %v", len(names), err)
	}
}

// TestTrafficOfARealServer waits until the live data of a server have the calls of a second that
// has ended.
func TestTrafficOfARealServer(t *testing.T) {
	addr := serve(t, &yodel.ServerOptions{Diagnostics: true})
	f := fleet.New(services{"shop.Cart": {{Addr: addr}}}, nil)
	defer f.Close()
	for range 9 {
		call(t, addr, "shop.Cart.Add", 1)
	}
	call(t, addr, "shop.Cart.Add", -1)
	end := time.After(10 * time.Second)
	for {
		cart := read(t, f).Service("shop.Cart")
		tr := cart.Traffic
		if tr.Failed > 0 { // the call that fails is the last one, and the calls may be of two seconds
			if tr.Failed < 0.099 || tr.Failed > 0.101 || tr.Step != time.Second || tr.P99 == 0 || cart.Instances[0].Live == nil || len(cart.Callers) == 0 {
				t.Errorf("got the traffic %+v of the callers %v", tr, cart.Callers)
			}
			if m := cart.Methods; len(m) != 1 || m[0].Name != "shop.Cart.Add" || len(m[0].Callers) != 1 || m[0].Callers[0].Traffic.Rate != tr.Rate || m[0].Callers[0].Name == "" {
				t.Errorf("got the methods %+v", m)
			}
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-end:
			t.Fatalf("the traffic is still %+v", tr)
		}
	}
}

// Servers without diagnostics are not idle: nobody knows.
func TestServersWithoutDiagnostics(t *testing.T) {
	f := fleet.New(services{"shop.Cart": {{Addr: serve(t, &yodel.ServerOptions{})}}}, nil)
	defer f.Close()
	cart := read(t, f).Service("shop.Cart")
	if cart.Traffic.Known || cart.State != fleet.Unknown || cart.Up != 1 || !strings.Contains(cart.Note, "ServerOptions.Diagnostics") || !strings.Contains(cart.Instances[0].Why, "it shows no calls") {
		t.Errorf("got the service %+v", cart)
	}
}

func TestAddresses(t *testing.T) {
	a := serve(t, &yodel.ServerOptions{})
	dead := refusing(t)
	f := fleet.New(fleet.Addresses(nil, a, dead), &fleet.Options{Timeout: 5 * time.Second})
	defer f.Close()
	view := read(t, f)
	if len(view.Services) != 2 || view.Services[0].Name != "shop.Cart" || view.Services[0].Up != 1 {
		t.Errorf("got the services %v", view.Services)
	}
	if !strings.Contains(view.Err, dead) {
		t.Errorf("the error %q does not name %s", view.Err, dead)
	}
	none := fleet.New(fleet.Addresses(nil, dead), nil)
	defer none.Close()
	if _, err := none.Read(t.Context()); err == nil {
		t.Error("a fleet without a reachable server was read")
	}
}

// wrong is a source whose resolvers do not do what a resolver should.
type wrong map[string]resolver

type resolver func(ctx context.Context) error

func (w wrong) Services(context.Context) ([]string, error) {
	return slices.Collect(maps.Keys(w)), nil
}

func (w wrong) Service(name string) discovery.Resolver { return w[name] }

func (r resolver) Watch(ctx context.Context, _ func([]discovery.Instance)) error { return r(ctx) }

// However many resolvers are silent, panic or give up: a read waits once, and says which.
func TestWrongResolvers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32 // also after the read
		source := wrong{
			"panics": func(context.Context) error { panic("harm") },
			"stops":  func(context.Context) error { calls.Add(1); return nil },
		}
		for i := range 20 {
			source[fmt.Sprintf("silent%d", i)] = func(ctx context.Context) error { <-ctx.Done(); return nil }
		}
		f := fleet.New(source, &fleet.Options{Timeout: 3 * time.Second})
		defer f.Close()
		began := time.Now()
		view := read(t, f)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the read took %v", took)
		}
		for name, says := range map[string]string{
			"panics": "the resolver panicked: harm", "stops": "the resolver has stopped", "silent7": "the registry has not answered within 3s",
		} {
			if got := view.Service(name).Err; got != says {
				t.Errorf("%s: got %q, want %q", name, got, says)
			}
		}
		if n := calls.Load(); n > 4 {
			t.Errorf("a resolver that stops at once was called %d times within 3 s", n)
		}
	})
}

// failing is a source that can be made to name nothing.
type failing struct {
	services

	down atomic.Bool
}

func (f *failing) Services(ctx context.Context) ([]string, error) {
	if f.down.Load() {
		return nil, errors.New("connection refused")
	}
	return f.services.Services(ctx)
}

// While the registry is down, the instances that it has named are asked as before, and a service
// that works is not degraded.
func TestAnOutageOfTheSourceHidesNoInstance(t *testing.T) {
	addr := serve(t, &yodel.ServerOptions{Diagnostics: true})
	source := &failing{services: services{"shop.Cart": {{Addr: addr}}}}
	f := fleet.New(source, nil)
	defer f.Close()
	source.down.Store(true)
	if _, err := f.Read(t.Context()); err == nil || err.Error() != "connection refused" {
		t.Errorf("a source that has never named a service: %v", err)
	}
	source.down.Store(false)
	if view := read(t, f); view.Outage || view.Err != "" {
		t.Errorf("got an outage: %q", view.Err)
	}
	source.down.Store(true)
	view, end := read(t, f), time.Now().Add(10*time.Second)
	for !view.Outage && time.Now().Before(end) { // the source is not asked for nine times as long as its last answer took
		view = read(t, f)
	}
	began := time.Now()
	view = read(t, f)
	cart := view.Service("shop.Cart")
	if !view.Outage || view.Err != "connection refused" || view.At.Before(began) || cart == nil || cart.Up != 1 || cart.Instances[0].Live == nil || len(cart.Problems) > 0 {
		t.Fatalf("got the view %+v of the service %+v", view, cart)
	}
	source.down.Store(false)
	if view := read(t, f); view.Outage || view.Err != "" {
		t.Errorf("the outage is over, and got %q", view.Err)
	}
}

func TestClosedFleet(t *testing.T) {
	f := fleet.New(services{"shop.Cart": nil}, nil)
	read(t, f)
	f.Close()
	if _, err := f.Read(t.Context()); err == nil {
		t.Error("a closed fleet was read")
	}
	if f.Client("127.0.0.1:1") != nil {
		t.Error("a closed fleet has a client")
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	g := fleet.New(services{"shop.Cart": {{Addr: silent(t)}}}, nil)
	defer g.Close()
	if _, err := g.Read(ended); err == nil || err.Error() != "enough" {
		t.Errorf("got the error %v, want that of the context", err)
	}
}

// answerLive makes a server of serveOwn answer yodel.Live.
func answerLive(s *yodel.Server, o *introspect.Live) {
	inspect.Live.Handle(s, func(context.Context, *introspect.LiveQuery) (*introspect.Live, error) { return o, nil })
}

// TestLiveData checks how live data of several processes are merged. The server answers yodel.Live
// itself.
func TestLiveData(t *testing.T) {
	started := time.Now().Add(-time.Hour)
	at := time.Now().Add(-20 * time.Second)
	pay, cart := "", ""
	live := func(name string, o *introspect.Live) string {
		return serveOwn(t, func(s *yodel.Server) {
			answerLive(s, o)
			echo(s, name)
		})
	}
	series := func(calls uint64) introspect.Series {
		return introspect.Series{
			Side: "server", Method: "shop.Pay.Charge", Peer: "web", Calls: []uint64{calls, calls, 1000},
			Errors:  map[string][]uint64{"internal": {1, 0, 500}},
			Latency: [][]introspect.Bucket{{{UpTo: time.Millisecond, Calls: calls}}, {{UpTo: time.Second, Calls: calls}}, {{UpTo: time.Hour, Calls: 1000}}},
		}
	}
	data := func(series ...introspect.Series) *introspect.Live {
		return &introspect.Live{Now: time.Now(), Step: time.Second, Series: series, Process: introspect.Process{Started: started}}
	}
	pay = live("shop.Pay.Charge", data(series(10)))
	other := live("shop.Pay.Charge", data(series(30)))
	caller := data()
	caller.Events = []introspect.Event{{At: at, Kind: "not ready", Object: pay, What: "5 errors in a row", By: "breaker"}}
	cart = live("shop.Cart.Add", caller)
	f := fleet.New(services{"shop.Pay": {{Addr: pay}, {Addr: other}}, "shop.Cart": {{Addr: cart}}}, nil)
	defer f.Close()
	view := read(t, f)
	got := view.Service("shop.Pay")
	if tr := got.Traffic; tr.Rate != 40 || tr.Failed != 1.0/40 || tr.P50 != time.Millisecond || tr.P99 != time.Second || len(tr.Points) != 2 || tr.Points[0] != 40 {
		t.Errorf("got the traffic %+v", tr)
	}
	if len(got.Callers) != 1 || got.Callers[0].Name != "web" || got.Callers[0].Traffic.Rate != 40 {
		t.Errorf("got the callers %v", got.Callers)
	}
	if want := "1 of 2 instances is ejected: " + pay + ": breaker: 5 errors in a row (for 20s); 2.5 % of the calls fail, mostly with internal"; got.Note != want || got.Up != 1 {
		t.Errorf("%d instances get calls, and the note is %q, want %q", got.Up, got.Note, want)
	}
	if len(view.Events) != 1 {
		t.Errorf("got the events %v", view.Events)
	}
}

// An instance is ejected until the last reason of the last process has ended.
func TestEjections(t *testing.T) {
	pay := serve(t, &yodel.ServerOptions{Diagnostics: true})
	var processes [2]atomic.Pointer[introspect.Live]
	source := services{"shop.Pay": {{Addr: pay}}}
	for i := range processes {
		addr := serveOwn(t, func(s *yodel.Server) {
			inspect.Live.Handle(s, func(context.Context, *introspect.LiveQuery) (*introspect.Live, error) {
				return processes[i].Load(), nil
			})
		})
		source["shop.Cart"] = append(source["shop.Cart"], discovery.Instance{Addr: addr})
	}
	f := fleet.New(source, nil)
	defer f.Close()
	const notReady, ready, down = "not ready", "ready", "instance down"
	// An event is a kind, what it is about, and who has done it. Pay is the address of the
	// instance.
	for _, test := range []struct {
		what          string
		first, second [][3]string // of the two processes
		why           string      // empty if the instance is not ejected
	}{
		{what: "one reason", first: [][3]string{{notReady, pay, "breaker"}}, why: "breaker"},
		{what: "it has ended", first: [][3]string{{notReady, pay, "breaker"}, {ready, pay, "breaker"}}},
		{what: "it has ended in another process", first: [][3]string{{notReady, pay, "breaker"}},
			second: [][3]string{{notReady, pay, "breaker"}, {ready, pay, "breaker"}}, why: "breaker"},
		{what: "in two processes", first: [][3]string{{notReady, pay, "breaker"}, {notReady, pay, "outlier"}}, second: [][3]string{{notReady, pay, "outlier"}},
			why: "breaker, and in 2 processes"},
		{what: "another reason has ended", first: [][3]string{{notReady, pay, "breaker"}, {notReady, pay, "outlier"}, {ready, pay, "outlier"}}, why: "breaker"},
		{what: "the first reason has ended", first: [][3]string{{notReady, pay, "breaker"}, {notReady, pay, "outlier"}, {ready, pay, "breaker"}}, why: "outlier"},
		{what: "it has left", first: [][3]string{{notReady, pay, "breaker"}, {notReady, pay, "outlier"}, {down, pay, "resolver"}}},
		{what: "it has left another process", first: [][3]string{{notReady, pay, "breaker"}}, second: [][3]string{{down, pay, "resolver"}}, why: "breaker"},
		{what: "it has left with many", first: [][3]string{{notReady, pay, "breaker"}, {down, "shop.Pay", "resolver"}}},
		{what: "others have left", first: [][3]string{{notReady, pay, "breaker"}, {down, "shop.Cart", "resolver"}, {down, "", "resolver"}}, why: "breaker"},
		{what: "it is back", first: [][3]string{{notReady, pay, "breaker"}, {down, "shop.Pay", "resolver"}, {notReady, pay, "outlier"}}, why: "outlier"},
	} {
		at := time.Now()
		for i, events := range [][][3]string{test.first, test.second} {
			live := &introspect.Live{Now: at, Step: time.Second}
			for j, e := range events {
				live.Events = append(live.Events, introspect.Event{At: at.Add(time.Duration(10*j+i) * time.Millisecond), Kind: e[0], Object: e[1], What: e[2], By: e[2]})
			}
			processes[i].Store(live)
		}
		in := read(t, f).Service("shop.Pay").Instances[0]
		if ejected := in.State == fleet.Ejected; ejected != (test.why != "") || in.Why != test.why {
			t.Errorf("%s: the instance is %s (%s), want %q", test.what, in.State, in.Why, test.why)
		}
	}
}

// An event about many instances says that operators have disabled them only if that is true of all
// inactive instances of the service.
func TestEventsOfManyDisabledInstances(t *testing.T) {
	const told = "9 instances of shop.Cart: a:1, b:1, c:1 and others: "
	process := atomic.Pointer[introspect.Live]{}
	var overrides [2]atomic.Pointer[[]introspect.Override]
	var cart []discovery.Instance
	for i := range overrides {
		cart = append(cart, discovery.Instance{State: "inactive", Addr: serveOwn(t, func(s *yodel.Server) {
			inspect.Info.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Info, error) {
				return &introspect.Info{Overrides: *overrides[i].Load()}, nil
			})
			inspect.Live.Handle(s, func(context.Context, *introspect.LiveQuery) (*introspect.Live, error) { return process.Load(), nil })
		})})
	}
	operator, none := []introspect.Override{{Service: "shop.Cart", State: "inactive"}}, []introspect.Override(nil)
	for _, test := range []struct {
		object, says, want, by string
		second                 *[]introspect.Override
	}{
		{"shop.Cart", "they are disabled", "an operator has disabled them", "operator", &operator},
		{"shop.Cart", "they are disabled", "they are disabled", "resolver", &none},
		{"shop.Cart", "4 are disabled, the others have left", "4 are disabled, the others have left", "resolver", &operator},
		{"shop.Pay", "they are disabled", "they are disabled", "resolver", &operator},
	} {
		overrides[0].Store(&operator)
		overrides[1].Store(test.second)
		now := time.Now()
		process.Store(&introspect.Live{Now: now, Step: time.Second, Events: []introspect.Event{{At: now, Kind: "instance down", Object: test.object, What: told + test.says, By: "resolver"}}})
		f := fleet.New(services{"shop.Cart": cart}, nil)
		all := fleet.Changes(read(t, f).Events)
		f.Close()
		if len(all) != 1 || all[0].What != told+test.want || all[0].By != test.by {
			t.Errorf("%+v: got %+v", test, all)
		}
	}
}

// The reason of an ejection says how long it still lasts, and not how long it lasted when it began.
func TestAnEjectionSaysWhenItEnds(t *testing.T) {
	pay := serve(t, &yodel.ServerOptions{Diagnostics: true})
	for said, want := range map[string]string{
		"it is slow; it is tried again in 16.291s":        "outlier: it is slow; it is tried again in 12s",
		"it is slow; it is tried again in 9.06s":          "outlier: it is slow; it is tried again in 5.1s",
		"it is slow; it is tried again in 3.9s":           "outlier: it is slow; it is being tried again",
		"it is slow; it is tried again in a while":        "outlier: it is slow; it is tried again in a while",
		"it is tried again in 1s; it is tried again in s": "outlier: it is tried again in 1s; it is tried again in s",
	} {
		f := fleet.New(services{"Pay": {{Addr: pay}}, "Cart": {{Addr: serveOwn(t, func(s *yodel.Server) {
			now := time.Now()
			answerLive(s, &introspect.Live{Now: now, Step: time.Second, Events: []introspect.Event{
				{At: now.Add(-time.Minute), Kind: "ejected", Object: pay, What: "it is slow; it is tried again in 1s", By: "outlier"},
				{At: now.Add(-4 * time.Second), Kind: "ejected", Object: pay, What: said, By: "outlier"},
			}})
		})}}}, nil)
		if in := read(t, f).Service("Pay").Instances[0]; in.State != fleet.Ejected || in.Why != want {
			t.Errorf("%q: the instance is %s (%s), want %q", said, in.State, in.Why, want)
		}
		f.Close()
	}
}

// Callers may repeat a method, or call it by GET, only if all instances say so.
func TestMethodsThatInstancesDescribeDifferently(t *testing.T) {
	var says [2]atomic.Bool
	var cart []discovery.Instance
	for i := range says {
		cart = append(cart, discovery.Instance{Addr: serveOwn(t, func(s *yodel.Server) {
			inspect.Info.Handle(s, func(context.Context, *inspect.Empty) (*introspect.Info, error) {
				return &introspect.Info{Methods: []introspect.Method{{Name: "shop.Cart.Get", ReadOnly: says[i].Load(), Idempotent: says[i].Load()}}}, nil
			})
		})})
	}
	for _, test := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		says[0].Store(test[0])
		says[1].Store(test[1])
		f := fleet.New(services{"shop.Cart": cart}, nil)
		m := read(t, f).Service("shop.Cart").Methods
		f.Close()
		if want := test[0] && test[1]; len(m) != 1 || m[0].ReadOnly != want || m[0].Idempotent != want {
			t.Errorf("%v: got %+v", test, m)
		}
	}
}
