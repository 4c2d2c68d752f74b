// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

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
