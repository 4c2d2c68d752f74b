// SPDX-License-Identifier: Apache-2.0

package jsonrpc_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	std "net/rpc/jsonrpc"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
)

// A plainServer is a server of the standard library's net/rpc/jsonrpc.
type plainServer struct {
	*Arith
	*testserve.Listener
}

// plain starts a server of the standard library at addr, or anywhere for "".
func plain(t testing.TB, addr string) *plainServer {
	t.Helper()
	server := rpc.NewServer()
	arith := &Arith{began: make(chan struct{}, 100), release: make(chan struct{})}
	must(t, server.RegisterName("Arith", &Plain{arith}))
	return &plainServer{arith, testserve.Accept(t, addr, func(conn net.Conn) { server.ServeCodec(std.NewServerCodec(conn)) })}
}

// Plain is the service of a plainServer.
type Plain struct{ *Arith }

// Whoami returns the server's kind.
func (*Plain) Whoami(_ int, reply *string) error { *reply = "net/rpc/jsonrpc"; return nil }

// Echo returns its argument.
func (*Plain) Echo(in string, out *string) error { *out = in; return nil }

// calling returns a client that calls servers of JSON-RPC.
func calling(t testing.TB, o yodel.ClientOptions, addrs ...string) *yodel.Client {
	t.Helper()
	o.Wires = append(o.Wires, jsonrpc.Wire(yodel.JSON), jsonrpc.Wire1(yodel.JSON))
	c := yodel.NewClient(discovery.Static(addrs...), &o)
	t.Cleanup(c.Close)
	return c
}

// A yodel client calls an unchanged server of the standard library, and one of yodel.
func TestWire(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 64 << 20}})
	must(t, s.Handle("Arith.Echo", func(_ context.Context, in *string) (*string, error) { return in, nil }))
	for _, scheme := range []string{"jsonrpc1", "jsonrpc"} {
		t.Run(scheme, func(t *testing.T) {
			if scheme == "jsonrpc" {
				checkWire(t, calling(t, yodel.ClientOptions{}, scheme+"://"+s.addr), scheme)
				return
			}
			old := plain(t, "")
			checkWire(t, calling(t, yodel.ClientOptions{}, scheme+"://"+old.Addr), scheme)
			if n := old.Accepted(); n != 1 {
				t.Errorf("%d connections were made, want 1", n)
			}
		})
	}
}

