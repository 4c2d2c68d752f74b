// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// peering is a server and a client that serves the methods of another one, connected.
type peering struct {
	server *yodel.Server
	client *yodel.Client
	served *yodel.Server // by the client
	peer   *yodel.Peer   // the client, as the server sees it
}

func newPeering(t testing.TB, so *yodel.ServerOptions, co *yodel.ClientOptions, served *yodel.Server) *peering {
	t.Helper()
	p := &peering{server: newServer(t, so), served: served}
	o := yodel.ClientOptions{}
	if co != nil {
		o = *co
	}
	o.Server = served
	p.client = connect(t, p.server, &o)
	must(t, p.client.Ready(t.Context()))
	until(t, "the server knows its client", func() bool { return len(p.server.Peers()) > 0 })
	p.peer = p.server.Peers()[0]
	return p
}

// settled waits until nothing is open on either side.
func (p *peering) settled(t testing.TB) {
	t.Helper()
	until(t, "no call is open", func() bool {
		for _, ep := range p.client.Endpoints() {
			if ep.Inflight() != 0 {
				return false
			}
		}
		for _, of := range []yodel.Caller{p.client, p.peer} {
			stats, err := inspect.Stats.Call(t.Context(), of, &Empty{})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range stats.Methods {
				if m.Inflight != 0 && m.Name != string(inspect.Stats) {
					return false
				}
			}
		}
		return true
	})
}

// A slow OnConn hook of a client does not stop the goroutine that reads a new connection: calls of
// the server are answered meanwhile. The client's own calls wait for the hook.
func TestASlowHookDoesNotStopTheReaderOfItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, release := mem.New(), make(chan struct{})
		served, s := yodel.NewServer(nil), yodel.NewServer(&yodel.ServerOptions{Transport: network})
		Mul.Handle(served, Arith{}.Mul)
		Mul.Handle(s, Arith{}.Mul)
		ctx, stop := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- s.ListenAndServe(ctx, "server") }()
		synctest.Wait()
		var events []introspect.ConnEventKind
		c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{
			Transport: network, Server: served, DialTimeout: time.Hour,
			OnConn: func(e introspect.ConnEvent) {
				if e.Kind == introspect.Connected {
					<-release
				}
				events = append(events, e.Kind)
			},
		})
		own := Mul.Go(t.Context(), c, &Args{6, 7})
		synctest.Wait()
		limited, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if reply, err := Mul.Call(limited, s.Peers()[0], &Args{5, 7}); err != nil || reply.C != 35 {
			t.Errorf("a call of the server while the hook runs: %v, %v", reply, err)
		}
		select {
		case <-own.Done():
			t.Error("a call of the client did not wait for the hook")
		default:
		}
		close(release)
		if reply, err := own.Get(); err != nil || reply.C != 42 {
			t.Errorf("a call of the client: %v, %v", reply, err)
		}
		c.Close()
		synctest.Wait()
		if !slices.Equal(events, []introspect.ConnEventKind{introspect.Connected, introspect.Closed}) {
			t.Errorf("the events are %v", events)
		}
		stop()
		must(t, <-stopped)
	})
}

