// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	stdtls "crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/fanout"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// A scenario provokes one of yodel's errors for real.
type scenario struct {
	id      string
	name    string
	code    yodel.Code
	unsent  bool     // the error says that the call was not executed
	says    []string // besides the method and the address
	nowhere bool     // there is no address to name
	provoke func(p *provocation) error
}

// A provocation is what scenarios work with.
type provocation struct {
	*testing.T
	addr string // set by the scenario: what the message has to name
}

// call serves s and calls its method Arith.Mul, or another, as o says.
func (p *provocation) call(s *yodel.Server, o *yodel.ClientOptions, call *yodel.Call) error {
	p.Helper()
	p.addr = serve(p, s)
	return p.callAt(p.addr, o, call)
}

// ruled makes a call with a client that follows a rule.
func (p *provocation) ruled(r rules.Rule) error {
	p.Helper()
	in := memory.New(nil)
	book, err := rules.Open(in)
	must(p, err)
	r.Service, r.Author, r.Reason = "Arith", "ann", "broken data"
	_, err = book.Put(p.Context(), r)
	must(p, err)
	addr := serve(p, newServer(p, nil))
	must(p, in.Announce(p.Context(), "Arith", discovery.Instance{Addr: addr}, time.Minute))
	c := yodel.NewClient(rules.With(in, nil).Service("Arith"), nil)
	p.Cleanup(c.Close)
	return c.Do(p.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{1, 2}})
}

func (p *provocation) callAt(addr string, o *yodel.ClientOptions, call *yodel.Call) error {
	p.Helper()
	p.addr = addr
	c := newClient(p, o, addr)
	if call.Method == "" {
		call.Method = "Arith.Mul"
	}
	if call.Args == nil {
		call.Args = &Args{1, 2}
	}
	return c.Do(p.Context(), call)
}

// with serves Arith and a method under the name Arith.Try.
func (p *provocation) with(o *yodel.ServerOptions, function any) *yodel.Server {
	p.Helper()
	s := newServer(p, o)
	handle(p, s, "Arith.Try", function)
	return s
}