func checkWire(t *testing.T, c *yodel.Client, scheme string) {
	multiply := yodel.Method[Args, int]("Arith.Multiply")
	for n := range 100 {
		if product, err := multiply.Call(t.Context(), c, &Args{n, 2}); err != nil || *product != 2*n {
			t.Fatalf("got %v, %v", product, err)
		}
	}
	var quotient Quotient
	if err := c.Call(t.Context(), "Arith.Divide", Args{7, 2}, &quotient); err != nil || quotient != (Quotient{3, 1}) {
		t.Errorf("got %v, %v", quotient, err)
	}
	var sum int
	if err := c.Call(t.Context(), "Arith.Sum", []int{1, 2, 4}, &sum); err != nil || sum != 7 {
		t.Errorf("got %d, %v", sum, err)
	}
	var encoded yodel.Encoded
	if err := c.Call(t.Context(), "Arith.Divide", &yodel.Encoded{Body: []byte(`{"A":7,"B":2}`)}, &encoded); err != nil || string(encoded.Body) != `{"Quo":3,"Rem":1}` {
		t.Errorf("got %s, %v", encoded.Body, err)
	}
	for range 3 { // the standard library's server answers them
		if err := errors.Join(c.Notify(t.Context(), "Arith.Multiply", &Args{1, 2}), c.Notify(t.Context(), "Arith.Divide", &Args{1, 0})); err != nil {
			t.Errorf("a one-way call: %v", err)
		}
	}
	if err := c.Call(t.Context(), "Arith.Multiply", &Args{1, 2}, nil); err != nil {
		t.Errorf("a call whose reply nobody wants: %v", err)
	}
	for name, test := range map[string]struct {
		call *yodel.Call
		code yodel.Code
		says string
		sent bool // it may have been executed
	}{
		"a handler's error":     {&yodel.Call{Method: "Arith.Divide", Args: &Args{1, 0}, Reply: new(Quotient)}, yodel.Unknown, "divide by zero", true},
		"no method":             {&yodel.Call{Method: "Arith.Nothing", Args: new(int)}, yodel.Unimplemented, "Arith.Nothing", false},
		"no service":            {&yodel.Call{Method: "Nothing\"ä.Nothing", Args: new(int)}, yodel.Unimplemented, "", false},
		"a channel":             {&yodel.Call{Method: "Arith.Multiply", Args: make(chan int)}, yodel.InvalidArgument, "a chan cannot be encoded", false},
		"a codec that panics":   {&yodel.Call{Method: "Arith.Multiply", Args: &faulty{}}, yodel.InvalidArgument, "panicked", false},
		"too large":             {&yodel.Call{Method: "Arith.Echo", Args: new(strings.Repeat("x", 17<<20)), Reply: new(string)}, yodel.ResourceExhausted, "limit", false},
		"another type":          {&yodel.Call{Method: "Arith.Multiply", Args: &Args{1, 2}, Reply: new(map[string]string)}, yodel.Internal, "does not fit", true},
		"an attachment":         {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Attachment: []byte("x")}, yodel.Unimplemented, "attachments", false},
		"metadata":              {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Metadata: yodel.Metadata{"a": "b"}}, yodel.Unimplemented, "no metadata", false},
		"broken encoded values": {&yodel.Call{Method: "Arith.Multiply", Args: &yodel.Encoded{Several: true}}, yodel.InvalidArgument, "values", false},
		"an encoded reply":      {&yodel.Call{Method: "Arith.Multiply", Args: yodel.Values{1}, Reply: new(yodel.Encoded)}, yodel.Unimplemented, "encoded replies", false},
		"an ordered call":       {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Ordered: true}, yodel.FailedPrecondition, "no order", false},
		"no pointer":            {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Reply: 1}, yodel.Internal, "pointer", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.Do(t.Context(), test.call)
			if yodel.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.says) || yodel.NotProcessed(err) == test.sent {
				t.Errorf("got %v (not processed: %t), want %v with %q", err, yodel.NotProcessed(err), test.code, test.says)
			}
			if product, err := multiply.Call(t.Context(), c, &Args{7, 8}); err != nil || *product != 56 {
				t.Errorf("the next call: got %v, %v", product, err)
			}
		})
	}
	for _, err := range yodel.Feed[int, int]("Arith.Multiply").Call(t.Context(), c, new(int)) {
		if yodel.CodeOf(err) != yodel.Unimplemented || !strings.Contains(err.Error(), "no streams") {
			t.Errorf("a stream: got %v", err)
		}
	}
	stats := c.Stats().Endpoints[0]
	if stats.Protocol != scheme || stats.Attempts < 100 || stats.Failed == 0 || len(stats.Conns) != 1 {
		t.Errorf("got the counters %+v", stats)
	}
}

// A faulty value panics when it is encoded.
type faulty struct{}

func (*faulty) MarshalJSON() ([]byte, error) { panic("oh") }
func (*faulty) UnmarshalJSON([]byte) error   { return nil }

