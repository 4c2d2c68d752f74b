// SPDX-License-Identifier: Apache-2.0

package netrpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/rpc"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/conformance/refusing"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// Arith is a service as net/rpc's documentation has it.
type Arith struct {
	began   chan struct{}
	release chan struct{}
}

type (
	Args     struct{ A, B int }
	Quotient struct{ Quo, Rem int }
)

func (*Arith) Multiply(args *Args, reply *int) error {
	*reply = args.A * args.B
	return nil
}

func (*Arith) Divide(args Args, quo *Quotient) error {
	if args.B == 0 {
		return errors.New("divide by zero")
	}
	quo.Quo, quo.Rem = args.A/args.B, args.A%args.B
	return nil
}

func (a *Arith) Wait(_ int, reply *string) error {
	a.began <- struct{}{}
	<-a.release
	*reply = "waited"
	return nil
}

func (*Arith) Panic(_ int, _ *int) error { panic("oh") }

func (*Arith) Exit(_ int, _ *int) error {
	runtime.Goexit()
	return nil
}

// Hide has a reply that gob cannot encode, because the type is not registered.
func (*Arith) Hide(_ int, reply *map[string]any) error {
	*reply = map[string]any{"x": Args{}}
	return nil
}

func (*Arith) Echo(in []byte, out *[]byte) error {
	*out = in
	return nil
}

// A served is a yodel server that clients of net/rpc call too.
type served struct {
	*yodel.Server
	arith *Arith
	addr  string
	stop  func() error // shuts it down
}

func serve(t testing.TB, o yodel.ServerOptions) *served {
	t.Helper()
	o.Codecs = append(o.Codecs, gob.Codec)
	o.Protocols = []yodel.Protocol{netrpc.Protocol}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &served{Server: yodel.NewServer(&o), arith: &Arith{began: make(chan struct{}, 100), release: make(chan struct{})}}
	if err := s.Register(s.arith); err != nil {
		t.Fatal(err)
	}
	l := testserve.Listen(t)
	s.addr, s.stop = l.Addr().String(), testserve.Run(t, s.Server, l)
	return s
}

func dial(t testing.TB, addr string) *rpc.Client {
	t.Helper()
	c, err := rpc.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	return c
}

func TestUnchangedClients(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	for name, dial := range map[string]func(network, addr string) (*rpc.Client, error){"Dial": rpc.Dial, "DialHTTP": rpc.DialHTTP} {
		t.Run(name, func(t *testing.T) {
			c, err := dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var product int
			if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
				t.Errorf("got %d, %v", product, err)
			}
			var quo Quotient
			if err := c.Call("Arith.Divide", Args{17, 5}, &quo); err != nil || quo != (Quotient{3, 2}) {
				t.Errorf("got %v, %v", quo, err)
			}
			if err := c.Call("Arith.Divide", Args{1, 0}, &quo); err == nil || err.Error() != "divide by zero" {
				t.Errorf("got %v, want the handler's text", err)
			}
		})
	}
}

// Yodel's own clients use the same port at the same time.
func TestBothProtocolsOnOnePort(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Diagnostics: true})
	c := yodel.NewClient(discovery.Static(s.addr), &yodel.ClientOptions{Codec: gob.Codec})
	defer c.Close()
	old := dial(t, s.addr)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				var product int
				var err error
				if (i+j)%2 == 0 {
					err = c.Call(t.Context(), "Arith.Multiply", &Args{i, j}, &product)
				} else {
					err = old.Call("Arith.Multiply", &Args{i, j}, &product)
				}
				if err != nil || product != i*j {
					t.Errorf("%d * %d is %d, %v", i, j, product, err)
				}
			}
		})
	}
	wg.Wait()
	counted := uint64(0)
	for tries := 0; counted != 8*200 && tries < 1000; tries++ { // a call is counted after its reply was sent
		stats, err := inspect.Stats.Call(t.Context(), c, &inspect.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range stats.Methods {
			if m.Name == "Arith.Multiply" {
				counted = m.Calls
			}
		}
	}
	if counted != 8*200 {
		t.Errorf("%d calls are counted, want %d", counted, 8*200)
	}
}

