// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

const hookDouble yodel.Method[int, int] = "Hook.Double"

var errHook = yodel.Errorf(yodel.FailedPrecondition, "the hook says no")

// A hooked is a server with one method, which doubles a number, and a client of it.
type hooked struct {
	network *mem.Network
	server  *yodel.Server
	client  *yodel.Client
	close   func() // closes the client
	stop    func() // shuts the server down and waits for it
}

// startHooked runs both for the length of the test. Either options may be nil; the transport of the
// client's may be one of its own, around the network.
func startHooked(t *testing.T, network *mem.Network, so *yodel.ServerOptions, co *yodel.ClientOptions) *hooked {
	t.Helper()
	l, err := network.Listen("server")
	if err != nil {
		t.Fatal(err)
	}
	return serveHooked(t, network, l, so, co)
}

func serveHooked(t *testing.T, network *mem.Network, l net.Listener, so *yodel.ServerOptions, co *yodel.ClientOptions) *hooked {
	t.Helper()
	if so == nil {
		so = &yodel.ServerOptions{}
	}
	if so.Logger == nil {
		so.Logger = slog.New(slog.DiscardHandler)
	}
	h := &hooked{network: network, server: yodel.NewServer(diagnosed(so))}
	hookDouble.Handle(h.server, func(_ context.Context, n *int) (*int, error) {
		reply := 2 * *n
		return &reply, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.server.Serve(ctx, l) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(h.stop)
	if co == nil {
		co = &yodel.ClientOptions{}
	}
	if co.Transport == nil {
		co.Transport = network
	}
	h.client = yodel.NewClient(discovery.Static("server"), co)
	h.close = sync.OnceFunc(h.client.Close)
	t.Cleanup(h.close)
	return h
}

// double calls the method with 21.
func (h *hooked) double(t *testing.T) (int, error) {
	t.Helper()
	n := 21
	reply, err := hookDouble.Call(t.Context(), h.client, &n)
	if err != nil {
		return 0, err
	}
	return *reply, nil
}

// works fails the test unless the method can be called and gives want.
func (h *hooked) works(t *testing.T, want int) {
	t.Helper()
	if got, err := h.double(t); err != nil || got != want {
		t.Errorf("got %d and %v, want %d", got, err, want)
	}
}

// A hookLog is what happened, in order.
type hookLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *hookLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *hookLog) is(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.lines, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(l.lines, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// begins checks the first lines.
func (l *hookLog) begins(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) < len(want) || !slices.Equal(l.lines[:len(want)], want) {
		t.Errorf("got\n\t%s\nwant first\n\t%s", strings.Join(l.lines, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// has checks the lines whatever their order.
func (l *hookLog) has(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	got := slices.Sorted(slices.Values(l.lines))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got in any order\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// event notes a connection event.
func (l *hookLog) event(e introspect.ConnEvent) { l.add(string(e.Kind)) }

// around notes when a call comes down to a middleware and when it has come back.
func (l *hookLog) around(name string) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			l.add(name)
			err := next(ctx, call)
			l.add(name + " again")
			return err
		}
	}
}

// hookBelow makes a middleware one below the balancer.
func hookBelow(m yodel.Middleware) yodel.EndpointMiddleware {
	return func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler { return m(next) }
}

// observer notes the start and the end of calls.
func (l *hookLog) observer(name string) yodel.Observer {
	return yodel.Observer{
		Start: func(ctx context.Context, _ *yodel.Call) context.Context { l.add(name + " start"); return ctx },
		End:   func(context.Context, *yodel.Call, error) { l.add(name + " end") },
	}
}

// hookBefore calls f before what is below.
func hookBefore(f func(ctx context.Context, call *yodel.Call) error) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if err := f(ctx, call); err != nil {
				return err
			}
			return next(ctx, call)
		}
	}
}

// hookAfter calls f after what is below, with its outcome.
func hookAfter(f func(call *yodel.Call, err error) error) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error { return f(call, next(ctx, call)) }
	}
}

// A hookCodec is JSON that tells before it works.
type hookCodec struct{ encode, decode func(v any) }

func (hookCodec) Name() string { return "hooked" }

func (c hookCodec) Append(dst []byte, v any) ([]byte, error) {
	if c.encode != nil {
		c.encode(v)
	}
	return yodel.JSON.Append(dst, v)
}

func (c hookCodec) Decode(src []byte, v any) error {
	if c.decode != nil {
		c.decode(v)
	}
	return yodel.JSON.Decode(src, v)
}

// A hookTransport can replace or refuse connections.
type hookTransport struct {
	yodel.Transport
	dialed   func(net.Conn) (net.Conn, error) // nil changes nothing
	accepted func(net.Conn) net.Conn          // nil changes nothing
}

func (tr hookTransport) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := tr.Transport.Dial(ctx, addr)
	if err != nil || tr.dialed == nil {
		return conn, err
	}
	return tr.dialed(conn)
}

func (tr hookTransport) Listen(addr string) (net.Listener, error) {
	l, err := tr.Transport.Listen(addr)
	return hookListener{l, tr.accepted}, err
}

type hookListener struct {
	net.Listener
	accepted func(net.Conn) net.Conn
}

func (l hookListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || l.accepted == nil {
		return conn, err
	}
	return l.accepted(conn), nil
}

// A hookConn tells of the bytes that it has read and that it will write.
type hookConn struct {
	net.Conn
	read  func(b []byte) error // called after a read; nil is not called
	write func(b []byte) error // called before a write; nil is not called
}

func (c *hookConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil || c.read == nil {
		return n, err
	}
	if err := c.read(b[:n]); err != nil {
		return 0, err
	}
	return n, nil
}

func (c *hookConn) Write(b []byte) (int, error) {
	if c.write != nil {
		if err := c.write(b); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

// hookBalancer is round robin that tells what it picked.
func hookBalancer(picked func(*yodel.Endpoint)) yodel.Balancer {
	return func(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
		return hookPicker{yodel.RoundRobin(endpoints, nil), picked}
	}
}

type hookPicker struct {
	yodel.Picker
	picked func(*yodel.Endpoint)
}

func (p hookPicker) Pick(call *yodel.Call) *yodel.Endpoint {
	ep := p.Picker.Pick(call)
	p.picked(ep)
	return ep
}
