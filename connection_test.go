// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func TestClosedClientRefusesCalls(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	unused, used := yodel.Dial(addr), yodel.Dial(addr)
	if _, err := Mul.Call(t.Context(), used, &Args{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*yodel.Client{"unused": unused, "used": used} {
		c.Close()
		_, called := Mul.Call(t.Context(), c, &Args{})
		_, begun := Mul.Go(t.Context(), c, &Args{}).Get()
		for how, err := range map[string]error{"Call": called, "Go": begun, "Notify": Mul.Notify(t.Context(), c, &Args{}), "Ready": c.Ready(t.Context())} {
			e := wantError(t, err, yodel.Canceled, "YDL1007")
			if !e.NotProcessed {
				t.Errorf("%s: %s: %v, want that it was not executed", name, how, err)
			}
		}
		c.Close() // twice does no harm
	}
}

func TestCloseEndsOpenCalls(t *testing.T) {
	s := newServer(t, nil)
	begun := make(chan struct{}, 10)
	const Wait yodel.Method[Empty, Empty] = "Wait"
	Wait.Handle(s, func(ctx context.Context, _ *Empty) (*Empty, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, nil
	})
	c := connect(t, s, nil)
	outcomes := make(chan error, 10)
	for range 5 {
		go func() {
			_, err := Wait.Call(context.Background(), c, &Empty{})
			outcomes <- err
		}()
		Wait.Then(t.Context(), c, &Empty{}, func(_ *Empty, err error) { outcomes <- err })
	}
	for range 10 {
		receive(t, begun, "the handlers run")
	}
	began := time.Now()
	c.Close()
	if d := time.Since(began); d > time.Second {
		t.Errorf("Close took %v", d)
	}
	for range 10 {
		err := receive(t, outcomes, "open calls end with Close")
		if e := wantError(t, err, yodel.Canceled, "YDL1007"); e.NotProcessed {
			t.Errorf("%v: says that it was not executed", err)
		}
	}
}

func TestCloseWhileCallsRun(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	for range 20 {
		c := yodel.Dial(addr)
		var wg sync.WaitGroup
		begun := make(chan struct{}, 1000)
		for range 8 {
			wg.Go(func() {
				for {
					begun <- struct{}{}
					_, err := Mul.Call(t.Context(), c, &Args{})
					if err != nil {
						var e *yodel.Error
						if !errors.As(err, &e) || e.ID != "YDL1007" {
							t.Errorf("got %v, want YDL1007", err)
						}
						return
					}
				}
			})
		}
		for range 50 {
			<-begun
		}
		go func() { // Close frees those who wait here
			for range begun {
			}
		}()
		var closers sync.WaitGroup
		for range 3 {
			closers.Go(c.Close)
		}
		closers.Wait()
		wg.Wait()
		close(begun)
	}
}

func TestCloseEndsCallsThatWaitForAnything(t *testing.T) {
	silent := transportFunc(func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	endless := resolverFunc(func(ctx context.Context, _ func([]discovery.Instance)) error { <-ctx.Done(); return nil })
	for name, c := range map[string]*yodel.Client{
		"a connection": yodel.NewClient(discovery.Static("nowhere:1"), &yodel.ClientOptions{Transport: silent, DialTimeout: time.Hour}),
		"instances":    yodel.NewClient(endless, &yodel.ClientOptions{DialTimeout: time.Hour}),
	} {
		outcome := make(chan error)
		go func() {
			_, err := Mul.Call(context.Background(), c, &Args{})
			outcome <- err
		}()
		f := Mul.Go(context.Background(), c, &Args{})
		c.Close()
		_, err := f.Get()
		for _, err := range []error{err, receive(t, outcome, "a waiting call ends with Close")} {
			if e := wantError(t, err, yodel.Canceled, "YDL1007"); !e.NotProcessed {
				t.Errorf("waiting for %s: %v: want that it was not executed", name, err)
			}
		}
	}
}

func TestCloseEndsCallsOnEndpointsThatHaveGone(t *testing.T) {
	s := newServer(t, nil)
	begun := make(chan struct{})
	handle(t, s, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) {
		close(begun)
		<-ctx.Done()
		return nil, nil
	})
	addr := serve(t, s)
	r := newSettable(addr)
	c := yodel.NewClient(r, nil)
	defer c.Close()
	outcome := make(chan error)
	go func() { outcome <- c.Call(context.Background(), "Wait", &Empty{}, nil) }()
	receive(t, begun, "the handler runs")
	r.setInstances([]discovery.Instance{{Addr: addr, State: "inactive"}})
	until(t, "the endpoint is gone", func() bool { return len(c.Endpoints()) == 0 })
	c.Close()
	wantError(t, receive(t, outcome, "the call ends with Close"), yodel.Canceled, "YDL1007")
}

// A server that divides a small budget says so all the time, and what it says must not make the
// client's end destroy what the client has sent.
func TestOneWayCallsSentBeforeCloseArrive(t *testing.T) {
	for _, budget := range []int{0, 16} {
		s := newServer(t, &yodel.ServerOptions{MaxOpen: budget})
		const n = 1000
		got := make(chan int, n)
		handle(t, s, "Log", func(_ context.Context, i *int) (*Empty, error) { got <- *i; return nil, nil })
		c := yodel.Dial(serve(t, s))
		must(t, c.Ready(t.Context()))
		for i := range n {
			must(t, c.Notify(t.Context(), "Log", i))
		}
		c.Close()
		for range n {
			receive(t, got, "a one-way call that was sent before Close is executed")
		}
	}
}

func TestAClientMayBeClosedTwice(t *testing.T) {
	h := startHooked(t, mem.New(), nil, nil)
	h.close()
	defer func() {
		if value := recover(); value != nil {
			t.Errorf("the second Close panicked: %v", value)
		}
	}()
	h.client.Close()
}

// kinds notes what happens to connections.
type kinds struct {
	mu    sync.Mutex
	count map[introspect.ConnEventKind]int
}

func (k *kinds) note(e introspect.ConnEvent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.count == nil {
		k.count = make(map[introspect.ConnEventKind]int)
	}
	k.count[e.Kind]++
}

func (k *kinds) of(kind introspect.ConnEventKind) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count[kind]
}