// Arguments and results of each form travel between yodel's client and server.
func TestWireCarriesValues(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	must(t, s.Handle("Swap", func(a, b string) (string, string) { return b, a }))
	must(t, s.Handle("Length", func(list []int) int { return len(list) }))
	must(t, s.Handle("Double", func(list []int) []int { return append(list, list...) }))
	must(t, s.Handle("Nothing", func(context.Context) error { return nil }))
	must(t, s.Handle("Echo", func(_ context.Context, in *any) (*any, error) { return in, nil }))
	must(t, s.Handle("Fail", func(context.Context) error {
		return &yodel.Error{Code: yodel.Unavailable, Message: "later", RetryAfter: time.Second, NotProcessed: true, Details: []yodel.Detail{{Type: "why", Value: []byte{0}}}}
	}))
	must(t, s.Handle("Twice", func(context.Context) error { return yodel.Errorf(yodel.Unimplemented, "not yet") }))
	c := calling(t, yodel.ClientOptions{}, "jsonrpc://"+s.addr)
	var a, b string
	if err := c.Call(t.Context(), "Swap", yodel.Values{"a", "b"}, yodel.Values{&a, &b}); err != nil || a+b != "ba" {
		t.Errorf("got %s, %s, %v", a, b, err)
	}
	var encoded yodel.Encoded
	encoded.SetValues([]byte(`"c"`), []byte(`"d"`))
	if err := c.Call(t.Context(), "Swap", &encoded, yodel.Values{&a, &b}); err != nil || a+b != "dc" {
		t.Errorf("got %s, %s, %v", a, b, err)
	}
	if err := c.Call(t.Context(), "Swap", yodel.Values{"a", "b"}, yodel.Values{&a, &b, &a}); err == nil || !strings.Contains(err.Error(), "3 values are expected") {
		t.Errorf("with too many results: got %v", err)
	}
	var n int
	if err := c.Call(t.Context(), "Length", yodel.Values{[]int{1, 2, 3}}, yodel.Values{&n}); err != nil || n != 3 {
		t.Errorf("got %d, %v", n, err)
	}
	var list []int
	if err := c.Call(t.Context(), "Double", yodel.Values{[]int{1, 2}}, yodel.Values{&list}); err != nil || fmt.Sprint(list) != "[1 2 1 2]" {
		t.Errorf("got %v, %v", list, err)
	}
	for _, values := range []any{yodel.Values{}, nil} {
		if err := c.Call(t.Context(), "Nothing", values, yodel.Values{}); err != nil {
			t.Error(err)
		}
	}
	for _, in := range []any{nil, true, 1.5, "text", []any{}, []any{1.0}, []any{[]any{}}, map[string]any{}, map[string]any{"a": nil}} {
		out := any("old")
		if err := c.Call(t.Context(), "Echo", in, &out); err != nil || fmt.Sprint(out) != fmt.Sprint(in) && in != nil {
			t.Errorf("%v: got %v, %v", in, out, err)
		}
	}
	err := c.Call(t.Context(), "Fail", yodel.Values{}, nil)
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unavailable || e.RetryAfter != time.Second || len(e.Details) != 1 || e.Details[0].Type != "why" {
		t.Errorf("got %+v", err)
	}
	if err := c.Call(t.Context(), "Twice", yodel.Values{}, nil); yodel.CodeOf(err) != yodel.Unimplemented || yodel.NotProcessed(err) {
		t.Errorf("an error of a method that was executed: got %v", err)
	}
}

// What a broken server sends ends the connection, or only the call that it answers.
func TestWireOfABrokenServer(t *testing.T) {
	for name, test := range map[string]struct{ reply, says string }{
		"no JSON":            {`oh`, "connection was lost: 'o' begins neither an object nor an array"},
		"an array":           {`[]`, "neither a request nor a reply"},
		"no result":          {`{"jsonrpc":"2.0","id":1}`, "neither a request nor a reply"},
		"an error for all":   {`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"oh"}}`, "without an ID: invalid_argument: oh"},
		"cut off":            {`{"jsonrpc":"2.0","id":1,`, "unexpected EOF"},
		"no error object":    {`{"jsonrpc":"2.0","id":1,"error":7}`, "unknown: 7"},
		"too large":          {`{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", 200_000) + `"}`, "limit is 100000 [YDL2202]"},
		"too large, ID last": {`{"jsonrpc":"2.0","result":"` + strings.Repeat("x", 200_000) + `","id":1}`, "limit is 100000 [YDL2202]"},
		"too large, no ID":   {`{"jsonrpc":"2.0","result":"` + strings.Repeat("x", 200_000) + `"}`, "a message has 200"},
		"requests and others' replies first": {
			`{"jsonrpc":"2.0","method":"hello","id":1}{"jsonrpc":"2.0","id":"1","result":5}{"jsonrpc":"2.0","id":7,"error":{"code":1}}{"id":1,"error":{"code":-32005,"message":"mine"}}`, "not_found: mine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testserve.Accept(t, "", func(conn net.Conn) {
				if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil && strings.Contains(line, `"id":1`) {
					_, _ = io.WriteString(conn, test.reply) // the client may have closed the connection
				}
			})
			c := calling(t, yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 100_000, MaxMetadata: 1000}}, "jsonrpc://"+s.Addr)
			err := c.Call(t.Context(), "Arith.Multiply", &Args{}, new(int))
			if err == nil || !strings.Contains(fmt.Sprintf("%v %v", err, errors.Unwrap(err)), test.says) || yodel.NotProcessed(err) {
				t.Errorf("got %v, caused by %v, want %s", err, errors.Unwrap(err), test.says)
			}
		})
	}
}

func TestWireNeedsJSON(t *testing.T) {
	for _, codec := range []yodel.Codec{nil, raw.Codec} {
		for _, wire := range []func(yodel.Codec) yodel.Wire{jsonrpc.Wire, jsonrpc.Wire1} {
			func() {
				defer func() {
					if got := recover(); got != `jsonrpc: a Wire needs a codec with the name "json"` {
						t.Errorf("it panicked with %v", got)
					}
				}()
				wire(codec)
			}()
		}
	}
}