func TestAServerCallsMethodsOfItsClient(t *testing.T) {
	served := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{gob.Codec}, Compressors: []compress.Compressor{flate.Compressor}})
	handle(t, served, "Tell", func(ctx context.Context, in *string) (*string, error) {
		call := yodel.CallFrom(ctx)
		call.Trailer = yodel.Metadata{"codec": call.Codec.Name(), "k": call.Metadata["k"]}
		call.ReplyAttachment = append([]byte("re: "), call.Attachment...)
		return in, nil
	})
	handle(t, served, "Fail", func(context.Context, *Empty) (*Empty, error) {
		return nil, &yodel.Error{Code: yodel.NotFound, Message: "no such window", Details: []yodel.Detail{{Type: "window", Value: []byte("w")}}}
	})
	const Tell yodel.Method[string, string] = "Tell"
	for _, codec := range []yodel.Codec{nil, gob.Codec} {
		p := newPeering(t, &yodel.ServerOptions{Codec: codec}, nil, served)
		if reply, err := Mul.Call(t.Context(), p.peer, &Args{6, 7}); err != nil || reply.C != 42 {
			t.Errorf("Call: got %v, %v", reply, err)
		}
		text := strings.Repeat("a window to open ", 1000)
		call := &yodel.Call{Metadata: yodel.Metadata{"k": "v"}, Attachment: []byte("glass"), Compressor: flate.Compressor}
		for range 2 { // a call may be used again
			reply, err := Tell.Do(t.Context(), p.peer, call, &text)
			if err != nil || *reply != text || call.Trailer["k"] != "v" || string(call.ReplyAttachment) != "re: glass" {
				t.Fatalf("Do: got %v, trailer %v, attachment %q", err, call.Trailer, call.ReplyAttachment)
			}
		}
		if want := map[bool]string{true: "json", false: "gob"}[codec == nil]; call.Trailer["codec"] != want {
			t.Errorf("the codec was %q, want %q", call.Trailer["codec"], want)
		}
		var quotient, remainder int
		err := p.peer.Do(t.Context(), &yodel.Call{
			Method: "Arith.DivMod", Args: yodel.Values{17, 5}, Reply: yodel.Values{&quotient, &remainder},
		})
		if err != nil || quotient != 3 || remainder != 2 {
			t.Errorf("several values: got %d, %d, %v", quotient, remainder, err)
		}
		e := wantError(t, p.peer.Do(t.Context(), &yodel.Call{Method: "Fail", Args: &Empty{}}), yodel.NotFound, "")
		if e.Message != "no such window" || len(e.Details) != 1 || e.Details[0].Type != "window" || string(e.Details[0].Value) != "w" {
			t.Errorf("got %+v", e)
		}
		e = wantError(t, p.peer.Do(t.Context(), &yodel.Call{Method: "Arith.Nul", Args: &Empty{}}), yodel.Unimplemented, "YDL2002")
		if !strings.Contains(e.Error(), p.peer.Addr.String()) {
			t.Errorf("the error does not name the peer: %v", e)
		}
		var futures []*yodel.Future[Reply]
		for i := range 500 {
			futures = append(futures, Mul.Go(t.Context(), p.peer, &Args{i, 2}))
		}
		for i, f := range futures {
			if reply, err := f.Get(); err != nil || reply.C != 2*i {
				t.Fatalf("Go: call %d: got %v, %v", i, reply, err)
			}
		}
		outcomes := make(chan error, 2)
		Mul.Then(t.Context(), p.peer, &Args{2, 3}, func(reply *Reply, err error) {
			if err == nil && reply.C != 6 {
				err = fmt.Errorf("got %v", reply)
			}
			outcomes <- err
		})
		if err := receive(t, outcomes, "a callback"); err != nil {
			t.Errorf("Then: %v", err)
		}
		yodel.Method[Empty, Empty]("Fail").Then(t.Context(), p.peer, &Empty{}, func(_ *Empty, err error) { outcomes <- err })
		wantError(t, receive(t, outcomes, "a callback"), yodel.NotFound, "")
		p.settled(t)
	}
}

func TestCallsOfPeersEndInTimeAndWhenCanceled(t *testing.T) {
	served := newBlocking(t, nil, true)
	p := newPeering(t, nil, nil, served.Server)
	const Block yodel.Method[Empty, Reply] = "Block"
	_, err := Block.Do(t.Context(), p.peer, &yodel.Call{Deadline: time.Now().Add(20 * time.Millisecond)}, &Empty{})
	wantError(t, err, yodel.DeadlineExceeded, "YDL1004")
	if err := receive(t, served.ended, "the handler ends"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the handler's context ended with %v", err)
	}
	for _, async := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		outcome := make(chan error, 1)
		if async {
			Block.Then(ctx, p.peer, &Empty{}, func(_ *Reply, err error) { outcome <- err })
		} else {
			go func() {
				_, err := Block.Call(ctx, p.peer, &Empty{})
				outcome <- err
			}()
		}
		<-served.begun
		if !async {
			<-served.begun
		}
		cancel()
		wantError(t, receive(t, outcome, "the call ends"), yodel.Canceled, "YDL1006")
		if err := receive(t, served.ended, "the handler ends"); !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context ended with %v", err)
		}
	}
	p.settled(t)
}

func TestACodecThatThePeerLacks(t *testing.T) {
	p := newPeering(t, &yodel.ServerOptions{Codec: gob.Codec}, nil, newServer(t, nil))
	_, err := Mul.Call(t.Context(), p.peer, &Args{})
	if e := wantError(t, err, yodel.Unimplemented, "YDL2003"); !e.NotProcessed || !strings.Contains(e.Error(), p.peer.Addr.String()) || !strings.Contains(e.Error(), "gob") {
		t.Errorf("got %v", e)
	}
	if reply, err := Mul.Do(t.Context(), p.peer, &yodel.Call{Codec: yodel.JSON}, &Args{2, 3}); err != nil || reply.C != 6 {
		t.Errorf("with JSON: got %v, %v", reply, err)
	}
}

