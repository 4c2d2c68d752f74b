// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"github.com/yodel-rpc/yodel/yodeltest"
)

// An order has what a schema can tell apart.
type order struct {
	ID      int64             `json:"id"`
	Note    string            `json:",omitempty"`
	Price   *float64          `json:"price,omitempty"`
	Paid    bool              `json:"paid"`
	Seal    []byte            `json:"seal"`
	Lines   []orderLine       `json:"lines"`
	Labels  map[string]string `json:"labels"`
	Extra   any               `json:"extra"`
	Parent  *order            `json:"parent"`
	Parts   []*order          `json:"parts"`
	Secret  string            `json:"-"`
	private int               //nolint:unused // a schema leaves it out
}

type orderLine struct {
	Item string `json:"item"`
	At   []int  `json:"at"`
}

const orderSchema = `{
	"type": "yodel_test.order", "kind": "object", "fields": [
		{"name": "id", "type": "int64", "kind": "integer"},
		{"name": "Note", "type": "string", "kind": "string"},
		{"name": "price", "type": "float64", "kind": "number"},
		{"name": "paid", "type": "bool", "kind": "boolean"},
		{"name": "seal", "type": "[]uint8", "kind": "bytes"},
		{"name": "lines", "type": "[]yodel_test.orderLine", "kind": "array", "elem":
			{"type": "yodel_test.orderLine", "kind": "object", "fields": [
				{"name": "item", "type": "string", "kind": "string"},
				{"name": "at", "type": "[]int", "kind": "array", "elem": {"type": "int", "kind": "integer"}}
			]}},
		{"name": "labels", "type": "map[string]string", "kind": "map", "elem": {"type": "string", "kind": "string"}},
		{"name": "extra", "type": "interface {}", "kind": "any"},
		{"name": "parent", "type": "yodel_test.order", "kind": "object"},
		{"name": "parts", "type": "[]*yodel_test.order", "kind": "array", "elem": {"type": "yodel_test.order", "kind": "object"}}
	]}`

// infoOf asks a server for what it says of a method.
func infoOf(t testing.TB, c *yodel.Client, name string) introspect.Method {
	t.Helper()
	info, err := inspect.Info.Call(t.Context(), c, &Empty{})
	must(t, err)
	i := slices.IndexFunc(info.Methods, func(m introspect.Method) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("%s is not among the methods: %+v", name, info.Methods)
	}
	return info.Methods[i]
}

// statsOf asks a server for what it counted of a method.
func statsOf(t testing.TB, c *yodel.Client, name string) introspect.MethodStats {
	t.Helper()
	stats, err := inspect.Stats.Call(t.Context(), c, &Empty{})
	must(t, err)
	i := slices.IndexFunc(stats.Methods, func(m introspect.MethodStats) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("%s is not among the methods: %+v", name, stats.Methods)
	}
	return stats.Methods[i]
}

// wantJSON compares what v is in JSON, in which the built-in methods are used from other languages.
func wantJSON(t testing.TB, what string, v any, want string) {
	t.Helper()
	got, err := json.Marshal(v)
	must(t, err)
	var gotten, wanted any
	must(t, json.Unmarshal(got, &gotten))
	must(t, json.Unmarshal([]byte(want), &wanted))
	if !reflect.DeepEqual(gotten, wanted) {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestInfoDescribesTheMethods(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{onlyJSON{yodel.JSON}}})
	handle(t, s, "Shop.Order", func(_ context.Context, in *order) (*[]string, error) { return &[]string{in.Note}, nil })
	must(t, s.Alias("Shop.Order", "shop/order", "Buy"))
	s.MarkIdempotent("Arith.Mul")
	c := connect(t, s, nil)
	info, err := inspect.Info.Call(t.Context(), c, &Empty{})
	must(t, err)
	if info.Agent == "" || info.Started.IsZero() || time.Since(info.Started) < 0 || !slices.Equal(info.Codecs, []string{"json", "raw", "toml"}) {
		t.Errorf("got %+v, want the agent, the start and the codecs", info)
	}
	var sorted []string
	for _, m := range info.Methods {
		sorted = append(sorted, m.Name)
	}
	want := []string{"Arith.Add", "Arith.DivMod", "Arith.Mul", "Shop.Order", "yodel.Conns", "yodel.Health", "yodel.Info", "yodel.Live", "yodel.Ping", "yodel.Rules", "yodel.Samples", "yodel.Stats", "yodel.Tap"}
	if !slices.Equal(sorted, want) {
		t.Errorf("got methods %q, want %q", sorted, want)
	}
	wantJSON(t, "a method with aliases", infoOf(t, c, "Shop.Order"), `{"name": "Shop.Order", "aliases": ["shop/order", "Buy"], "args": [`+
		orderSchema+`], "results": [{"type": "[]string", "kind": "array", "elem": {"type": "string", "kind": "string"}}]}`)
	wantJSON(t, "a method with several values", infoOf(t, c, "Arith.DivMod"), `{"name": "Arith.DivMod", "values": true,
		"args": [{"type": "int", "kind": "integer"}, {"type": "int", "kind": "integer"}],
		"results": [{"type": "int", "kind": "integer"}, {"type": "int", "kind": "integer"}]}`)
	if m := infoOf(t, c, "Arith.Mul"); !m.Idempotent || m.Values || len(m.Aliases) > 0 {
		t.Errorf("got %+v, want an idempotent method of one message", m)
	}
	if m := infoOf(t, c, "Arith.Add"); m.Idempotent {
		t.Errorf("got %+v, want a method that is not idempotent", m)
	}
}

func TestStatsCountCallsErrorsAndLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, &yodel.ServerOptions{Diagnostics: true})
		must(t, s.Handle("Sleep", func(_ context.Context, in *time.Duration) (*Empty, error) {
			time.Sleep(*in)
			return nil, nil
		}))
		must(t, s.Handle("Fail", func(_ context.Context, in *yodel.Code) (*Empty, error) { return nil, yodel.Errorf(*in, "as asked") }))
		must(t, s.Handle("Panic", func(context.Context, *Empty) (*Empty, error) { panic("of a test") }))
		c := yodeltest.NewClient(t, nil, s)
		for i := range 100 { // 1 ms to 100 ms
			must(t, c.Call(t.Context(), "Sleep", new(time.Duration(i+1)*time.Millisecond), nil))
		}
		for _, code := range []yodel.Code{yodel.NotFound, yodel.Aborted, yodel.NotFound} {
			if err := c.Call(t.Context(), "Fail", &code, nil); !errors.Is(err, code) {
				t.Errorf("got %v, want %v", err, code)
			}
		}
		if err := c.Call(t.Context(), "Panic", &Empty{}, nil); !errors.Is(err, yodel.Internal) {
			t.Errorf("got %v, want %v", err, yodel.Internal)
		}
		synctest.Wait()

		stats, err := inspect.Stats.Call(t.Context(), c, &Empty{})
		must(t, err)
		if stats.Conns != 1 || stats.Panics != 1 || stats.Since.IsZero() {
			t.Errorf("got %d connections and %d panics since %v, want one of each", stats.Conns, stats.Panics, stats.Since)
		}
		m := statsOf(t, c, "Sleep")
		if m.Calls != 100 || m.Errors != nil || m.Inflight != 0 {
			t.Errorf("got %+v, want 100 calls without errors", m)
		}
		var counted uint64
		for i, b := range m.Latency {
			counted += b.Calls
			if b.Calls == 0 || i > 0 && b.UpTo <= m.Latency[i-1].UpTo {
				t.Errorf("bucket %d of %+v is empty or not in order", i, m.Latency)
			}
		}
		if counted != 100 {
			t.Errorf("the buckets hold %d calls, want 100", counted)
		}
		for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} { // time is fake: nothing else takes any
			exact := time.Duration(q*100) * time.Millisecond
			if got := m.Quantile(q); got < exact || got > exact*5/4 {
				t.Errorf("quantile %v is %v, want %v or a little more", q, got, exact)
			}
		}
		if m = statsOf(t, c, "Fail"); m.Calls != 3 || m.Errors["not_found"] != 2 || m.Errors["aborted"] != 1 || len(m.Errors) != 2 {
			t.Errorf("got %+v, want three errors by their codes", m)
		}
		if m = statsOf(t, c, "Panic"); m.Calls != 1 || m.Errors["internal"] != 1 {
			t.Errorf("got %+v, want one internal error", m)
		}
	})
}

func TestQuantileWithoutCallsIsZero(t *testing.T) {
	var m introspect.MethodStats
	if got := m.Quantile(0.99); got != 0 {
		t.Errorf("got %v", got)
	}
}

