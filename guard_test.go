// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/fanout"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/health"
	"github.com/yodel-rpc/yodel/middleware/mirror"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/registry"
)

// A harm is what user code does to the goroutine that runs it, while it is armed.
type harm struct {
	how   string
	armed atomic.Bool
	done  atomic.Int32
}

// do does the harm.
func (h *harm) do() {
	if !h.armed.Load() {
		return
	}
	h.done.Add(1)
	if h.how == "panics" {
		panic("harm")
	}
	runtime.Goexit()
}

// A padded message becomes smaller by compression.
type padded struct{ Text string }

var padding = padded{strings.Repeat("text ", 50)}

// A setup is the two sides of a place where user code runs.
type setup struct {
	*testing.T
	server *yodel.Server
	so     yodel.ServerOptions
	co     yodel.ClientOptions
	// resolver is the client's, if it is not a static one.
	resolver func(addr string) discovery.Resolver
	listener func(net.Listener) net.Listener
	// call is made while the harm is done. Default: all kinds of calls.
	call func(t *testing.T, c *yodel.Client) error
	// handler is what the methods call. Default: nothing.
	handler func()
	// session says that calls are made in another protocol too.
	session bool
	// beginning says that the harm is done when a connection begins, not with calls.
	beginning bool
	// shutdown says that it is done when the server or the client ends.
	shutdown bool
}

// A place is where the framework calls user code.
type place struct {
	name string
	put  func(s *setup, harm func())
}

var serverPlaces = []place{
	{"a handler", func(s *setup, harm func()) { s.handler = harm }},
	{"a middleware", func(s *setup, harm func()) { s.so.Middleware = []yodel.Middleware{harmfulMiddleware(harm)} }},
	{"Observer.Start", func(s *setup, harm func()) { s.so.Observers = []yodel.Observer{{Start: harmfulStart(harm)}} }},
	{"Observer.End", func(s *setup, harm func()) { s.so.Observers = []yodel.Observer{{End: harmfulEnd(harm)}} }},
	{"Accept", func(s *setup, harm func()) {
		s.beginning, s.so.Accept = true, func(net.Conn) error { harm(); return nil }
	}},
	{"Connect", func(s *setup, harm func()) {
		s.beginning, s.so.Connect = true, func(context.Context, *yodel.Peer) error { harm(); return nil }
	}},
	{"OnConn", func(s *setup, harm func()) { s.beginning, s.so.OnConn = true, func(introspect.ConnEvent) { harm() } }},
	{"OnConn at the end", func(s *setup, harm func()) { s.shutdown, s.so.OnConn = true, func(introspect.ConnEvent) { harm() } }},
	{"Codec.Append", func(s *setup, harm func()) {
		s.co.Codec, s.so.Codecs = hookCodec{}, []yodel.Codec{hookCodec{encode: func(any) { harm() }}}
	}},
	{"Codec.Decode", func(s *setup, harm func()) {
		s.co.Codec, s.so.Codecs = hookCodec{}, []yodel.Codec{hookCodec{decode: func(any) { harm() }}}
	}},
	{"Compressor.Append", func(s *setup, harm func()) {
		s.co.Compressor, s.co.CompressAbove = flate.Compressor, 1
		s.so.Compressors, s.so.CompressAbove = []compress.Compressor{harmfulCompressor{flate.Compressor, harm, func() {}}}, 1
	}},
	{"Compressor.Decompress", func(s *setup, harm func()) {
		s.co.Compressor, s.co.CompressAbove = flate.Compressor, 1
		s.so.Compressors, s.so.CompressAbove = []compress.Compressor{harmfulCompressor{flate.Compressor, func() {}, harm}}, 1
	}},
	{"Registrar.Announce", func(s *setup, harm func()) {
		s.beginning, s.so.Registrars = true, []discovery.Registrar{harmfulRegistrar{announce: harm}}
	}},
	{"Registrar.Withdraw", func(s *setup, harm func()) {
		s.shutdown, s.so.Registrars = true, []discovery.Registrar{harmfulRegistrar{withdraw: harm}}
	}},
	{"Conn.Read", func(s *setup, harm func()) { s.listener = harmfulListener(harm, nil) }},
	{"Conn.Write", func(s *setup, harm func()) { s.listener = harmfulListener(nil, harm) }},
	{"the log", func(s *setup, harm func()) {
		s.so.Logger = slog.New(harmfulHandler{slog.DiscardHandler, harm})
		s.so.Observers = []yodel.Observer{{End: func(context.Context, *yodel.Call, error) { panic("for the log") }}}
	}},
}

