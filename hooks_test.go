// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// These tests show where each hook of rpcx has its place: docs/hooks.md is their table of contents. The names of the
// subtests are the names of rpcx's hooks.

const hookDouble yodel.Method[int, int] = "Hook.Double"

// A hooked is a server with one method, which doubles a number, and a client of it.
type hooked struct {
	network *mem.Network
	server  *yodel.Server
	client  *yodel.Client
	close   func() // closes the client
	stop    func() // shuts the server down and waits for it
}

// startHooked runs both for the length of the test. Either options may be nil; the transport of the client's may be one
// of its own, around the network.
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
	h := &hooked{network: network, server: yodel.NewServer(so)}
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
	h.client = yodel.NewClient(yodel.Static("server"), co)
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

// event notes a connection event.
func (l *hookLog) event(e yodel.ConnEvent) { l.add(e.Kind) }

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

// A hookedCaller stands around another caller.
type hookedCaller struct {
	next yodel.Caller
	log  *hookLog
}

func (c hookedCaller) Do(ctx context.Context, call *yodel.Call) error {
	c.log.add("before " + call.Method)
	err := c.next.Do(ctx, call)
	c.log.add(fmt.Sprintf("after %s: %v", call.Method, err))
	return err
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

func TestOrderOfHooks(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			codec := hookCodec{encode: func(any) { log.add("encode") }, decode: func(any) { log.add("decode") }}
			h := startHooked(t, mem.New(), &yodel.ServerOptions{
				NoIntrospection: true,
				OnRegister:      func(method string) error { log.add("register " + method); return nil },
				Accept:          func(net.Conn) error { log.add("accept"); return nil },
				OnConn:          log.event,
				Connect:         func(context.Context, *yodel.Peer) error { log.add("connect"); return nil },
				Observers:       []yodel.Observer{log.observer("observer 1"), log.observer("observer 2")},
				Middleware: []yodel.Middleware{
					log.around("middleware 1"),
					log.around("middleware 2"),
					hookBefore(func(_ context.Context, call *yodel.Call) error { log.add("middleware 3"); return call.Decode() }),
					log.around("middleware 4"),
				},
				Codecs: []yodel.Codec{codec},
			}, &yodel.ClientOptions{Codec: hookCodec{}})
			h.works(t, 42)
			synctest.Wait() // the end is after the reply
			h.close()
			synctest.Wait()
			log.is(t,
				"register Hook.Double",
				"accept", "accepted", "connect",
				"observer 1 start", "observer 2 start",
				"middleware 1", "middleware 2", "middleware 3", "decode", "middleware 4",
				"middleware 4 again", "middleware 2 again", "middleware 1 again",
				"encode",
				"observer 2 end", "observer 1 end",
				"disconnected")
		})
	})
	t.Run("client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			network := mem.New()
			h := startHooked(t, network, &yodel.ServerOptions{Codecs: []yodel.Codec{hookCodec{}}}, &yodel.ClientOptions{
				Transport: hookTransport{Transport: network, dialed: func(conn net.Conn) (net.Conn, error) {
					log.add("dial")
					return conn, nil
				}},
				OnConn:             log.event,
				Observers:          []yodel.Observer{log.observer("observer 1"), log.observer("observer 2")},
				Middleware:         []yodel.Middleware{log.around("middleware 1"), log.around("middleware 2")},
				Balancer:           hookBalancer(func(*yodel.Endpoint) { log.add("pick") }),
				EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(log.around("endpoint 1")), hookBelow(log.around("endpoint 2"))},
				Codec:              hookCodec{encode: func(any) { log.add("encode") }, decode: func(any) { log.add("decode") }},
			})
			h.works(t, 42)
			h.close()
			synctest.Wait()
			log.is(t,
				"observer 1 start", "observer 2 start",
				"middleware 1", "middleware 2",
				"pick",
				"endpoint 1", "endpoint 2",
				"dial", "connected",
				"encode", "decode",
				"endpoint 2 again", "endpoint 1 again",
				"middleware 2 again", "middleware 1 again",
				"observer 2 end", "observer 1 end",
				"closed")
		})
	})
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

type hookService struct{}

func (hookService) Twice(n int) int  { return 2 * n }
func (hookService) Thrice(n int) int { return 3 * n }

var errHook = yodel.Errorf(yodel.FailedPrecondition, "the hook says no")