// Connections live for 50 ms, by the server's will or the client's. No call notices.
func TestNoCallIsLostWhenConnectionsAge(t *testing.T) {
	t.Attr("rerun", "never")
	const callers, lasts, age = 50, time.Second, 50 * time.Millisecond
	for _, by := range []string{"client", "server", "both"} {
		t.Run(by, func(t *testing.T) {
			var server, client yodel.Limits
			if by != "client" {
				server.MaxAge = age
			}
			if by != "server" {
				client.MaxAge = age
			}
			s := newServer(t, &yodel.ServerOptions{Limits: server})
			handle(t, s, "Slow", func(_ context.Context, in *Args) (*Reply, error) {
				<-time.After(time.Duration(in.A%10) * time.Millisecond)
				return &Reply{in.A}, nil
			})
			const Slow yodel.Method[Args, Reply] = "Slow"
			var seen kinds
			c := connect(t, s, &yodel.ClientOptions{Limits: client, OnConn: seen.note})
			end := time.Now().Add(lasts)
			var calls, failed atomic.Int64
			check := func(id int, reply *Reply, err error) {
				calls.Add(1)
				if err != nil || reply.C != id {
					if failed.Add(1) < 10 {
						t.Errorf("call %d: got %v, %v", id, reply, err)
					}
				}
			}
			var wg sync.WaitGroup
			for g := range callers {
				wg.Go(func() {
					for id := g; time.Now().Before(end); id += callers {
						var reply *Reply
						var err error
						switch g % 3 {
						case 0:
							reply, err = Mul.Call(t.Context(), c, &Args{id, 1})
						case 1:
							reply, err = Slow.Call(t.Context(), c, &Args{id, 1})
						default:
							reply, err = Mul.Go(t.Context(), c, &Args{id, 1}).Get()
						}
						check(id, reply, err)
					}
				})
			}
			wg.Wait()
			t.Logf("%d calls over %d connections, %d failed", calls.Load(), seen.of(introspect.Connected), failed.Load())
			if n := seen.of(introspect.Connected); n < 5 {
				t.Errorf("there were %d connections: the test did not test anything", n)
			}
		})
	}
}

