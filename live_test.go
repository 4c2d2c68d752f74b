// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
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

// Types that contain themselves.
type (
	boxes          []boxes
	table          map[string]table
	list           struct{ Next *list }
	branches       [][]branches
	deepTable      map[string][]*deepTable
	leaf           struct{ Root *trunk }
	trunk          map[string]limbs
	limbs          []leaf
	generic[T any] struct {
		Value T
		More  []generic[T]
	}
	embedder struct {
		*embedder //nolint:unused // the types of fields are walked
		ID        int
	}
)

// inMessage is a message with a field of type T.
type inMessage[T any] struct{ Field T }

// A server whose messages contain themselves describes itself and continues to serve.
func TestInfoDescribesTypesThatContainThemselves(t *testing.T) {
	s := newServer(t, carriesAll)
	describe[boxes](t, s, `{"type": "yodel_test.boxes", "kind": "array", "elem": {"type": "yodel_test.boxes", "kind": "array"}}`)
	describe[table](t, s, `{"type": "yodel_test.table", "kind": "map", "elem": {"type": "yodel_test.table", "kind": "map"}}`)
	describe[list](t, s, `{"type": "yodel_test.list", "kind": "object", "fields": [{"name": "Next", "type": "yodel_test.list", "kind": "object"}]}`)
	describe[branches](t, s, `{"type": "yodel_test.branches", "kind": "array", "elem":
		{"type": "[]yodel_test.branches", "kind": "array", "elem": {"type": "yodel_test.branches", "kind": "array"}}}`)
	describe[deepTable](t, s, `{"type": "yodel_test.deepTable", "kind": "map", "elem":
		{"type": "[]*yodel_test.deepTable", "kind": "array", "elem": {"type": "yodel_test.deepTable", "kind": "map"}}}`)
	describe[leaf](t, s, `{"type": "yodel_test.leaf", "kind": "object", "fields": [{"name": "Root", "type": "yodel_test.trunk", "kind": "map", "elem":
		{"type": "yodel_test.limbs", "kind": "array", "elem": {"type": "yodel_test.leaf", "kind": "object"}}}]}`)
	describe[generic[string]](t, s, `{"type": "yodel_test.generic[string]", "kind": "object", "fields": [{"name": "Value", "type": "string", "kind": "string"},
		{"name": "More", "type": "[]yodel_test.generic[string]", "kind": "array", "elem": {"type": "yodel_test.generic[string]", "kind": "object"}}]}`)
	registerType(t, s, "Embedder", reflect.TypeFor[embedder]()) // no call, because JSON does not carry it
	if args := infoOf(t, connect(t, s, nil), "Embedder").Args; args == nil {
		t.Error("a type that embeds itself has no schema")
	}
}

// carriesAll has a codec that refuses no type.
var carriesAll = &yodel.ServerOptions{Codecs: []yodel.Codec{unchecked{yodel.JSON}}}

type unchecked struct{ yodel.Codec }

func (unchecked) Name() string { return "unchecked" }

// describe registers methods with T as a message and in a message, and compares the schema.
func describe[T any](t *testing.T, s *yodel.Server, want string) {
	t.Helper()
	bare, inside := fmt.Sprintf("Bare.%T", *new(T)), fmt.Sprintf("In.%T", *new(T))
	handle(t, s, bare, func(context.Context, *T) (*T, error) { return new(T), nil })
	handle(t, s, inside, func(context.Context, *inMessage[T]) (*Empty, error) { return nil, nil })
	c := connect(t, s, nil)
	wantJSON(t, bare, infoOf(t, c, bare).Args, "["+want+"]")
	wantJSON(t, bare, infoOf(t, c, bare).Results, "["+want+"]")
	field := strings.Replace(want, "{", `{"name": "Field", `, 1)
	got := infoOf(t, c, inside).Args[0].Fields
	wantJSON(t, inside, got, "["+field+"]")
	if err := c.Call(t.Context(), bare, new(T), new(T)); err != nil {
		t.Errorf("%s: %v", bare, err)
	}
}