// crowd makes a call while another one runs, which does not end before.
func (p *provocation) crowd(so *yodel.ServerOptions, co *yodel.ClientOptions) error {
	p.Helper()
	s := newBlocking(p, so, true)
	p.addr = serve(p, s.Server)
	c := newClient(p, co, p.addr)
	p.Cleanup(func() { close(s.release) })
	go func() { _ = c.Call(context.Background(), "Block", &Empty{}, nil) }()
	receive(p, s.begun, "the handler runs")
	ctx, cancel := context.WithTimeout(p.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := Mul.Call(ctx, c, &Args{1, 2})
	return err
}

func try(args any) *yodel.Call {
	return &yodel.Call{Method: "Arith.Try", Args: args, Reply: new(string)}
}

func echo(_ context.Context, in *string) (*string, error) { return in, nil }

func quiet(o yodel.ServerOptions) *yodel.ServerOptions {
	o.Logger = slog.New(slog.DiscardHandler)
	return &o
}

// A closed returns an address where nobody listens.
func closed(t testing.TB) string {
	t.Helper()
	l := listen(t)
	l.Close()
	return l.Addr().String()
}

type onlyJSON struct{ yodel.Codec }

func (onlyJSON) Name() string { return "toml" }

type onlyFlate struct{ compress.Compressor }

func (onlyFlate) Name() string { return "middle-out" }

type noPicker struct{}

func (noPicker) Pick(*yodel.Call) *yodel.Endpoint { return nil }

var large = strings.Repeat("x", 10<<10)

var scenarios = []scenario{
	{"YDL1001", "an empty list", yodel.Unavailable, true, []string{"no instance is known"}, true, func(p *provocation) error {
		_, err := Mul.Call(p.Context(), newClient(p, nil), &Args{})
		return err
	}},
	{"YDL1001", "no resolver", yodel.Unavailable, true, []string{"no instance is known", "no resolver"}, true, func(p *provocation) error {
		c := yodel.NewClient(nil, nil)
		defer c.Close()
		_, err := Mul.Call(p.Context(), c, &Args{})
		return err
	}},
	{"YDL1002", "a balancer that chooses none", yodel.Unavailable, true, []string{"1 instances are known"}, true, func(p *provocation) error {
		none := func([]*yodel.Endpoint, yodel.Picker) yodel.Picker { return noPicker{} }
		_, err := Mul.Call(p.Context(), newClient(p, &yodel.ClientOptions{Balancer: none}, "127.0.0.1:1"), &Args{})
		return err
	}},
	{"YDL1002", "a balancer that makes no picker", yodel.Unavailable, true, []string{"the balancer chose none: it returned no picker"}, true, func(p *provocation) error {
		none := func([]*yodel.Endpoint, yodel.Picker) yodel.Picker { return nil }
		_, err := Mul.Call(p.Context(), newClient(p, &yodel.ClientOptions{Balancer: none}, "127.0.0.1:1"), &Args{})
		return err
	}},
	{"YDL1003", "nothing listens at either address", yodel.Unavailable, true, []string{"2 attempts at", "both: connection refused"}, false, func(p *provocation) error {
		p.addr = closed(p)
		_, err := Mul.Call(p.Context(), newClient(p, nil, p.addr, closed(p)), &Args{})
		return err
	}},
	{"YDL1004", "a slow method", yodel.DeadlineExceeded, false, []string{"no reply before the deadline"}, false, func(p *provocation) error {
		// whatever its own context says
		s := p.with(nil, func(*string) (*string, error) { <-p.Context().Done(); return nil, nil })
		p.addr = serve(p, s)
		c := newClient(p, &yodel.ClientOptions{Timeout: 20 * time.Millisecond}, p.addr)
		must(p, c.Ready(p.Context()))
		return c.Do(p.Context(), try("x"))
	}},
	{"YDL1005", "a deadline in the past", yodel.DeadlineExceeded, true, []string{"the deadline passed before the call was sent"}, false, func(p *provocation) error {
		p.addr = serve(p, newServer(p, nil))
		c := newClient(p, nil, p.addr)
		must(p, c.Ready(p.Context()))
		_, err := Mul.Do(p.Context(), c, &yodel.Call{Deadline: time.Now().Add(-time.Second)}, &Args{})
		return err
	}},
	{"YDL1006", "a canceled context", yodel.Canceled, false, []string{"the caller canceled it"}, false, func(p *provocation) error {
		ctx, cancel := context.WithCancel(p.Context())
		s := p.with(nil, func(ctx context.Context, _ *string) (*string, error) { cancel(); <-ctx.Done(); return nil, nil })
		p.addr = serve(p, s)
		return newClient(p, nil, p.addr).Do(ctx, try("x"))
	}},
	{"YDL1007", "a closed client", yodel.Canceled, true, []string{"the client was closed"}, false, func(p *provocation) error {
		c := yodel.Dial(serve(p, newServer(p, nil)))
		must(p, c.Ready(p.Context()))
		c.Close()
		_, err := Mul.Call(p.Context(), c, &Args{})
		return err
	}},
	{"YDL1008", "a full window and no wish to wait", yodel.ResourceExhausted, true, []string{"accepts no more requests at the moment"}, false, func(p *provocation) error {
		s := newBlocking(p, nil, true)
		p.addr = serve(p, s.Server)
		c := newClient(p, &yodel.ClientOptions{NoWait: true, Limits: yodel.Limits{MaxOpen: 1}}, p.addr)
		p.Cleanup(func() { close(s.release) })
		go func() { _ = c.Call(context.Background(), "Block", &Empty{}, nil) }()
		receive(p, s.begun, "the handler runs")
		_, err := Mul.Call(p.Context(), c, &Args{})
		return err
	}},
	{"YDL1008", "a full output and no wish to wait", yodel.ResourceExhausted, true, []string{"Limits.MaxUnsent bytes (1) wait to be written"}, false, func(p *provocation) error {
		stalled, resumed := new(atomic.Bool), make(chan struct{})
		c := newClient(p, &yodel.ClientOptions{NoWait: true, Limits: yodel.Limits{MaxUnsent: 1}, Transport: transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
			nc, err := yodel.TCP.Dial(ctx, addr)
			return stallingConn{nc, stalled, resumed}, err
		})}, serve(p, newServer(p, nil)))
		must(p, c.Ready(p.Context()))
		stalled.Store(true)
		p.Cleanup(func() { close(resumed) })
		results := make(chan error, 3)
		for range cap(results) { // one is being written, and one waits to be written
			go func() {
				_, err := Mul.Call(context.Background(), c, &Args{})
				results <- err
			}()
		}
		return receive(p, results, "a call fails")
	}},
	{"YDL1009", "a call behind one whose connection was lost", yodel.Aborted, true, []string{`an earlier call with the key "k" was interrupted`}, true, func(p *provocation) error {
		s := newBlocking(p, nil, true)
		handle(p, s.Server, "Arith.Break", func(ctx context.Context, _ *Empty) (*Reply, error) {
			<-s.release
			yodel.CallFrom(ctx).Peer().Conn.Close()
			return nil, nil
		})
		c := newClient(p, &yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: 1}}, serve(p, s.Server))
		must(p, c.Ready(p.Context()))
		c.Go(p.Context(), &yodel.Call{Method: "Arith.Break", Args: &Empty{}, Key: "k", Ordered: true}, nil)
		go func() {
			until(p, "the second waits for the window", func() bool { return c.Endpoints()[0].Inflight() == 2 })
			close(s.release)
		}()
		return c.Do(p.Context(), &yodel.Call{Method: "Arith.Break", Args: &Empty{}, Key: "k", Ordered: true})
	}},
	{"YDL1010", "a key that the server does not remember, sent again by force", yodel.Aborted, false, []string{"may have been executed", "does not remember idempotency keys"}, false, func(p *provocation) error {
		twice := func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if err := next(ctx, call); err != nil {
					return err
				}
				return next(ctx, call)
			}
		}
		return p.call(newServer(p, nil), &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler), EndpointMiddleware: []yodel.EndpointMiddleware{twice}}, &yodel.Call{IdempotencyKey: "k"})
	}},
	{"YDL1101", "an HTTP server", yodel.Unavailable, true, []string{"does not speak yodel", `it answered "HTTP/1.1 400 Bad Request"`}, false, func(p *provocation) error {
		return p.callAt(speak(p, false, "HTTP/1.1 400 Bad Request\r\n\r\n"), nil, &yodel.Call{})
	}},
	{"YDL1102", "a server that says nothing within the dial timeout", yodel.Unavailable, true, []string{"accepted the connection and said nothing"}, false, func(p *provocation) error {
		return p.callAt(speak(p, false, ""), &yodel.ClientOptions{DialTimeout: 20 * time.Millisecond}, &yodel.Call{})
	}},
	{"YDL1102", "a server that says nothing", yodel.Unavailable, true, []string{"accepted the connection and said nothing"}, false, func(p *provocation) error {
		return p.callAt(speak(p, false, ""), &yodel.ClientOptions{Limits: yodel.Limits{Handshake: 20 * time.Millisecond}}, &yodel.Call{})
	}},
	{"YDL1101", "a web server that waits for the end of a line", yodel.Unavailable, true, []string{`does not speak yodel: it answered "HTTP/1.1 400 Bad Request"`}, false, func(p *provocation) error {
		web := httptest.NewServer(nil)
		p.Cleanup(web.Close)
		return p.callAt(web.Listener.Addr().String(), &yodel.ClientOptions{DialTimeout: 50 * time.Millisecond}, &yodel.Call{})
	}},
	{"YDL1103", "nothing listens", yodel.Unavailable, true, []string{"connection refused"}, false, func(p *provocation) error {
		return p.callAt(closed(p), nil, &yodel.Call{})
	}},
	{"YDL1104", "a lost connection", yodel.Unavailable, false, []string{"was lost", "it may have been executed"}, false, func(p *provocation) error {
		s := p.with(nil, func(ctx context.Context, _ *string) (*string, error) {
			yodel.CallFrom(ctx).Peer().Conn.Close()
			return nil, nil
		})
		return p.call(s, nil, try("x"))
	}},
	{"YDL1105", "a network that swallows everything", yodel.Unavailable, false, []string{"has been silent for too long"}, false, func(p *provocation) error {
		s := newBlocking(p, nil, true)
		must(p, s.Alias("Block", "Arith.Block"))
		proxy := newProxy(p, serve(p, s.Server))
		p.addr = proxy.addr()
		p.Cleanup(func() { close(s.release) })
		c := newClient(p, &yodel.ClientOptions{Limits: yodel.Limits{KeepAlive: 20 * time.Millisecond}}, p.addr)
		must(p, c.Ready(p.Context()))
		go func() {
			<-s.begun
			proxy.holdAfter(0)
		}()
		return c.Call(p.Context(), "Arith.Block", &Empty{}, nil)
	}},
	{"YDL1106", "a server that breaks the protocol", yodel.Internal, true, []string{"protocol error"}, false, func(p *provocation) error {
		b := wire.AppendMethod([]byte(wire.Preface), 0, 1, &wire.Binding{Name: []byte("a")}) // before its settings
		return p.callAt(speak(p, false, string(b)), nil, &yodel.Call{})
	}},
	{"YDL1107", "a server that does not want this client", yodel.PermissionDenied, true, []string{"refused the connection: members only"}, false, func(p *provocation) error {
		return p.call(newServer(p, quiet(yodel.ServerOptions{Connect: func(context.Context, *yodel.Peer) error {
			return yodel.Errorf(yodel.PermissionDenied, "members only")
		}})), nil, &yodel.Call{})
	}},
	{"YDL1108", "a certificate that the client does not trust", yodel.Unavailable, true, []string{"TLS: the server's certificate is signed by an authority"}, false, func(p *provocation) error {
		cert := newAuthority(p, "an authority").certify(p, "localhost", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		l, err := (&tls.Transport{Server: &stdtls.Config{Certificates: []stdtls.Certificate{cert}}}).Listen("127.0.0.1:0")
		must(p, err)
		serveOn(p, newServer(p, quiet(yodel.ServerOptions{})), l)
		return p.callAt(l.Addr().String(), &yodel.ClientOptions{Transport: &tls.Transport{Client: &stdtls.Config{ServerName: "localhost"}}}, &yodel.Call{})
	}},
	{"YDL1109", "a server of another service at the address of one that died", yodel.Unavailable, true, []string{"another server listens"}, true, func(p *provocation) error {
		s := yodel.NewServer(nil)
		must(p, s.Handle("Other.Get", func(*Empty) (*Empty, error) { return nil, nil }))
		p.addr = serve(p, s)
		r := &named{settable: newSettable(), service: "Arith"}
		r.setInstances([]discovery.Instance{{Addr: p.addr, Incarnation: "00ff"}})
		c := yodel.NewClient(r, nil)
		p.Cleanup(c.Close)
		return c.Call(p.Context(), "Arith.Mul", &Empty{}, nil)
	}},
	{"YDL1110", "the end of a call for which another one waits", yodel.Unavailable, true, []string{"the connection ended while the call waited for another one"}, false, endAnother},
	{"YDL1201", "a registry that is down", yodel.Unavailable, true, []string{"it failed: registry 10.0.0.1: connection refused"}, true, func(p *provocation) error {
		down := resolverFunc(func(context.Context, func([]discovery.Instance)) error {
			return errors.New("registry 10.0.0.1: connection refused")
		})
		c := yodel.NewClient(down, &yodel.ClientOptions{DialTimeout: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		p.Cleanup(c.Close)
		_, err := Mul.Call(p.Context(), c, &Args{})
		return err
	}},
	{"YDL1107", "a server whose Connect fails without a code", yodel.Unknown, true, []string{"refused the connection: no list of members"}, false, func(p *provocation) error {
		return p.call(newServer(p, quiet(yodel.ServerOptions{Connect: func(context.Context, *yodel.Peer) error {
			return errors.New("no list of members")
		}})), nil, &yodel.Call{})
	}},
	{"YDL1401", "a call to be repeated when too many are", yodel.ResourceExhausted, true, []string{"1 calls of 13 bytes wait"}, false, func(p *provocation) error {
		p.addr = closed(p)
		later := retry.Later(&retry.LaterOptions{Queue: 1, Logger: slog.New(slog.DiscardHandler)})
		c := newClient(p, &yodel.ClientOptions{Middleware: []yodel.Middleware{later}}, p.addr)
		must(p, c.Call(p.Context(), "Arith.Mul", &Args{1, 2}, nil))
		return c.Call(p.Context(), "Arith.Mul", &Args{1, 2}, nil)
	}},
	{"YDL1402", "a client that is closed with calls to be repeated", yodel.Canceled, true, []string{"the client was closed"}, false, func(p *provocation) error {
		var err error
		later := retry.Later(&retry.LaterOptions{
			Backoff: time.Hour, MaxBackoff: time.Hour, Logger: slog.New(slog.DiscardHandler),
			Dropped: func(_ *yodel.Call, why error) { err = why },
		})
		p.addr = closed(p)
		c := newClient(p, &yodel.ClientOptions{Middleware: []yodel.Middleware{later}}, p.addr)
		must(p, c.Call(p.Context(), "Arith.Mul", &Args{1, 2}, nil))
		c.Close()
		return err
	}},
	{"YDL1301", "a call behind one that failed", yodel.Unavailable, true, []string{"the breaker is open", "1 calls in a row failed"}, false, func(p *provocation) error {
		s := p.with(nil, func(*string) (*string, error) { return nil, yodel.Errorf(yodel.Unavailable, "not now") })
		p.addr = serve(p, s)
		c := newClient(p, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{breaker.After(1, time.Minute)}}, p.addr)
		if err := c.Do(p.Context(), try("x")); !errors.Is(err, yodel.Unavailable) {
			p.Fatal(err)
		}
		return c.Do(p.Context(), try("x"))
	}},
	{"YDL2001", "no such service", yodel.Unimplemented, true, []string{`no service "Arit"`, `did you mean "Arith.Mul"?`}, false, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Method: "Arit.Mul"})
	}},
	{"YDL2002", "no such method", yodel.Unimplemented, true, []string{`no method "mul"`, `did you mean "Arith.Mul"?`}, false, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Method: "Arith.mul"})
	}},
	{"YDL2003", "a codec of the client's alone", yodel.Unimplemented, true, []string{`the codec "toml"; it has json, raw`}, false, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Codec: onlyJSON{yodel.JSON}})
	}},
	{"YDL2004", "a compressor of the client's alone", yodel.Unimplemented, true, []string{`the compressor "middle-out"; it has none`}, false, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Compressor: onlyFlate{flate.Compressor}})
	}},
	{"YDL2005", "values for a method of one message", yodel.InvalidArgument, true, []string{"give one message, not yodel.Values"}, false, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Args: yodel.Values{1, 2}})
	}},
	{"YDL2006", "a call of a feed for one reply", yodel.InvalidArgument, true, []string{"the method is a feed of int to int", "unary"}, false, func(p *provocation) error {
		return p.call(p.with(nil, func(context.Context, *int, yodel.Send[int]) error { return nil }), nil, try(1))
	}},
	{"YDL2007", "a result that is ranged over twice", yodel.FailedPrecondition, true, []string{"ranged over twice"}, true, func(p *provocation) error {
		addr := serve(p, p.with(nil, func(context.Context, *int, yodel.Send[int]) error { return nil }))
		ticks := yodel.Feed[int, int]("Arith.Try").Call(p.Context(), newClient(p, nil, addr), new(int))
		if _, err := ticks.Next(); !errors.Is(err, io.EOF) {
			return err
		}
		_, err := ticks.Next()
		return err
	}},
	{"YDL2101", "other argument types", yodel.InvalidArgument, true, []string{"the request does not fit yodel_test.Args", "(codec json)"}, false, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Args: "two"})
	}},
	{"YDL2102", "other result types", yodel.Internal, false, []string{"does not fit *string", "(codec json)"}, true, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Reply: new(string)})
	}},
	{"YDL2103", "arguments that the codec does not take", yodel.InvalidArgument, true, []string{"a chan cannot be encoded", "(codec json)"}, true, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Args: make(chan int)})
	}},
	{"YDL2104", "results that the codec does not take", yodel.Internal, false, []string{"unsupported value: NaN", "(codec json)"}, false, func(p *provocation) error {
		var zero float64
		return p.call(p.with(nil, func(*string) (*float64, error) { nan := zero / zero; return &nan, nil }), nil, try("x"))
	}},
	{"YDL2201", "a large request", yodel.ResourceExhausted, true, []string{"the request has 10242 bytes, the server's limit is 1000"}, false, func(p *provocation) error {
		return p.call(p.with(&yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1000}}, echo), nil, try(large))
	}},
	{"YDL2202", "a large reply", yodel.ResourceExhausted, false, []string{"this client's limit is 100000"}, false, func(p *provocation) error {
		s := p.with(nil, func(*string) (*string, error) { return new(strings.Repeat("x", 200<<10)), nil })
		return p.call(s, &yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 100_000}}, try("x"))
	}},
	{"YDL2203", "much metadata", yodel.ResourceExhausted, true, []string{"the metadata has", "the limit is 16384"}, true, func(p *provocation) error {
		return p.call(newServer(p, nil), nil, &yodel.Call{Metadata: yodel.Metadata{"k": strings.Repeat("x", 17<<10)}})
	}},
	{"YDL2204", "a bomb", yodel.ResourceExhausted, true, []string{"more than 10000 bytes after decompression (flate)"}, false, func(p *provocation) error {
		s := p.with(&yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}, Limits: yodel.Limits{MaxDecompressed: 10_000}}, echo)
		return p.call(s, &yodel.ClientOptions{Compressor: flate.Compressor}, try(strings.Repeat("x", 50_000)))
	}},
	{"YDL2205", "a flipped bit", yodel.DataLoss, true, []string{"the request is broken", "checksum"}, false, func(p *provocation) error {
		proxy := newProxy(p, serve(p, p.with(nil, echo)))
		proxy.changing(flip("fragile"))
		return p.callAt(proxy.addr(), &yodel.ClientOptions{Checksum: true}, try("this is fragile"))
	}},
	{"YDL3003", "more connections than the server takes", yodel.ResourceExhausted, false, []string{"1 connections are open, the limit is 1"}, true, func(p *provocation) error {
		refused := make(chan error, 10)
		s := newServer(p, quiet(yodel.ServerOptions{MaxConns: 1, OnConn: func(e introspect.ConnEvent) {
			if e.Kind == introspect.Refused {
				refused <- e.Err
			}
		}}))
		p.addr = serve(p, s)
		must(p, newClient(p, nil, p.addr).Ready(p.Context()))
		c := newClient(p, nil, p.addr)
		if _, err := Mul.Call(p.Context(), c, &Args{}); err == nil {
			p.Error("a connection beyond the limit works")
		}
		return receive(p, refused, "the refusal")
	}},
	{"YDL3002", "a client that does not heed the window", yodel.ResourceExhausted, true, []string{"1 requests are open on this connection, the limit is 1"}, true, overrun},
	{"YDL3007", "more than the server lets a connection hold", yodel.ResourceExhausted, true, []string{"the server has no memory left"}, false, func(p *provocation) error {
		return p.call(p.with(&yodel.ServerOptions{Limits: yodel.Limits{MaxMemory: 10_000}}, echo), nil, try(large))
	}},
	{"YDL3008", "a request that does not come whole", yodel.DeadlineExceeded, true, []string{"the rest of the request did not come in time"}, true, stall},
	{"YDL2008", "a client that is nil", yodel.InvalidArgument, true, []string{"the client is nil"}, true, func(p *provocation) error {
		_, err := Mul.Call(p.Context(), (*yodel.Client)(nil), &Args{})
		return err
	}},
	{"YDL2008", "a context that is nil", yodel.InvalidArgument, true, []string{"the context is nil"}, true, func(p *provocation) error {
		_, err := Mul.Call(nil, newClient(p, nil), &Args{}) //nolint:staticcheck // that is the mistake
		return err
	}},
	{"YDL2009", "an ordered call by another protocol", yodel.FailedPrecondition, true, []string{"netrpc", "no order"}, false, func(p *provocation) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(p, err)
		p.Cleanup(func() { must(p, l.Close()) })
		p.addr = l.Addr().String()
		c := yodel.NewClient(discovery.Static("netrpc://"+p.addr), &yodel.ClientOptions{Wires: []yodel.Wire{netrpc.Wire(gob.Codec)}})
		p.Cleanup(c.Close)
		return c.Do(p.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{}, Ordered: true})
	}},
	{"YDL2010", "a peer that serves nothing", yodel.Unimplemented, true, []string{"serves nothing"}, false, func(p *provocation) error {
		s := newServer(p, nil)
		must(p, newClient(p, nil, serve(p, s)).Ready(p.Context()))
		until(p, "the server knows its peer", func() bool { return len(s.Peers()) > 0 })
		peer := s.Peers()[0]
		p.addr = peer.Addr.String()
		_, err := Mul.Call(p.Context(), peer, &Args{})
		return err
	}},
	{"YDL3005", "a call behind one that was refused", yodel.Unavailable, true, []string{"an earlier call with this key was refused"}, false, func(p *provocation) error {
		release := make(chan struct{})
		p.addr = serve(p, newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
			return func(context.Context, *yodel.Call) error {
				<-release
				return &yodel.Error{Code: yodel.ResourceExhausted, Message: "enough", NotProcessed: true}
			}
		}}}))
		behind := make(chan error, 10)
		c := newClient(p, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				err := next(ctx, call)
				behind <- err
				return err
			}
		}}}, p.addr)
		must(p, c.Ready(p.Context()))
		for n := range 2 {
			go func() { _, _ = Mul.Do(p.Context(), c, &yodel.Call{Key: "k", Ordered: true}, &Args{}) }()
			until(p, "it is in flight", func() bool { return c.Endpoints()[0].Inflight() == n+1 })
		}
		close(release)
		for err := range behind { // the first, the second, and the second again, where it is refused itself
			if e, ok := errors.AsType[*yodel.Error](err); ok && e.ID != "" {
				return err
			}
		}
		return nil
	}},
	{"YDL3004", "a server that shuts down", yodel.Unavailable, true, []string{"is shutting down"}, false, func(p *provocation) error {
		// it may be that the client hears of the shutdown before it has sent another call, and then
		// cannot connect again
		for range 50 {
			if e, ok := errors.AsType[*yodel.Error](p.drained()); ok && e.ID == "YDL3004" {
				return e
			}
		}
		return nil
	}},
	{"YDL3101", "a call without a token", yodel.Unauthenticated, true, []string{"the call has no token"}, false, func(p *provocation) error {
		return p.call(newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(nobody)}}), nil, &yodel.Call{})
	}},
	{"YDL3102", "a token that is not accepted", yodel.PermissionDenied, true, []string{"the token is not accepted"}, false, func(p *provocation) error {
		return p.call(newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(nobody)}}),
			&yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token("forged")}}, &yodel.Call{})
	}},
	{"YDL3103", "statistics for a stranger", yodel.PermissionDenied, false, []string{"does not share its diagnostics"}, false, asksForStats},
	{"YDL3406", "a key that comes when it may have been forgotten", yodel.Aborted, true, []string{"the idempotency key was first sent", "keys are remembered for 1ns"}, false, func(p *provocation) error {
		s := newServer(p, &yodel.ServerOptions{Keys: once.With(&once.Options{Keep: 1})})
		return p.call(s, nil, &yodel.Call{IdempotencyKey: "k"})
	}},
	{"YDL3501", "a fallback of another type", yodel.Internal, true, []string{"the fallback is *string, and the caller wants *yodel_test.Reply", "connection refused"}, false, func(p *provocation) error {
		return p.callAt(closed(p), &yodel.ClientOptions{Middleware: []yodel.Middleware{fallback.To(new("none"))}}, &yodel.Call{Reply: new(Reply)})
	}},
	{"YDL3511", "a rule that makes calls fail", yodel.Unavailable, true, []string{"an injected fault (fault rule 1)"}, false, func(p *provocation) error {
		var faults fault.Injector
		must(p, faults.Set(fault.Rule{Code: yodel.Unavailable}))
		return p.call(newServer(p, nil), &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{faults.Attempts}}, &yodel.Call{})
	}},
	{"YDL3521", "a call to all of none", yodel.Unavailable, true, []string{"there is no endpoint to call", "no instance is known"}, true, func(p *provocation) error {
		_, err := fanout.Inform(p.Context(), newClient(p, nil), Mul, &Args{}, nil)
		return err
	}},
	{"YDL3522", "a call to all of which one is down", yodel.Unavailable, false, []string{"1 of 2 endpoints failed", "connection refused"}, false, func(p *provocation) error {
		p.addr = closed(p)
		_, err := fanout.Broadcast(p.Context(), newClient(p, nil, serve(p, newServer(p, nil)), p.addr), Mul, &Args{}, nil)
		return err
	}},
	{"YDL3523", "the first of two that are down", yodel.Unavailable, true, []string{"2 of 2 endpoints failed", "connection refused"}, false, func(p *provocation) error {
		p.addr = closed(p)
		_, err := fanout.First(p.Context(), newClient(p, nil, p.addr, closed(p)), Mul, &Args{}, nil)
		return err
	}},
	{"YDL3601", "a rule that disables a method", yodel.FailedPrecondition, true, []string{"rule off of ann refuses it: broken data"}, false, func(p *provocation) error {
		return p.ruled(rules.Rule{ID: "off", Disable: &rules.Disable{}})
	}},
	{"YDL3602", "a mock that fails", yodel.Unavailable, true, []string{"gone (rule off)"}, false, func(p *provocation) error {
		return p.ruled(rules.Rule{ID: "off", Mock: &rules.Answer{Code: "unavailable", Message: "gone"}})
	}},
	{"YDL3701", "a request that breaks a rule", yodel.InvalidArgument, true, []string{"too large"}, false, func(p *provocation) error {
		return p.call(newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{validate.With(&validate.Options{Rules: refuseAll})}}), nil, &yodel.Call{})
	}},
	{"YDL3702", "a reply that breaks a rule", yodel.Internal, false, []string{"too large"}, false, func(p *provocation) error {
		return p.call(newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{validate.With(&validate.Options{Rules: refuseReplies, Replies: true})}}), nil, &yodel.Call{})
	}},
	{"YDL3201", "more calls than may run and wait", yodel.ResourceExhausted, true, []string{"no more may wait", "concurrency", "limit of 1"}, false, func(p *provocation) error {
		return p.crowd(&yodel.ServerOptions{Middleware: []yodel.Middleware{limit.With(&limit.Options{Limit: 1, Queue: -1})}}, nil)
	}},
	{"YDL3202", "a call whose turn does not come", yodel.ResourceExhausted, true, []string{"its turn did not come within", "limit of 1"}, false, func(p *provocation) error {
		return p.crowd(&yodel.ServerOptions{Middleware: []yodel.Middleware{limit.With(&limit.Options{Limit: 1, Interval: 10 * time.Millisecond})}}, nil)
	}},
	{"YDL3203", "a deadline that passes in the queue of a client", yodel.DeadlineExceeded, true, []string{"the deadline passed after", "limit of 1"}, false, func(p *provocation) error {
		return p.crowd(nil, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{limit.PerEndpoint(&limit.Options{Limit: 1, Interval: time.Hour})}})
	}},
	{"YDL3301", "the second call of one a minute", yodel.ResourceExhausted, true, []string{"the limit of 0.01667 calls a second is used up"}, false, func(p *provocation) error {
		return p.second(&yodel.ServerOptions{Middleware: []yodel.Middleware{rate.PerSecond(1.0 / 60)}}, &yodel.Call{}, &yodel.Call{})
	}},
	{"YDL3302", "a strict limit without its store", yodel.Unavailable, true, []string{"the store of the rate limit does not answer"}, false, func(p *provocation) error {
		limit := &rate.Limit{PerSecond: 1, Strict: true, Store: noStore{}, Logger: slog.New(slog.DiscardHandler)}
		return p.call(newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{rate.With(limit)}}), nil, &yodel.Call{})
	}},
	{"YDL3401", "a key with other arguments", yodel.InvalidArgument, false, []string{"was used before, for other arguments or by another caller"}, false, func(p *provocation) error {
		return p.second(&yodel.ServerOptions{Keys: once.With(nil)}, &yodel.Call{IdempotencyKey: "k"}, &yodel.Call{IdempotencyKey: "k", Args: &Args{3, 4}})
	}},
	{"YDL3402", "a key whose call panicked", yodel.Aborted, false, []string{"nobody knows how it ended", "may have been executed"}, false, func(p *provocation) error {
		s := p.with(quiet(yodel.ServerOptions{Keys: once.With(nil)}), func(*string) (*string, error) { panic("boom") })
		call := try("x")
		call.IdempotencyKey = "k"
		if err := p.call(s, nil, call); !errors.Is(err, yodel.Internal) {
			p.Errorf("the first call: %v", err)
		}
		return p.callAt(p.addr, nil, call)
	}},
	{"YDL3403", "a key whose reply was too large", yodel.AlreadyExists, false, []string{"was executed, and its reply was not kept"}, false, func(p *provocation) error {
		return p.second(&yodel.ServerOptions{Keys: once.With(&once.Options{MaxReply: 1})}, &yodel.Call{IdempotencyKey: "k"}, &yodel.Call{IdempotencyKey: "k"})
	}},
	{"YDL3404", "one key more than there is room for", yodel.ResourceExhausted, true, []string{"no room for another idempotency key"}, false, func(p *provocation) error {
		store := once.NewMemory(&once.MemoryOptions{MaxKeys: 1})
		return p.second(&yodel.ServerOptions{Keys: once.With(&once.Options{Store: store})}, &yodel.Call{IdempotencyKey: "k"}, &yodel.Call{IdempotencyKey: "l"})
	}},
	{"YDL3405", "a key without the store", yodel.Unavailable, true, []string{"the store of idempotency keys does not answer"}, false, func(p *provocation) error {
		guard := once.With(&once.Options{Store: noStore{}, Logger: slog.New(slog.DiscardHandler)})
		return p.call(newServer(p, &yodel.ServerOptions{Keys: guard}), nil, &yodel.Call{IdempotencyKey: "k"})
	}},
	{"YDL4001", "a type without methods", yodel.InvalidArgument, false, []string{"register yodel_test.Args as Args"}, true, func(*provocation) error {
		return yodel.NewServer(nil).Register(Args{})
	}},
	{"YDL4002", "a port that is taken", yodel.Unavailable, false, []string{"address already in use"}, false, func(p *provocation) error {
		p.addr = serve(p, newServer(p, nil))
		return yodel.NewServer(nil).ListenAndServe(p.Context(), p.addr)
	}},
	{"YDL4003", "an address without a port", yodel.InvalidArgument, true, []string{"want host:port, for example 127.0.0.1:8972"}, false, func(p *provocation) error {
		p.addr = "localhost"
		return yodel.NewServer(nil).ListenAndServe(p.Context(), p.addr)
	}},
	{"YDL4004", "a server that was shut down", yodel.FailedPrecondition, false, nil, true, func(p *provocation) error {
		s := yodel.NewServer(nil)
		must(p, s.Shutdown(p.Context()))
		return s.ListenAndServe(p.Context(), "127.0.0.1:0")
	}},
	{"YDL4006", "a shutdown that cuts off a call", yodel.Aborted, false, []string{"1 call: Ari.Block from"}, true, func(p *provocation) error {
		begun := make(chan struct{})
		s := newServer(p, nil)
		handle(p, s, "Ari.Block", func(ctx context.Context) { close(begun); <-ctx.Done() })
		c := connect(p, s, nil)
		ended := make(chan struct{})
		go func() {
			_ = c.Call(context.Background(), "Ari.Block", yodel.Values{}, nil)
			close(ended)
		}()
		receive(p, begun, "the handler runs")
		ctx, cancel := context.WithTimeoutCause(p.Context(), 20*time.Millisecond, errors.New("enough"))
		defer cancel()
		err := s.Shutdown(ctx)
		receive(p, ended, "the call is cut off")
		return err
	}},
	{"YDL4005", "a Connect hook that calls the peer", yodel.FailedPrecondition, true, []string{"the Connect hook calls"}, false, func(p *provocation) error {
		outcome := make(chan error, 1)
		s := newServer(p, &yodel.ServerOptions{Connect: func(ctx context.Context, peer *yodel.Peer) error {
			p.addr = peer.Addr.String()
			_, err := Mul.Call(ctx, peer, &Args{})
			outcome <- err
			return nil
		}})
		must(p, newClient(p, nil, serve(p, s)).Ready(p.Context()))
		return receive(p, outcome, "the hook has run")
	}},
	{"YDL5001", "a panic", yodel.Internal, false, []string{"the handler panicked; see number 1 in the server's log"}, false, func(p *provocation) error {
		return p.call(p.with(quiet(yodel.ServerOptions{}), func(*string) (*string, error) { panic("secret") }), nil, try("x"))
	}},
	{"YDL5003", "a handler that returns nil, nil", yodel.Internal, false, []string{"neither a reply nor an error"}, false, func(p *provocation) error {
		s := yodel.NewServer(nil)
		Mul.Handle(s, func(context.Context, *Args) (*Reply, error) { return nil, nil })
		return p.call(s, nil, &yodel.Call{Reply: &Reply{}})
	}},
	{"YDL5004", "a codec that panics", yodel.Internal, false, []string{"panicked; it has number 1 in the log"}, true, func(p *provocation) error {
		o := &yodel.ClientOptions{Codec: hookCodec{decode: func(any) { panic("secret") }}, Logger: slog.New(slog.DiscardHandler)}
		c := connect(p, newServer(p, &yodel.ServerOptions{Codecs: []yodel.Codec{hookCodec{}}}), o)
		must(p, c.Ready(p.Context()))
		ended := make(chan error, 1)
		c.Go(p.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{}, Reply: &Reply{}}, func(err error) { ended <- err })
		return receive(p, ended, "the call has ended")
	}},
	{"YDL5002", "runtime.Goexit", yodel.Internal, false, []string{"ended its goroutine"}, false, func(p *provocation) error {
		return p.call(p.with(nil, func(*string) (*string, error) { runtime.Goexit(); return nil, nil }), nil, try("x"))
	}},
}