// An idle connection is closed, and made again when there is a call, not before.
func TestAnIdleConnectionIsMadeAgainForACall(t *testing.T) {
	const idle = 100 * time.Millisecond // a call must come sooner, also on a busy machine
	for _, by := range []string{"client", "server"} {
		t.Run(by, func(t *testing.T) {
			var server, client yodel.Limits
			if by == "client" {
				client.IdleTimeout = idle
			} else {
				server.IdleTimeout = idle
			}
			var seen kinds
			s := newServer(t, &yodel.ServerOptions{Limits: server})
			c := connect(t, s, &yodel.ClientOptions{Limits: client, OnConn: seen.note})
			for i := 1; i <= 3; i++ {
				if reply, err := Mul.Call(t.Context(), c, &Args{6, i}); err != nil || reply.C != 6*i {
					t.Fatalf("got %v, %v", reply, err)
				}
				until(t, "the connection is closed", func() bool { return seen.of(introspect.Closed)+seen.of(introspect.Disconnected) == i })
				<-time.After(2 * idle)
				if n := seen.of(introspect.Connected); n != i || !c.Endpoints()[0].Ready() {
					t.Errorf("%d connections were made for %d calls; the endpoint is ready: %t", n, i, c.Endpoints()[0].Ready())
				}
			}
		})
	}
}

// A connection is added when all are saturated, not when they are busy, and goes again when it has
// been idle.
func TestConnectionsAreAddedWhenAllAreSaturated(t *testing.T) {
	const most, window = 3, 4
	release := make(chan struct{})
	s := newServer(t, &yodel.ServerOptions{Limits: yodel.Limits{MaxOpen: window}})
	var running atomic.Int64
	handle(t, s, "Hold", func(ctx context.Context, in *Args) (*Reply, error) {
		running.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return &Reply{in.A}, nil
	})
	const Hold yodel.Method[Args, Reply] = "Hold"
	var seen kinds
	c := connect(t, s, &yodel.ClientOptions{ConnsPerEndpoint: most, OnConn: seen.note, Limits: yodel.Limits{IdleTimeout: 50 * time.Millisecond}})
	var wg sync.WaitGroup
	begun := 0
	begin := func(n int) {
		begun += n
		for i := range n {
			wg.Go(func() {
				if reply, err := Hold.Call(t.Context(), c, &Args{i, 0}); err != nil || reply.C != i {
					t.Errorf("got %v, %v", reply, err)
				}
			})
		}
	}
	held := func() int { return int(running.Load()) }
	for i := 1; i <= most; i++ {
		begin(window)
		until(t, "the window is full", func() bool { return held() == window*i })
		if n := seen.of(introspect.Connected); n < i || n > (begun+window-1)/window {
			t.Errorf("there are %d connections for %d calls, and %d windows are full", n, begun, i)
		}
		begin(1) // it waits in one of the windows that are full, unless the further connection is made before
		if i < most {
			until(t, "there is one more connection", func() bool { return seen.of(introspect.Connected) == i+1 })
		}
	}
	begin(5)
	close(release)
	wg.Wait()
	until(t, "all have been idle", func() bool { return seen.of(introspect.Closed) == most })
	begin(1)
	wg.Wait()
	if n := seen.of(introspect.Connected); n != most+1 {
		t.Errorf("then %d connections were made for a call", n-most)
	}
}

// A fixed number of connections is open whatever the load. Calls one after the other go over all of
// them. They stay when they are idle, and one that is lost is replaced.
func TestAFixedNumberOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4
		var seen kinds
		s := newServer(t, nil)
		calls := make(map[net.Conn]int)
		handle(t, s, "Where", func(ctx context.Context, in *Args) (*Reply, error) {
			calls[yodel.CallFrom(ctx).Peer().Conn]++
			return &Reply{in.A}, nil
		})
		network := mem.New()
		l, err := network.Listen("fixed")
		must(t, err)
		serveOn(t, s, l)
		c := newClient(t, &yodel.ClientOptions{Transport: network, ConnsPerEndpoint: most, FixedConns: true, OnConn: seen.note}, "fixed")
		call := func(n int) {
			t.Helper()
			clear(calls)
			for i := range n {
				if reply, err := yodel.Method[Args, Reply]("Where").Call(t.Context(), c, &Args{i, 0}); err != nil || reply.C != i {
					t.Fatalf("got %v, %v", reply, err)
				}
				synctest.Wait() // until a connection that the call has asked for is made
			}
		}
		call(most)
		if n := seen.of(introspect.Connected); n != most {
			t.Errorf("%d connections after %d calls", n, most)
		}
		<-time.After(time.Hour)
		call(200)
		if n := seen.of(introspect.Connected); n != most || len(calls) != most {
			t.Errorf("%d connections were made, and %d carry calls", n, len(calls))
		}
		for conn, n := range calls {
			if n < 20 {
				t.Errorf("a connection carries %d of 200 calls", n)
			}
			defer conn.Close()
		}
		for conn := range calls {
			must(t, conn.Close())
			break
		}
		synctest.Wait()
		call(200)
		if n := seen.of(introspect.Connected); n != most+1 || len(calls) != most {
			t.Errorf("after a loss %d connections were made in all, and %d carry calls", n, len(calls))
		}
	})
}