func TestErrors(t *testing.T) {
	var log bytes.Buffer
	s := serve(t, yodel.ServerOptions{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Limits: yodel.Limits{MaxMessage: 1 << 20},
	})
	c := dial(t, s.addr)
	for _, test := range []struct {
		method      string
		args, reply any
		want        string
	}{
		{"Arith.Nothing", 1, new(int), "rpc: can't find service Arith.Nothing"},
		{"Nobody.Multiply", 1, new(int), "rpc: can't find service Nobody.Multiply"},
		{"Arith.Multiply", "seven", new(int), "[YDL2101]"},
		{"Arith.Panic", 1, new(int), "[YDL5001]"},
		{"Arith.Exit", 1, new(int), "[YDL5002]"},
		{"Arith.Hide", 1, new(map[string]any), "[YDL2104]"},
		{"Arith.Echo", make([]byte, 2<<20), new([]byte), "[YDL2201]"},
	} {
		err := c.Call(test.method, test.args, test.reply)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.method, err, test.want)
		}
		var product int // the connection goes on
		if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
			t.Errorf("after %s: got %d, %v", test.method, product, err)
		}
	}
	_ = s.stop() // the log is written
	if strings.Contains(log.String(), "level=ERROR") != true || strings.Count(log.String(), "panicked") != 1 {
		t.Errorf("the log does not have the panic once: %s", log.String())
	}
}

// Middleware, observers, records and the Connect hook see these calls as any other.
func TestGovernance(t *testing.T) {
	refused := errors.New("not you")
	var seen []string
	var mu sync.Mutex
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprintf(format, args...))
	}
	var letIn atomic.Bool
	s := serve(t, yodel.ServerOptions{
		Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Method == "Arith.Divide" {
					return yodel.Errorf(yodel.PermissionDenied, "no division by %s", call.Peer().Addr.Network())
				}
				body, err := call.Body()
				note("middleware %s %t %v", call.Method, len(body) > 0, err)
				return next(ctx, call)
			}
		}},
		Observers: []yodel.Observer{{End: func(_ context.Context, call *yodel.Call, err error) { note("end %s %v", call.Method, err) }}},
		Connect: func(context.Context, *yodel.Peer) error {
			if !letIn.Load() {
				return yodel.Errorf(yodel.Unauthenticated, "%w", refused)
			}
			return nil
		},
	})
	var product int
	if err := dial(t, s.addr).Call("Arith.Multiply", &Args{7, 8}, &product); err == nil || !strings.Contains(err.Error(), "unauthenticated: not you") {
		t.Errorf("got %v, want the error of the Connect hook", err)
	}
	letIn.Store(true)
	c := dial(t, s.addr)
	if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("got %d, %v", product, err)
	}
	if err := c.Call("Arith.Divide", Args{1, 1}, new(Quotient)); err == nil || err.Error() != "permission_denied: no division by tcp" {
		t.Errorf("got %v, want the error of the middleware", err)
	}
	if peers := s.Peers(); len(peers) != 1 || peers[0].Addr.String() == "" {
		t.Errorf("got the peers %v, want one", peers)
	} else if err := peers[0].Do(t.Context(), &yodel.Call{Method: "X.Y"}); yodel.CodeOf(err) != yodel.Unimplemented {
		t.Errorf("a call to the client: got %v, want unimplemented", err)
	}
	_ = s.stop() // all calls have ended
	samples := s.Samples(nil)
	if len(samples.Calls) != 1 || samples.Calls[0].Method != "Arith.Divide" {
		t.Errorf("got the records %+v, want that of the division", samples)
	}
	slices.Sort(seen) // a call ends after its reply has been sent
	want := []string{"end Arith.Divide permission_denied: no division by tcp", "end Arith.Multiply <nil>", "middleware Arith.Multiply true <nil>"}
	if !slices.Equal(seen, want) {
		t.Errorf("got %q\nwant %q", seen, want)
	}
}