func TestServerHooks(t *testing.T) {
	t.Run("Register", func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{
			NoIntrospection: true,
			OnRegister: func(method string) error {
				if log.add(method); strings.HasSuffix(method, "Thrice") {
					return errHook
				}
				return nil
			},
		}, nil)
		if err := h.server.RegisterName("All", hookService{}, "Twice"); err != nil {
			t.Error(err)
		}
		if err := h.server.Alias("All.Twice", "All.Double"); err != nil {
			t.Error(err)
		}
		if err := h.server.Handle("Func", func(n int) int { return n }); err != nil { // RegisterFunction
			t.Error(err)
		}
		if err := h.server.RegisterName("None", hookService{}, "Thrice"); !errors.Is(err, errHook) {
			t.Errorf("got %v, want the error of the hook", err)
		}
		log.is(t, "Hook.Double", "All.Twice", "All.Double", "Func", "None.Thrice")
		if err := h.client.Call(t.Context(), "None.Thrice", yodel.Values{1}, nil); !errors.Is(err, yodel.Unimplemented) {
			t.Errorf("a method that the hook refused: got %v, want unimplemented", err)
		}
	})

	t.Run("Unregister", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			registry := memory.New(nil)
			so := &yodel.ServerOptions{Registrars: []yodel.Registrar{registry}}
			h := startHooked(t, mem.New(), so, nil)
			l, err := h.network.Listen("other")
			if err != nil {
				t.Fatal(err)
			}
			other := serveHooked(t, h.network, l, so, nil)
			client := yodel.NewClient(registry.Service("Hook"), &yodel.ClientOptions{Transport: h.network})
			defer client.Close()
			known := func(want int) {
				t.Helper()
				synctest.Wait()
				n := 21
				if _, err := hookDouble.Call(t.Context(), client, &n); err != nil || len(client.Endpoints()) != want {
					t.Errorf("got %v and endpoints %v, want %d", err, client.Endpoints(), want)
				}
			}
			time.Sleep(time.Second) // both have been announced
			known(2)
			other.stop()
			time.Sleep(time.Second)
			known(1)
		})
	})

	t.Run("HandleConnAccept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			type ownConn struct{ net.Conn }
			l, err := hookTransport{Transport: network, accepted: func(conn net.Conn) net.Conn { return ownConn{conn} }}.Listen("server")
			if err != nil {
				t.Fatal(err)
			}
			var refuse atomic.Bool
			var log hookLog
			h := serveHooked(t, network, l, &yodel.ServerOptions{
				Accept: func(net.Conn) error {
					if refuse.Load() {
						return errHook
					}
					return nil
				},
				OnConn: log.event,
				Middleware: []yodel.Middleware{hookBefore(func(_ context.Context, call *yodel.Call) error {
					if _, ok := call.Peer().Conn.(ownConn); !ok {
						t.Errorf("the connection is a %T", call.Peer().Conn)
					}
					return nil
				})},
			}, nil)
			h.works(t, 42)
			refuse.Store(true)
			other := yodel.NewClient(yodel.Static("server"), &yodel.ClientOptions{Transport: network})
			defer other.Close()
			if _, err := yodel.Ping.Call(t.Context(), other, &yodel.Empty{}); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("a refused connection: got %v, want unavailable", err)
			}
			synctest.Wait()
			log.is(t, "accepted", "refused")
		})
	})

	t.Run("HandleConnClose", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			h := startHooked(t, mem.New(), &yodel.ServerOptions{OnConn: log.event}, nil)
			h.works(t, 42)
			log.is(t, "accepted")
			h.close()
			synctest.Wait()
			log.is(t, "accepted", "disconnected")
		})
	})

	t.Run("PreReadRequest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			var log hookLog
			var failing atomic.Bool
			l, err := hookTransport{Transport: network, accepted: func(conn net.Conn) net.Conn {
				return &hookConn{Conn: conn, read: func(b []byte) error {
					if failing.Load() {
						return errHook
					}
					if bytes.Contains(b, []byte(hookDouble)) {
						log.add("bytes")
					}
					return nil
				}}
			}}.Listen("server")
			if err != nil {
				t.Fatal(err)
			}
			h := serveHooked(t, network, l, &yodel.ServerOptions{Observers: []yodel.Observer{log.observer("request")}, OnConn: log.event}, nil)
			h.works(t, 42)
			failing.Store(true) // the connection ends without an answer
			if _, err := h.double(t); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("got %v, want unavailable", err)
			}
			synctest.Wait()
			log.is(t, "accepted", "bytes", "request start", "request end", "read failed")
		})
	})

	t.Run("PostReadRequest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			var decided atomic.Pointer[yodel.Handler]
			h := startHooked(t, mem.New(), &yodel.ServerOptions{
				OnConn: func(e yodel.ConnEvent) {
					if strings.HasSuffix(e.Kind, " failed") { // reading or writing, whichever is first
						log.add("failed")
					}
				},
				Observers: []yodel.Observer{{Start: func(ctx context.Context, call *yodel.Call) context.Context {
					if call.Method != string(hookDouble) || call.Metadata["tenant"] != "blue" || call.Args != nil {
						t.Errorf("got %s with %v and arguments %v, want them not to be decoded", call.Method, call.Metadata, call.Args)
					}
					log.add("request")
					return ctx
				}}},
				Middleware: []yodel.Middleware{hookBefore(func(ctx context.Context, call *yodel.Call) error { return (*decided.Load())(ctx, call) })},
			}, nil)
			do := func(decide yodel.Handler) error {
				decided.Store(&decide)
				n := 21
				_, err := hookDouble.Do(t.Context(), h.client, &yodel.Call{Metadata: yodel.Metadata{"tenant": "blue"}}, &n)
				return err
			}
			if err := do(func(context.Context, *yodel.Call) error { return nil }); err != nil {
				t.Error(err)
			}
			if err := do(func(context.Context, *yodel.Call) error { return errHook }); !errors.Is(err, yodel.FailedPrecondition) {
				t.Errorf("got %v, want the hook's error as an answer", err)
			}
			if err := do(func(_ context.Context, call *yodel.Call) error { return call.Peer().Conn.Close() }); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("got %v, want no answer", err)
			}
			synctest.Wait()
			log.is(t, "request", "request", "request", "failed")
		})
	})

	t.Run("PreHandleRequest", func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
			hookBefore(func(_ context.Context, call *yodel.Call) error {
				if call.Method == string(hookDouble) {
					return errHook
				}
				return nil
			}),
			log.around("next"),
		}}, nil)
		if _, err := h.double(t); !errors.Is(err, yodel.FailedPrecondition) {
			t.Errorf("got %v, want the hook's error", err)
		}
		log.is(t)
		if _, err := yodel.Ping.Call(t.Context(), h.client, &yodel.Empty{}); err != nil {
			t.Errorf("another method: got %v", err)
		}
	})

	t.Run("PreCall", func(t *testing.T) {
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
			hookBefore(func(_ context.Context, call *yodel.Call) error {
				if err := call.Decode(); err != nil {
					return err
				}
				n, ok := call.Args.(*int)
				if !ok || *n != 21 {
					return yodel.Errorf(yodel.InvalidArgument, "only 21, not %v", *n)
				}
				*n = 4
				return nil
			}),
		}}, nil)
		h.works(t, 8)
		n := 22
		if _, err := hookDouble.Call(t.Context(), h.client, &n); !errors.Is(err, yodel.InvalidArgument) {
			t.Errorf("got %v, want the hook's error", err)
		}
	})

	t.Run("PostCall", func(t *testing.T) {
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
			hookAfter(func(call *yodel.Call, err error) error {
				if n, ok := call.Args.(*int); ok && *n == 22 {
					return errHook
				}
				if n, ok := call.Reply.(*int); ok {
					*n++
				}
				return err
			}),
		}}, nil)
		h.works(t, 43)
		n := 22
		if _, err := hookDouble.Call(t.Context(), h.client, &n); !errors.Is(err, yodel.FailedPrecondition) {
			t.Errorf("got %v, want the hook's error", err)
		}
	})

	t.Run("PreWriteResponse", func(t *testing.T) {
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
			hookAfter(func(call *yodel.Call, err error) error {
				call.Trailer = yodel.Metadata{"served by": "us"}
				if errors.Is(err, yodel.FailedPrecondition) { // ServerErrorFunc
					return yodel.Errorf(yodel.Unavailable, "say it otherwise")
				}
				other := 7
				call.Reply = &other
				return err
			}),
			hookBefore(func(_ context.Context, call *yodel.Call) error {
				if call.Metadata["fail"] != "" {
					return errHook
				}
				return nil
			}),
		}}, nil)
		n, call := 21, &yodel.Call{}
		reply, err := hookDouble.Do(t.Context(), h.client, call, &n)
		if err != nil || *reply != 7 || call.Trailer["served by"] != "us" {
			t.Errorf("got %v and %v, want another reply, and trailer %v", reply, err, call.Trailer)
		}
		call = &yodel.Call{Metadata: yodel.Metadata{"fail": "yes"}}
		if _, err := hookDouble.Do(t.Context(), h.client, call, &n); !errors.Is(err, yodel.Unavailable) || call.Trailer["served by"] != "us" {
			t.Errorf("got %v, want another error, and trailer %v", err, call.Trailer)
		}
	})

	t.Run("PostWriteResponse", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			var calls, conns hookLog
			var failing atomic.Bool
			l, err := hookTransport{Transport: network, accepted: func(conn net.Conn) net.Conn {
				return &hookConn{Conn: conn, write: func([]byte) error {
					if failing.Load() {
						return errHook
					}
					return nil
				}}
			}}.Listen("server")
			if err != nil {
				t.Fatal(err)
			}
			h := serveHooked(t, network, l, &yodel.ServerOptions{
				OnConn: conns.event,
				Observers: []yodel.Observer{{End: func(_ context.Context, call *yodel.Call, err error) { // HandleServiceError
					calls.add(call.Method + " " + yodel.CodeOf(err).String())
				}}},
			}, nil)
			if err := h.server.Handle("Hook.Channel", func() any { return make(chan int) }); err != nil {
				t.Fatal(err)
			}
			h.works(t, 42)
			synctest.Wait()
			if err := h.client.Call(t.Context(), "Hook.Channel", yodel.Values{}, nil); !errors.Is(err, yodel.Internal) {
				t.Errorf("got %v, want internal", err)
			}
			synctest.Wait()
			failing.Store(true) // what was handed over cannot be written
			if _, err := h.double(t); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("got %v, want unavailable", err)
			}
			synctest.Wait()
			calls.is(t, "Hook.Double ok", "Hook.Channel internal", "Hook.Double ok")
			conns.is(t, "accepted", "write failed")
		})
	})

	t.Run("PreWriteRequest", func(t *testing.T) {
		var log hookLog
		served := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{hookBefore(func(_ context.Context, call *yodel.Call) error {
			log.add("client: " + call.Method)
			return nil
		})}})
		hookDouble.Handle(served, func(_ context.Context, n *int) (*int, error) {
			reply := 2 * *n
			return &reply, nil
		})
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{Server: served})
		h.works(t, 42)
		around := hookedCaller{h.server.Peers()[0], &log}
		n := 4
		if reply, err := hookDouble.Call(t.Context(), around, &n); err != nil || *reply != 8 {
			t.Errorf("got %v, %v", reply, err)
		}
		log.is(t, "before "+string(hookDouble), "client: "+string(hookDouble), "after "+string(hookDouble)+": <nil>")
	})

	t.Run("HeartbeatRequest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			var log hookLog
			h := startHooked(t, network, &yodel.ServerOptions{
				Middleware: []yodel.Middleware{hookBefore(func(_ context.Context, call *yodel.Call) error {
					log.add(call.Method)
					return nil
				})},
				OnConn: func(e yodel.ConnEvent) { log.add(e.Kind) },
				Limits: yodel.Limits{KeepAlive: time.Second},
			}, nil)
			if _, err := yodel.Ping.Call(t.Context(), h.client, &yodel.Empty{}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute) // the connections' own signs of life are enough
			log.is(t, "accepted", "yodel.Ping")
		})
	})

	t.Run("MuxMatch", func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("server")
		if err != nil {
			t.Fatal(err)
		}
		port := splitHookPort(l) // which the server closes
		h := serveHooked(t, network, port, nil, nil)
		h.works(t, 42)
		conn, err := network.Dial(t.Context(), "server")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET"); err != nil {
			t.Fatal(err)
		}
		other := <-port.others
		defer other.Close()
		got := make([]byte, 3)
		if _, err := io.ReadFull(other, got); err != nil || string(got) != "GET" {
			t.Errorf("the other server got %q, %v", got, err)
		}
	})
}