func TestStatsShowCallsInFlight(t *testing.T) {
	b := newBlocking(t, nil, true)
	c := connect(t, b.Server, nil)
	const calls = 3
	outcomes := make(chan error, calls)
	for range calls {
		go func() { outcomes <- c.Call(context.Background(), "Block", &Empty{}, nil) }()
	}
	for range calls {
		receive(t, b.begun, "the handlers run")
	}
	if m := statsOf(t, c, "Block"); m.Inflight != calls || m.Calls != 0 || len(m.Latency) > 0 {
		t.Errorf("while they run: got %+v, want %d in flight and none that has ended", m, calls)
	}
	close(b.release)
	for range calls {
		must(t, receive(t, outcomes, "the calls end"))
	}
	until(t, "the calls are counted", func() bool { return statsOf(t, c, "Block").Calls == calls })
	if m := statsOf(t, c, "Block"); m.Inflight != 0 {
		t.Errorf("afterwards: got %+v, want none in flight", m)
	}
}

func TestHealthAndPing(t *testing.T) {
	c := connect(t, newServer(t, nil), nil)
	health, err := inspect.Health.Call(t.Context(), c, &Empty{})
	if err != nil || !health.Serving {
		t.Errorf("got %+v, %v, want a server that serves", health, err)
	}
	if _, err := inspect.Ping.Call(t.Context(), c, &Empty{}); err != nil {
		t.Error(err)
	}
}

// A call that was accepted before the shutdown may ask during it.
func TestHealthIsNotServingDuringShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := make(chan struct{})
		s := yodeltest.NewServer(t, &yodel.ServerOptions{Diagnostics: true, Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				<-ask
				return next(ctx, call)
			}
		}}})
		c := yodeltest.NewClient(t, nil, s)
		asked := inspect.Health.Go(t.Context(), c, &Empty{})
		synctest.Wait() // the call is accepted
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(t.Context()) }()
		synctest.Wait() // the server waits for the call
		close(ask)
		if health, err := asked.Get(); err != nil || health.Serving {
			t.Errorf("got %+v, %v, want a server that does not serve", health, err)
		}
		must(t, <-down)
	})
}

func TestNoIntrospectionLeavesTheBuiltInMethodsOut(t *testing.T) {
	c := connect(t, newServer(t, &yodel.ServerOptions{NoIntrospection: true}), nil)
	for _, name := range []string{string(inspect.Info), string(inspect.Stats), string(inspect.Health), string(inspect.Samples), string(inspect.Ping)} {
		wantError(t, c.Call(t.Context(), name, &Empty{}, nil), yodel.Unimplemented, "YDL2001")
	}
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err)
	}
}

func TestBuiltInMethodsPassTheMiddleware(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	c := connect(t, newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			mu.Lock()
			seen = append(seen, call.Method)
			mu.Unlock()
			if strings.HasPrefix(call.Method, "yodel.") {
				return yodel.Errorf(yodel.PermissionDenied, "not for you")
			}
			return next(ctx, call)
		}
	}}}), nil)
	want := []string{string(inspect.Info), string(inspect.Stats), string(inspect.Health), string(inspect.Samples), string(inspect.Ping)}
	for _, name := range want {
		if err := c.Call(t.Context(), name, &Empty{}, nil); !errors.Is(err, yodel.PermissionDenied) {
			t.Errorf("%s: got %v, want what the middleware says", name, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(seen, want) {
		t.Errorf("the middleware saw %q, want %q", seen, want)
	}
}

func TestFailedOneWayCallsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, nil)
		if err := h.server.Handle("Hook.Fail", func() error { return errHook }); err != nil {
			t.Fatal(err)
		}
		if err := h.client.Notify(t.Context(), "Hook.Fail", yodel.Values{}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		stats, err := inspect.Stats.Call(t.Context(), h.client, &inspect.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range stats.Methods {
			if m.Name == "Hook.Fail" && (m.Calls != 1 || m.Errors["failed_precondition"] != 1) {
				t.Errorf("got %+v, want one call that failed", m)
			}
		}
	})
}

// A program learns the methods of its own server, with their types.
func TestServerDescribesItself(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true})
	must(t, s.Handle("Arith.Mul", func(in *string) (*int, error) { return nil, nil }))
	methods := s.Info().Methods
	if len(methods) != 1 || methods[0].Name != "Arith.Mul" {
		t.Fatalf("got %+v", methods)
	}
	in, out := s.Types("Arith.Mul")
	if fmt.Sprint(in, out) != "[string] [int]" {
		t.Errorf("got %v, %v", in, out)
	}
	if in, out = s.Types("Arith.Div"); in != nil || out != nil {
		t.Errorf("a method that does not exist: got %v, %v", in, out)
	}
}

