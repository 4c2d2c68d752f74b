// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/plugins"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// These tests show where each hook of rpcx has its place: docs/hooks.md is their table of contents.
// The names of the subtests are the names of rpcx's hooks.

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
		var set plugins.Set
		h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{set.Middleware}}, nil)
		h.works(t, 42)
		set.Put("plugin", log.around("plugin"))
		h.works(t, 42)
		log.is(t, "plugin", "plugin again")
		if names := set.Names(); len(names) != 1 || names[0] != "plugin" || !set.Remove("plugin") {
			t.Errorf("the names are %q", names)
		}
		h.works(t, 42)
		log.is(t, "plugin", "plugin again")
	})
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

	// Bytes are all that there is to see of these three: a write carries many calls, and so does a
	// read.
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
			c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
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
		other := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: transport})
		defer other.Close()
		if _, err := inspect.Ping.Call(t.Context(), other, &inspect.Empty{}); err == nil {
			t.Error("a connection that the hook refuses: the call succeeded")
		}
	})

	t.Run("ConnCreateFailed", func(t *testing.T) {
		failed := make(chan introspect.ConnEvent, 100)
		c := yodel.NewClient(discovery.Static("nobody"), &yodel.ClientOptions{Transport: mem.New(), OnConn: func(e introspect.ConnEvent) { failed <- e }})
		defer c.Close()
		if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); !errors.Is(err, yodel.Unavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		if e := <-failed; e.Kind != introspect.ConnectFailed || e.Addr != "nobody" || e.Err == nil {
			t.Errorf("got %v of %s because of %v", e.Kind, e.Addr, e.Err)
		}
	})

	t.Run("ClientConnected", func(t *testing.T) {
		connected := make(chan introspect.ConnEvent, 10)
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{OnConn: func(e introspect.ConnEvent) { connected <- e }})
		if err := h.client.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e := <-connected; e.Kind != introspect.Connected || e.Addr != "server" {
			t.Errorf("got %v of %s", e.Kind, e.Addr)
		}
	})

	t.Run("ClientConnectionClose", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{OnConn: func(e introspect.ConnEvent) {
				if e.Kind != introspect.ConnectFailed { // it tries again
					log.event(e)
				}
			}})
			h.works(t, 42)
			h.stop()
			synctest.Wait()
			log.begins(t, "connected")
			up, down := 0, 0 // the client may reach the draining server again, before its first connection has ended
			for _, line := range log.lines {
				switch line {
				case "connected":
					up++
				case "disconnected":
					down++
				default:
					t.Errorf("got %s", line)
				}
			}
			if up == 0 || up != down {
				t.Errorf("%d connections were made, and %d ended", up, down)
			}
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
		c := yodel.NewClient(discovery.Static("nobody", "server", "nobody else"), &yodel.ClientOptions{Transport: network, Balancer: onlyServer})
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