// A hookPort gives the connections of a listener to two servers, by what they begin with.
type hookPort struct {
	net.Listener
	own    chan net.Conn
	others chan net.Conn
	closed chan struct{}
	close  func() error
}

func splitHookPort(l net.Listener) *hookPort {
	p := &hookPort{Listener: l, own: make(chan net.Conn), others: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceValue(func() error {
		close(p.closed)
		return l.Close()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.match(conn)
		}
	}()
	return p
}

func (p *hookPort) match(conn net.Conn) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		_ = conn.Close() // it said nothing
		return
	}
	to := p.others
	if first[0] == 0xf5 {
		to = p.own
	}
	select {
	case to <- &hookUnread{conn, first}:
	case <-p.closed:
		_ = conn.Close() // nobody serves it any more
	}
}

func (p *hookPort) Accept() (net.Conn, error) {
	select {
	case conn := <-p.own:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *hookPort) Close() error { return p.close() }

// A hookUnread is read from again.
type hookUnread struct {
	net.Conn
	unread []byte
}

func (c *hookUnread) Read(b []byte) (int, error) {
	if len(c.unread) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

func TestClientHooks(t *testing.T) {
	t.Run("PreCall", func(t *testing.T) {
		var executed atomic.Int32
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
			hookBefore(func(_ context.Context, call *yodel.Call) error { executed.Add(1); return nil }),
		}}, &yodel.ClientOptions{Middleware: []yodel.Middleware{
			hookBefore(func(_ context.Context, call *yodel.Call) error {
				n, ok := call.Args.(*int)
				if !ok || *n == 22 {
					return errHook
				}
				other := *n + 1
				call.Args = &other
				return nil
			}),
		}})
		h.works(t, 44)
		n := 21
		if reply, err := hookDouble.Go(t.Context(), h.client, &n).Get(); err != nil || *reply != 44 {
			t.Errorf("asynchronous: got %v and %v", reply, err)
		}
		n = 22
		if _, err := hookDouble.Call(t.Context(), h.client, &n); !errors.Is(err, errHook) || executed.Load() != 2 {
			t.Errorf("got %v after %d executions, want the hook's error after 2", err, executed.Load())
		}
	})

	t.Run("PostCall", func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{Middleware: []yodel.Middleware{
			hookAfter(func(call *yodel.Call, err error) error {
				if errors.Is(err, yodel.Unimplemented) { // ClientErrorFunc
					return errHook
				}
				if n, ok := call.Reply.(*int); ok {
					*n++
				}
				return err
			}),
		}})
		h.works(t, 43)
		n := 21
		if reply, err := hookDouble.Go(t.Context(), h.client, &n).Get(); err != nil || *reply != 43 {
			t.Errorf("asynchronous: got %v and %v", reply, err)
		}
		if err := h.client.Call(t.Context(), "Hook.None", &n, nil); err != errHook {
			t.Errorf("got %v, want the hook's error", err)
		}
	})

	t.Run("ConnCreated", func(t *testing.T) {
		network := mem.New()
		var seen atomic.Int64
		var refuse atomic.Bool
		transport := hookTransport{Transport: network, dialed: func(conn net.Conn) (net.Conn, error) {
			if refuse.Load() {
				return nil, errors.Join(errHook, conn.Close())
			}
			return &hookConn{Conn: conn, write: func(b []byte) error { seen.Add(int64(len(b))); return nil }}, nil
		}}
		h := startHooked(t, network, nil, &yodel.ClientOptions{Transport: transport})
		h.works(t, 42)
		if seen.Load() == 0 {
			t.Error("the connection was not replaced")
		}
		refuse.Store(true)
		other := yodel.NewClient(yodel.Static("server"), &yodel.ClientOptions{Transport: transport})
		defer other.Close()
		if _, err := yodel.Ping.Call(t.Context(), other, &yodel.Empty{}); err == nil {
			t.Error("a connection that the hook refuses: the call succeeded")
		}
	})

	t.Run("ConnCreateFailed", func(t *testing.T) {
		failed := make(chan yodel.ConnEvent, 100)
		c := yodel.NewClient(yodel.Static("nobody"), &yodel.ClientOptions{Transport: mem.New(), OnConn: func(e yodel.ConnEvent) { failed <- e }})
		defer c.Close()
		if _, err := yodel.Ping.Call(t.Context(), c, &yodel.Empty{}); !errors.Is(err, yodel.Unavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		if e := <-failed; e.Kind != "connect failed" || e.Addr != "nobody" || e.Err == nil {
			t.Errorf("got %v of %s because of %v", e.Kind, e.Addr, e.Err)
		}
	})

	t.Run("ClientConnected", func(t *testing.T) {
		connected := make(chan yodel.ConnEvent, 10)
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{OnConn: func(e yodel.ConnEvent) { connected <- e }})
		if err := h.client.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e := <-connected; e.Kind != "connected" || e.Addr != "server" {
			t.Errorf("got %v of %s", e.Kind, e.Addr)
		}
	})

	t.Run("ClientConnectionClose", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{OnConn: func(e yodel.ConnEvent) {
				if e.Kind != "connect failed" { // it tries again
					log.event(e)
				}
			}})
			h.works(t, 42)
			h.stop()
			synctest.Wait()
			log.is(t, "connected", "disconnected")
		})
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{OnConn: log.event})
			h.works(t, 42)
			h.close()
			log.is(t, "connected", "closed")
		})
	})

	t.Run("ClientBeforeEncode", func(t *testing.T) {
		var sent yodel.Metadata
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
			hookBefore(func(_ context.Context, call *yodel.Call) error { sent = call.Metadata; return nil }),
		}}, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{
			func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if call.Endpoint != ep {
						t.Errorf("the call goes to %v", call.Endpoint)
					}
					call.Metadata = yodel.Metadata{"to": ep.Addr()}
					other := 5
					call.Args = &other
					return next(ctx, call)
				}
			},
		}})
		if h.works(t, 10); sent["to"] != "server" {
			t.Errorf("the server got %v", sent)
		}
	})

	t.Run("ClientAfterDecode", func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{
			hookBelow(hookAfter(func(call *yodel.Call, err error) error {
				if n, ok := call.Reply.(*int); ok && *n == 42 {
					*n = 9
				}
				return err
			})),
		}})
		h.works(t, 9)
	})

	t.Run("WrapSelect", func(t *testing.T) {
		network := mem.New()
		h := startHooked(t, network, nil, nil)
		onlyServer := func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			return yodel.RoundRobin(slices.DeleteFunc(slices.Clone(endpoints), func(ep *yodel.Endpoint) bool { return ep.Addr() != "server" }), last)
		}
		c := yodel.NewClient(yodel.Static("nobody", "server", "nobody else"), &yodel.ClientOptions{Transport: network, Balancer: onlyServer})
		defer c.Close()
		for range 10 {
			call, n := &yodel.Call{}, 21
			if _, err := hookDouble.Do(t.Context(), c, call, &n); err != nil || call.Attempt != 1 {
				t.Errorf("got %v after %d attempts, want success at once", err, call.Attempt)
			}
		}
		h.works(t, 42)
	})
}