// A hundred callers share a connection, and callers that leave cost the others nothing.
func TestWireIsShared(t *testing.T) {
	s := plain(t, "")
	c := calling(t, yodel.ClientOptions{}, "jsonrpc1://"+s.Addr)
	var callers sync.WaitGroup
	for i := range 100 {
		callers.Go(func() {
			for n := range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+n)%3 == 0 {
					cancel() // before or while it is sent
				}
				var product int
				err := c.Call(ctx, "Arith.Multiply", &Args{i, n}, &product)
				if cancel(); err == nil && product != i*n || err != nil && (i+n)%3 != 0 {
					t.Errorf("got %d, %v", product, err)
				}
			}
		})
	}
	callers.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := c.Call(ctx, "Arith.Wait", new(int), new(string))
	if yodel.CodeOf(err) != yodel.DeadlineExceeded || yodel.NotProcessed(err) {
		t.Errorf("got %v, want a deadline", err)
	}
	close(s.release) // the late reply comes now
	var product int
	if err := c.Call(t.Context(), "Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("got %d, %v", product, err)
	}
}

// A fleet of yodel servers and of JSON-RPC servers of both versions keeps answering while one after
// the other is killed and comes back, with retries, hedging and a breaker.
func TestMixedFleet(t *testing.T) {
	t.Attr("rerun", "never")
	var addrs []string
	handle := func(s *served, who string) {
		must(t, s.Handle("Arith.Whoami", func(context.Context, *int) (*string, error) { return &who, nil }))
	}
	native, foreign := serve(t, yodel.ServerOptions{}), serve(t, yodel.ServerOptions{})
	handle(native, "yodel")
	handle(foreign, "jsonrpc")
	var old [2]*plainServer
	for i := range old {
		old[i] = plain(t, "")
		addrs = append(addrs, "jsonrpc1://"+old[i].Addr)
	}
	addrs = append(addrs, native.addr, "jsonrpc://"+foreign.addr)
	c := calling(t, yodel.ClientOptions{
		Middleware:         []yodel.Middleware{retry.Times(6), hedge.After(100 * time.Millisecond)},
		EndpointMiddleware: []yodel.EndpointMiddleware{breaker.After(5, 50*time.Millisecond)},
		Timeout:            20 * time.Second,
	}, addrs...)
	must(t, c.Ready(t.Context()))
	stop := make(chan struct{})
	var callers sync.WaitGroup
	answers := map[string]*atomic.Int64{"yodel": {}, "jsonrpc": {}, "net/rpc/jsonrpc": {}}
	for range 8 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var who string
				err := c.Do(t.Context(), &yodel.Call{Method: "Arith.Whoami", Args: new(int), Reply: &who, Idempotent: true})
				if err != nil || answers[who] == nil {
					t.Errorf("a call failed: %q, %v", who, err)
					return
				}
				answers[who].Add(1)
			}
		})
	}
	for round := range 6 {
		i := round % len(old)
		was := answers["net/rpc/jsonrpc"].Load()
		old[i].Kill()
		old[i] = plain(t, old[i].Addr)
		deadline := time.Now().Add(20 * time.Second)
		for answers["net/rpc/jsonrpc"].Load() < was+20 && time.Now().Before(deadline) {
			runtime.Gosched()
		}
		if answers["net/rpc/jsonrpc"].Load() < was+20 {
			t.Errorf("round %d: the servers of net/rpc/jsonrpc get no calls", round)
		}
	}
	close(stop)
	callers.Wait()
	for who, n := range answers {
		if t.Logf("%s answered %d calls", who, n.Load()); n.Load() == 0 {
			t.Errorf("no call went to %s", who)
		}
	}
}

// A call whose server dies may have been executed, and one that finds no server was not.
func TestWireWhoseServerDies(t *testing.T) {
	s := plain(t, "")
	c := calling(t, yodel.ClientOptions{}, "jsonrpc1://"+s.Addr)
	ended := make(chan error, 1)
	go func() { ended <- c.Call(t.Context(), "Arith.Wait", new(int), new(string)) }()
	<-s.began
	s.Cut()
	if err := <-ended; yodel.CodeOf(err) != yodel.Unavailable || yodel.NotProcessed(err) {
		t.Errorf("got %v, want that it may have been executed", err)
	}
	close(s.release) // ServeCodec waits for its handlers
	s.Kill()
	err := c.Call(t.Context(), "Arith.Multiply", &Args{}, new(int))
	if yodel.CodeOf(err) != yodel.Unavailable || !yodel.NotProcessed(err) {
		t.Errorf("got %v, want that it was not executed", err)
	}
}