func TestAPeerIsOneObjectAndKnowsTheOtherSide(t *testing.T) {
	var connected atomic.Pointer[yodel.Peer]
	own := func(ctx context.Context, _ *Empty) (*string, error) {
		text := fmt.Sprintf("%p %s %s", yodel.CallFrom(ctx).Peer(), yodel.CallFrom(ctx).Peer().Metadata["name"], yodel.CallFrom(ctx).Peer().Agent)
		return &text, nil
	}
	const Own yodel.Method[Empty, string] = "Own"
	served := newServer(t, nil)
	Own.Handle(served, own)
	server := newServer(t, &yodel.ServerOptions{Connect: func(_ context.Context, p *yodel.Peer) error {
		connected.Store(p)
		return nil
	}})
	Own.Handle(server, own)
	c := connect(t, server, &yodel.ClientOptions{Server: served, ConnMetadata: yodel.Metadata{"name": "anna"}})
	got, err := Own.Call(t.Context(), c, &Empty{})
	must(t, err)
	peer := connected.Load()
	if want := fmt.Sprintf("%p anna %s", peer, peer.Agent); *got != want || peer.Agent == "" || !slices.Equal(server.Peers(), []*yodel.Peer{peer}) {
		t.Errorf("the handler's caller is %s, want %s; Peers returns %v", *got, want, server.Peers())
	}
	got, err = Own.Call(t.Context(), peer, &Empty{})
	must(t, err)
	back := served.Peers()[0]
	if want := fmt.Sprintf("%p  %s", back, peer.Agent); *got != want || len(served.Peers()) != 1 || back.Addr.String() != c.Endpoints()[0].Addr() {
		t.Errorf("on the client the caller is %s, want %s; Peers returns %v", *got, want, served.Peers())
	}
	c.Close()
	for _, p := range []*yodel.Peer{peer, back} {
		receive(t, p.Done(), "the peer has gone")
	}
	until(t, "nobody is connected", func() bool { return len(server.Peers())+len(served.Peers()) == 0 })
	_, err = Mul.Call(t.Context(), peer, &Args{})
	if e := wantError(t, err, yodel.Unavailable, "YDL1104"); !e.NotProcessed || !strings.Contains(e.Error(), peer.Addr.String()) {
		t.Errorf("a call to a peer that has gone: %v", e)
	}
	outcome := make(chan error, 1)
	Mul.Then(t.Context(), peer, &Args{}, func(_ *Reply, err error) { outcome <- err })
	wantError(t, receive(t, outcome, "a callback"), yodel.Unavailable, "YDL1104")
	wantError(t, new(yodel.Peer).Do(t.Context(), &yodel.Call{}), yodel.Unavailable, "YDL1104")
}

func TestWhatTheServersOptionsSayHoldsOnAClientToo(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, what)
	}
	served := newServer(t, &yodel.ServerOptions{
		Logger: quiet(yodel.ServerOptions{}).Logger,
		Limits: yodel.Limits{MaxMetadata: 100},
		Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				note("middleware " + call.Method)
				return next(ctx, call)
			}
		}},
		Observers: []yodel.Observer{{End: func(_ context.Context, call *yodel.Call, err error) {
			note(fmt.Sprint("observer ", call.Method, " ", yodel.CodeOf(err)))
		}}},
	})
	handle(t, served, "Panic", func(*Empty) (*Empty, error) { panic("secret") })
	p := newPeering(t, nil, nil, served)
	wantError(t, p.peer.Do(t.Context(), &yodel.Call{Method: "Panic", Args: &Empty{}}), yodel.Internal, "YDL5001")
	err := p.peer.Do(t.Context(), &yodel.Call{Method: "Arith.Mul", Args: &Args{}, Metadata: yodel.Metadata{"k": strings.Repeat("x", 100)}})
	wantError(t, err, yodel.ResourceExhausted, "YDL2203")
	info, err := inspect.Info.Call(t.Context(), p.peer, &Empty{})
	if err != nil || !slices.ContainsFunc(info.Methods, func(m introspect.Method) bool { return m.Name == "Panic" }) {
		t.Errorf("Info: got %+v, %v", info, err)
	}
	stats, err := inspect.Stats.Call(t.Context(), p.peer, &Empty{})
	if err != nil || stats.Panics != 1 || stats.Conns != 1 {
		t.Errorf("Stats: got %+v, %v", stats, err)
	}
	until(t, "the observers have been told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(seen, "middleware Panic") && slices.Contains(seen, "observer Panic internal") &&
			slices.Contains(seen, "observer Arith.Mul resource_exhausted")
	})
}

