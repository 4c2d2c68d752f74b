// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/stack"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type point struct {
	X, Y int
	Tags []string
}

type line struct {
	From, To point
	Between  []point
}

const (
	// hello is the method of kiss-rpc's benchmarks.
	hello stack.Method[stack.V4[string, int, int, float64], stack.V4[string, int, int, float64]] = "Kiss.Hello"
	shape stack.Method[stack.V3[line, []point, [2]byte], stack.V2[line, map[string][]point]]     = "Kiss.Shape"
	join  stack.Method[stack.V2[string, int64], stack.V1[string]]                                = "Kiss.Join"
	void  stack.Method[stack.V0, stack.V0]                                                       = "Kiss.Void"
	move  stack.Method[stack.V1[point], stack.V1[point]]                                         = "Kiss.Move"
	fail  stack.Method[stack.V1[int], stack.V1[int]]                                             = "Kiss.Fail"
	echo  stack.Method[stack.V1[int], stack.V1[int]]                                             = "Kiss.Echo"
)

func handle(s *yodel.Server, voids *atomic.Int64) {
	hello.Handle(s, func(_ context.Context, in stack.V4[string, int, int, float64]) (stack.V4[string, int, int, float64], error) {
		text, num, i, d := in.Pop()
		return stack.Push4(fmt.Sprint(text, ":server response", i), num, i+1, d+0.25), nil
	})
	shape.Handle(s, func(_ context.Context, in stack.V3[line, []point, [2]byte]) (stack.V2[line, map[string][]point], error) {
		l, all, key := in.Pop()
		l.From, l.To = l.To, l.From
		return stack.Push2(l, map[string][]point{string(key[:]): all}), nil
	})
	join.Handle(s, func(_ context.Context, in stack.V2[string, int64]) (stack.V1[string], error) {
		text, n := in.Pop()
		return stack.Push1(fmt.Sprint(text, n)), nil
	})
	move.Handle(s, func(_ context.Context, in stack.V1[point]) (stack.V1[point], error) {
		p := in.Pop()
		p.X++
		return stack.Push1(p), nil
	})
	void.Handle(s, func(context.Context, stack.V0) (stack.V0, error) {
		voids.Add(1)
		return stack.V0{}, nil
	})
	fail.Handle(s, func(_ context.Context, in stack.V1[int]) (stack.V1[int], error) {
		if in.Pop() == 0 {
			panic("as planned")
		}
		return stack.Push1(1), yodel.Errorf(yodel.NotFound, "there is no %d", in.Pop())
	})
	echo.Handle(s, func(_ context.Context, in stack.V1[int]) (stack.V1[int], error) { return in, nil })
}

// newServer returns a server with the methods, and a client of it.
func newServer(t *testing.T) (*yodeltest.Server, *yodel.Client) {
	t.Helper()
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	handle(s.Server, new(atomic.Int64))
	return s, yodeltest.NewClient(t, nil, s)
}

func TestValuesArePoppedInTheOrderInWhichTheyWerePushed(t *testing.T) {
	_, c := newServer(t)
	out, err := hello.Call(t.Context(), c, stack.Push4("test hello client", 7, 8, 0.5))
	if text, num, i, d := out.Pop(); err != nil || text != "test hello client:server response8" || num != 7 || i != 9 || d != 0.75 {
		t.Errorf("got %q, %d, %d, %v, %v", text, num, i, d, err)
	}
}

func TestArraysAndNestedStructsAreValues(t *testing.T) {
	_, c := newServer(t)
	a, b := point{1, 2, []string{"a"}}, point{X: 3, Tags: []string{"b", "c"}}
	out, err := shape.Call(t.Context(), c, stack.Push3(line{a, b, []point{a}}, []point{b, a}, [2]byte{'o', 'k'}))
	if err != nil {
		t.Fatal(err)
	}
	if moved, err := move.Call(t.Context(), c, stack.Push1(a)); err != nil || moved.Pop().X != 2 {
		t.Errorf("a single struct: %v, %v", moved, err)
	}
	got, all := out.Pop()
	if !reflect.DeepEqual(got, line{b, a, []point{a}}) || !reflect.DeepEqual(all, map[string][]point{"ok": {b, a}}) {
		t.Errorf("got %v, %v", got, all)
	}
}