// Ready does not connect to all of thousands, and to nobody if somebody is connected; but it finds
// the one that is there.
func TestReadyConnectsToFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("there")
		must(t, err)
		start(t, newServer(t, nil), l)
		addrs := make([]string, 1000)
		for i := range addrs {
			addrs[i] = fmt.Sprint(i)
		}
		var dials atomic.Int32
		all := transportFunc(func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			return network.Dial(ctx, "there")
		})
		c := newClient(t, &yodel.ClientOptions{Transport: all}, addrs...)
		for range 2 {
			must(t, c.Ready(t.Context()))
			synctest.Wait()
			if n := dials.Load(); n > 8 {
				t.Errorf("%d connections were made", n)
			}
		}
		one := transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
			if addr != "777" {
				return nil, errors.New("nobody listens")
			}
			return network.Dial(ctx, "there")
		})
		must(t, newClient(t, &yodel.ClientOptions{Transport: one}, addrs...).Ready(t.Context()))
		err = newClient(t, &yodel.ClientOptions{Transport: one}, addrs[:700]...).Ready(t.Context())
		wantError(t, err, yodel.Unavailable, "YDL1103")
	})
}

// A connection that is made while its client is closed is closed with it, and has one end.
func TestAConnectionThatIsMadeWhenTheClientCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("there")
		must(t, err)
		start(t, newServer(t, nil), l)
		var mu sync.Mutex
		var kinds []introspect.ConnEventKind
		leaving, closed := make(chan struct{}), make(chan struct{})
		var c *yodel.Client
		c = newClient(t, &yodel.ClientOptions{Transport: network, OnConn: func(e introspect.ConnEvent) {
			mu.Lock()
			kinds = append(kinds, e.Kind)
			mu.Unlock()
			if e.Kind == introspect.Connected {
				go func() {
					defer close(closed)
					c.Close()
				}()
				<-leaving
			}
		}}, "there")
		c.Endpoints()[0].Go(func(ctx context.Context) {
			<-ctx.Done()
			close(leaving)
		})
		_ = c.Ready(t.Context())
		<-closed
		mu.Lock()
		defer mu.Unlock()
		if want := []introspect.ConnEventKind{introspect.Connected, introspect.Closed}; !slices.Equal(kinds, want) {
			t.Errorf("when Close has returned there were %q, want %q", kinds, want)
		}
	})
}

// CONNECT belongs to net/rpc, also if the Protocol of HTTP is listed before.
func TestDialHTTPReachesNetRPCBehindHTTP(t *testing.T) {
	addr := serve(t, newServer(t, &yodel.ServerOptions{
		Codecs: []yodel.Codec{gob.Codec}, Protocols: []yodel.Protocol{http.New(nil), netrpc.Protocol},
	}))
	c, err := rpc.DialHTTP("tcp", addr)
	must(t, err)
	defer c.Close()
	var reply Reply
	must(t, c.Call("Arith.Mul", &Args{6, 7}, &reply))
	if reply.C != 42 {
		t.Errorf("got %+v", reply)
	}
}