// countedMethod returns the statistics of a method.
func countedMethod(t testing.TB, all []introspect.MethodStats, name string) introspect.MethodStats {
	t.Helper()
	i := slices.IndexFunc(all, func(m introspect.MethodStats) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("there are no statistics of %s among %v", name, all)
	}
	return all[i]
}

// A client counts the same outcomes, bytes and messages of calls as an Observer, in every mode of a
// call. The server counts the same bytes as its Observer.
func TestCallsAreCounted(t *testing.T) {
	sum := func(to *introspect.MethodStats, call *yodel.Call, err error) {
		traffic := call.Traffic()
		to.Calls++
		to.BytesIn += uint64(traffic.BytesIn)
		to.BytesOut += uint64(traffic.BytesOut)
		to.Received += uint64(traffic.Received)
		to.Sent += uint64(traffic.Sent)
		if err != nil {
			if to.Errors == nil {
				to.Errors = make(map[string]uint64)
			}
			to.Errors[yodel.CodeOf(err).String()]++
		}
	}
	ended := make(chan introspect.MethodStats)
	server := make(chan introspect.MethodStats)
	observer := func(to chan introspect.MethodStats) yodel.Observer {
		return yodel.Observer{End: func(_ context.Context, call *yodel.Call, err error) {
			one := introspect.MethodStats{Name: call.Method}
			sum(&one, call, err)
			go func() { to <- one }()
		}}
	}
	for _, observed := range []bool{false, true} {
		options := &yodel.ClientOptions{CountCalls: true}
		serverOptions := &yodel.ServerOptions{CountBytes: true, Observers: []yodel.Observer{observer(server)}}
		if observed {
			options.Observers = []yodel.Observer{observer(ended)}
		}
		s := newServer(t, serverOptions)
		must(t, s.Handle("Fail", func(context.Context, *int) (*int, error) {
			return nil, yodel.Errorf(yodel.NotFound, "there is none")
		}))
		count := yodel.Feed[int, int]("Count")
		count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
			for i := range *n {
				if err := send(&i); err != nil {
					return err
				}
			}
			return nil
		})
		c := connect(t, s, options)
		must(t, c.Ready(t.Context()))
		n := 3
		done := make(chan error)
		for name, do := range map[string]func() (string, error){
			"call": func() (string, error) {
				return string(Mul), c.Call(t.Context(), string(Mul), &Args{A: 6, B: 7}, new(Reply))
			},
			"notify": func() (string, error) { return string(Mul), c.Notify(t.Context(), string(Mul), &Args{A: 6, B: 7}) },
			"metadata": func() (string, error) {
				call := &yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Metadata: yodel.Metadata{"key": "value"}, Attachment: []byte("attached")}
				return string(Mul), c.Do(t.Context(), call)
			},
			"ordered": func() (string, error) {
				call := &yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Ordered: true, Key: "k"}
				return string(Mul), c.Do(t.Context(), call)
			},
			"ordered, without waiting": func() (string, error) {
				call := &yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Ordered: true, Key: "k"}
				c.Go(t.Context(), call, func(err error) { done <- err })
				return string(Mul), <-done
			},
			"without waiting": func() (string, error) {
				c.Go(t.Context(), &yodel.Call{Method: "Fail", Args: &n, Reply: new(int)}, func(err error) { done <- err })
				return "Fail", <-done
			},
			"then": func() (string, error) {
				Mul.Then(t.Context(), c, &Args{A: 6, B: 7}, func(_ *Reply, err error) { done <- err })
				return string(Mul), <-done
			},
			"fails": func() (string, error) { return "Fail", c.Call(t.Context(), "Fail", &n, new(int)) },
			"feed": func() (string, error) {
				for _, err := range count.Call(t.Context(), c, &n) {
					if err != nil {
						return "Count", err
					}
				}
				return "Count", nil
			},
		} {
			t.Run(fmt.Sprintf("%s, observed %t", name, observed), func(t *testing.T) {
				find := func(all []introspect.MethodStats, method string) (m introspect.MethodStats) {
					if i := slices.IndexFunc(all, func(m introspect.MethodStats) bool { return m.Name == method }); i >= 0 {
						m = all[i]
					}
					return m
				}
				clientBefore, serverBefore := c.Stats().Methods, s.Stats().Methods
				method, err := do()
				want := introspect.MethodStats{Calls: 1}
				if err != nil {
					want.Errors = map[string]uint64{yodel.CodeOf(err).String(): 1}
				}
				seen := <-server
				if seen.BytesIn == 0 {
					t.Error("the server's observer has seen no bytes")
				}
				was, is := find(serverBefore, method), countedMethod(t, s.Stats().Methods, method)
				if is.BytesIn-was.BytesIn != seen.BytesIn || is.BytesOut-was.BytesOut != seen.BytesOut {
					t.Errorf("the server counts %d and %d bytes, its observer %d and %d", is.BytesIn-was.BytesIn, is.BytesOut-was.BytesOut, seen.BytesIn, seen.BytesOut)
				}
				was, is = find(clientBefore, method), countedMethod(t, c.Stats().Methods, method)
				if is.Calls-was.Calls != want.Calls || sumOf(slices.Collect(maps.Values(is.Errors)))-sumOf(slices.Collect(maps.Values(was.Errors))) != uint64(len(want.Errors)) {
					t.Errorf("the client counts %+v after %+v, want a call more with the errors %v", is, was, want.Errors)
				}
				if is.Took <= was.Took && name != "notify" && name != "feed" {
					t.Errorf("the calls took %v after %v", is.Took, was.Took)
				}
				if is.BytesOut == was.BytesOut {
					t.Error("the client has counted no bytes that it has sent")
				}
				if !observed {
					return
				}
				seen = <-ended
				if is.BytesIn-was.BytesIn != seen.BytesIn || is.BytesOut-was.BytesOut != seen.BytesOut || is.Received-was.Received != seen.Received || is.Sent-was.Sent != seen.Sent {
					t.Errorf("the client counts %+v after %+v, its observer %+v", is, was, seen)
				}
			})
		}
	}
}