// stall announces a large request, and then sends nothing but signs of life.
func stall(p *provocation) error {
	s := newServer(p, &yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 20 * time.Millisecond}})
	h := wire.Header{Type: wire.Request, Flags: wire.HasFields | wire.More, ID: wire.NextID(0)}
	opening := wire.Finish(append(wire.AppendFields(wire.Begin(nil, &h), &wire.Fields{Size: 1 << 20}), "[0"...), 0)
	x := newStranger(p, serve(p, s), &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Arith.Mul"), Codec: []byte("json")}), opening)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		ping := wire.Finish(append(wire.Begin(nil, &wire.Header{Type: wire.Ping}), "8 bytes."...), 0)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_, _ = x.nc.Write(ping) // the reply is what is waited for
			}
		}
	}()
	return x.reply()
}

// overrun opens a second request where the server allows one. Clients of yodel's wait instead.
func overrun(p *provocation) error {
	s := newBlocking(p, &yodel.ServerOptions{Limits: yodel.Limits{MaxOpen: 1}}, true)
	nc, err := net.Dial("tcp", serve(p, s.Server))
	must(p, err)
	defer nc.Close()
	defer close(s.release)
	b := wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})
	b = wire.AppendMethod(b, 0, 1, &wire.Binding{Name: []byte("Block"), Codec: []byte("json")})
	for slot := range uint32(2) {
		start := len(b)
		b = wire.Begin(b, &wire.Header{Type: wire.Request, ID: wire.NextID(slot)})
		b = wire.Finish(append(b, "{}"...), start)
	}
	_, err = nc.Write(b)
	must(p, err)
	_, err = io.ReadFull(nc, make([]byte, len(wire.Preface)))
	must(p, err)
	for {
		frame := make([]byte, wire.HeaderSize)
		_, err = io.ReadFull(nc, frame)
		must(p, err)
		h := wire.ParseHeader(frame)
		frame = append(frame, make([]byte, h.Len)...)
		_, err = io.ReadFull(nc, frame[wire.HeaderSize:])
		must(p, err)
		if h.Type != wire.Reply {
			continue
		}
		block, _, err := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
		must(p, err)
		var f wire.Fields
		must(p, wire.ParseFields(block, &f))
		return &yodel.Error{Code: yodel.Code(h.Arg), ID: string(f.ErrorID), Message: string(f.Message), NotProcessed: h.Flags&wire.NotProcessed != 0}
	}
}