func TestTheServersLimitsHoldOnAClientToo(t *testing.T) {
	const most = 3
	served := newBlocking(t, &yodel.ServerOptions{Limits: yodel.Limits{MaxOpen: most}}, true)
	p := newPeering(t, nil, nil, served.Server)
	outcomes := make(chan error, 2*most)
	for range 2 * most {
		go func() { outcomes <- p.peer.Do(context.Background(), &yodel.Call{Method: "Block", Args: &Empty{}}) }()
	}
	for range most {
		receive(t, served.begun, "a handler runs")
	}
	_, err := Mul.Do(t.Context(), p.peer, &yodel.Call{NoWait: true}, &Args{})
	wantError(t, err, yodel.ResourceExhausted, "YDL1008")
	if len(served.begun) != 0 {
		t.Errorf("more than %d handlers run", most)
	}
	own := make([]*yodel.Future[Reply], 100)
	for i := range own { // the other direction has limits of its own
		own[i] = Mul.Go(t.Context(), p.client, &Args{i, 2})
	}
	for _, f := range own {
		if _, err := f.Get(); err != nil {
			t.Error(err)
		}
	}
	close(served.release)
	for range 2 * most {
		must(t, receive(t, outcomes, "a call ends"))
	}
	p.settled(t)
}

func TestAClientsServerMayRefuseAServer(t *testing.T) {
	served := newServer(t, &yodel.ServerOptions{Connect: func(context.Context, *yodel.Peer) error {
		return yodel.Errorf(yodel.Unauthenticated, "you have no certificate")
	}})
	c := connect(t, newServer(t, nil), &yodel.ClientOptions{Server: served})
	_, err := Mul.Call(t.Context(), c, &Args{})
	var e *yodel.Error
	if !errors.As(err, &e) || e.Code != yodel.Unauthenticated || !e.NotProcessed || !strings.Contains(err.Error(), "you have no certificate") {
		t.Errorf("got %v", err)
	}
	if n := len(served.Peers()); n != 0 {
		t.Errorf("%d refused peers are listed", n)
	}
}

func TestAServerListsItsClientsAndPushesToAll(t *testing.T) {
	const clients = 100
	const News yodel.Method[string, Empty] = "News"
	server := newServer(t, nil)
	addr := serve(t, server)
	var pushed atomic.Int64
	all := make([]*yodel.Client, clients)
	for i := range all {
		served := yodel.NewServer(nil)
		News.Handle(served, func(_ context.Context, in *string) (*Empty, error) {
			if *in == "everybody" || *in == fmt.Sprint(i) {
				pushed.Add(1)
			}
			return nil, nil
		})
		all[i] = newClient(t, &yodel.ClientOptions{Server: served, ConnMetadata: yodel.Metadata{"name": fmt.Sprint(i)}}, addr)
		must(t, all[i].Ready(t.Context()))
	}
	until(t, "all are listed", func() bool { return len(server.Peers()) == clients })
	everybody := "everybody"
	for _, peer := range server.Peers() {
		must(t, News.Notify(t.Context(), peer, &everybody))
	}
	until(t, "all have been told", func() bool { return pushed.Load() == clients })
	names := map[string]bool{}
	for _, peer := range server.Peers() { // and each one by itself
		name := peer.Metadata["name"]
		names[name] = true
		if _, err := News.Call(t.Context(), peer, &name); err != nil {
			t.Error(err)
		}
	}
	if n := pushed.Load(); n != 2*clients || len(names) != clients {
		t.Errorf("%d pushes arrived, want %d; %d names", n, 2*clients, len(names))
	}
	for _, c := range all[:clients/2] {
		c.Close()
	}
	until(t, "half of them have gone", func() bool { return len(server.Peers()) == clients/2 })
	for _, peer := range server.Peers() {
		if _, err := News.Call(t.Context(), peer, &everybody); err != nil {
			t.Error(err)
		}
	}
	if n := pushed.Load(); n != 2*clients+clients/2 {
		t.Errorf("%d pushes arrived, want %d", n, 2*clients+clients/2)
	}
}

// Deep is how often a call calls back.
const Deep yodel.Method[int, int] = "Deep"