// One stub makes synchronous and asynchronous calls, through clients and through other callers.
func TestOneStubCallsAndDoesNotWait(t *testing.T) {
	s, c := newServer(t)
	for name, caller := range map[string]yodel.Caller{"client": c, "in process": s.Server} {
		f := echo.Go(t.Context(), caller, stack.Push1(7))
		<-f.Done()
		out, err := f.Get()
		if err != nil || out.Pop() != 7 {
			t.Errorf("%s: got %v, %v", name, out, err)
		}
		out, err = fail.Go(t.Context(), caller, stack.Push1(5)).Get()
		if yodel.CodeOf(err) != yodel.NotFound || out.Pop() != 0 {
			t.Errorf("%s: got %v, %v, want the error alone", name, out, err)
		}
	}
}

func TestCallsWithoutACallerFail(t *testing.T) {
	_, err := echo.Call(t.Context(), nil, stack.Push1(1))
	_, later := echo.Go(t.Context(), nil, stack.Push1(1)).Get()
	for _, err := range []error{err, later} {
		if yodel.CodeOf(err) != yodel.InvalidArgument {
			t.Errorf("got %v", err)
		}
	}
}

// Other programs push and pop with yodel.Values and ordinary functions.
func TestStubsMeetValues(t *testing.T) {
	s, c := newServer(t)
	if err := s.Handle("Kiss.Plain", func(a string, b int64) (int64, string) { return b, a }); err != nil {
		t.Fatal(err)
	}
	plain := stack.Method[stack.V2[string, int64], stack.V2[int64, string]]("Kiss.Plain")
	if out, err := plain.Call(t.Context(), c, stack.Push2("a", int64(1))); err != nil || out != stack.Push2(int64(1), "a") {
		t.Errorf("got %v, %v", out, err)
	}
	var text string
	if err := c.Call(t.Context(), string(join), yodel.Values{"a", 1}, yodel.Values{&text}); err != nil || text != "a1" {
		t.Errorf("got %q, %v", text, err)
	}
}

// A wrong number of values and a wrong type are errors that say which, on either side. A request
// that does not fit was not executed.
func TestPoppingOtherValuesThanWerePushedIsAnError(t *testing.T) {
	_, c := newServer(t)
	for _, test := range []struct {
		what      string
		err       error
		processed bool
		want      []string
	}{
		{"one argument more", c.Call(t.Context(), string(join), yodel.Values{"a", 1, 2}, yodel.Values{new(string)}), false, []string{"3 values came, 2 are expected"}},
		{"an argument of another type", c.Call(t.Context(), string(join), yodel.Values{"a", "b"}, yodel.Values{new(string)}), false, []string{"value 2", "string", "int64"}},
		{"one result more", c.Call(t.Context(), string(join), yodel.Values{"a", 1}, yodel.Values{new(string), new(int)}), true, []string{"1 values came, 2 are expected"}},
		{"a result of another type", c.Call(t.Context(), string(join), yodel.Values{"a", 1}, yodel.Values{new(int)}), true, []string{"value 1", "string", "int"}},
	} {
		for _, want := range test.want {
			if test.err == nil || !strings.Contains(test.err.Error(), want) || yodel.NotProcessed(test.err) == test.processed {
				t.Errorf("%s: got %v, want %q", test.what, test.err, want)
			}
		}
	}
}

func TestAPointerIsRefusedWhenTheMethodIsRegistered(t *testing.T) {
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "value 1 is the pointer *int") {
			t.Errorf("got %s", text)
		}
	}()
	stack.Method[stack.V1[*int], stack.V0]("Kiss.Pointer").Handle(yodel.NewServer(nil), func(context.Context, stack.V1[*int]) (stack.V0, error) { return stack.V0{}, nil })
}

