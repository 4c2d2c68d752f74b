// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// seriesOf returns a series of live data, or nil.
func seriesOf(l *introspect.Live, side, method, peer string) *introspect.Series {
	i := slices.IndexFunc(l.Series, func(s introspect.Series) bool {
		return s.Side == side && s.Method == method && s.Peer == peer
	})
	if i < 0 {
		return nil
	}
	return &l.Series[i]
}

func sumOf(numbers []uint64) (n uint64) {
	for _, more := range numbers {
		n += more
	}
	return n
}

// inMemory runs f in a bubble with fake time, with a network of its own.
func inMemory(t *testing.T, f func(t *testing.T, network *mem.Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, mem.New()) })
}

func serveInMemory(t *testing.T, n *mem.Network, s *yodel.Server, addr string) {
	t.Helper()
	l, err := n.Listen(addr)
	must(t, err)
	serveOn(t, s, l)
}

func TestLiveDataHasCallsOfEachSecond(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, nil)
		handle(t, s, "Slow.Call", func(took *time.Duration) (*Empty, error) {
			<-time.After(*took) // in fake time
			if *took > 10*time.Millisecond {
				return nil, yodel.Errorf(yodel.NotFound, "too slow")
			}
			return &Empty{}, nil
		})
		serveInMemory(t, n, s, "shop")
		c := newClient(t, &yodel.ClientOptions{Transport: n, Name: "checkout"}, "shop")
		call := func(took time.Duration) error {
			return c.Call(t.Context(), "Slow.Call", &took, nil)
		}
		for range 3 {
			must(t, call(time.Millisecond))
		}
		<-time.After(2 * time.Second)
		if call(20*time.Millisecond) == nil {
			t.Fatal("the call has not failed")
		}
		synctest.Wait() // it has ended on the server too
		l, err := inspect.Live.Call(t.Context(), c, &introspect.LiveQuery{Span: 5 * time.Second, Histograms: true, Method: "Slow.Call"})
		must(t, err)
		got := seriesOf(l, "server", "Slow.Call", "checkout")
		if got == nil || len(l.Series) != 1 {
			t.Fatalf("got series %+v, want one of checkout", l.Series)
		}
		if l.Step != time.Second || !slices.Equal(got.Calls, []uint64{0, 0, 3, 0, 1}) || !slices.Equal(got.Errors["not_found"], []uint64{0, 0, 0, 0, 1}) || len(got.Errors) != 1 {
			t.Errorf("got calls %v and errors %v in steps of %v", got.Calls, got.Errors, l.Step)
		}
		if p := got.P50[2]; p < time.Millisecond || p > time.Millisecond*5/4 || got.P99[4] < 20*time.Millisecond || got.P90[0] != 0 {
			t.Errorf("got P50 %v, P90 %v, P99 %v", got.P50, got.P90, got.P99)
		}
		if h := got.Latency[2]; len(h) != 1 || h[0].Calls != 3 {
			t.Errorf("got histograms %v", got.Latency)
		}
	})
}

func TestLiveDataIsSummedUp(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, nil)
		serveInMemory(t, n, s, "shop")
		c := newClient(t, &yodel.ClientOptions{Transport: n, Name: "checkout"}, "shop")
		call := func(times int) {
			for range times {
				_, err := Mul.Call(t.Context(), c, &Args{A: 2, B: 3})
				must(t, err)
			}
		}
		wait := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait() // the step of this instant has begun
		}
		call(5)
		wait(90 * time.Minute)
		call(7)
		wait(time.Minute)
		call(11)
		wait(time.Second)
		call(13)
		synctest.Wait() // the last call has ended on the server too
		for _, want := range []struct {
			span, step time.Duration
			calls      []uint64
		}{
			{2 * time.Second, time.Second, []uint64{11, 13}},
			{2 * time.Minute, time.Minute, []uint64{7, 24}},
			{2 * time.Hour, time.Hour, []uint64{5, 31}},
		} {
			span := want.span
			if want.step > time.Second {
				span = 60 * want.step // the ring is chosen by the span
			}
			l := s.Live(&introspect.LiveQuery{Span: span, Method: string(Mul)})
			got := seriesOf(l, "server", string(Mul), "checkout")
			if l.Step != want.step || got == nil || !slices.Equal(got.Calls[len(got.Calls)-2:], want.calls) {
				t.Errorf("%v: got %+v in steps of %v, want %v", want.span, got, l.Step, want.calls)
			}
		}
	})
}