var clientPlaces = []place{
	{"a middleware", func(s *setup, harm func()) { s.co.Middleware = []yodel.Middleware{harmfulMiddleware(harm)} }},
	{"an endpoint middleware", func(s *setup, harm func()) {
		s.co.EndpointMiddleware = []yodel.EndpointMiddleware{hookBelow(harmfulMiddleware(harm))}
	}},
	{"Observer.Start", func(s *setup, harm func()) { s.co.Observers = []yodel.Observer{{Start: harmfulStart(harm)}} }},
	{"Observer.End", func(s *setup, harm func()) { s.co.Observers = []yodel.Observer{{End: harmfulEnd(harm)}} }},
	{"Codec.Append", func(s *setup, harm func()) {
		s.co.Codec, s.so.Codecs = hookCodec{encode: func(any) { harm() }}, []yodel.Codec{hookCodec{}}
	}},
	{"Codec.Decode", func(s *setup, harm func()) {
		s.co.Codec, s.so.Codecs = hookCodec{decode: func(any) { harm() }}, []yodel.Codec{hookCodec{}}
	}},
	{"Compressor.Append", func(s *setup, harm func()) {
		s.co.Compressor, s.co.CompressAbove = harmfulCompressor{flate.Compressor, harm, func() {}}, 1
		s.so.Compressors, s.so.CompressAbove = []compress.Compressor{flate.Compressor}, 1
	}},
	{"Compressor.Decompress", func(s *setup, harm func()) {
		s.co.Compressor, s.co.CompressAbove = harmfulCompressor{flate.Compressor, func() {}, harm}, 1
		s.so.Compressors, s.so.CompressAbove = []compress.Compressor{flate.Compressor}, 1
	}},
	{"Learner.Ended", func(s *setup, harm func()) { s.co.Balancer = harmfulBalancer(func() {}, func() {}, harm) }},
	{"Picker.Pick", func(s *setup, harm func()) { s.co.Balancer = harmfulBalancer(func() {}, harm, func() {}) }},
	{"the Balancer", func(s *setup, harm func()) {
		s.beginning, s.co.Balancer = true, harmfulBalancer(harm, func() {}, func() {})
		s.resolver = func(addr string) discovery.Resolver { return harmfulResolver{addr: addr} }
	}},
	{"Resolver.Watch", func(s *setup, harm func()) {
		s.beginning, s.resolver = true, func(addr string) discovery.Resolver { return harmfulResolver{addr: addr, watch: harm} }
		s.call = func(t *testing.T, c *yodel.Client) error { // others wait for the resolver
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return c.Call(ctx, "Unary", &padding, nil)
		}
	}},
	{"Refresh", func(s *setup, harm func()) {
		s.beginning, s.resolver = true, func(addr string) discovery.Resolver { return harmfulResolver{addr: addr, refresh: harm} }
		failing := &atomic.Int32{}
		s.co.Transport = transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
			if failing.Add(1) == 1 {
				return nil, errors.New("the first dial fails")
			}
			return yodel.TCP.Dial(ctx, addr)
		})
	}},
	{"Transport.Dial", func(s *setup, harm func()) {
		s.beginning = true
		s.co.Transport = transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
			harm()
			return yodel.TCP.Dial(ctx, addr)
		})
	}},
	{"OnConn", func(s *setup, harm func()) { s.beginning, s.co.OnConn = true, func(introspect.ConnEvent) { harm() } }},
	{"OnConn at the end", func(s *setup, harm func()) { s.shutdown, s.co.OnConn = true, func(introspect.ConnEvent) { harm() } }},
	{"Conn.Read", func(s *setup, harm func()) { s.co.Transport = harmfulTransport(harm, nil) }},
	{"Conn.Write", func(s *setup, harm func()) { s.co.Transport = harmfulTransport(nil, harm) }},
	{"the log", func(s *setup, harm func()) {
		s.co.Logger = slog.New(harmfulHandler{slog.DiscardHandler, harm})
		s.co.Observers = []yodel.Observer{{End: func(context.Context, *yodel.Call, error) { panic("for the log") }}}
	}},
	{"the callback of Go", func(s *setup, harm func()) {
		s.call = func(t *testing.T, c *yodel.Client) error {
			return asyncCall(t, c, &yodel.Call{Method: "Unary", Args: &padding}, harm)
		}
	}},
	{"the callback of Go, with middleware", func(s *setup, harm func()) {
		s.co.Middleware = []yodel.Middleware{harmfulMiddleware(func() {})}
		s.call = func(t *testing.T, c *yodel.Client) error {
			return asyncCall(t, c, &yodel.Call{Method: "Unary", Args: &padding}, harm)
		}
	}},
	{"the callback of an ordered Go", func(s *setup, harm func()) {
		s.call = func(t *testing.T, c *yodel.Client) error {
			return asyncCall(t, c, &yodel.Call{Method: "Unary", Args: &padding, Key: "k", Ordered: true}, harm)
		}
	}},
	{"the callback of Then", func(s *setup, harm func()) {
		s.call = func(t *testing.T, c *yodel.Client) error {
			ended := make(chan error, 1)
			yodel.Method[padded, padded]("Unary").Then(t.Context(), c, &padding, func(_ *padded, err error) {
				ended <- err
				harm()
			})
			return receive(t, ended, "the call has ended")
		}
	}},
	{"the function of an upload", func(s *setup, harm func()) {
		s.call = func(t *testing.T, c *yodel.Client) error {
			return onOwnGoroutine(t, func() error {
				_, err := yodel.Upload[padded, padded]("Upload").Call(t.Context(), c, func(yodel.Send[padded]) error { harm(); return nil })
				return err
			})
		}
	}},
	{"the loop over a feed", func(s *setup, harm func()) {
		s.call = func(t *testing.T, c *yodel.Client) error {
			return onOwnGoroutine(t, func() error {
				for _, err := range yodel.Feed[padded, padded]("Feed").Call(t.Context(), c, &padding) {
					if err != nil {
						return err
					}
					harm()
				}
				return nil
			})
		}
	}},
	{"Background", func(s *setup, harm func()) {
		s.call = func(t *testing.T, c *yodel.Client) error {
			c.Background(func(context.Context) { harm() })
			c.Endpoints()[0].Go(func(context.Context) { harm() })
			return nil
		}
	}},
}