// Wires with calls of several values carry them. The others refuse the call before it is sent, and
// say why.
func TestWiresCarryValuesOrSayWhyNot(t *testing.T) {
	for _, w := range []struct {
		name     string
		wire     yodel.Wire
		codec    yodel.Codec
		why, one string // why not, for any call, and for calls with several results
		unknown  string // why not, for calls with an unknown number of results
	}{
		{name: "yodel"},
		{name: "yodel with gob", codec: gob.Codec},
		{name: "JSON-RPC 2", wire: jsonrpc.Wire(yodel.JSON), unknown: "no encoded replies of several values"},
		{name: "JSON-RPC 1", wire: jsonrpc.Wire1(yodel.JSON), unknown: "no encoded replies of several values"},
		{name: "Thrift", wire: thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Service: "Kiss"}), codec: thriftcodec.Codec, one: "result"},
		{name: "Dubbo", wire: dubbo.Wire(hessian2.Codec, nil), codec: hessian2.Codec, one: "result"},
		{name: "gRPC", wire: grpc.Wire, why: "gRPC and Connect have no calls with several values"},
		{name: "gRPC-Web", wire: grpc.Web, why: "gRPC and Connect have no calls with several values"},
		{name: "Connect", wire: connect.Wire(nil), why: "gRPC and Connect have no calls with several values"},
		{name: "net/rpc", wire: netrpc.Wire(gob.Codec), codec: gob.Codec, why: "net/rpc, which has no several values"},
		{name: "rpcx", wire: rpcx.Wire(yodel.JSON), why: "several values"},
	} {
		t.Run(w.name, func(t *testing.T) {
			var voids atomic.Int64
			s := yodel.NewServer(&yodel.ServerOptions{
				Codecs: []yodel.Codec{gob.Codec, thriftcodec.Codec, hessian2.Codec}, Logger: slog.New(slog.DiscardHandler),
				Protocols: []yodel.Protocol{http.New(nil), rpcx.Protocol, netrpc.Protocol, jsonrpc.Protocol, thrift.New(&thrift.Options{Service: "Kiss"}), dubbo.Protocol},
			})
			handle(s, &voids)
			addr := serve(t, s)
			o := &yodel.ClientOptions{Codec: w.codec, Logger: slog.New(slog.DiscardHandler)}
			if w.wire != nil {
				o.Wires, addr = []yodel.Wire{w.wire}, w.wire.Name()+"://"+addr
			}
			c := yodel.NewClient(discovery.Static(addr), o)
			t.Cleanup(c.Close)
			if w.why != "" {
				_, err := void.Call(t.Context(), c, stack.V0{})
				if yodel.CodeOf(err) != yodel.Unimplemented || !yodel.NotProcessed(err) || !strings.Contains(err.Error(), w.why) || voids.Load() != 0 {
					t.Errorf("got %v, want that it was not sent because of %q", err, w.why)
				}
				return
			}
			if _, err := void.Call(t.Context(), c, stack.V0{}); err != nil || voids.Load() != 1 {
				t.Errorf("void: %v", err)
			}
			if out, err := join.Call(t.Context(), c, stack.Push2("a", int64(1))); err != nil || out.Pop() != "a1" {
				t.Errorf("join: %v, %v", out, err)
			}
			if out, err := join.Go(t.Context(), c, stack.Push2("b", int64(2))).Get(); err != nil || out.Pop() != "b2" {
				t.Errorf("join: %v, %v", out, err)
			}
			values := stack.New(cmp.Or(w.codec, yodel.JSON))
			var text string
			if err := values.Push("c", int64(3)); err != nil {
				t.Fatal(err)
			}
			err := values.Call(t.Context(), c, string(join))
			if w.unknown != "" {
				if err == nil || !strings.Contains(err.Error(), w.unknown) || !yodel.NotProcessed(err) {
					t.Errorf("one by one: %v, want that it was not sent because of %q", err, w.unknown)
				}
			} else if err != nil || values.Len() != 1 || values.Pop(&text) != nil || text != "c3" {
				t.Errorf("one by one: %q, %v", text, err)
			}
			out, err := hello.Call(t.Context(), c, stack.Push4("t", 7, 8, 0.5))
			if w.one != "" {
				if err == nil || !strings.Contains(err.Error(), w.one) || !yodel.NotProcessed(err) {
					t.Errorf("hello: %v, want that it was not sent because of several results", err)
				}
			} else if text, num, i, d := out.Pop(); err != nil || text != "t:server response8" || num != 7 || i != 9 || d != 0.75 {
				t.Errorf("hello: %v, %v", out, err)
			}
		})
	}
}