// second makes two calls of a server with these options, and returns how the second one failed.
func (p *provocation) second(o *yodel.ServerOptions, first, second *yodel.Call) error {
	p.Helper()
	must(p, p.call(newServer(p, o), nil, first))
	return p.callAt(p.addr, nil, second)
}

// noStore is a store of rate limits and outcomes that cannot be reached.
type noStore struct{ once.Store }

func (noStore) Take(context.Context, string, int, float64, int) (int, time.Duration, error) {
	return 0, 0, io.ErrUnexpectedEOF
}

func (noStore) Claim(context.Context, string, string, []byte, time.Duration, time.Duration) ([]byte, bool, time.Duration, error) {
	return nil, false, 0, io.ErrUnexpectedEOF
}

func (noStore) Drop(context.Context, string, string) error { return io.ErrUnexpectedEOF }

// drained calls a server that has just begun to shut down, and returns the error of the first
// attempt that failed.
func (p *provocation) drained() error {
	s := newBlocking(p, nil, true)
	p.addr = serve(p, s.Server)
	var first error // of the attempts; the last one fails for another reason
	c := newClient(p, &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			err := next(ctx, call)
			if first == nil && call.Method != "Block" {
				first = err
			}
			return err
		}
	}}}, p.addr)
	p.Cleanup(func() { close(s.release) })
	go func() { _ = c.Call(context.Background(), "Block", &Empty{}, nil) }()
	receive(p, s.begun, "the handler runs")
	go func() { _ = s.Shutdown(context.Background()) }()
	until(p, "the client knows of the shutdown", func() bool {
		_, err := Mul.Call(p.Context(), c, &Args{})
		return err != nil
	})
	return first
}