var pluginPlaces = []place{
	{"below retry.Later", func(s *setup, harm func()) {
		s.co.Middleware = []yodel.Middleware{retry.Later(&retry.LaterOptions{Backoff: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}), failsFirst(harm)}
		s.call = callLater
	}},
	{"retry.LaterOptions.Dropped", func(s *setup, harm func()) {
		s.co.Middleware = []yodel.Middleware{retry.Later(&retry.LaterOptions{
			Backoff: time.Millisecond, Times: 1, Logger: slog.New(slog.DiscardHandler), Dropped: func(*yodel.Call, error) { harm() },
		}), failsFirst(func() { panic("the attempt in the background") })}
		s.call = callLater
	}},
	{"mirror.Options.Compare", func(s *setup, harm func()) {
		to := newClient(s, &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler)}, "127.0.0.1:1")
		s.co.Middleware = []yodel.Middleware{mirror.To(to, &mirror.Options{Percent: 100, Compare: func(string, *mirror.Outcome, *mirror.Outcome) { harm() }})}
	}},
	{"below fanout.Broadcast", func(s *setup, harm func()) {
		s.co.Middleware = []yodel.Middleware{harmfulMiddleware(harm)}
		s.call = func(t *testing.T, c *yodel.Client) error {
			return onOwnGoroutine(t, func() error {
				_, err := fanout.Broadcast(timely(t), c, yodel.Method[padded, padded]("Unary"), &padding, nil)
				return err
			})
		}
	}},
	{"health.Options.OnChange", func(s *setup, harm func()) {
		s.co.EndpointMiddleware = []yodel.EndpointMiddleware{
			health.Check(&health.Options{Every: 10 * time.Millisecond, Failures: 1, Successes: 1, OnChange: func(*yodel.Endpoint, error) { harm() }}),
			hookBelow(everyOtherFails()),
		}
	}},
	{"breaker.Options.OnChange", func(s *setup, harm func()) {
		broken := errors.New("broken")
		s.co.EndpointMiddleware = []yodel.EndpointMiddleware{
			breaker.With(&breaker.Options{
				Errors: 1, Open: time.Millisecond, MaxOpen: time.Millisecond, Failure: func(err error) bool { return err != nil },
				OnChange: func(*yodel.Endpoint, string, string, time.Duration) { harm() },
			}),
			hookBelow(hookBefore(func(_ context.Context, call *yodel.Call) error {
				if call.Idempotent {
					return broken
				}
				return nil
			})),
		}
		s.call = callLater
	}},
	{"registry.Merge", func(s *setup, harm func()) {
		s.beginning, s.resolver = true, func(addr string) discovery.Resolver {
			return registry.Merge(harmfulResolver{addr: addr, watch: harm}, harmfulResolver{addr: addr})
		}
	}},
	{"registry.Snapshot", func(s *setup, harm func()) {
		file := filepath.Join(s.TempDir(), "snapshot")
		s.beginning, s.resolver = true, func(addr string) discovery.Resolver {
			return registry.Snapshot(file, harmfulResolver{addr: addr, watch: harm})
		}
		s.call = func(t *testing.T, c *yodel.Client) error { // others wait for the resolver
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return c.Call(ctx, "Unary", &padding, nil)
		}
	}},
	{"the callback of Peer.Go", func(s *setup, harm func()) {
		s.co.Server = yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
		registerHarmful(s.T, s.co.Server, func() {})
		s.call = func(t *testing.T, c *yodel.Client) error { return callPeers(t, s.server, harm) }
	}},
	{"a codec of Peer.Go", func(s *setup, harm func()) {
		s.so.Codec = hookCodec{decode: func(any) { harm() }}
		s.co.Server = yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler), Codecs: []yodel.Codec{hookCodec{}}})
		registerHarmful(s.T, s.co.Server, func() {})
		s.call = func(t *testing.T, c *yodel.Client) error { return callPeers(t, s.server, func() {}) }
	}},
}