// deepen calls the caller back, whose method does the same, until n is 0. It returns how deep that
// was.
func deepen(ctx context.Context, caller yodel.Caller, n int) (*int, error) {
	if n == 0 {
		return new(int), nil
	}
	n--
	depth, err := Deep.Call(ctx, caller, &n)
	if err != nil {
		return nil, err
	}
	*depth++
	return depth, nil
}

// newDeep returns a server and a client whose methods call each other.
func newDeep(t testing.TB, limits yodel.Limits, conns int, place func(*yodel.Server) func(...string), onlyPeers bool) *peering {
	t.Helper()
	served, server := newServer(t, nil), newServer(t, &yodel.ServerOptions{Limits: limits})
	c := connect(t, server, &yodel.ClientOptions{Server: served, Limits: limits, ConnsPerEndpoint: conns})
	// The client's half alternates between the peer and the client itself, which has to find the
	// same connection.
	Deep.Handle(served, func(ctx context.Context, n *int) (*int, error) {
		if *n%4 < 2 && !onlyPeers {
			return deepen(ctx, c, *n)
		}
		return deepen(ctx, yodel.CallFrom(ctx).Peer(), *n)
	})
	Deep.Handle(server, func(ctx context.Context, n *int) (*int, error) {
		ctx, cancel := context.WithCancel(ctx) // as handlers do
		defer cancel()
		return deepen(ctx, yodel.CallFrom(ctx).Peer(), *n)
	})
	if place != nil {
		place(served)(string(Deep))
		place(server)(string(Deep))
	}
	must(t, c.Ready(t.Context()))
	until(t, "the server knows its client", func() bool { return len(server.Peers()) > 0 })
	return &peering{server, c, served, server.Peers()[0]}
}

func TestHandlersCallTheirCallersBackTwentyDeep(t *testing.T) {
	for name, place := range map[string]func(*yodel.Server) func(...string){
		"inline":     func(s *yodel.Server) func(...string) { return s.MarkInline },
		"concurrent": func(s *yodel.Server) func(...string) { return s.MarkConcurrent },
		"learned":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			yodeltest.NoLeaks(t)
			p := newDeep(t, yodel.Limits{MaxOpen: 1}, 1, place, false)
			for _, from := range []yodel.Caller{p.client, p.peer} {
				for range 100 {
					n := 20
					if depth, err := Deep.Call(t.Context(), from, &n); err != nil || *depth != n {
						t.Fatalf("got %v, %v", depth, err)
					}
				}
			}
			p.settled(t)
		})
	}
}

// The requests of a handler that calls back are large, and the limit on bytes is small.
func TestHandlersCallBackBeyondTheLimitOnBytes(t *testing.T) {
	const Halve yodel.Method[[]byte, int] = "Halve"
	f := func(ctx context.Context, in *[]byte) (*int, error) {
		if len(*in) < 1000 {
			return new(int), nil
		}
		half := (*in)[:len(*in)/2]
		depth, err := Halve.Do(ctx, yodel.CallFrom(ctx).Peer(), &yodel.Call{Codec: yodel.JSON}, &half)
		if err == nil {
			*depth++
		}
		return depth, err
	}
	limits := yodel.Limits{MaxMemory: 4 << 20} // of which half is for open requests
	served := newServer(t, nil)
	p := newPeering(t, &yodel.ServerOptions{Limits: limits}, &yodel.ClientOptions{Limits: limits}, served)
	Halve.Handle(served, f)
	Halve.Handle(p.server, f)
	in := make([]byte, 1_900_000)
	if depth, err := Halve.Call(t.Context(), p.client, &in); err != nil || *depth != 11 {
		t.Errorf("got %v, %v", depth, err)
	}
	p.settled(t)
}

func TestRecursionWithoutEndEnds(t *testing.T) {
	p := newDeep(t, yodel.Limits{MaxOpen: 1}, 1, nil, false)
	n := 1 << 30
	_, err := Deep.Call(t.Context(), p.client, &n)
	wantError(t, err, yodel.ResourceExhausted, "YDL1008")
	p.settled(t)
	n = 20
	if depth, err := Deep.Call(t.Context(), p.client, &n); err != nil || *depth != n {
		t.Errorf("afterwards: got %v, %v", depth, err)
	}
}