// A type that points only to itself has no values, so that no method can take it.
func TestTypesThatPointOnlyToThemselvesAreNotRegistered(t *testing.T) {
	type self *self
	s := newServer(t, nil)
	for name, function := range map[string]any{
		"a request":   func(context.Context, *self) (*Empty, error) { return nil, nil },
		"a reply":     func(context.Context, *Empty) (*self, error) { return nil, nil },
		"a field":     func(context.Context, *inMessage[self]) (*Empty, error) { return nil, nil },
		"an element":  func(context.Context, *map[string][]self) (*Empty, error) { return nil, nil },
		"a key":       func(context.Context, *map[self]int) (*Empty, error) { return nil, nil },
		"a value":     func(self, int) (int, error) { return 0, nil },
		"in a cycle":  func(context.Context, *inMessage[ping]) (*Empty, error) { return nil, nil },
		"in a stream": func(context.Context, yodel.Recv[self], yodel.Send[self]) error { return nil },
	} {
		err := s.Handle(name, function)
		if err == nil || !strings.Contains(err.Error(), "points only to itself, so that it has no values to send") {
			t.Errorf("%s: got %v, want the reason", name, err)
		}
	}
	defer func() {
		if p := recover(); !strings.Contains(fmt.Sprint(p), "points only to itself") {
			t.Errorf("got the panic %v, want the reason", p)
		}
	}()
	yodel.Method[self, Empty]("Typed").Handle(s, func(context.Context, *self) (*Empty, error) { return nil, nil })
}

type (
	ping     *pingPong
	pingPong *ping
)

// A twin uses its type twice: 17 of them in each other have 2^17 places for the innermost type.
type (
	twin[T any]  struct{ Left, Right *T }
	twin4[T any] struct {
		Pair *twin[twin[twin[twin[T]]]]
	}
	twins17 = twin[twin4[twin4[twin4[twin4[orderLine]]]]]
	twins64 = twin4[twin4[twin4[twin4[twin4[twin4[twin4[twin4[twins17]]]]]]]]
)

// registerType registers a method whose request is of a type made at run time.
func registerType(t testing.TB, s *yodel.Server, name string, message reflect.Type) {
	t.Helper()
	f := reflect.FuncOf([]reflect.Type{reflect.TypeFor[context.Context](), reflect.PointerTo(message)},
		[]reflect.Type{reflect.TypeFor[*Empty](), reflect.TypeFor[error]()}, false)
	must(t, s.Handle(name, reflect.MakeFunc(f, func([]reflect.Value) []reflect.Value {
		return []reflect.Value{reflect.ValueOf(new(Empty)), reflect.Zero(reflect.TypeFor[error]())}
	}).Interface()))
}

// A type that each of many types uses twice has more places than can be described. The schema of
// such a message describes the outer types.
func TestInfoIsBoundedForTypesThatMultiply(t *testing.T) {
	s := newServer(t, carriesAll)
	registerType(t, s, "Pairs", reflect.TypeFor[twins17]())
	registerType(t, s, "More", reflect.TypeFor[twins64]())
	must(t, s.Handle("Ladder", func(context.Context, *ladder9) (*Empty, error) { return nil, nil }))
	c := connect(t, s, nil)
	for _, name := range []string{"Pairs", "More", "Ladder"} {
		args := infoOf(t, c, name).Args
		if b, err := json.Marshal(args); err != nil || len(b) > 1<<20 {
			t.Errorf("%s: the schema has %d bytes of JSON (%v)", name, len(b), err)
		}
		if name == "Ladder" {
			continue
		}
		depth := 0
		for inner := args[0]; len(inner.Fields) > 0; inner = inner.Fields[0] {
			depth++
		}
		if depth < 8 {
			t.Errorf("%s: the schema describes %d types in each other, want the outer ones", name, depth)
		}
	}
}