// speaks makes the server speak p too, and has calls made in it.
func (s *setup) speaks(p lines) {
	if p.codec == nil {
		p.codec = yodel.JSON
	}
	s.session, s.so.MaxOpen, s.so.Protocols = true, 8, []yodel.Protocol{p}
	s.call = callSession
}

var protocolPlaces = []place{
	{"Match", func(s *setup, harm func()) {
		s.speaks(lines{match: func(first []byte) (ok, more bool) { harm(); return first[0] == '!', false }})
	}},
	{"Name", func(s *setup, harm func()) { s.speaks(lines{name: func() string { harm(); return "lines" }}) }},
	{"Serve", func(s *setup, harm func()) {
		s.speaks(lines{serve: func(ctx context.Context, ses *yodel.Session) error {
			harm()
			return lines{codec: yodel.JSON}.Serve(ctx, ses)
		}})
	}},
	{"Session.Go", func(s *setup, harm func()) {
		s.speaks(lines{serve: func(ctx context.Context, ses *yodel.Session) error {
			ses.Go(harm)
			return lines{codec: yodel.JSON}.Serve(ctx, ses)
		}})
	}},
	{"a handler", func(s *setup, harm func()) { s.speaks(lines{}); s.handler = harm }},
	{"a middleware", func(s *setup, harm func()) {
		s.speaks(lines{})
		s.so.Middleware = []yodel.Middleware{harmfulMiddleware(harm)}
	}},
	{"Observer.Start", func(s *setup, harm func()) {
		s.speaks(lines{})
		s.so.Observers = []yodel.Observer{{Start: harmfulStart(harm)}}
	}},
	{"Observer.End", func(s *setup, harm func()) {
		s.speaks(lines{})
		s.so.Observers = []yodel.Observer{{End: harmfulEnd(harm)}}
	}},
	{"Connect", func(s *setup, harm func()) {
		s.speaks(lines{})
		s.so.Connect = func(context.Context, *yodel.Peer) error { harm(); return nil }
	}},
	{"Codec.Append", func(s *setup, harm func()) { s.speaks(lines{codec: hookCodec{encode: func(any) { harm() }}}) }},
	{"Codec.Decode", func(s *setup, harm func()) { s.speaks(lines{codec: hookCodec{decode: func(any) { harm() }}}) }},
	{"Conn.Read", func(s *setup, harm func()) { s.speaks(lines{}); s.listener = harmfulListener(harm, nil) }},
	{"Conn.Write", func(s *setup, harm func()) { s.speaks(lines{}); s.listener = harmfulListener(nil, harm) }},
}