// serve starts s on loopback, and ends it with the test.
func serve(t *testing.T, s *yodel.Server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, yodel.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// The following tests show that defects of kiss-rpc are absent. They are in the order of its list.

// Defects 1 and 2: answers of concurrent calls of one function crossed, because callbacks were kept
// by function and the counter of requests was not atomic.
func TestConcurrentCallsOfOneMethodGetTheirOwnAnswers(t *testing.T) {
	_, c := newServer(t)
	const callers, calls = 8, 500
	var wrong, ended atomic.Int64
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for n := range calls {
				want := caller*calls + n
				check := func(out stack.V1[int], err error) {
					ended.Add(1)
					if err != nil || out.Pop() != want {
						wrong.Add(1)
					}
				}
				if n%2 == 0 {
					check(echo.Call(t.Context(), c, stack.Push1(want)))
				} else {
					all.Add(1)
					echo.Then(t.Context(), c, stack.Push1(want), func(out stack.V1[int], err error) { check(out, err); all.Done() })
				}
			}
		})
	}
	all.Wait()
	if wrong.Load() > 0 || ended.Load() != callers*calls {
		t.Errorf("%d calls ended, %d with another answer than theirs", ended.Load(), wrong.Load())
	}
}

// Defect 3: callbacks ran while a lock was held that every call needs.
func TestACallbackMayCallAgain(t *testing.T) {
	_, c := newServer(t)
	done := make(chan error, 1)
	echo.Then(t.Context(), c, stack.Push1(1), func(stack.V1[int], error) {
		echo.Then(t.Context(), c, stack.Push1(2), func(_ stack.V1[int], err error) { done <- err })
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Defect 4: an unknown function and an exception of the server got no answer.
func TestUnknownMethodsAndPanicsAreAnswered(t *testing.T) {
	_, c := newServer(t)
	unknown := stack.Method[stack.V0, stack.V0]("Kiss.Unknown")
	if _, err := unknown.Call(t.Context(), c, stack.V0{}); yodel.CodeOf(err) != yodel.Unimplemented {
		t.Errorf("an unknown method: %v", err)
	}
	if _, err := fail.Call(t.Context(), c, stack.Push1(0)); yodel.CodeOf(err) != yodel.Internal {
		t.Errorf("a panic: %v", err)
	}
}

// Defect 5: calls in flight outlived their connection.
func TestCallsFailWhenTheirConnectionIsLost(t *testing.T) {
	conns := make(chan net.Conn, 10)
	began := make(chan struct{})
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler), Connect: func(_ context.Context, p *yodel.Peer) error {
		conns <- p.Conn
		return nil
	}})
	wait := stack.Method[stack.V0, stack.V0]("Kiss.Wait")
	wait.Handle(s, func(ctx context.Context, _ stack.V0) (stack.V0, error) {
		close(began)
		<-ctx.Done()
		return stack.V0{}, ctx.Err()
	})
	c := yodel.NewClient(discovery.Static(serve(t, s)), &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(c.Close)
	f := wait.Go(t.Context(), c, stack.V0{})
	<-began
	if err := (<-conns).Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.Done():
		if _, err := f.Get(); yodel.CodeOf(err) != yodel.Unavailable {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the call outlives its connection")
	}
}

// Defect 6: a body of more than 64 KiB was cut without an error.
func TestLargeValuesArriveWholeOrFail(t *testing.T) {
	s, _ := newServer(t)
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 1 << 20}}, s)
	text := strings.Repeat("x", 256<<10)
	out, err := join.Call(t.Context(), c, stack.Push2(text, int64(1)))
	if err != nil || out.Pop() != text+"1" {
		t.Errorf("%d bytes arrive, %v", len(out.Pop()), err)
	}
	_, err = join.Call(t.Context(), c, stack.Push2(strings.Repeat("x", 2<<20), int64(1)))
	if yodel.CodeOf(err) != yodel.ResourceExhausted || !yodel.NotProcessed(err) {
		t.Errorf("a value over the limit: %v", err)
	}
}
