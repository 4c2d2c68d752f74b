// SPDX-License-Identifier: Apache-2.0

package netrpc_test

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/rpc"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	gobcodec "github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
)

// A plainServer is a server of the standard library.
type plainServer struct {
	*Arith
	*testserve.Listener
}

// plain starts a server of the standard library at addr, or anywhere for "".
func plain(t testing.TB, addr string) *plainServer {
	t.Helper()
	server := rpc.NewServer()
	arith := &Arith{began: make(chan struct{}, 100), release: make(chan struct{})}
	if err := server.RegisterName("Arith", &Plain{arith}); err != nil {
		t.Fatal(err)
	}
	return &plainServer{arith, testserve.Accept(t, addr, func(conn net.Conn) { server.ServeConn(conn) })}
}

// Plain is the service of a plainServer.
type Plain struct{ *Arith }

// Whoami returns the server's kind.
func (*Plain) Whoami(_ int, reply *string) error { *reply = "net/rpc"; return nil }

// A Parcel holds a value of any registered type.
type Parcel struct{ Inside any }

// Content is a type that only parcels have.
type Content struct{ Name string }

// Wrap returns a Parcel, whose content is defined within the reply.
func (*Plain) Wrap(box Parcel, reply *Parcel) error {
	*reply = box
	return nil
}

// Refuse fails as a yodel server behind net/rpc does.
func (*Plain) Refuse(_ int, _ *int) error { return errors.New("permission_denied: not you") }

// calling returns a client that calls servers of net/rpc.
func calling(t testing.TB, o yodel.ClientOptions, addrs ...string) *yodel.Client {
	t.Helper()
	o.Codec = gobcodec.Codec
	o.Wires = append(o.Wires, netrpc.Wire(gobcodec.Codec), netrpc.WireHTTP(gobcodec.Codec, rpc.DefaultRPCPath))
	c := yodel.NewClient(discovery.Static(addrs...), &o)
	t.Cleanup(c.Close)
	return c
}

// A yodel client calls an unchanged server of the standard library.
func TestWire(t *testing.T) {
	gob.Register(Content{})
	s := plain(t, "")
	c := calling(t, yodel.ClientOptions{}, "netrpc://"+s.Addr)
	multiply := yodel.Method[Args, int]("Arith.Multiply")
	for n := range 100 { // definitions of types are sent once
		if product, err := multiply.Call(t.Context(), c, &Args{n, 2}); err != nil || *product != 2*n {
			t.Fatalf("got %v, %v", product, err)
		}
	}
	var quotient Quotient
	if err := c.Call(t.Context(), "Arith.Divide", Args{7, 2}, &quotient); err != nil || quotient != (Quotient{3, 1}) {
		t.Errorf("got %v, %v", quotient, err)
	}
	for range 3 {
		var box Parcel
		if err := c.Call(t.Context(), "Arith.Wrap", &Parcel{Content{"x"}}, &box); err != nil || box.Inside != (Content{"x"}) {
			t.Errorf("got %v, %v", box, err)
		}
	}
	if err := c.Notify(t.Context(), "Arith.Multiply", &Args{1, 2}); err != nil {
		t.Errorf("a one-way call: %v", err)
	}
	for name, test := range map[string]struct {
		call *yodel.Call
		code yodel.Code
		says string
		sent bool // it may have been executed
	}{
		"a handler's error":    {&yodel.Call{Method: "Arith.Divide", Args: &Args{1, 0}, Reply: new(Quotient)}, yodel.Unknown, "divide by zero", true},
		"an error with a code": {&yodel.Call{Method: "Arith.Refuse", Args: new(int), Reply: new(int)}, yodel.PermissionDenied, "not you", true},
		"no method":            {&yodel.Call{Method: "Arith.Nothing", Args: new(int)}, yodel.Unimplemented, "can't find method Arith.Nothing", false},
		"no service":           {&yodel.Call{Method: "Nothing.Nothing", Args: new(int)}, yodel.Unimplemented, "can't find service Nothing.Nothing", false},
		"a channel":            {&yodel.Call{Method: "Arith.Multiply", Args: make(chan int)}, yodel.InvalidArgument, "gob", false},
		"a codec that panics":  {&yodel.Call{Method: "Arith.Multiply", Args: &faulty{}}, yodel.InvalidArgument, "panicked", false},
		"too large":            {&yodel.Call{Method: "Arith.Echo", Args: new([17 << 20]byte), Reply: new([]byte)}, yodel.ResourceExhausted, "limit", false},
		"another type":         {&yodel.Call{Method: "Arith.Multiply", Args: &Args{1, 2}, Reply: new(map[string]string)}, yodel.Internal, "does not fit", true},
		"several values":       {&yodel.Call{Method: "Arith.Multiply", Args: yodel.Values{1, 2}, Reply: yodel.Values{new(int)}}, yodel.Unimplemented, "several values", false},
		"an attachment":        {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Attachment: []byte("x")}, yodel.Unimplemented, "attachments", false},
		"metadata":             {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Metadata: yodel.Metadata{"a": "b"}}, yodel.Unimplemented, "no metadata", false},
		"encoded arguments":    {&yodel.Call{Method: "Arith.Multiply", Args: &yodel.Encoded{}}, yodel.Unimplemented, "encoded", false},
		"an ordered call":      {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Ordered: true}, yodel.FailedPrecondition, "no order", false},
		"no pointer":           {&yodel.Call{Method: "Arith.Multiply", Args: &Args{}, Reply: 1}, yodel.Internal, "pointer", false},
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
	ep := c.Endpoints()[0]
	if ep.RTT() != 0 { // net/rpc has no ping
		t.Errorf("got the round trip %v", ep.RTT())
	}
	stats := c.Stats().Endpoints[0]
	if stats.Protocol != "netrpc" || stats.Attempts < 100 || stats.Failed == 0 || len(stats.Conns) != 1 {
		t.Errorf("got the counters %+v", stats)
	}
	if n := s.Accepted(); n != 1 {
		t.Errorf("%d connections were made, want 1", n)
	}
}