// callSession makes a call in the protocol lines, over a connection of its own.
func callSession(t *testing.T, c *yodel.Client) error {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(timely(t), "tcp", c.Endpoints()[0].Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience / 2))
	if _, err = io.WriteString(conn, request("Unary", `{"Text":"x"}`)); err != nil {
		return err
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the call of a session hung")
	}
	if err == nil && strings.HasPrefix(reply, "error") {
		err = errors.New(reply)
	}
	return err
}

// failsFirst fails idempotent calls, and does harm to them in the background, where retry.Later
// makes them again.
func failsFirst(harm func()) yodel.Middleware {
	return hookBefore(func(_ context.Context, call *yodel.Call) error {
		if _, background := call.Args.(*yodel.Encoded); background {
			harm()
		} else if call.Idempotent {
			return yodel.Errorf(yodel.Unavailable, "the first attempt")
		}
		return nil
	})
}

// everyOtherFails fails every other one of the calls that are idempotent.
func everyOtherFails() yodel.Middleware {
	var calls atomic.Int32
	return hookBefore(func(_ context.Context, call *yodel.Call) error {
		if call.Idempotent && calls.Add(1)%2 == 0 {
			return errors.New("broken")
		}
		return nil
	})
}

// callLater makes a call that fails, and may be made again.
func callLater(t *testing.T, c *yodel.Client) error {
	t.Helper()
	return c.Do(timely(t), &yodel.Call{Method: "Unary", Args: &padding, Idempotent: true})
}

// callPeers calls the clients of a server.
func callPeers(t *testing.T, s *yodel.Server, harm func()) error {
	t.Helper()
	var errs []error
	for _, peer := range s.Peers() {
		told := make(chan error, 1)
		peer.Go(timely(t), &yodel.Call{Method: "Unary", Args: &padding, Reply: new(padded)}, func(err error) {
			told <- err
			harm()
		})
		errs = append(errs, receive(t, told, "the callback is called"))
	}
	return errors.Join(errs...)
}

