// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

type hookService struct{}

func (hookService) Twice(n int) int  { return 2 * n }
func (hookService) Thrice(n int) int { return 3 * n }

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
			so := &yodel.ServerOptions{Registrars: []discovery.Registrar{registry}}
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
			// a service without methods is withdrawn, and the server goes on serving
			if err := h.server.Unregister(string(hookDouble)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			if err := registry.Service("Hook").Watch(ctx, func(records []discovery.Instance) {
				if cancel(); len(records) > 0 {
					t.Errorf("after Unregister, the registry has %v", records)
				}
			}); err != nil {
				t.Error(err)
			}
			n := 21
			if _, err := hookDouble.Call(t.Context(), h.client, &n); !errors.Is(err, yodel.Unimplemented) {
				t.Errorf("after Unregister: got %v, want unimplemented", err)
			}
			hookDouble.Handle(h.server, func(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil })
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
			other := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
			defer other.Close()
			if _, err := inspect.Ping.Call(t.Context(), other, &inspect.Empty{}); !errors.Is(err, yodel.Unavailable) {
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
					if failing.CompareAndSwap(true, false) {
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
			synctest.Wait()     // observers see the end of the call after its reply has gone
			failing.Store(true) // the connection ends without an answer
			if _, err := h.double(t); !errors.Is(err, yodel.Unavailable) {
				t.Errorf("got %v, want unavailable", err)
			}
			synctest.Wait()
			log.begins(t, "accepted", "bytes", "request start", "request end")
			// the client connects again at once
			log.has(t, "accepted", "bytes", "request start", "request end", "read failed", "accepted")
		})
	})

	t.Run("PostReadRequest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var log hookLog
			var decided atomic.Pointer[yodel.Handler]
			h := startHooked(t, mem.New(), &yodel.ServerOptions{
				OnConn: func(e introspect.ConnEvent) {
					if e.Kind == introspect.ReadFailed || e.Kind == introspect.WriteFailed { // whichever is first
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
		if _, err := inspect.Ping.Call(t.Context(), h.client, &inspect.Empty{}); err != nil {
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
				// HandleServiceError
				Observers: []yodel.Observer{{End: func(_ context.Context, call *yodel.Call, err error) {
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
			conns.has(t, "accepted", "write failed", "accepted") // the client connects again at once
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
		around := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				log.add("before " + call.Method)
				err := next(ctx, call)
				log.add(fmt.Sprintf("after %s: %v", call.Method, err))
				return err
			}
		}
		h := startHooked(t, mem.New(), &yodel.ServerOptions{PeerMiddleware: []yodel.Middleware{around}}, &yodel.ClientOptions{Server: served})
		h.works(t, 42)
		n := 4
		if reply, err := hookDouble.Call(t.Context(), h.server.Peers()[0], &n); err != nil || *reply != 8 {
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
				OnConn: log.event,
				Limits: yodel.Limits{KeepAlive: time.Second},
			}, nil)
			if _, err := inspect.Ping.Call(t.Context(), h.client, &inspect.Empty{}); err != nil {
				t.Error(err)
			}
			frames := h.server.Conns().Conns[0].FramesIn
			time.Sleep(time.Minute) // the connections' own signs of life are enough
			log.is(t, "accepted", "yodel.Ping")
			if now := h.server.Conns().Conns[0].FramesIn; now < frames+20 {
				t.Errorf("a minute of heartbeats is %d frames", now-frames)
			}
		})
	})

	t.Run("MuxMatch", func(t *testing.T) {
		network := mem.New()
		startHooked(t, network, &yodel.ServerOptions{Protocols: []yodel.Protocol{lines{codec: yodel.JSON}}}, nil).works(t, 42)
		own, err := network.Dial(t.Context(), "server")
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		if got := ask(t, own, string(hookDouble), "4"); got != "8" { // in the protocol, at the same port
			t.Errorf("got %q", got)
		}
	})

	t.Run("MuxMatch of another server", func(t *testing.T) {
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
