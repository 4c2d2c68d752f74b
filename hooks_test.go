// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
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