// Whatever user code does to its goroutine, at any place where the framework calls it: the process
// lives, calls end, and afterwards everything works and nothing is missing.
func TestUserCodeCannotEndTheProcessNorLoseAPlace(t *testing.T) { //nolint:tparallel // its parts run beside each other, and not beside other tests
	for side, places := range map[string][]place{"server": serverPlaces, "client": clientPlaces, "plug-in": pluginPlaces, "protocol": protocolPlaces} {
		for _, p := range places {
			for _, how := range []string{"panics", "exits"} {
				t.Run(fmt.Sprintf("%s/%s/%s", side, p.name, how), func(t *testing.T) {
					t.Parallel()
					tryPlace(t, p, how)
				})
			}
		}
	}
}

func tryPlace(t *testing.T, p place, how string) {
	t.Helper()
	h := &harm{how: how}
	quiet := slog.New(slog.DiscardHandler)
	s := &setup{T: t, call: callAll, handler: func() {}}
	s.so.Logger, s.co.Logger = quiet, quiet
	s.so.Limits.MaxOpen, s.co.Limits.MaxOpen = 8, 8 // a place that is lost is missed soon
	s.so.AnnounceEvery = 50 * time.Millisecond
	p.put(s, h.do)
	h.armed.Store(s.beginning)

	server := yodel.NewServer(&s.so)
	s.server = server
	registerHarmful(t, server, s.handler)
	l := listen(t)
	addr := l.Addr().String()
	if s.listener != nil {
		l = s.listener(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	var r discovery.Resolver = discovery.Static(addr)
	if s.resolver != nil {
		r = s.resolver(addr)
	}
	c := yodel.NewClient(r, &s.co)
	defer c.Close()

	if !s.beginning {
		works(t, c)
		h.armed.Store(!s.shutdown)
	}
	if !s.shutdown {
		for range 10 { // more than there are places
			_ = s.call(t, c) // it may succeed, and has to end
		}
		until(t, "the harm is done", func() bool {
			_ = s.call(t, c)
			return h.done.Load() >= 1
		})
		h.armed.Store(false)
		works(t, c)
		if s.session {
			for range 10 { // more than there are places
				if err := callSession(t, c); err != nil {
					t.Errorf("a call of a session afterwards: %v", err)
				}
			}
		}
		until(t, "nothing is in flight", func() bool {
			for _, ep := range c.Endpoints() {
				if ep.Inflight() > 0 {
					return false
				}
			}
			return true
		})
	}
	h.armed.Store(s.shutdown)
	inTime(t, "Close", c.Close)
	inTime(t, "Serve", func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	if s.shutdown && h.done.Load() == 0 {
		t.Error("no harm was done")
	}
}

// works calls all methods until each works as it should.
func works(t *testing.T, c *yodel.Client) {
	t.Helper()
	good := 0
	var err error
	defer func() {
		if good < 10 {
			t.Logf("the last error: %v", err)
		}
	}()
	until(t, "calls work as they should", func() bool {
		if err = callAll(t, c); err != nil {
			good = -1
		}
		good++
		return good == 10 // more than there are places
	})
}

// inTime fails the test when f takes long.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { defer close(ended); f() }()
	select {
	case <-ended:
	case <-time.After(8 * time.Second):
		t.Errorf("%s does not return", what)
	}
}

func registerHarmful(t *testing.T, s *yodel.Server, f func()) {
	t.Helper()
	unary := func(context.Context, *padded) (*padded, error) { f(); return &padding, nil }
	handle(t, s, "Unary", unary)
	handle(t, s, "Inline", unary)
	s.MarkInline("Inline")
	yodel.Feed[padded, padded]("Feed").Handle(s, func(_ context.Context, _ *padded, send yodel.Send[padded]) error {
		f()
		return send(&padding)
	})
	yodel.Upload[padded, padded]("Upload").Handle(s, func(_ context.Context, recv yodel.Recv[padded]) (*padded, error) {
		f()
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
		}
		return &padding, nil
	})
}

// callAll makes calls of all kinds beside each other, each of which has to end.
func callAll(t *testing.T, c *yodel.Client) error {
	t.Helper()
	ordered := func(name, key string) *yodel.Call {
		return &yodel.Call{Method: name, Args: &padding, Reply: new(padded), Ordered: true, Key: name + key}
	}
	var calls []func() error
	for _, name := range []string{"Unary", "Inline"} {
		calls = append(calls,
			func() error { return c.Call(timely(t), name, &padding, new(padded)) },
			func() error { return c.Notify(timely(t), name, &padding) },
			func() error { return c.Do(timely(t), ordered(name, "waiting")) },
		)
	}
	calls = append(calls,
		func() error {
			_, err := yodel.Feed[padded, padded]("Feed").Call(timely(t), c, &padding).Next()
			return err
		},
		func() error {
			_, err := yodel.Upload[padded, padded]("Upload").Call(timely(t), c, func(send yodel.Send[padded]) error { return send(&padding) })
			return err
		},
	)
	var all sync.WaitGroup
	errs := make([]error, len(calls)+4)
	for i, call := range calls {
		all.Go(func() { errs[i] = onOwnGoroutine(t, call) })
	}
	for i, name := range []string{"Unary", "Inline"} {
		all.Go(func() {
			errs[len(calls)+i] = asyncCall(t, c, &yodel.Call{Method: name, Args: &padding, Reply: new(padded)}, func() {})
		})
		all.Go(func() { errs[len(calls)+2+i] = asyncCall(t, c, ordered(name, "asynchronous"), func() {}) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// timely returns a context that ends soon enough for the test to go on with its report.
func timely(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	t.Cleanup(cancel)
	return ctx
}

var errOwn = errors.New("it panicked, or ended its goroutine, on the caller's")

// onOwnGoroutine makes a call on a goroutine that may be ended, as the caller's own code may do.
func onOwnGoroutine(t *testing.T, call func() error) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		err := errOwn
		defer func() {
			_ = recover()
			ended <- err
		}()
		err = call()
	}()
	err := receive(t, ended, "the call has ended")
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call hung until its deadline: %v", err)
	}
	return err
}

// asyncCall makes a call with Go, and does harm in its callback.
func asyncCall(t *testing.T, c *yodel.Client, call *yodel.Call, harm func()) error {
	t.Helper()
	told := make(chan error, 2)
	ctx := timely(t)
	err := onOwnGoroutine(t, func() error {
		c.Go(ctx, call, func(err error) {
			told <- err
			harm()
		})
		return nil
	})
	if err != nil && !errors.Is(err, errOwn) {
		return err
	}
	err = receive(t, told, "the callback is called")
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call hung until its deadline: %v", err)
	}
	return err
}

func harmfulMiddleware(harm func()) yodel.Middleware {
	return hookBefore(func(context.Context, *yodel.Call) error { harm(); return nil })
}

func harmfulStart(harm func()) func(context.Context, *yodel.Call) context.Context {
	return func(ctx context.Context, _ *yodel.Call) context.Context { harm(); return ctx }
}

func harmfulEnd(harm func()) func(context.Context, *yodel.Call, error) {
	return func(context.Context, *yodel.Call, error) { harm() }
}

type harmfulCompressor struct {
	compress.Compressor
	append, decompress func()
}

func (c harmfulCompressor) Append(dst, src []byte) ([]byte, error) {
	c.append()
	return c.Compressor.Append(dst, src)
}

func (c harmfulCompressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	c.decompress()
	return c.Compressor.Decompress(dst, src, limit)
}

type harmfulRegistrar struct{ announce, withdraw func() }

func (r harmfulRegistrar) Announce(context.Context, string, discovery.Instance, time.Duration) error {
	if r.announce != nil {
		r.announce()
	}
	return nil
}

func (r harmfulRegistrar) Withdraw(context.Context, string, string) error {
	if r.withdraw != nil {
		r.withdraw()
	}
	return nil
}

type harmfulResolver struct {
	addr           string
	watch, refresh func()
}

func (r harmfulResolver) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	if r.watch != nil {
		r.watch()
	}
	for ctx.Err() == nil {
		update([]discovery.Instance{{Addr: r.addr}})
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return ctx.Err()
}

func (r harmfulResolver) Describe() yodel.Description {
	return yodel.Description{Refresh: r.doRefresh}
}

func (r harmfulResolver) doRefresh() {
	if r.refresh != nil {
		r.refresh()
	}
}

// harmfulBalancer is round robin with harm in it.
func harmfulBalancer(build, pick, learn func()) yodel.Balancer {
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		build()
		return harmfulPicker{yodel.RoundRobin(endpoints, nil), pick, learn}
	}
}