// Structs that embed each other in more ways with each level.
type (
	ladder0 struct{ ID int }
	ladder1 struct {
		left1
		right1
	}
	ladder2 struct {
		left2
		right2
	}
	ladder3 struct {
		left3
		right3
	}
	ladder9 struct {
		*ladder3
		Name string
	}
	left1  struct{ *ladder0 }
	right1 struct{ *ladder0 }
	left2  struct{ *ladder1 }
	right2 struct{ *ladder1 }
	left3  struct{ *ladder2 }
	right3 struct{ *ladder2 }
)

// All schemas of a server together are bounded. Methods beyond the bound have the name and the kind
// of their messages.
func TestInfoIsBoundedForManyMethods(t *testing.T) {
	s := newServer(t, nil)
	wide := make([]reflect.StructField, 900)
	for i := range wide {
		wide[i] = reflect.StructField{Name: fmt.Sprintf("Field%d", i), Type: reflect.TypeFor[int]()}
	}
	message := reflect.StructOf(wide)
	const methods = 100
	for i := range methods {
		registerType(t, s, fmt.Sprintf("Wide.Do%02d", i), message)
	}
	info := s.Info()
	if b, err := json.Marshal(info); err != nil || len(b) > 8<<20 {
		t.Errorf("yodel.Info has %d bytes of JSON (%v)", len(b), err)
	}
	full := 0
	for _, m := range info.Methods {
		if strings.HasPrefix(m.Name, "Wide.") {
			if m.Args[0].Kind != "object" || m.Args[0].Type == "" {
				t.Fatalf("got %+v, want an object with the name of its type", m)
			}
			if n := len(m.Args[0].Fields); n == len(wide) {
				full++
			} else if n != 0 {
				t.Fatalf("%s has %d of %d fields, want all or none", m.Name, n, len(wide))
			}
		}
	}
	if full < 10 || full == methods {
		t.Errorf("%d of %d messages are described, want a bound after the first ones", full, methods)
	}
}

// A caller that asks for yodel.Info again costs the server no work on the types.
func TestInfoDescribesTypesOnce(t *testing.T) {
	s := newServer(t, nil)
	registerType(t, s, "Pairs", reflect.TypeFor[twins17]())
	s.Info()
	if got := testing.AllocsPerRun(100, func() { s.Info() }); got > 20 {
		t.Errorf("Info makes %v allocations, want those of a few slices", got)
	}
	c := connect(t, s, nil)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 2 {
				if _, err := inspect.Info.Call(t.Context(), c, &Empty{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Info tells of each change of the methods, although it keeps their descriptions.
func TestInfoFollowsTheMethods(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, nil)
	find := func(name string) *introspect.Method {
		info, err := inspect.Info.Call(t.Context(), c, &Empty{})
		must(t, err)
		for i := range info.Methods {
			if info.Methods[i].Name == name {
				return &info.Methods[i]
			}
		}
		return nil
	}
	if m := find("Late.Do"); m != nil {
		t.Errorf("got %+v before it is registered", m)
	}
	handle(t, s, "Late.Do", func(context.Context, *Empty) (*Empty, error) { return nil, nil })
	if m := find("Late.Do"); m == nil || m.Idempotent || m.ReadOnly || len(m.Aliases) > 0 {
		t.Errorf("got %+v after it is registered", m)
	}
	s.MarkIdempotent("Late.Do")
	if m := find("Late.Do"); m == nil || !m.Idempotent || m.ReadOnly {
		t.Errorf("got %+v after it is marked idempotent", m)
	}
	s.MarkReadOnly("Late/Do") // with the other separator, as in a path
	if m := find("Late.Do"); m == nil || !m.ReadOnly {
		t.Errorf("got %+v after it is marked read-only", m)
	}
	must(t, s.Alias("Late.Do", "Later.Do"))
	if m := find("Late.Do"); m == nil || len(m.Aliases) != 1 || m.Aliases[0] != "Later.Do" {
		t.Errorf("got %+v after it has an alias", m)
	}
	must(t, s.Unregister("Late.Do"))
	if m := find("Later.Do"); m == nil || find("Late.Do") != nil {
		t.Errorf("got %+v after the first name is removed", m)
	}
}