func TestSeedServerHooks(t *testing.T) {
	t.Run("PreReadRequestBody", func(t *testing.T) {
		decoded := false
		codec := hookCodec{decode: func(any) { decoded = true }}
		h := startHooked(t, mem.New(), &yodel.ServerOptions{
			Codecs: []yodel.Codec{codec},
			Middleware: []yodel.Middleware{hookBefore(func(_ context.Context, call *yodel.Call) error {
				if call.Args != nil || decoded {
					t.Error("the body was decoded before")
				}
				return errHook
			})},
		}, &yodel.ClientOptions{Codec: hookCodec{}})
		if _, err := h.double(t); !errors.Is(err, yodel.FailedPrecondition) || decoded {
			t.Errorf("got %v, want the hook's error and nothing decoded", err)
		}
	})

	t.Run("PostReadRequestBody", func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{
			Middleware: []yodel.Middleware{hookBefore(func(_ context.Context, call *yodel.Call) error {
				err := call.Decode()
				log.add(yodel.CodeOf(err).String())
				return err
			})},
		}, nil)
		h.works(t, 42)
		if err := h.client.Call(t.Context(), string(hookDouble), "no number", nil); !errors.Is(err, yodel.InvalidArgument) {
			t.Errorf("got %v, want invalid_argument", err)
		}
		log.is(t, "ok", "invalid_argument")
	})

	t.Run("PluginContainer", func(t *testing.T) {
		var log hookLog
		var plugin hookSwitch
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{plugin.middleware}}, nil)
		h.works(t, 42)
		counting := log.around("plugin")
		plugin.current.Store(&counting) // Add
		h.works(t, 42)
		log.is(t, "plugin", "plugin again")
		plugin.current.Store(nil) // Remove
		h.works(t, 42)
		log.is(t, "plugin", "plugin again")
	})
}

