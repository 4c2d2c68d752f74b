// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A notebook is an Observer's notes.
type notebook struct {
	mu    sync.Mutex
	lines []string
}

func (l *notebook) notef(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// take returns the notes and forgets them.
func (l *notebook) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// observer returns an Observer that notes what it sees, with name in front.
func (l *notebook) observer(name string) yodel.Observer {
	// region attempts
	return yodel.Observer{
		Attempt: func(_ context.Context, call *yodel.Call, a *introspect.Attempt) {
			l.notef("%s attempt %d of %s: %s%s, out %t, in %t, messages %d and %d", name, call.Attempt, call.Method, a.Code, a.ID, a.BytesOut > 0, a.BytesIn > 0, a.Sent, a.Received)
		},
		Message: func(_ context.Context, call *yodel.Call, sent bool, bytes int) {
			l.notef("%s message of %s: sent %t, %d bytes", name, call.Method, sent, bytes)
		},
		End: func(_ context.Context, call *yodel.Call, err error) {
			t := call.Traffic()
			l.notef("%s end of %s: %v, out %t, in %t, messages %d and %d", name, call.Method, yodel.CodeOf(err), t.BytesOut > 0, t.BytesIn > 0, t.Sent, t.Received)
		},
	}
	// endregion attempts
}

// Observers see every attempt, its outcome and its sizes, in every mode of a call.
func TestObserversSeeAttempts(t *testing.T) {
	var l notebook
	s := newServer(t, nil)
	must(t, s.Handle("Twice", func(context.Context, *int) (*int, error) {
		return nil, &yodel.Error{Code: yodel.Unavailable, Message: "not yet", NotProcessed: true}
	}))
	addr := serve(t, s)
	c := newClient(t, &yodel.ClientOptions{Observers: []yodel.Observer{l.observer("client")}}, addr)
	must(t, c.Ready(t.Context()))
	mul := func() *yodel.Call {
		return &yodel.Call{Method: "Arith.Mul", Args: &Args{A: 2, B: 3}, Reply: new(Reply)}
	}
	later := func(call *yodel.Call) error {
		ended := make(chan error, 1)
		c.Go(t.Context(), call, func(err error) { ended <- err })
		return <-ended
	}
	for name, test := range map[string]struct {
		do   func() error
		want []string
	}{
		"synchronous": {func() error { return c.Do(t.Context(), mul()) }, []string{
			"client attempt 1 of Arith.Mul: , out true, in true, messages 0 and 0",
			"client end of Arith.Mul: ok, out true, in true, messages 0 and 0",
		}},
		"asynchronous": {func() error { return later(mul()) }, []string{
			"client attempt 1 of Arith.Mul: , out true, in true, messages 0 and 0",
			"client end of Arith.Mul: ok, out true, in true, messages 0 and 0",
		}},
		"ordered": {func() error { call := mul(); call.Ordered = true; return c.Do(t.Context(), call) }, []string{
			"client attempt 1 of Arith.Mul: , out true, in true, messages 0 and 0",
			"client end of Arith.Mul: ok, out true, in true, messages 0 and 0",
		}},
		"one-way": {func() error { return c.Notify(t.Context(), "Arith.Mul", &Args{}) }, []string{
			"client attempt 1 of Arith.Mul: , out true, in false, messages 0 and 0",
			"client end of Arith.Mul: ok, out true, in false, messages 0 and 0",
		}},
		"an error": {func() error {
			if err := c.Do(t.Context(), &yodel.Call{Method: "Arith.Nothing", Args: &Args{}}); yodel.CodeOf(err) != yodel.Unimplemented {
				return err
			}
			return nil
		}, []string{
			"client attempt 1 of Arith.Nothing: unimplementedYDL2002, out true, in true, messages 0 and 0",
			"client end of Arith.Nothing: unimplemented, out true, in true, messages 0 and 0",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l.take()
			must(t, test.do())
			if got := l.take(); !slices.Equal(got, test.want) {
				t.Errorf("got\n%q\nwant\n%q", got, test.want)
			}
		})
	}
}

// Observers of both sides see the messages of a stream.
func TestObserversSeeMessages(t *testing.T) {
	var l, served notebook
	o := served.observer("server")
	ended := make(chan struct{})
	o.End = func(context.Context, *yodel.Call, error) { close(ended) }
	s := newServer(t, &yodel.ServerOptions{Observers: []yodel.Observer{o}})
	counting := yodel.Feed[int, int]("Count")
	counting.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	c := newClient(t, &yodel.ClientOptions{Observers: []yodel.Observer{l.observer("client")}}, serve(t, s))
	n := 2
	for _, err := range counting.Call(t.Context(), c, &n) {
		must(t, err)
	}
	<-ended
	if got, want := served.take(), []string{"server message of Count: sent true, 1 bytes", "server message of Count: sent true, 1 bytes"}; !slices.Equal(got, want) {
		t.Errorf("the server: got %q, want %q", got, want)
	}
	want := []string{
		"client message of Count: sent false, 1 bytes", "client message of Count: sent false, 1 bytes",
		"client attempt 1 of Count: , out true, in true, messages 0 and 2",
		"client end of Count: ok, out true, in true, messages 0 and 2",
	}
	if got := l.take(); !slices.Equal(got, want) {
		t.Errorf("the client: got %q, want %q", got, want)
	}
}

// Calls to peers pass through middleware and observers, in every mode.
func TestCallsToPeersPassThroughMiddlewareAndObservers(t *testing.T) {
	for _, wrapped := range []bool{true, false} {
		t.Run(fmt.Sprintf("middleware %t", wrapped), func(t *testing.T) {
			var l notebook
			o := &yodel.ServerOptions{PeerObservers: []yodel.Observer{l.observer("peer")}}
			var want []string
			if wrapped {
				o.PeerMiddleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
					return func(ctx context.Context, call *yodel.Call) error {
						call.Metadata = yodel.Metadata{"token": "secret"}
						l.notef("middleware of %s", call.Method)
						return next(ctx, call)
					}
				}}
				want = append(want, "middleware of Client.Double")
			}
			s := newServer(t, o)
			own := yodel.NewServer(nil)
			double := yodel.Method[int, int]("Client.Double")
			double.Handle(own, func(ctx context.Context, n *int) (*int, error) {
				if got := yodel.CallFrom(ctx).Metadata["token"]; (got == "secret") != wrapped {
					t.Errorf("got the token %q", got)
				}
				twice := 2 * *n
				return &twice, nil
			})
			c := newClient(t, &yodel.ClientOptions{Server: own}, serve(t, s))
			must(t, c.Ready(t.Context()))
			until(t, "the server knows its peer", func() bool { return len(s.Peers()) > 0 })
			peer := s.Peers()[0]
			want = append(want, "peer attempt 1 of Client.Double: , out true, in true, messages 0 and 0", "peer end of Client.Double: ok, out true, in true, messages 0 and 0")
			for name, call := range map[string]func() (int, error){
				"Call": func() (int, error) {
					n := 21
					twice, err := double.Call(t.Context(), peer, &n)
					if err != nil {
						return 0, err
					}
					return *twice, nil
				},
				"Do": func() (int, error) {
					var twice int
					return twice + 0, peer.Do(t.Context(), &yodel.Call{Method: "Client.Double", Args: new(int), Reply: &twice})
				},
				"Go": func() (int, error) {
					n, twice, ended := 21, 0, make(chan error, 1)
					peer.Go(t.Context(), &yodel.Call{Method: "Client.Double", Args: &n, Reply: &twice}, func(err error) { ended <- err })
					err := <-ended
					return twice, err
				},
			} {
				l.take()
				n, err := call()
				if err != nil || name != "Do" && n != 42 {
					t.Errorf("%s: got %d, %v", name, n, err)
				}
				if got := l.take(); !slices.Equal(got, want) {
					t.Errorf("%s: got\n%q\nwant\n%q", name, got, want)
				}
			}
			if stats := peer.Stats(); stats.BytesIn == 0 || stats.BytesOut == 0 || stats.FramesIn == 0 {
				t.Errorf("got the counters %+v", stats)
			}
		})
	}
}