// What speaks another protocol gets no answer that matters, one line in the log that says what it
// is, and disturbs nobody.
func TestForeignClientsAreNamedInTheLog(t *testing.T) {
	for sent, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n":            "an HTTP request",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":             "an HTTP/2 preface: a gRPC client?",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": "a TLS handshake; is TLS set up on one side only?",
		"SSH-2.0-OpenSSH_9.6\r\n":                      "an SSH server or client",
		"{\"method\":\"Arith.Mul\"}":                   "JSON",
		"\xf5yodel\x63\x00":                            "another version of the protocol, 99; this is version 1",
		"8\x7f\x03\x01\x01\x07Request\x01\xff\x80\x00": "8", // gob, as net/rpc speaks it
		strings.Repeat("\x00\xff\x13garbage\n", 100):   "garbage",
	} {
		var book logbook
		s := newServer(t, &yodel.ServerOptions{Logger: book.logger()})
		addr := serve(t, s)
		c := newClient(t, nil, addr)
		must(t, c.Ready(t.Context()))
		nc, err := net.Dial("tcp", addr)
		must(t, err)
		_, err = io.WriteString(nc, sent)
		must(t, err)
		until(t, "the log says something", func() bool { return len(book.with("")) > 0 })
		_, _ = io.Copy(io.Discard, nc) // until the server closes it
		nc.Close()
		if lines := book.with(""); len(lines) != 1 || !strings.Contains(lines[0], want) || !strings.Contains(lines[0], "YDL1101") || !strings.Contains(lines[0], nc.LocalAddr().String()) {
			t.Errorf("%.20q: the log is %q, want one line with %q", sent, lines, want)
		}
		if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
			t.Errorf("%.20q: another connection: %v", sent, err)
		}
	}
}

func TestForeignServersAreNamedInTheError(t *testing.T) {
	for name, test := range map[string]struct {
		greeting bool
		answer   string
		want     string
	}{
		"HTTP":    {false, "HTTP/1.1 400 Bad Request\r\n\r\n", `it answered "HTTP/1.1 400 Bad Request"`},
		"TLS":     {false, "\x15\x03\x01\x00\x02\x02\x46", "a TLS alert; is TLS set up on one side only?"},
		"SSH":     {true, "SSH-2.0-OpenSSH_9.6\r\n", "an SSH server or client"},
		"garbage": {true, "\x00\x01\x02", `"\x00\x01\x02"`},
	} {
		c := newClient(t, nil, speak(t, test.greeting, test.answer))
		_, err := Mul.Call(t.Context(), c, &Args{})
		if e := wantError(t, err, yodel.Unavailable, "YDL1101"); !strings.Contains(e.Message, test.want) || !e.NotProcessed {
			t.Errorf("%s: got %+v, want %s", name, e, test.want)
		}
	}
}

// Nothing of a panic leaves the process.
func TestPanicsStayInTheServer(t *testing.T) {
	var book logbook
	s := newServer(t, &yodel.ServerOptions{Logger: book.logger()})
	handle(t, s, "Panic", func(in *string) (*string, error) { panic("secret " + *in) })
	var r recorded
	c := connect(t, s, &yodel.ClientOptions{Transport: r.transport()})
	for _, mark := range placements(s) {
		mark("Panic")
		e := wantError(t, c.Call(t.Context(), "Panic", "argument", nil), yodel.Internal, "YDL5001")
		for _, leak := range []string{"secret", "argument", "goroutine", ".go:", "panic("} {
			if r.contains(leak) || strings.Contains(e.Error(), leak) {
				t.Errorf("%q left the process: %v", leak, e)
			}
		}
	}
	lines := book.with("handler panicked")
	if len(lines) != 2 || !strings.Contains(lines[0], "secret argument") || !strings.Contains(lines[0], "connection_test.go:") {
		t.Errorf("the log is %q, want the text and the stack of each panic", lines)
	}
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err)
	}
}

func TestHelloIsQuiet(t *testing.T) {
	var book logbook
	log := book.logger()
	s := newServer(t, &yodel.ServerOptions{Logger: log})
	addr := serve(t, s)
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Logger: log})
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err)
	}
	nc, err := net.Dial("tcp", addr) // somebody looks whether the port is open
	must(t, err)
	nc.Close()
	c.Close()
	must(t, s.Shutdown(t.Context()))
	if lines := book.with(""); len(lines) > 0 {
		t.Errorf("a program that does nothing wrong logs %q", lines)
	}
}