// A hookSwitch is a middleware that can be changed while calls go through it.
type hookSwitch struct {
	current atomic.Pointer[yodel.Middleware] // nil is none
}

func (s *hookSwitch) middleware(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if m := s.current.Load(); m != nil {
			return (*m)(next)(ctx, call)
		}
		return next(ctx, call)
	}
}

func TestSeedClientHooks(t *testing.T) {
	t.Run("PreWriteRequest", func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{
			EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookBefore(func(context.Context, *yodel.Call) error {
				log.add("before")
				return errHook
			}))},
			Codec: hookCodec{encode: func(any) { log.add("encode") }},
		})
		if _, err := h.double(t); !errors.Is(err, yodel.FailedPrecondition) {
			t.Errorf("got %v, want the hook's error", err)
		}
		log.is(t, "before")
	})

	// Bytes are all that there is to see of these three: a write carries many calls, and so does a read.
	for _, name := range []string{"PostWriteRequest", "PreReadResponseHeader", "PostReadResponseHeader"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				var log hookLog
				h := startHooked(t, network, &yodel.ServerOptions{
					Codecs:     []yodel.Codec{hookCodec{}},
					Middleware: []yodel.Middleware{hookAfter(func(call *yodel.Call, err error) error { call.Trailer = yodel.Metadata{"k": "a trailer"}; return err })},
				}, &yodel.ClientOptions{
					Transport: hookTransport{Transport: network, dialed: func(conn net.Conn) (net.Conn, error) {
						return &hookConn{
							Conn: conn,
							write: func(b []byte) error {
								if bytes.Contains(b, []byte(hookDouble)) {
									log.add("request written")
								}
								return nil
							},
							read: func(b []byte) error {
								if bytes.Contains(b, []byte("a trailer")) {
									log.add("reply read")
								}
								return nil
							},
						}, nil
					}},
					Codec: hookCodec{encode: func(any) { log.add("encode") }, decode: func(any) { log.add("decode") }},
				})
				h.works(t, 42)
				log.is(t, "encode", "request written", "reply read", "decode")
			})
		})
	}

	t.Run("PreReadResponseBody", func(t *testing.T) {
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Codecs: []yodel.Codec{hookCodec{}}}, nil)
		n, call := 21, &yodel.Call{}
		told := false
		call.Codec = hookCodec{decode: func(v any) { told = v == call.Reply }} // of this call alone
		if reply, err := hookDouble.Do(t.Context(), h.client, call, &n); err != nil || *reply != 42 || !told {
			t.Errorf("got %v and %v; told: %t", reply, err, told)
		}
	})

	t.Run("PostReadResponseBody", func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{
			hookBelow(hookAfter(func(_ *yodel.Call, err error) error {
				log.add(yodel.CodeOf(err).String())
				return err
			})),
		}})
		h.works(t, 42)
		n := 21
		if err := h.client.Call(t.Context(), string(hookDouble), &n, new(string)); !errors.Is(err, yodel.Internal) {
			t.Errorf("got %v, want that the reply does not fit", err)
		}
		log.is(t, "ok", "internal")
	})
}