// Both sides have more calls open than the limits allow, and each call calls back, which calls
// back.
func TestTwoSidesThatSaturateEachOtherComplete(t *testing.T) {
	for _, test := range []struct{ maxOpen, conns, callers, calls int }{
		{1, 1, 40, 25}, {16, 1, 100, 20}, {1, 3, 40, 25}, {0, 1, 20_000, 1},
	} {
		t.Run(fmt.Sprintf("MaxOpen %d on %d connections", test.maxOpen, test.conns), func(t *testing.T) {
			if raceEnabled && test.callers > 1000 {
				test.callers /= 10
			} else if raceEnabled {
				test.calls /= 4
			}
			p := newDeep(t, yodel.Limits{MaxOpen: test.maxOpen}, test.conns, nil, false)
			depth := 3
			if test.maxOpen == 0 {
				depth = 2
			}
			var ended atomic.Int64
			var wg sync.WaitGroup
			for _, from := range []yodel.Caller{p.client, p.peer} {
				for i := range test.callers {
					if i%2 == 0 {
						wg.Go(func() {
							for range test.calls {
								n := depth
								if got, err := Deep.Call(t.Context(), from, &n); err != nil || *got != depth {
									t.Errorf("got %v, %v", got, err)
									return
								}
								ended.Add(1)
							}
						})
						continue
					}
					wg.Add(1)
					left, n := test.calls, depth
					var next func(*int, error)
					next = func(got *int, err error) {
						if err != nil || *got != depth {
							t.Errorf("asynchronous: got %v, %v", got, err)
							wg.Done()
							return
						}
						ended.Add(1)
						if left--; left == 0 {
							wg.Done()
							return
						}
						Deep.Then(t.Context(), from, &n, next)
					}
					go Deep.Then(t.Context(), from, &n, next)
				}
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			began := time.Now()
			select {
			case <-done:
			case <-time.After(60 * time.Second):
				t.Fatalf("only %d calls have ended", ended.Load())
			}
			want := int64(2 * test.callers * test.calls)
			t.Logf("%d calls in %v", ended.Load(), time.Since(began))
			if n := ended.Load(); n != want {
				t.Errorf("%d calls have ended, want %d", n, want)
			}
			p.settled(t)
		})
	}
}

// A callback that begins another call while the window is full waits for what only the reading
// brings, and runs on the goroutine that reads. Were it noticed by the watch alone, each of these
// calls would take more than a millisecond.
func TestCallbacksThatCallAtAFullWindowDoNotCrawl(t *testing.T) {
	const chains, calls = 20, 50
	c := connect(t, newServer(t, nil), &yodel.ClientOptions{Limits: yodel.Limits{MaxOpen: 1}})
	must(t, c.Ready(t.Context()))
	run := func() time.Duration {
		var wg sync.WaitGroup
		began := time.Now()
		for range chains {
			left := calls
			var next func(*Reply, error)
			next = func(reply *Reply, err error) {
				if err != nil || reply.C != 6 {
					t.Errorf("got %v, %v", reply, err)
				}
				if left--; left == 0 {
					wg.Done()
					return
				}
				Mul.Then(t.Context(), c, &Args{2, 3}, next)
			}
			wg.Add(1)
			go Mul.Then(t.Context(), c, &Args{2, 3}, next)
		}
		wg.Wait()
		return time.Since(began) / (chains * calls)
	}
	fastest := run()
	const limit = 700 * time.Microsecond
	for attempt := 0; attempt < 10 && fastest > limit; attempt++ { // the machine may be busy
		fastest = min(fastest, run())
	}
	t.Logf("%v for each call", fastest)
	if fastest > limit {
		t.Errorf("a call took %v", fastest)
	}
}

func TestCallsThatDoNotWaitFailAtOnce(t *testing.T) {
	served := newBlocking(t, nil, true)
	limits := yodel.Limits{MaxOpen: 1}
	p := newPeering(t, &yodel.ServerOptions{Limits: limits}, &yodel.ClientOptions{Limits: limits}, served.Server)
	handle(t, p.server, "Block", func(ctx context.Context, _ *Empty) (*Reply, error) {
		served.begun <- struct{}{}
		<-served.release
		return &Reply{}, nil
	})
	for _, to := range []yodel.Caller{p.client, p.peer} {
		open := make(chan error, 1)
		go func() { open <- to.Do(context.Background(), &yodel.Call{Method: "Block", Args: &Empty{}}) }()
		receive(t, served.begun, "the handler runs")
		for range 2 {
			_, err := Mul.Do(t.Context(), to, &yodel.Call{NoWait: true}, &Args{})
			if e := wantError(t, err, yodel.ResourceExhausted, "YDL1008"); !e.NotProcessed {
				t.Errorf("got %v", e)
			}
		}
		waits := make(chan error, 1)
		go func() { // a call that says nothing of the kind
			_, err := Mul.Call(context.Background(), to, &Args{2, 3})
			waits <- err
		}()
		served.release <- struct{}{}
		must(t, receive(t, waits, "a call that waits ends"))
		must(t, receive(t, open, "the call ends"))
	}
	p.settled(t)
}

// More one-way calls are running than the limits allow, and each calls back. While they wait for
// replies, the reading goes on.
func TestOneWayCallsMayCallBack(t *testing.T) {
	const calls = 500
	var back atomic.Int64
	served := newServer(t, nil)
	handle(t, served, "Back", func(*Empty) (*Empty, error) { back.Add(1); return nil, nil })
	limits := yodel.Limits{MaxOpen: 1}
	p := newPeering(t, &yodel.ServerOptions{Limits: limits}, &yodel.ClientOptions{Limits: limits}, served)
	handle(t, p.server, "Tell", func(ctx context.Context, _ *Empty) (*Empty, error) {
		err := yodel.CallFrom(ctx).Peer().Do(ctx, &yodel.Call{Method: "Back", Args: &Empty{}})
		if err != nil {
			t.Error(err)
		}
		return nil, err
	})
	for range calls {
		must(t, p.client.Notify(t.Context(), "Tell", &Empty{}))
	}
	until(t, "all have called back", func() bool { return back.Load() == calls })
	p.settled(t)
}

func TestShutdownOfAClientsServerLeavesTheClientItsConnections(t *testing.T) {
	served := newBlocking(t, nil, true)
	p := newPeering(t, nil, nil, served.Server)
	own := newBlocking(t, nil, true) // a call of the client's own that is open all the time
	handle(t, p.server, "Own", func(ctx context.Context, _ *Empty) (*Empty, error) { <-own.release; return nil, nil })
	ownEnds, accepted := make(chan error, 1), make(chan error, 1)
	go func() { ownEnds <- p.client.Call(context.Background(), "Own", &Empty{}, nil) }()
	go func() { accepted <- p.peer.Do(context.Background(), &yodel.Call{Method: "Block", Args: &Empty{}}) }()
	receive(t, served.begun, "the handler runs")
	down := make(chan error, 1)
	go func() { down <- served.Shutdown(context.Background()) }()
	until(t, "nothing more is served", func() bool {
		_, err := Mul.Call(t.Context(), p.peer, &Args{})
		return err != nil
	})
	_, err := Mul.Call(t.Context(), p.peer, &Args{})
	if e := wantError(t, err, yodel.Unavailable, "YDL3004"); !e.NotProcessed {
		t.Errorf("got %v", e)
	}
	select {
	case err := <-down:
		t.Errorf("Shutdown returned %v though a call was running", err)
	default:
	}
	close(served.release)
	must(t, receive(t, accepted, "the accepted call ends"))
	must(t, receive(t, down, "Shutdown returns"))
	if _, err := Mul.Call(t.Context(), p.client, &Args{}); err != nil {
		t.Errorf("a call of the client's own: %v", err)
	}
	select {
	case <-p.peer.Done():
		t.Error("the client's connection has ended")
	default:
	}
	close(own.release)
	must(t, receive(t, ownEnds, "the client's own call ends"))
	// A connection that is made later serves nothing either.
	must(t, p.peer.Conn.Close())
	until(t, "the client has connected again", func() bool {
		peers := p.server.Peers()
		return len(peers) == 1 && peers[0] != p.peer
	})
	_, err = Mul.Call(t.Context(), p.server.Peers()[0], &Args{})
	wantError(t, err, yodel.Unavailable, "YDL3004")
	must(t, served.Shutdown(t.Context()))
}

func TestShutdownOfAClientsServerReturnsByItsContext(t *testing.T) {
	served := newBlocking(t, nil, true)
	p := newPeering(t, nil, nil, served.Server)
	outcome := make(chan error, 1)
	go func() { outcome <- p.peer.Do(context.Background(), &yodel.Call{Method: "Block", Args: &Empty{}}) }()
	receive(t, served.begun, "the handler runs")
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, enough)
	defer cancel()
	if err := served.Shutdown(ctx); !errors.Is(err, enough) {
		t.Errorf("Shutdown returned %v", err)
	}
	if err := receive(t, served.ended, "the handler ends"); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context ended with %v", err)
	}
	if err := receive(t, outcome, "the call ends"); yodel.CodeOf(err) != yodel.Canceled {
		t.Errorf("the call ended with %v", err)
	}
	if _, err := Mul.Call(t.Context(), p.client, &Args{}); err != nil {
		t.Errorf("a call of the client's own: %v", err)
	}
}