// A call that has begun is answered although the server shuts down, and so is one whose request is
// on its way.
func TestDrain(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	var waited string
	call := c.Go("Arith.Wait", 1, &waited, make(chan *rpc.Call, 1))
	<-s.arith.began
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	var product int
	for { // the listener is closed first
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			break
		}
		_ = conn.Close() // it tested only whether somebody listens
	}
	if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("a call while the server drains: got %d, %v", product, err)
	}
	close(s.arith.release)
	if <-call.Done; call.Error != nil || waited != "waited" {
		t.Errorf("got %q, %v", waited, call.Error)
	}
	if err := <-stopped; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err == nil {
		t.Error("a call after the end succeeded")
	}
}

// The context of a handler ends when its client goes.
func TestAClientThatLeavesEndsItsCalls(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	began, ended := make(chan struct{}), make(chan error, 1)
	err := s.Handle("Long", func(ctx context.Context, _ *int) (*int, error) {
		close(began)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, s.addr)
	c.Go("Long", 1, new(int), nil)
	<-began
	_ = c.Close() // what is tested
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "caller") {
			t.Errorf("the cause is %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the context does not end")
	}
}

// No more calls run than the limits allow, and the others wait.
func TestLimits(t *testing.T) {
	s := serve(t, yodel.ServerOptions{MaxOpen: 3})
	c, other := dial(t, s.addr), dial(t, s.addr)
	var calls []*rpc.Call
	for range 5 {
		calls = append(calls, c.Go("Arith.Wait", 1, new(string), nil), other.Go("Arith.Wait", 1, new(string), nil))
	}
	for range 3 {
		<-s.arith.began
	}
	select {
	case <-s.arith.began:
		t.Error("four calls run, the limit is 3")
	case <-time.After(100 * time.Millisecond):
	}
	close(s.arith.release)
	for _, call := range calls {
		if <-call.Done; call.Error != nil {
			t.Error(call.Error)
		}
	}
}

// What is no gob of net/rpc ends its connection, with a line in the log, and no other one.
func TestNonsense(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	good := dial(t, s.addr)
	start := []byte("\x2e\x7f\x03\x01\x01\x07Request\x01\xff\x80\x00\x01\x02\x01\x0dServiceMethod\x01\x0c\x00\x01\x03Seq\x01\x06\x00\x00\x00")
	for name, rest := range map[string][]byte{
		"a huge message": []byte("\xf8\x7f\xff\xff\xff\xff\xff\xff\xff\x01\x02\x03"), "no number": []byte("\x80\x80\x80"),
		"an empty message": []byte("\x00\x00"), "a broken definition": []byte("\x03\x7f\xff\xff"), "random": bytes.Repeat([]byte{0x55, 0xfe, 0x01}, 1000),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err = conn.Write(append(bytes.Clone(start), rest...)); err != nil {
				t.Fatal(err)
			}
			_ = conn.(*net.TCPConn).CloseWrite() // the server sees the end as well
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err = conn.Read(make([]byte, 1)); err == nil {
				t.Error("it was answered")
			} else if errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout") {
				t.Errorf("the connection goes on: %v", err)
			}
		})
	}
	var product int
	if err := good.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("got %d, %v", product, err)
	}
}

// A caller is a client of net/rpc.
type caller struct{ *rpc.Client }

// Do implements yodel.Caller.
func (c caller) Do(_ context.Context, call *yodel.Call) error {
	return c.Call(call.Method, call.Args, call.Reply)
}

func TestProtocolKeepsTheContract(t *testing.T) {
	p := yodeltest.Protocol{Protocol: netrpc.Protocol, Codecs: []yodel.Codec{gob.Codec}, Middleware: refusing.All}
	yodeltest.TestProtocol(t, p, func(conn net.Conn) yodel.Caller { return caller{rpc.NewClient(conn)} })
}