func TestShutdownHooks(t *testing.T) {
	t.Run("RegisterOnShutdown", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			l, err := network.Listen("server")
			if err != nil {
				t.Fatal(err)
			}
			var log hookLog
			s := yodel.NewServer(nil)
			if err := s.Handle("Hook.Long", func() error {
				time.Sleep(5 * time.Second)
				log.add("the last call has ended")
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			context.AfterFunc(ctx, func() { log.add("the shutdown begins") })
			served := make(chan error, 1)
			go func() {
				err := s.Serve(ctx, l)
				log.add("the shutdown is over")
				served <- err
			}()
			c := yodel.NewClient(yodel.Static("server"), &yodel.ClientOptions{Transport: network})
			defer c.Close()
			called := make(chan error, 1)
			go func() { called <- c.Call(t.Context(), "Hook.Long", yodel.Values{}, nil) }()
			time.Sleep(time.Second)
			cancel()
			if err := errors.Join(<-called, <-served); err != nil {
				t.Error(err)
			}
			log.is(t, "the shutdown begins", "the last call has ended", "the shutdown is over")
		})
	})
}

// What hooks rely on.

func TestServerObserversAreToldOfTheStartOfEveryCallThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{
			Observers: []yodel.Observer{log.observer("call")}, Limits: yodel.Limits{MaxMetadata: 10},
		}, nil)
		n := 21
		call := &yodel.Call{Metadata: yodel.Metadata{"much more than": "ten bytes"}}
		if _, err := hookDouble.Do(t.Context(), h.client, call, &n); !errors.Is(err, yodel.ResourceExhausted) {
			t.Errorf("got %v, want resource_exhausted", err)
		}
		synctest.Wait()
		log.is(t, "call start", "call end")
	})
}