// nobody is a check of tokens that accepts none.
func nobody(context.Context, string, string) (context.Context, error) {
	return nil, errors.New("no such token")
}

// asksForStats asks a server for its statistics, which it does not share.
func asksForStats(p *provocation) error {
	s := yodel.NewServer(nil)
	p.addr = serve(p, s)
	_, err := inspect.Stats.Call(p.Context(), newClient(p, nil, p.addr), &Empty{})
	return err
}

func TestEveryErrorIsProvoked(t *testing.T) {
	codes := catalogue.All()
	provoked := map[string]bool{}
	for _, test := range scenarios {
		provoked[test.id] = true
		// ServerOptions.Connect chooses that one's code
		if test.id != "YDL1107" && uint16(test.code) != codes[test.id].Code {
			t.Errorf("%s is to have the code %v, and the catalogue says %v", test.id, test.code, yodel.Code(codes[test.id].Code))
		}
		t.Run(test.id+" "+test.name, func(t *testing.T) {
			p := &provocation{T: t}
			err := test.provoke(p)
			e, ok := err.(*yodel.Error)
			if !ok || e.ID != test.id {
				t.Fatalf("got %v, want %s", err, test.id)
			}
			checkForm(t, e)
			if e.Code != test.code || !errors.Is(err, test.code) || yodel.CodeOf(err) != test.code {
				t.Errorf("got code %v, want %v: %v", e.Code, test.code, err)
			}
			if e.NotProcessed != test.unsent || yodel.NotProcessed(err) != test.unsent {
				t.Errorf("not processed: got %t, want %t: %v", e.NotProcessed, test.unsent, err)
			}
			says := test.says
			if !test.nowhere {
				says = append(slices.Clone(says), p.addr)
			}
			if ofCall := !strings.HasPrefix(test.id, "YDL4") && !slices.Contains([]string{"YDL3002", "YDL3003", "YDL3008", "YDL3103"}, test.id); ofCall {
				says = append(slices.Clone(says), "Ari") // Arith.Mul and the like
			}
			checkReport(t, e, !slices.Contains(unattempted, test.id))
			for _, part := range says {
				if !strings.Contains(e.Error(), part) {
					t.Errorf("it does not say %q: %v", part, e)
				}
			}
			if errors.Is(err, context.DeadlineExceeded) != (test.code == yodel.DeadlineExceeded) || errors.Is(err, context.Canceled) != (test.code == yodel.Canceled) {
				t.Errorf("it is not the context error that its code stands for: %v", err)
			}
		})
	}
	for id := range codes {
		if !provoked[id] {
			t.Errorf("no scenario provokes %s", id)
		}
	}
}