// A faulty value panics when it is encoded.
type faulty struct{}

func (*faulty) GobEncode() ([]byte, error) { panic("oh") }
func (*faulty) GobDecode([]byte) error     { return nil }

// The caller gets the reply in encoded form, as a cache needs it.
func TestWireGivesEncodedReplies(t *testing.T) {
	s := plain(t, "")
	c := calling(t, yodel.ClientOptions{}, "netrpc://"+s.Addr)
	var e yodel.Encoded
	if err := c.Call(t.Context(), "Arith.Divide", Args{7, 2}, &e); err != nil {
		t.Fatal(err)
	}
	var quotient Quotient
	if err := gobcodec.Codec.Decode(e.Body, &quotient); err != nil || quotient != (Quotient{3, 1}) {
		t.Errorf("got %v, %v", quotient, err)
	}
}

// A hundred callers share a connection, and callers that leave cost the others nothing.
func TestWireIsShared(t *testing.T) {
	s := plain(t, "")
	c := calling(t, yodel.ClientOptions{}, "netrpc://"+s.Addr)
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
	if yodel.CodeOf(err) != yodel.DeadlineExceeded || yodel.NotProcessed(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
	close(s.release) // the late reply comes now
	var product int
	if err := c.Call(t.Context(), "Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("got %d, %v", product, err)
	}
}

// The deadline and the timeout of a call bound it, and asynchronous calls end once.
func TestWireModes(t *testing.T) {
	s := plain(t, "")
	defer close(s.release)
	c := calling(t, yodel.ClientOptions{Timeout: 20 * time.Millisecond}, "netrpc://"+s.Addr)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Call(t.Context(), "Arith.Wait", new(int), new(string)); yodel.CodeOf(err) != yodel.DeadlineExceeded {
		t.Errorf("got %v, want the timeout of the client", err)
	}
	var products [50]int
	ended := make(chan error, len(products))
	for i := range products {
		c.Go(t.Context(), &yodel.Call{Method: "Arith.Multiply", Args: &Args{i, 3}, Reply: &products[i], Deadline: time.Now().Add(time.Minute)}, func(err error) { ended <- err })
	}
	for range products {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for i, product := range products {
		if product != 3*i {
			t.Errorf("%d: got %d", i, product)
		}
	}
}

// A call whose server dies may have been executed, and one that finds no server was not.
func TestWireWhoseServerDies(t *testing.T) {
	s := plain(t, "")
	var mu sync.Mutex
	var kinds []introspect.ConnEventKind
	c := calling(t, yodel.ClientOptions{OnConn: func(e introspect.ConnEvent) {
		mu.Lock()
		defer mu.Unlock()
		kinds = append(kinds, e.Kind)
	}}, "netrpc://"+s.Addr)
	ended := make(chan error, 1)
	go func() { ended <- c.Call(t.Context(), "Arith.Wait", new(int), new(string)) }()
	<-s.began
	s.Cut()
	if err := <-ended; yodel.CodeOf(err) != yodel.Unavailable || yodel.NotProcessed(err) {
		t.Errorf("got %v, want that it may have been executed", err)
	}
	close(s.release) // ServeConn waits for its handlers
	s.Kill()
	err := c.Call(t.Context(), "Arith.Multiply", &Args{}, new(int))
	if yodel.CodeOf(err) != yodel.Unavailable || !yodel.NotProcessed(err) {
		t.Errorf("got %v, want that it was not executed", err)
	}
	again := plain(t, s.Addr)
	deadline := time.Now().Add(20 * time.Second)
	for {
		var product int
		if err = c.Call(t.Context(), "Arith.Multiply", &Args{7, 8}, &product); err == nil && product == 56 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the restart at %s: %v", again.Addr, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(kinds) < 3 || kinds[0] != introspect.Connected {
		t.Errorf("got the events %v", kinds)
	}
}

// DialHTTP's counterpart: a server behind an HTTP path.
func TestWireHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer()
	if err = server.RegisterName("Arith", &Plain{new(Arith)}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(rpc.DefaultRPCPath, server)
	h := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	defer func() {
		_ = h.Close() // it ends Serve
		<-served
	}()
	c := calling(t, yodel.ClientOptions{}, "netrpc+http://"+l.Addr().String())
	defer c.Close() // before the server waits for its connections
	var product int
	if err = c.Call(t.Context(), "Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("got %d, %v", product, err)
	}
	wrong := yodel.NewClient(discovery.Static("netrpc+http://"+l.Addr().String()), &yodel.ClientOptions{Wires: []yodel.Wire{netrpc.WireHTTP(gobcodec.Codec, "/nothing")}})
	defer wrong.Close()
	if err = wrong.Call(t.Context(), "Arith.Multiply", &Args{}, nil); err == nil || !strings.Contains(err.Error(), `answered CONNECT /nothing with "HTTP/1.0 404 Not Found"`) {
		t.Errorf("got %v", err)
	}
}

func TestWireNeedsGob(t *testing.T) {
	defer func() {
		if got := recover(); got != `netrpc: a Wire needs the codec "gob"` {
			t.Errorf("it panicked with %v", got)
		}
	}()
	netrpc.Wire(yodel.JSON)
}

// An instance that speaks nothing that the client speaks is left out, and the error says so.
func TestUnspokenProtocols(t *testing.T) {
	c := calling(t, yodel.ClientOptions{}, "thrift://127.0.0.1:1", "grpc://127.0.0.1:2")
	err := c.Call(t.Context(), "Arith.Multiply", &Args{}, nil)
	if want := "no instance speaks a protocol that this client has: they speak grpc and thrift, and ClientOptions.Wires has no Wire for it"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	s := plain(t, "")
	c = calling(t, yodel.ClientOptions{}, "thrift://127.0.0.1:1", "netrpc://"+s.Addr)
	for range 4 {
		if err = c.Call(t.Context(), "Arith.Multiply", &Args{}, new(int)); err != nil {
			t.Error(err)
		}
	}
	if n := len(c.Endpoints()); n != 1 {
		t.Errorf("there are %d endpoints, want 1", n)
	}
}

// A fleet of yodel and net/rpc servers keeps answering while one after the other is killed and
// comes back, with retries, hedging and a breaker.
func TestMixedFleet(t *testing.T) {
	t.Attr("rerun", "never")
	const each = 2
	var old [each]*plainServer
	var addrs []string
	for i := range old {
		old[i] = plain(t, "")
		addrs = append(addrs, "netrpc://"+old[i].Addr)
	}
	for range each {
		s := serve(t, yodel.ServerOptions{})
		must(t, s.Handle("Arith.Whoami", func(context.Context, *int) (*string, error) {
			who := "yodel"
			return &who, nil
		}))
		addrs = append(addrs, s.addr)
	}
	c := calling(t, yodel.ClientOptions{
		Middleware:         []yodel.Middleware{retry.Times(6), hedge.After(100 * time.Millisecond)},
		EndpointMiddleware: []yodel.EndpointMiddleware{breaker.After(5, 50*time.Millisecond)},
		Timeout:            20 * time.Second,
	}, addrs...)
	must(t, c.Ready(t.Context()))
	stop := make(chan struct{})
	var callers sync.WaitGroup
	var answers [2]atomic.Int64
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
				switch {
				case err != nil:
					t.Errorf("a call failed: %v", err)
					return
				case who == "yodel":
					answers[0].Add(1)
				case who == "net/rpc":
					answers[1].Add(1)
				default:
					t.Errorf("got %q", who)
				}
			}
		})
	}
	for round := range 6 {
		i := round % each
		was := answers[1].Load()
		old[i].Kill()
		old[i] = plain(t, old[i].Addr)
		deadline := time.Now().Add(20 * time.Second)
		for answers[1].Load() < was+20 && time.Now().Before(deadline) {
			runtime.Gosched()
		}
		if answers[1].Load() < was+20 {
			t.Errorf("round %d: the servers of net/rpc get no calls", round)
		}
	}
	close(stop)
	callers.Wait()
	t.Logf("yodel answered %d calls, net/rpc %d", answers[0].Load(), answers[1].Load())
	if answers[0].Load() == 0 {
		t.Error("no call went to a server of yodel")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ExampleWire calls an unchanged server of net/rpc.
func ExampleWire() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	server := rpc.NewServer()
	if err = server.RegisterName("Arith", &Plain{new(Arith)}); err != nil {
		fmt.Println(err)
		return
	}
	go server.Accept(l)

	// region wire
	client := yodel.NewClient(discovery.Static("netrpc://"+l.Addr().String()), &yodel.ClientOptions{Wires: []yodel.Wire{netrpc.Wire(gobcodec.Codec)}})
	defer client.Close()
	product, err := yodel.Method[Args, int]("Arith.Multiply").Call(context.Background(), client, &Args{A: 7, B: 8})
	// endregion wire
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*product)
	// Output: 56
}

var _ gob.GobEncoder = (*faulty)(nil)