// Calls that could not be sent count under their names, as long as there are not too many. The
// method "other" has the rest.
func TestTheCountedMethodsAreBounded(t *testing.T) {
	c := newClient(t, &yodel.ClientOptions{CountCalls: true}, "127.0.0.1:1")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	const calls = 1100
	for i := range calls {
		if err := c.Call(canceled, fmt.Sprint("M", i), nil, nil); err == nil {
			t.Fatal("the call has succeeded")
		}
	}
	all, counted := c.Stats().Methods, uint64(0)
	for _, m := range all {
		counted += m.Calls
		if sumOf(slices.Collect(maps.Values(m.Errors))) != m.Calls {
			t.Errorf("%+v", m)
		}
	}
	if other := countedMethod(t, all, "other"); counted != calls || len(all) != 1001 || other.Calls != calls-1000 {
		t.Errorf("got %d calls of %d methods, and %d of others", counted, len(all), other.Calls)
	}
	if !slices.IsSortedFunc(all, func(a, b introspect.MethodStats) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the methods are not sorted")
	}
}

// The durations of calls are those that the caller sees, with the wait for instances and all
// attempts.
func TestCountedDurations(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, nil)
		handle(t, s, "Slow", func(took *time.Duration) (*Empty, error) {
			<-time.After(*took) // in fake time
			return &Empty{}, nil
		})
		serveInMemory(t, n, s, "a")
		for name, o := range map[string]*yodel.ClientOptions{
			"plain": {},
			"middleware": {Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					<-time.After(time.Second)
					err := next(ctx, call)
					<-time.After(time.Second)
					return err
				}
			}}},
		} {
			o.CountCalls, o.Transport = true, n
			c := newClient(t, o, "a")
			took, want := 3*time.Second, 3*time.Second
			if name == "middleware" {
				want = 5 * time.Second
			}
			must(t, c.Call(t.Context(), "Slow", &took, new(Empty)))
			if m := countedMethod(t, c.Stats().Methods, "Slow"); m.Took != want || len(m.Latency) != 1 || m.Latency[0].UpTo < want {
				t.Errorf("%s: got %v in %v, want %v", name, m.Took, m.Latency, want)
			}
			ended := make(chan error)
			c.Go(t.Context(), &yodel.Call{Method: "Slow", Args: &took, Reply: new(Empty)}, func(err error) { ended <- err })
			must(t, <-ended)
			if m := countedMethod(t, c.Stats().Methods, "Slow"); m.Took != 2*want {
				t.Errorf("%s, without waiting: got %v together, want %v", name, m.Took, 2*want)
			}
			c.Close()
		}
	})
}