// checkForm checks what all errors of yodel's have in common.
func checkForm(t *testing.T, e *yodel.Error) {
	t.Helper()
	line := e.Error()
	if len(line) > 300 || strings.ContainsAny(line, "\n\r\t") || !strings.HasSuffix(line, " ["+e.ID+"]") || !strings.HasPrefix(line, e.Code.String()+": ") {
		t.Errorf("not one line of at most 300 bytes from the code to the ID: %d bytes, %q", len(line), line)
	}
	title, next, ok := e.Explain()
	if !ok || title == "" || next == "" {
		t.Errorf("Explain(%q) is %q, %q, %t", e.ID, title, next, ok)
	}
	if long := fmt.Sprintf("%+v", e); !strings.HasPrefix(long, line+"\n  next  "+next) {
		t.Errorf("the long form is %q", long)
	}
	if short := fmt.Sprintf("%v|%s|%q", e, e, e); short != fmt.Sprintf("%s|%s|%q", line, line, line) {
		t.Errorf("%%v, %%s and %%q are %s", short)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "err", e)
	for _, part := range []string{"err.code=" + e.Code.String(), "err.message=", "err.id=" + e.ID} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log line has no %s: %s", part, log.String())
		}
	}
	if text, err := json.Marshal(e); err != nil || !strings.Contains(string(text), `"code":"`+e.Code.String()+`"`) || !strings.Contains(string(text), `"id":"`+e.ID+`"`) {
		t.Errorf("in JSON it is %s, %v", text, err)
	}
}

// refuseAll and refuseReplies are rules of messages.
var (
	refuseAll     = []func(any) error{func(any) error { return errors.New("too large") }}
	refuseReplies = []func(any) error{func(message any) error {
		if _, ok := message.(*Reply); ok {
			return errors.New("too large")
		}
		return nil
	}}
)

// unattempted is the errors of calls that never came to an endpoint, of servers, and of single
// attempts.
var unattempted = []string{
	"YDL1001", "YDL1002", "YDL1009", "YDL1110", "YDL1201", "YDL3005", "YDL2007", "YDL2008", "YDL3002", "YDL3003", "YDL3004", "YDL3008", "YDL3521", "YDL3601", "YDL3602", "YDL4001", "YDL4002", "YDL4003", "YDL4004", "YDL4005", "YDL4006",
}