func TestNameOfTheCallerReachesTheServer(t *testing.T) {
	for given, want := range map[string]string{
		"":                      filepath.Base(os.Args[0]),
		"checkout":              "checkout",
		"a b/c\n\u00e4":         "a-b-c--",
		fmt.Sprintf("%080d", 1): fmt.Sprintf("%064d", 0),
	} {
		s := newServer(t, nil)
		names := make(chan string, 1)
		handle(t, s, "Who.Calls", func(ctx context.Context, _ *Empty) (*Empty, error) {
			names <- yodel.CallFrom(ctx).Peer().Name
			return &Empty{}, nil
		})
		c := connect(t, s, &yodel.ClientOptions{Name: given})
		must(t, c.Call(t.Context(), "Who.Calls", &Empty{}, nil))
		if got := receive(t, names, "the call"); got != want || c.Name() != want {
			t.Errorf("%q: the server knows it as %q, the client as %q, want %q", given, got, c.Name(), want)
		}
	}
}

func TestCallersShareAMethodWithoutMixing(t *testing.T) {
	s := newServer(t, nil)
	addr := serve(t, s)
	const calls = 200
	var wg sync.WaitGroup
	for caller := range 3 {
		c := newClient(t, &yodel.ClientOptions{Name: fmt.Sprint("caller", caller)}, addr)
		for range 2 {
			wg.Go(func() {
				for i := range calls {
					_, err := Mul.Call(t.Context(), c, &Args{A: i, B: caller})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	until(t, "each caller has its calls", func() bool {
		l := s.Live(&introspect.LiveQuery{Span: time.Hour, Method: string(Mul)})
		for caller := range 3 {
			of := seriesOf(l, "server", string(Mul), fmt.Sprint("caller", caller))
			if of == nil || sumOf(of.Calls) != 2*calls {
				return false
			}
		}
		return len(l.Series) == 3
	})
}

// The calls that the server is executing are in the live data by method, also before any of them
// has ended.
func TestLiveDataOfCallsInFlight(t *testing.T) {
	s := newServer(t, nil)
	begun, end := make(chan struct{}), make(chan struct{})
	handle(t, s, "Slow.Call", func(*Empty) (*Empty, error) {
		begun <- struct{}{}
		<-end
		return &Empty{}, nil
	})
	c := connect(t, s, nil)
	done := make(chan error)
	for range 2 {
		go func() { done <- c.Call(t.Context(), "Slow.Call", &Empty{}, nil) }()
		<-begun
	}
	for method, want := range map[string]int64{"": 2, "Slow.Call": 2, "Arith.Mul": 0} {
		if got := s.Live(&introspect.LiveQuery{Method: method}).Inflight["Slow.Call"]; got != want {
			t.Errorf("asked for %q: %d calls are in flight, want %d", method, got, want)
		}
	}
	if l := s.Live(&introspect.LiveQuery{Side: "client"}); len(l.Inflight) > 0 {
		t.Errorf("the client's side has %v in flight", l.Inflight)
	}
	close(end)
	must(t, <-done)
	must(t, <-done)
	until(t, "none is in flight", func() bool { return len(s.Live(nil).Inflight) == 0 })
}

// A method that is registered after the connection first used its name counts too.
func TestLiveDataOfMethodsThatComeAndGo(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, &yodel.ClientOptions{Name: "checkout"})
	call := func() error { return c.Call(t.Context(), "Late.Method", &Empty{}, nil) }
	wantError(t, call(), yodel.Unimplemented, "YDL2001")
	for range 2 {
		handle(t, s, "Late.Method", func(*Empty) (*Empty, error) { return &Empty{}, nil })
		must(t, call())
		must(t, s.Unregister("Late.Method"))
		if call() == nil {
			t.Fatal("the method is still there")
		}
	}
	until(t, "both calls count", func() bool {
		got := seriesOf(s.Live(&introspect.LiveQuery{Span: time.Hour}), "server", "Late.Method", "checkout")
		return got != nil && sumOf(got.Calls) == 2
	})
}

// The calls that handlers make are in the live data of their server, and so are the instances that
// they use.
func TestLiveDataOfCallsThatHandlersMake(t *testing.T) {
	stock := newServer(t, nil)
	stockAddr := serve(t, stock)
	toStock := newClient(t, &yodel.ClientOptions{Name: "shop"}, stockAddr)
	shop := newServer(t, nil)
	handle(t, shop, "Shop.Buy", func(ctx context.Context, in *Args) (*Reply, error) { return Mul.Call(ctx, toStock, in) })
	handle(t, shop, "Shop.Fail", func(ctx context.Context, _ *Empty) (*Empty, error) {
		return nil, toStock.Call(ctx, "No.Such", &Empty{}, nil)
	})
	handle(t, shop, "Shop.Later", func(ctx context.Context, in *Args) (*Reply, error) {
		return Mul.Go(ctx, toStock, in).Get()
	})
	c := connect(t, shop, nil)
	for range 3 {
		must(t, c.Call(t.Context(), "Shop.Buy", &Args{A: 2, B: 3}, nil))
		must(t, c.Call(t.Context(), "Shop.Later", &Args{A: 2, B: 3}, nil))
	}
	if c.Call(t.Context(), "Shop.Fail", &Empty{}, nil) == nil {
		t.Fatal("the call has not failed")
	}
	l, err := inspect.Live.Call(t.Context(), c, &introspect.LiveQuery{Span: time.Hour, Side: "client"})
	must(t, err)
	calls, failed := seriesOf(l, "client", string(Mul), stockAddr), seriesOf(l, "client", "No.Such", stockAddr)
	if calls == nil || sumOf(calls.Calls) != 6 || len(calls.Errors) != 0 || slices.Max(calls.P99) == 0 {
		t.Errorf("got %+v, want 6 calls", calls)
	}
	if failed == nil || sumOf(failed.Errors["unimplemented"]) != 1 || len(l.Series) != 2 {
		t.Errorf("got %+v, want one that failed", failed)
	}
	if l.Name != "shop" || l.Process.PID != os.Getpid() || l.Process.Goroutines == 0 || l.Process.Heap == 0 || l.Process.Go == "" {
		t.Errorf("got name %q, process %+v", l.Name, l.Process)
	}
	toStock.Endpoints()[0].SetReady("breaker", false)
	toStock.Endpoints()[0].SetReady("breaker", true)
	shop.Note(introspect.Event{Kind: "rule", Object: "r1", What: "a timeout of 1 s", By: "ann"})
	var got []string
	for _, e := range shop.Live(nil).Events {
		got = append(got, e.Kind+" by "+e.By)
		if e.At.IsZero() || e.Object == "" || e.What == "" {
			t.Errorf("got %+v", e)
		}
	}
	slices.Sort(got)
	if want := []string{"instance up by resolver", "not ready by breaker", "ready by breaker", "rule by ann", "start by "}; !slices.Equal(got, want) {
		t.Errorf("got events %q, want %q", got, want)
	}
	toStock.Close()
	if got := shop.Conns(); slices.ContainsFunc(got.Conns, func(c introspect.ConnInfo) bool { return c.Side == "client" }) {
		t.Errorf("got %+v, want no connection of the closed client", got)
	}
}

func TestConnsHasBothSides(t *testing.T) {
	stockAddr := serve(t, newServer(t, nil))
	toStock := newClient(t, nil, stockAddr)
	shop := newServer(t, nil)
	handle(t, shop, "Shop.Buy", func(ctx context.Context, in *Args) (*Reply, error) { return Mul.Call(ctx, toStock, in) })
	c := connect(t, shop, &yodel.ClientOptions{Name: "checkout"})
	must(t, c.Call(t.Context(), "Shop.Buy", &Args{A: 2, B: 3}, nil))
	got, err := inspect.Conns.Call(t.Context(), c, &Empty{})
	must(t, err)
	if len(got.Conns) != 2 || got.Left != 0 {
		t.Fatalf("got %+v, want one connection of each side", got)
	}
	dialled, accepted := got.Conns[0], got.Conns[1]
	if dialled.Side != "client" || dialled.Addr != stockAddr || dialled.Protocol != "yodel" || dialled.Agent == "" || dialled.TLS || dialled.BytesIn == 0 {
		t.Errorf("got %+v", dialled)
	}
	if accepted.Side != "server" || accepted.Peer != "checkout" || accepted.Protocol != "yodel" || accepted.Agent == "" || accepted.BytesIn == 0 {
		t.Errorf("got %+v", accepted)
	}
	for _, of := range got.Conns {
		if age := time.Since(of.Since); age < 0 || age > patience {
			t.Errorf("%+v began %v ago", of, age)
		}
	}
}

func TestTapSendsCallsThatItsQuerySelects(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Shop.Fail", func(*Empty) (*Empty, error) { return nil, yodel.Errorf(yodel.NotFound, "nothing there") })
	addr := serve(t, s)
	c, other := newClient(t, &yodel.ClientOptions{Name: "checkout"}, addr), newClient(t, &yodel.ClientOptions{Name: "stock"}, addr)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tapped := make(chan introspect.Tapped, 100)
	open := func(q *introspect.TapQuery) {
		go func() {
			for m, err := range inspect.Tap.Call(ctx, c, q) {
				if err != nil {
					return
				}
				tapped <- *m
			}
		}()
	}
	open(&introspect.TapQuery{Failed: true, Peer: "checkout"})
	trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var got introspect.Tapped
	until(t, "the tap is open", func() bool {
		_, err := Mul.Call(t.Context(), c, &Args{A: 1, B: 1})
		must(t, err)
		if other.Call(t.Context(), "Shop.Fail", &Empty{}, nil) == nil || c.Do(t.Context(), &yodel.Call{Method: "Shop.Fail", Args: &Empty{}, Trace: trace}) == nil {
			t.Fatal("the call has not failed")
		}
		select {
		case got = <-tapped:
			return true
		default:
			return false
		}
	})
	if got.Method != "Shop.Fail" || got.Peer != "checkout" || got.Code != "not_found" || got.Message != "nothing there" || got.Took <= 0 || got.Trace != trace ||
		got.At.IsZero() || got.In == 0 || got.Left != 0 {
		t.Errorf("got %+v", got)
	}
	for len(tapped) > 0 {
		if m := <-tapped; m.Peer != "checkout" || m.Method != "Shop.Fail" {
			t.Errorf("got %+v, which was not selected", m)
		}
	}
}

func TestTapsAreBoundedAndEndWithTheServer(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, nil)
		l, err := n.Listen("shop")
		must(t, err)
		ctx, shutdown := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		c := newClient(t, &yodel.ClientOptions{Transport: n}, "shop")
		ended := make(chan error, 20)
		for range 17 {
			go func() {
				for _, err := range inspect.Tap.Call(t.Context(), c, &introspect.TapQuery{}) {
					ended <- err
					return
				}
				ended <- nil
			}()
		}
		if err := <-ended; yodel.CodeOf(err) != yodel.ResourceExhausted {
			t.Errorf("the 17th tap ended with %v", err)
		}
		began := time.Now()
		shutdown()
		for range 16 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		must(t, <-served)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the server took %v to shut down", took)
		}
	})
}

func TestLiveDataIsForDiagnosticsOnly(t *testing.T) {
	s := yodel.NewServer(nil)
	must(t, s.Register(Arith{}))
	c := connect(t, s, nil)
	_, err := inspect.Live.Call(t.Context(), c, &introspect.LiveQuery{})
	wantError(t, err, yodel.PermissionDenied, "YDL3103")
	_, err = inspect.Conns.Call(t.Context(), c, &Empty{})
	wantError(t, err, yodel.PermissionDenied, "YDL3103")
	for _, err := range inspect.Tap.Call(t.Context(), c, &introspect.TapQuery{}) {
		wantError(t, err, yodel.PermissionDenied, "YDL3103")
	}
	s.Note(introspect.Event{Kind: "rule"})
	if l := s.Live(nil); len(l.Series)+len(l.Events) != 0 || l.Process.PID == 0 {
		t.Errorf("got %+v", l)
	}
}