// Notable runs for calls that fail and for calls with a sampled trace, on both sides and in every
// mode of a call, and for no others.
func TestNotableCalls(t *testing.T) {
	var l notebook
	observer := func(side string) []yodel.Observer {
		return []yodel.Observer{{Notable: func(_ context.Context, call *yodel.Call, err error) {
			l.notef("%s %s %v took %t", side, call.Method, yodel.CodeOf(err), call.Took() > 0)
			if err == nil {
				panic("a broken observer") // is logged
			}
		}}}
	}
	const sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	s := newServer(t, &yodel.ServerOptions{Observers: observer("server")})
	c := connect(t, s, &yodel.ClientOptions{Observers: observer("client")})
	for range 200 { // the server has learned that the method is short
		must(t, c.Call(t.Context(), string(Mul), &Args{A: 6, B: 7}, new(Reply)))
	}
	for name, do := range map[string]func(call *yodel.Call) error{
		"do": func(call *yodel.Call) error { return c.Do(t.Context(), call) },
		"go": func(call *yodel.Call) error {
			ended := make(chan error)
			c.Go(t.Context(), call, func(err error) { ended <- err })
			return <-ended
		},
	} {
		for trace, want := range map[string][]string{
			"": nil, "garbage": nil, strings.TrimSuffix(sampled, "1") + "0": nil,
			sampled:          {"client Arith.Mul ok took true", "server Arith.Mul ok took true"},
			sampled + " a=b": {"client Arith.Mul ok took true", "server Arith.Mul ok took true"},
		} {
			must(t, do(&yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Trace: trace}))
			// the server has ended this call when it has executed the next one of the connection
			if err := do(&yodel.Call{Method: "Arith.Nothing", Args: &Args{}, Reply: new(Reply)}); yodel.CodeOf(err) != yodel.Unimplemented {
				t.Error(err)
			}
			want = append(slices.Clone(want), "client Arith.Nothing unimplemented took true", "server Arith.Nothing unimplemented took true")
			slices.Sort(want)
			var got []string
			for len(got) < len(want) {
				got = append(got, l.take()...)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s, trace %q: got %q, want %q", name, trace, got, want)
			}
		}
	}
}

// Server.Stats has the callers of each method with live data.
func TestStatsHaveCallers(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, &yodel.ServerOptions{Diagnostics: true})
		handle(t, s, "Fail", func(fails *bool) (*Empty, error) {
			if *fails {
				return nil, yodel.Errorf(yodel.NotFound, "there is none")
			}
			return &Empty{}, nil
		})
		serveInMemory(t, n, s, "a")
		for _, name := range []string{"web", "batch"} {
			c := newClient(t, &yodel.ClientOptions{Name: name, Transport: n}, "a")
			for i := range 10 {
				fails := i == 0
				err := c.Call(t.Context(), "Fail", &fails, new(Empty))
				if (err != nil) != fails {
					t.Error(err)
				}
				<-time.After(700 * time.Millisecond) // in fake time: the calls are in several steps
			}
		}
		got := countedMethod(t, s.Stats().Methods, "Fail").Callers
		want := []introspect.CallerStats{
			{Name: "batch", Calls: 10, Errors: map[string]uint64{"not_found": 1}},
			{Name: "web", Calls: 10, Errors: map[string]uint64{"not_found": 1}},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// measuredClient returns a client of a server. If on is set, both have live data.
func measuredClient(t testing.TB, on bool) *yodel.Client {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: on})
	must(t, s.Register(Arith{}))
	o := &yodel.ClientOptions{}
	if on {
		o.Server = yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})
	}
	return connect(t, s, o)
}

// Live data allocates nothing per call, neither for the server nor for the client.
func TestLiveDataAllocatesNothingPerCall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var allocated [2]float64
	for i, on := range []bool{false, true} {
		c := measuredClient(t, on)
		in, out := &Args{A: 2, B: 3}, new(Reply)
		call := func() { must(t, c.Call(t.Context(), string(Mul), in, out)) }
		for range 1000 {
			call()
		}
		allocated[i] = testing.AllocsPerRun(5000, call)
	}
	if allocated[1] > allocated[0]+0.5 {
		t.Errorf("a call allocates %v objects with live data, and %v without", allocated[1], allocated[0])
	}
}
