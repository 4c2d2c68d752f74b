// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/middleware/auth"
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

type onlyFlate struct{ yodel.Compressor }

func (onlyFlate) Name() string { return "middle-out" }

type noPicker struct{}

func (noPicker) Pick(*yodel.Call) *yodel.Endpoint { return nil }

var large = strings.Repeat("x", 10<<10)

var scenarios = []scenario{
	{"YDL1001", "an empty list", yodel.Unavailable, true, []string{"no instance is known"}, true, func(p *provocation) error {
		_, err := Mul.Call(p.Context(), newClient(p, nil), &Args{})
		return err
	}},
	{"YDL1002", "a balancer that chooses none", yodel.Unavailable, true, []string{"1 instances are known"}, true, func(p *provocation) error {
		none := func([]*yodel.Endpoint, yodel.Picker) yodel.Picker { return noPicker{} }
		_, err := Mul.Call(p.Context(), newClient(p, &yodel.ClientOptions{Balancer: none}, "127.0.0.1:1"), &Args{})
		return err
	}},
	{"YDL1003", "nothing listens at either address", yodel.Unavailable, true, []string{"2 attempts failed", "connection refused"}, false, func(p *provocation) error {
		p.addr = closed(p)
		_, err := Mul.Call(p.Context(), newClient(p, nil, p.addr, closed(p)), &Args{})
		return err
	}},
	{"YDL1004", "a slow method", yodel.DeadlineExceeded, false, []string{"no reply from", "before the deadline"}, false, func(p *provocation) error {
		s := p.with(nil, func(*string) (*string, error) { <-p.Context().Done(); return nil, nil }) // whatever its own context says
		return p.call(s, &yodel.ClientOptions{Timeout: 20 * time.Millisecond}, try("x"))
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
	{"YDL1007", "a closed client", yodel.Canceled, true, []string{"the client was closed"}, true, func(p *provocation) error {
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
	{"YDL1101", "an HTTP server", yodel.Unavailable, true, []string{"does not speak yodel", `it answered "HTTP/1.1 400 Bad Request"`}, false, func(p *provocation) error {
		return p.callAt(speak(p, false, "HTTP/1.1 400 Bad Request\r\n\r\n"), nil, &yodel.Call{})
	}},
	{"YDL1102", "a server that says nothing within the dial timeout", yodel.Unavailable, true, []string{"accepted the connection and said nothing"}, false, func(p *provocation) error {
		return p.callAt(speak(p, false, ""), &yodel.ClientOptions{DialTimeout: 20 * time.Millisecond}, &yodel.Call{})
	}},
	{"YDL1102", "a server that says nothing", yodel.Unavailable, true, []string{"accepted the connection and said nothing"}, false, func(p *provocation) error {
		return p.callAt(speak(p, false, ""), &yodel.ClientOptions{Limits: yodel.Limits{Handshake: 20 * time.Millisecond}}, &yodel.Call{})
	}},
	{"YDL1102", "a web server that waits for the end of a line", yodel.Unavailable, true, []string{"accepted the connection and said nothing"}, false, func(p *provocation) error {
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
	{"YDL1201", "a registry that is down", yodel.Unavailable, true, []string{"it failed: registry 10.0.0.1: connection refused"}, true, func(p *provocation) error {
		down := resolverFunc(func(context.Context, func([]yodel.Instance)) error {
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
	{"YDL2103", "arguments that the codec does not take", yodel.InvalidArgument, true, []string{"unsupported type: chan int", "(codec json)"}, true, func(p *provocation) error {
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
		s := p.with(&yodel.ServerOptions{Compressors: []yodel.Compressor{flate.Compressor}, Limits: yodel.Limits{MaxDecompressed: 10_000}}, echo)
		return p.call(s, &yodel.ClientOptions{Compressor: flate.Compressor}, try(strings.Repeat("x", 5<<20)))
	}},
	{"YDL2205", "a flipped bit", yodel.DataLoss, true, []string{"the request is broken", "checksum"}, false, func(p *provocation) error {
		proxy := newProxy(p, serve(p, p.with(nil, echo)))
		proxy.changing(flip("fragile"))
		return p.callAt(proxy.addr(), &yodel.ClientOptions{Checksum: true}, try("this is fragile"))
	}},
	{"YDL3003", "more connections than the server takes", yodel.ResourceExhausted, false, []string{"1 connections are open, the limit is 1"}, true, func(p *provocation) error {
		refused := make(chan error, 10)
		s := newServer(p, quiet(yodel.ServerOptions{MaxConns: 1, OnConn: func(e yodel.ConnEvent) {
			if e.Kind == "refused" {
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
	}},
	{"YDL3101", "a call without a token", yodel.Unauthenticated, true, []string{"the call has no token"}, false, func(p *provocation) error {
		return p.call(newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(nobody)}}), nil, &yodel.Call{})
	}},
	{"YDL3102", "a token that is not accepted", yodel.PermissionDenied, true, []string{"the token is not accepted"}, false, func(p *provocation) error {
		return p.call(newServer(p, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(nobody)}}),
			&yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token("forged")}}, &yodel.Call{})
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
	{"YDL5002", "runtime.Goexit", yodel.Internal, false, []string{"ended its goroutine"}, false, func(p *provocation) error {
		return p.call(p.with(nil, func(*string) (*string, error) { runtime.Goexit(); return nil, nil }), nil, try("x"))
	}},
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
		b = wire.Begin(b, wire.Header{Type: wire.Request, ID: wire.NextID(slot)})
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

// nobody is a check of tokens that accepts none.
func nobody(context.Context, string, string) (context.Context, error) {
	return nil, errors.New("no such token")
}

func TestEveryErrorIsProvoked(t *testing.T) {
	codes := catalogueCodes(t)
	provoked := map[string]bool{}
	for _, test := range scenarios {
		provoked[test.id] = true
		if test.id != "YDL1107" && test.code.String() != codes[test.id] { // ServerOptions.Connect chooses that one's code
			t.Errorf("%s is to have the code %v, and the catalogue says %q", test.id, test.code, codes[test.id])
		}
		t.Run(test.id+" "+test.name, func(t *testing.T) {
			yodel.ForgetSamples() // too many at a time would not have whole records
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
			if ofCall := !strings.HasPrefix(test.id, "YDL4") && test.id != "YDL3002" && test.id != "YDL3003"; ofCall {
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

// unattempted is the errors of calls that never came to an endpoint, of servers, and of single attempts.
var unattempted = []string{
	"YDL1001", "YDL1002", "YDL1009", "YDL1201", "YDL3005", "YDL2007", "YDL3002", "YDL3003", "YDL3004", "YDL4001", "YDL4002", "YDL4003", "YDL4004", "YDL4005",
}

// checkReport checks the record of the attempts, which errors of calls carry that came to an endpoint.
func checkReport(t *testing.T, e *yodel.Error, attempted bool) {
	t.Helper()
	var report *yodel.CallReport
	if found := errors.As(e, &report) && len(report.Attempts) > 0; found != attempted {
		t.Errorf("there is a report of attempts: got %t, want %t: %+v", found, attempted, e)
	}
	if report == nil || !attempted {
		return
	}
	if report.Code != e.Code.String() || report.ID != e.ID || report.Side != "client" || report.Took <= 0 || report.Resolver == nil && e.ID != "YDL2010" {
		t.Errorf("the report is incomplete: %+v", report)
	}
	if len(report.Attempts) == 0 || report.Attempts[0].Addr == "" || report.Attempts[0].ID == "" || report.Attempts[0].Message == "" || report.Attempts[0].Took <= 0 {
		t.Errorf("the report is incomplete: %+v", report)
	}
	if !strings.HasSuffix(fmt.Sprintf("%+v", e), report.Error()) {
		t.Errorf("the long form does not end with the report: %+v", e)
	}
	if text, err := json.Marshal(report); err != nil || !strings.Contains(string(text), `"code":"`+report.Attempts[0].Code+`"`) {
		t.Errorf("the report in JSON is %s, %v", text, err)
	}
}

// catalogueCodes returns the names of the codes in the catalogue by ID.
func catalogueCodes(t *testing.T) map[string]string {
	t.Helper()
	source, err := os.ReadFile("catalogue.go")
	must(t, err)
	names := make(map[string]string) // by what the source calls the codes
	for code := yodel.Canceled; code <= yodel.Unauthenticated; code++ {
		names[strings.ReplaceAll(code.String(), "_", "")] = code.String()
	}
	codes := make(map[string]string)
	for _, match := range regexp.MustCompile(`"(YDL\d{4})": +\{(\w+),`).FindAllStringSubmatch(string(source), -1) {
		codes[match[1]] = names[strings.ToLower(match[2])]
	}
	if n := strings.Count(string(source), "\t\"YDL"); n < 30 || len(codes) != n {
		t.Fatalf("%d entries of the catalogue were read, of %d; is it written another way?", len(codes), n)
	}
	return codes
}

// docs/errors.md has a section for each error, under the catalogue's title, and no other.
func TestEveryErrorIsDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/errors.md")
	must(t, err)
	codes := catalogueCodes(t)
	var documented []string
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		id, title, _ := strings.Cut(heading, ": ")
		documented = append(documented, id)
		if want, _, _ := (&yodel.Error{ID: id}).Explain(); title != want {
			t.Errorf("%s has the title %q, want %q", id, title, want)
		}
		for _, part := range []string{"Code `" + codes[id] + "`", "**Meaning.**", "**Causes.**", "**Fix.**"} {
			if !strings.Contains(body, part) {
				t.Errorf("%s has no %s", id, part)
			}
		}
	}
	if ids := slices.Sorted(maps.Keys(codes)); !slices.Equal(documented, ids) {
		t.Errorf("documented are %v, and there are %v", documented, ids)
	}
}
