// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A deadline that passes before a call was sent says what the call was waiting for, and what that
// has said so far. The text and the ID are the same wherever the deadline was set.
func TestTheErrorOfADeadlineSaysWhatWasAwaited(t *testing.T) {
	const limit = 40 * time.Millisecond
	silent := speak(t, false, "")
	web := httptest.NewServer(nil)
	defer web.Close()
	block := newBlocking(t, nil, true)
	blocked := serve(t, block.Server)
	t.Cleanup(func() { close(block.release) })
	logger := slog.New(slog.DiscardHandler)
	static := func(addr string) func() discovery.Resolver {
		return func() discovery.Resolver { return discovery.Static(addr) }
	}
	for name, test := range map[string]struct {
		resolver func() discovery.Resolver
		ready    func(t *testing.T, c *yodel.Client) // nil if nothing is to be done before the call
		want     string
		next     string
	}{
		"a registry that is down": {
			func() discovery.Resolver {
				return resolverFunc(func(context.Context, func([]discovery.Instance)) error { return errors.New("connection refused") })
			}, nil,
			"Arith.Mul: the deadline passed after TIME of waiting for the resolver, which has named no instances yet; it failed: connection refused",
			"check the registry",
		},
		"a server that accepts and says nothing": {
			static(silent), nil,
			"Arith.Mul: ADDR: the deadline passed after TIME of connecting: the server accepted the connection and said nothing",
			"check that the server is not overloaded",
		},
		"a web server": {
			static(web.Listener.Addr().String()), nil,
			"Arith.Mul: ADDR: the deadline passed after TIME of connecting: the server accepted the connection and said nothing",
			"check that the server is not overloaded",
		},
		"an ordered call": {
			static(blocked), func(t *testing.T, c *yodel.Client) {
				must(t, c.Ready(t.Context()))
				call := &yodel.Call{Method: "Block", Args: &Empty{}, Deadline: time.Now().Add(time.Hour), Key: "k", Ordered: true}
				go func() { _ = c.Do(context.Background(), call) }() // until the client is closed
				receive(t, block.begun, "the handler runs")
				call = &yodel.Call{Method: "Block", Args: &Empty{}, Deadline: time.Now().Add(time.Hour), Key: "k", Ordered: true}
				go func() { _ = c.Do(context.Background(), call) }() // waits for the window
				until(t, "it waits", func() bool { return c.Endpoints()[0].Inflight() == 2 })
			},
			`Arith.Mul: the deadline passed after TIME of waiting for the calls before it with the key "k"`,
			"look at what keeps the calls before it",
		},
		"the server's window": {
			static(blocked), func(t *testing.T, c *yodel.Client) {
				must(t, c.Ready(t.Context()))
				call := &yodel.Call{Method: "Block", Args: &Empty{}, Deadline: time.Now().Add(time.Hour)}
				go func() { _ = c.Do(context.Background(), call) }() // until the client is closed
				receive(t, block.begun, "the handler runs")
			},
			"Arith.Mul: ADDR: the deadline passed after TIME in the queue for the server's window: as many requests are open as the server allows",
			"let the call wait, or send fewer at once",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var client *yodel.Client
			for where, call := range map[string]func(o *yodel.ClientOptions) (context.Context, *yodel.Call){
				"ClientOptions.Timeout": func(o *yodel.ClientOptions) (context.Context, *yodel.Call) {
					o.Timeout = limit
					return t.Context(), &yodel.Call{}
				},
				"the context": func(*yodel.ClientOptions) (context.Context, *yodel.Call) {
					ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errors.New("the page was closed"))
					t.Cleanup(cancel)
					return ctx, &yodel.Call{}
				},
				"Call.Deadline": func(*yodel.ClientOptions) (context.Context, *yodel.Call) {
					return t.Context(), &yodel.Call{Deadline: time.Now().Add(limit)}
				},
				"timeout.After": func(o *yodel.ClientOptions) (context.Context, *yodel.Call) {
					o.Middleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
						limited := timeout.After(limit)(next)
						return func(ctx context.Context, call *yodel.Call) error {
							if call.Method == "Block" {
								return next(ctx, call)
							}
							return limited(ctx, call)
						}
					}}
					return t.Context(), &yodel.Call{}
				},
			} {
				if client != nil {
					client.Close()
				}
				// A name of 10 bytes would end a line for the web server, which then answers.
				o := &yodel.ClientOptions{Logger: logger, Limits: yodel.Limits{MaxOpen: 1}, Name: "caller"}
				_, _ = call(o) // what it sets in the options
				client = yodel.NewClient(test.resolver(), o)
				t.Cleanup(client.Close)
				if test.ready != nil {
					test.ready(t, client)
				}
				ctx, c := call(o)
				c.Method, c.Args = "Arith.Mul", &Args{1, 2}
				if name == "an ordered call" {
					c.Key, c.Ordered = "k", true
				}
				err := client.Do(ctx, c)
				e := wantError(t, err, yodel.DeadlineExceeded, "YDL1005")
				if !e.NotProcessed || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: it is not certain that the call was not executed: %v", where, err)
				}
				got := regexp.MustCompile(`[\d.]+m?s`).ReplaceAllString(e.Message, "TIME")
				got = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(got, "ADDR")
				if got != test.want {
					t.Errorf("%s:\ngot  %s\nwant %s", where, got, test.want)
				}
				if long := fmt.Sprintf("%+v", err); !strings.Contains(long, "\n  next  "+test.next) {
					t.Errorf("%s: the next step is another one: %s", where, long)
				}
			}
		})
	}
}

// Within a few milliseconds a healthy server may not answer either, so that the advice is not to
// look for what is wrong with it.
func TestABriefWaitForAConnectionAsksForMoreTime(t *testing.T) {
	for limit, want := range map[time.Duration]string{5 * time.Millisecond: "allow more time", time.Second: "overloaded"} {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			l, err := network.Listen("silent")
			must(t, err)
			accepted := make(chan net.Conn, 1)
			go func() {
				nc, _ := l.Accept() // the test closes both
				accepted <- nc
			}()
			c := yodel.NewClient(discovery.Static("silent"), &yodel.ClientOptions{Transport: network, Logger: slog.New(slog.DiscardHandler), Timeout: limit})
			_, err = Mul.Call(t.Context(), c, &Args{1, 2})
			e := wantError(t, err, yodel.DeadlineExceeded, "YDL1005")
			if long := fmt.Sprintf("%+v", e); !strings.Contains(long, want) {
				t.Errorf("within %v: want %q in %s", limit, want, long)
			}
			c.Close()
			_ = l.Close()
			if nc := <-accepted; nc != nil {
				_ = nc.Close()
			}
		})
	}
}