func TestServeReturnsWhenTheEndOfEveryCallHasBeenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Observers: []yodel.Observer{{
			End: func(context.Context, *yodel.Call, error) {
				time.Sleep(time.Second) // a log that is slow now and then
				log.add("end")
			},
		}}}, nil)
		h.works(t, 42)
		h.close()
		h.stop()
		log.add("stopped") // the process may exit now
		time.Sleep(time.Minute)
		log.is(t, "end", "stopped")
	})
}

func TestARefusedPeerIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), &yodel.ServerOptions{
			OnConn:  log.event,
			Connect: func(context.Context, *yodel.Peer) error { return errHook },
		}, nil)
		if _, err := h.double(t); !errors.Is(err, yodel.FailedPrecondition) {
			t.Errorf("got %v, want the hook's error", err)
		}
		h.close()
		synctest.Wait()
		log.is(t, "accepted", "refused")
	})
}

func TestOnRegisterMayRefuseBuiltInMethods(t *testing.T) {
	defer func() {
		if value := recover(); value != nil {
			t.Errorf("NewServer panicked: %v", value)
		}
	}()
	s := yodel.NewServer(&yodel.ServerOptions{OnRegister: func(method string) error {
		if !strings.HasPrefix(method, "Hook.") {
			return errHook
		}
		return nil
	}})
	if err := s.Handle("Hook.Func", func() int { return 1 }); err != nil {
		t.Error(err)
	}
}

func TestAnAliasThatOnRegisterRefusesIsForgotten(t *testing.T) {
	h := startHooked(t, mem.New(), &yodel.ServerOptions{OnRegister: func(method string) error {
		if method == "Hook.Alias" {
			return errHook
		}
		return nil
	}}, nil)
	if err := h.server.Alias(string(hookDouble), "Hook.Alias"); !errors.Is(err, errHook) {
		t.Errorf("got %v, want the hook's error", err)
	}
	info, err := yodel.GetInfo.Call(t.Context(), h.client, &yodel.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range info.Methods {
		if len(m.Aliases) > 0 {
			t.Errorf("%s has the aliases %q", m.Name, m.Aliases)
		}
	}
}

func TestTheClientsTimeoutIsForOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{Timeout: time.Second})
		n, call := 21, &yodel.Call{}
		for range 2 { // a call may be used again
			if _, err := hookDouble.Do(t.Context(), h.client, call, &n); err != nil {
				t.Errorf("got %v, want success", err)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestTheCodeOfTheLastAttemptCounts(t *testing.T) {
	network := mem.New()
	h := startHooked(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		hookBefore(func(context.Context, *yodel.Call) error {
			return &yodel.Error{Code: yodel.PermissionDenied, ID: "YDL3102", Message: "no", NotProcessed: true}
		}),
	}}, nil)
	for range 4 { // at least one of them begins with the endpoint that cannot be reached
		c := yodel.NewClient(yodel.Static("nobody", "server"), &yodel.ClientOptions{Transport: h.network})
		for range 2 {
			if _, err := yodel.Ping.Call(t.Context(), c, &yodel.Empty{}); !errors.Is(err, yodel.PermissionDenied) {
				t.Errorf("got %v, want permission_denied", err)
			}
		}
		c.Close()
	}
}