// The trace context travels from the client through a server to the next server, and can be set and
// read on each.
func TestTraceContextTravels(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=x"
	last := newServer(t, nil)
	must(t, last.Handle("Last.Trace", func(ctx context.Context, _ *int) (*string, error) {
		return &yodel.CallFrom(ctx).Trace, nil
	}))
	between := newClient(t, nil, serve(t, last))
	middle := newServer(t, nil)
	must(t, middle.Handle("Middle.Trace", func(ctx context.Context, set *string) (*[2]string, error) {
		call := &yodel.Call{Method: "Last.Trace", Args: new(int), Reply: new(string), Trace: *set}
		for range 2 { // the second use of the call inherits it again
			if err := between.Do(ctx, call); err != nil {
				return nil, err
			}
		}
		if call.Trace != *set {
			t.Errorf("the call has kept the trace %q", call.Trace)
		}
		return &[2]string{yodel.CallFrom(ctx).Trace, *call.Reply.(*string)}, nil
	}))
	c := newClient(t, nil, serve(t, middle))
	for _, test := range []struct{ sent, set, want string }{{trace, "", trace}, {trace, "00-1-2-03", "00-1-2-03"}, {"", "", ""}} {
		var got [2]string
		must(t, c.Do(t.Context(), &yodel.Call{Method: "Middle.Trace", Args: &test.set, Reply: &got, Trace: test.sent}))
		if got != [2]string{test.sent, test.want} {
			t.Errorf("got %q, want %q and %q", got, test.sent, test.want)
		}
	}
	err := c.Do(t.Context(), &yodel.Call{Method: "Middle.Trace", Args: new(string), Trace: string(make([]byte, 1<<20))})
	if yodel.CodeOf(err) != yodel.ResourceExhausted {
		t.Errorf("a huge trace: got %v", err)
	}
}