// While either side shuts down, the calls that it has accepted may still call back and be called
// back.
func TestShutdownFinishesCallsThatCallBack(t *testing.T) {
	for _, of := range []string{"the server", "the client's server"} {
		for _, async := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, asynchronous %t", of, async), func(t *testing.T) {
				p := newDeep(t, yodel.Limits{}, 1, nil, true)
				begun, release := make(chan struct{}), make(chan struct{})
				slow := func(ctx context.Context, n *int) (*int, error) {
					close(begun)
					<-release
					peer := yodel.CallFrom(ctx).Peer()
					if async {
						return Deep.Go(ctx, peer, n).Get()
					}
					return Deep.Call(ctx, peer, n)
				}
				const Slow yodel.Method[int, int] = "Slow"
				from, down := yodel.Caller(p.client), p.server
				if of != "the server" {
					from, down = p.peer, p.served
				}
				Slow.Handle(down, slow)
				n := 9
				outcome := make(chan error, 1)
				go func() {
					got, err := Slow.Call(context.Background(), from, &n)
					if err == nil && *got != n {
						err = fmt.Errorf("got %d", *got)
					}
					outcome <- err
				}()
				receive(t, begun, "the handler runs")
				over := make(chan error, 1)
				go func() { over <- down.Shutdown(context.Background()) }()
				until(t, "it is shutting down", func() bool {
					_, err := Mul.Call(t.Context(), from, &Args{})
					return err != nil
				})
				close(release)
				must(t, receive(t, outcome, "the accepted call ends"))
				must(t, receive(t, over, "Shutdown returns"))
			})
		}
	}
}