// hookAgain makes n attempts of each call.
func hookAgain(n int) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) (err error) {
			for range n {
				if err = next(ctx, call); err == nil {
					return nil
				}
			}
			return err
		}
	}
}

func TestACallWasNotExecutedWhenNoAttemptWas(t *testing.T) {
	for _, test := range []struct {
		name     string
		executed int // which attempt is executed; 0 is none
		id       string
	}{
		{"none", 0, "YDL3002"},
		{"the first", 1, "YDL3002"},
		{"the fourth", 4, "YDL3002"},
		{"the last", 5, "YDL3002"},
		{"the first, and the last error has no ID", 1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			attempts := 0
			h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
				hookBefore(func(context.Context, *yodel.Call) error {
					if attempts++; attempts != test.executed {
						return &yodel.Error{Code: yodel.ResourceExhausted, ID: test.id, Message: "not now", NotProcessed: true}
					}
					return nil
				}),
			}}, &yodel.ClientOptions{Middleware: []yodel.Middleware{hookAgain(5)}})
			if err := h.server.Handle("Hook.Fail", func() error { return yodel.Errorf(yodel.ResourceExhausted, "half done") }); err != nil {
				t.Fatal(err)
			}
			err := h.client.Call(t.Context(), "Hook.Fail", yodel.Values{}, nil)
			var report *yodel.CallReport
			if !errors.As(err, &report) || len(report.Attempts) != 5 {
				t.Fatalf("got %+v, want an error with a report of 5 attempts", err)
			}
			if want := test.executed == 0; yodel.NotProcessed(err) != want {
				t.Errorf("got %+v, not processed: %t, want %t", err, !want, want)
			}
		})
	}
}

func TestEndpointMiddlewareChangesEveryAttempt(t *testing.T) {
	var log hookLog
	h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
		hookBefore(func(_ context.Context, call *yodel.Call) error {
			log.add(call.Metadata["span"])
			return yodel.Errorf(yodel.Unavailable, "not now")
		}),
	}}, &yodel.ClientOptions{
		Middleware: []yodel.Middleware{hookAgain(3)},
		EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookBefore(func(_ context.Context, call *yodel.Call) error {
			call.Metadata = yodel.Metadata{"span": strings.Repeat("I", call.Attempt+1)}
			return nil
		}))},
	})
	if _, err := h.double(t); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("got %v, want unavailable", err)
	}
	log.is(t, "I", "II", "III")
}

func TestErrorsOfEndpointMiddlewareStayWhatTheyAre(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		code yodel.Code
	}{
		{"an error of yodel's", errHook, yodel.FailedPrecondition},
		{"a wrapped one", fmt.Errorf("breaker: %w", errHook), yodel.FailedPrecondition},
		{"a code", yodel.Aborted, yodel.Aborted},
		{"any error", errors.New("breaker is open"), yodel.Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{
				EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookBefore(func(context.Context, *yodel.Call) error { return test.err }))},
			})
			_, err := h.double(t)
			if !errors.Is(err, test.err) || yodel.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.err.Error()) {
				t.Errorf("got %v, want %v", err, test.err)
			}
		})
	}
}

func TestAnIdleClientStaysConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log hookLog
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{OnConn: log.event})
		if err := h.client.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		log.is(t, "connected")
	})
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
		stats, err := yodel.GetStats.Call(t.Context(), h.client, &yodel.Empty{})
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

func TestTheReportOfAnAsynchronousCallSaysHowLongEachAttemptTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, nil)
		if err := h.server.Handle("Hook.Fail", func() error {
			time.Sleep(3 * time.Second)
			return errHook
		}); err != nil {
			t.Fatal(err)
		}
		if err := h.client.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		h.client.Go(t.Context(), &yodel.Call{Method: "Hook.Fail", Args: yodel.Values{}}, func(err error) { ended <- err })
		err := <-ended
		var report *yodel.CallReport
		if !errors.As(err, &report) || len(report.Attempts) != 1 || report.Attempts[0].Took != 3*time.Second {
			t.Errorf("got %+v, want one attempt of 3s", err)
		}
	})
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