type harmfulPicker struct {
	yodel.Picker
	pick, learn func()
}

func (p harmfulPicker) Pick(call *yodel.Call) *yodel.Endpoint {
	p.pick()
	return p.Picker.Pick(call)
}

func (p harmfulPicker) Ended(*yodel.Endpoint, time.Duration, error) { p.learn() }

type harmfulHandler struct {
	slog.Handler
	harm func()
}

func (h harmfulHandler) Handle(context.Context, slog.Record) error { h.harm(); return nil }

func (h harmfulHandler) Enabled(context.Context, slog.Level) bool { h.harm(); return true }

func harmfulTransport(read, write func()) yodel.Transport {
	return transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		nc, err := yodel.TCP.Dial(ctx, addr)
		return harmfulConn{nc, read, write}, err
	})
}

func harmfulListener(read, write func()) func(net.Listener) net.Listener {
	return func(l net.Listener) net.Listener {
		return hookListener{l, func(nc net.Conn) net.Conn { return harmfulConn{nc, read, write} }}
	}
}

type harmfulConn struct {
	net.Conn
	read, write func()
}

func (c harmfulConn) Read(b []byte) (int, error) {
	if c.read != nil {
		c.read()
	}
	return c.Conn.Read(b)
}

func (c harmfulConn) Write(b []byte) (int, error) {
	if c.write != nil {
		c.write()
	}
	return c.Conn.Write(b)
}