func TestCallsOfAServerThatEndsAreExplained(t *testing.T) {
	served := newBlocking(t, nil, true)
	p := newPeering(t, nil, nil, served.Server)
	outcome := make(chan error, 1)
	go func() { outcome <- p.peer.Do(context.Background(), &yodel.Call{Method: "Block", Args: &Empty{}}) }()
	receive(t, served.begun, "the handler runs")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_ = p.server.Shutdown(ctx) // it is meant to cut the call off
	e := wantError(t, receive(t, outcome, "the call ends"), yodel.Unavailable, "YDL1104")
	if e.NotProcessed || !strings.Contains(e.Error(), p.peer.Addr.String()) || !strings.Contains(e.Error(), "may have been executed") {
		t.Errorf("got %v", e)
	}
	receive(t, served.ended, "the handler ends")
}

func TestStreamsGoBothWays(t *testing.T) {
	const (
		Count yodel.Feed[int, int]   = "Count"
		Sum   yodel.Upload[int, int] = "Sum"
		Echo  yodel.Duplex[int, int] = "Echo"
	)
	served := newServer(t, nil)
	Count.Handle(served, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	// The client's handler has its caller echo what comes, on the same connection.
	Sum.Handle(served, func(ctx context.Context, recv yodel.Recv[int]) (*int, error) {
		sum := new(int)
		err := Echo.Call(ctx, yodel.CallFrom(ctx).Peer(), func(back yodel.Recv[int], send yodel.Send[int]) error {
			for n, err := range recv {
				if err != nil {
					return err
				}
				if err := send(n); err != nil {
					return err
				}
				if n, err = back.Next(); err != nil {
					return err
				}
				*sum += *n
			}
			return nil
		})
		return sum, err
	})
	limits := yodel.Limits{MaxOpen: 1}
	p := newPeering(t, &yodel.ServerOptions{Limits: limits}, &yodel.ClientOptions{Limits: limits}, served)
	Echo.Handle(p.server, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err := send(n); err != nil {
				return err
			}
		}
		return nil
	})
	n, seen := 100, 0
	for i, err := range Count.Call(t.Context(), p.peer, &n) {
		if err != nil || *i != seen {
			t.Fatalf("message %d: got %v, %v", seen, i, err)
		}
		seen++
	}
	if seen != n {
		t.Errorf("%d messages came, want %d", seen, n)
	}
	sum, err := Sum.Call(t.Context(), p.peer, func(send yodel.Send[int]) error {
		for i := range n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || *sum != n*(n-1)/2 {
		t.Errorf("got %v, %v", sum, err)
	}
	p.settled(t)
}