// A client counts picks, attempts, failures and ejections of each endpoint.
func TestClientStats(t *testing.T) {
	s := newServer(t, nil)
	addr := serve(t, s)
	c := newClient(t, nil, addr, "127.0.0.1:1")
	for range 3 {
		must(t, c.Call(t.Context(), "Arith.Mul", &Args{}, new(Reply)))
	}
	if err := c.Call(t.Context(), "Arith.Nothing", &Args{}, nil); yodel.CodeOf(err) != yodel.Unimplemented {
		t.Error(err)
	}
	for _, ep := range c.Endpoints() {
		if ep.Addr() == addr {
			ep.SetReady("a test", false)
		} else if err := c.Do(t.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{}, Endpoint: ep}); yodel.CodeOf(err) != yodel.Unavailable {
			t.Error(err)
		}
	}
	stats := c.Stats()
	if len(stats.Endpoints) != 2 || stats.Since.IsZero() {
		t.Fatalf("got %+v", stats)
	}
	gone, good := stats.Endpoints[0], stats.Endpoints[1]
	if good.Addr != addr {
		gone, good = good, gone
	}
	if good.Attempts != 4 || good.Failed != 1 || good.Picks < 4 || good.Ready || good.Ejections["a test"] != 1 || len(good.Conns) != 1 || good.Conns[0].FramesOut == 0 {
		t.Errorf("got %+v", good)
	}
	if gone.Attempts != 0 || gone.Unconnected == 0 || gone.Picks != gone.Unconnected || len(gone.Conns) != 0 {
		t.Errorf("got %+v", gone)
	}
	if r := stats.Resolver; r.Instances != 2 || r.Err != "" {
		t.Errorf("the resolver: got %+v", r)
	}
	if in := s.Stats(); in.Conns != 1 || in.MaxOpen == 0 || len(in.Methods) == 0 {
		t.Errorf("the server: got %+v", in)
	}
}

// A call that is used again does not keep the trace that an observer has set.
func TestAReusedCallHasItsOwnTrace(t *testing.T) {
	s := newServer(t, nil)
	must(t, s.Handle("Trace", func(ctx context.Context, _ *int) (*string, error) { return &yodel.CallFrom(ctx).Trace, nil }))
	spans := 0
	start := func(ctx context.Context, call *yodel.Call) context.Context {
		spans++
		call.Trace += fmt.Sprint("/", spans)
		return ctx
	}
	c := newClient(t, &yodel.ClientOptions{Observers: []yodel.Observer{{Start: start}}}, serve(t, s))
	var got string
	call := &yodel.Call{Method: "Trace", Args: new(int), Reply: &got, Trace: "root"}
	for i := range 3 {
		if i == 2 {
			ended := make(chan error, 1)
			c.Go(t.Context(), call, func(err error) { ended <- err })
			must(t, <-ended)
		} else {
			must(t, c.Do(t.Context(), call))
		}
		if want := fmt.Sprint("root/", i+1); got != want || call.Trace != "root" {
			t.Errorf("got %q and %q, want %q", got, call.Trace, want)
		}
	}
}

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
		log.begins(t, "accepted", "refused") // the client may try once more before it is closed
	})
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

// A Protocol learns which services the server has, in both spellings of methods, and after a method
// was added.
func TestServicesOfASession(t *testing.T) {
	asked := make(chan map[string]bool)
	s := serveLines(t, lines{serve: func(_ context.Context, session *yodel.Session) error {
		got := make(map[string]bool)
		for _, service := range []string{"", "Arith", "Arith.Mul", "shop.Cart", "shop", "Later"} {
			got[service] = session.HasService(service)
		}
		asked <- got
		return nil
	}}, yodel.ServerOptions{})
	handle(t, s.Server, "Arith.Mul", echo)
	handle(t, s.Server, "shop.Cart/Add", echo)
	for _, later := range []bool{false, true} {
		if later {
			handle(t, s.Server, "Later.Echo", echo)
		}
		if _, err := s.dial(t).Write([]byte("!")); err != nil {
			t.Fatal(err)
		}
		for service, got := range <-asked {
			if want := service == "Arith" || service == "shop.Cart" || later && service == "Later"; got != want {
				t.Errorf("later %v: %q: got %v", later, service, got)
			}
		}
	}
}

// Compressing returns the compressor of the call, or that of the client.
func TestCompressorOfACall(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor, gzip.Compressor}})
	handle(t, s, "Echo", echo)
	var got compress.Compressor
	c := connect(t, s, &yodel.ClientOptions{Compressor: flate.Compressor, Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			got = call.Compressing()
			return next(ctx, call)
		}
	}}})
	for _, own := range []compress.Compressor{nil, gzip.Compressor} {
		must(t, c.Do(t.Context(), &yodel.Call{Method: "Echo", Args: new("x"), Compressor: own}))
		if want := own; want == nil && got != flate.Compressor || want != nil && got != want {
			t.Errorf("the compressor of the call is %v: got %v", own, got)
		}
	}
	if got := new(yodel.Call).Compressing(); got != nil {
		t.Errorf("without a client: got %v", got)
	}
}