// A hook or a callback may close what it belongs to.
func TestCloseInHooksReturns(t *testing.T) { //nolint:tparallel // its parts run beside each other, and not beside other tests
	for name, put := range map[string]func(o *yodel.ClientOptions, end func()){
		"connect failed": func(o *yodel.ClientOptions, end func()) {
			o.Transport = transportFunc(func(context.Context, string) (net.Conn, error) { return nil, errors.New("no") })
			o.OnConn = func(introspect.ConnEvent) { end() }
		},
		"connected": func(o *yodel.ClientOptions, end func()) { o.OnConn = func(introspect.ConnEvent) { end() } },
		"closed": func(o *yodel.ClientOptions, end func()) {
			o.OnConn = func(e introspect.ConnEvent) {
				if e.Kind == introspect.Closed {
					end()
				}
			}
		},
		"Dial": func(o *yodel.ClientOptions, end func()) {
			o.Transport = transportFunc(func(context.Context, string) (net.Conn, error) { end(); return nil, errors.New("no") })
		},
		"the Balancer": func(o *yodel.ClientOptions, end func()) {
			o.Balancer = func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
				go end()
				return yodel.RoundRobin(endpoints, last)
			}
		},
		"a callback": func(*yodel.ClientOptions, func()) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c atomic.Pointer[yodel.Client]
			made, closed := make(chan struct{}), make(chan struct{}, 100)
			end := func() {
				<-made
				c.Load().Close()
				closed <- struct{}{}
			}
			o := &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler)}
			put(o, end)
			c.Store(yodel.NewClient(discovery.Static(serve(t, newServer(t, nil))), o))
			close(made)
			c.Load().Go(t.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{}}, func(error) {
				if name == "a callback" {
					end()
				}
			})
			if name == "closed" {
				inTime(t, "Ready", func() { _ = c.Load().Ready(t.Context()) })
			} else {
				receive(t, closed, "Close has returned in the hook")
			}
			inTime(t, "Close", c.Load().Close)
			if name == "closed" {
				receive(t, closed, "Close has returned in the hook")
			}
		})
	}
}
