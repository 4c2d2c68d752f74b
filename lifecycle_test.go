// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A hanging registry does not answer any more once it hangs. It heeds the context, or it does not.
type hanging struct {
	heeds bool
	hangs atomic.Bool
	end   chan struct{}
}

func (h *hanging) Announce(ctx context.Context, service string, in discovery.Instance, _ time.Duration) error {
	return h.Withdraw(ctx, service, in.Addr)
}

func (h *hanging) Withdraw(ctx context.Context, _, _ string) error {
	if !h.hangs.Load() {
		return nil
	}
	var done <-chan struct{}
	if h.heeds {
		done = ctx.Done()
	}
	select {
	case <-h.end:
		return nil
	case <-done:
		return context.Cause(ctx)
	}
}

func TestARegistryThatHangsLeavesDrainingItsTime(t *testing.T) {
	for _, heeds := range []bool{true, false} {
		t.Run(fmt.Sprintf("heeds its context %t", heeds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				h := &hanging{heeds: heeds, end: make(chan struct{})}
				l, err := network.Listen("server")
				must(t, err)
				s := yodel.NewServer(&yodel.ServerOptions{
					Registrars: []discovery.Registrar{h, h}, AnnounceEvery: time.Second, DrainTimeout: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
				})
				for _, service := range []string{"A", "B", "C"} {
					handle(t, s, service+".Slow", func() { time.Sleep(time.Second) })
				}
				ctx, cancel := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- s.Serve(ctx, l) }()
				c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
				defer c.Close()
				time.Sleep(500 * time.Millisecond)
				h.hangs.Store(true)
				time.Sleep(600 * time.Millisecond) // an announcement is under way
				var calls sync.WaitGroup
				for range 12 {
					calls.Go(func() {
						if err := c.Call(context.Background(), "B.Slow", yodel.Values{}, nil); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				began := time.Now()
				cancel()
				if err := <-served; err != nil {
					t.Errorf("Serve returned %v", err)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("the shutdown took %v", took)
				}
				calls.Wait()
				close(h.end)
			})
		})
	}
}

func TestShutdownWithAnEndedContextReturnsNilWhenNothingIsLeft(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	s := newServer(t, nil)
	must(t, s.Shutdown(t.Context()))
	for range 50 {
		must(t, s.Shutdown(over))
	}
	for range 50 {
		s := newServer(t, nil)
		served := make(chan error, 1)
		l := listen(t)
		go func() { served <- s.Serve(t.Context(), l) }()
		until(t, "the server listens", func() bool { return s.Addr() != nil })
		must(t, s.Shutdown(over))
		if err := <-served; !errors.Is(err, yodel.ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
	}
}

func TestShutdownNamesTheCallsThatItCutsOff(t *testing.T) {
	for _, n := range []int{1, 3} {
		s := newBlocking(t, nil, true)
		c := connect(t, s.Server, nil)
		var calls sync.WaitGroup
		for range n {
			calls.Go(func() { _ = c.Call(context.Background(), "Block", &Empty{}, nil) })
		}
		for range n {
			receive(t, s.begun, "the handler runs")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := s.Shutdown(ctx)
		wantError(t, err, yodel.Aborted, "YDL4006")
		want := `cut off 1 call: Block from 127\.0\.0\.1:\d+ \[YDL4006\]$`
		if n > 1 {
			want = `cut off 3 calls: Block from 127\.0\.0\.1:\d+ \(3\) \[YDL4006\]$`
		}
		if !regexp.MustCompile(want).MatchString(err.Error()) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d calls: Shutdown returned %q, want a match of %s", n, err, want)
		}
		calls.Wait()
	}
}

func TestShutdownNamesOneWayCallsWhoseConnectionsHaveEnded(t *testing.T) {
	s := newBlocking(t, nil, true)
	c := yodel.Dial(serve(t, s.Server))
	must(t, c.Do(t.Context(), &yodel.Call{Method: "Block", Args: &Empty{}, OneWay: true}))
	receive(t, s.begun, "the handler runs")
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "cut off 1 call: Block from 127.0.0.1:") {
		t.Errorf("Shutdown returned %v", err)
	}
	receive(t, s.ended, "the handler ends")
}

func TestAServerLogsItsLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		network := mem.New()
		s, stop := announced(t, network, &book{}, yodel.ServerOptions{Logger: log.everything(), DrainTimeout: 3 * time.Second})
		for _, name := range []string{"A.Slow", "A.Slower"} {
			handle(t, s, name, func() { time.Sleep(time.Duration(len(name)-5) * 2 * time.Second) })
		}
		synctest.Wait()
		c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
		defer c.Close()
		var calls sync.WaitGroup
		for _, name := range []string{"A.Slow", "A.Slow", "A.Slower"} {
			calls.Go(func() { _ = c.Call(context.Background(), name, yodel.Values{}, nil) })
		}
		synctest.Wait()
		_ = s.Shutdown(t.Context())
		calls.Wait()
		stop()
		var got []string
		for _, line := range log.with("level=INFO") {
			_, line, _ = strings.Cut(line, `msg="yodel: `)
			got = append(got, strings.Replace(line, `"`, "", 1))
		}
		slices.Sort(got[len(got)-4 : len(got)-2]) // withdrawals are parallel
		want := []string{
			"listening addr=server transport=mem",
			"announced rpcService=A registry=yodel_test addr=server",
			"announced rpcService=Plain registry=yodel_test addr=server",
			"withdrawn rpcService=A registry=yodel_test addr=server",
			"withdrawn rpcService=Plain registry=yodel_test addr=server",
			`draining calls=3 open="A.Slow from server/1 (2), A.Slower from server/1"`,
			"stopped took=6s",
		}
		if !slices.Equal(got, want) {
			t.Errorf("the log says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestAServerKnowsItsAddress(t *testing.T) {
	s := newServer(t, nil)
	if addr := s.Addr(); addr != nil {
		t.Errorf("before it listens its address is %v", addr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.ListenAndServe(ctx, "127.0.0.1:0") }()
	until(t, "the server listens", func() bool { return s.Addr() != nil })
	c := newClient(t, nil, s.Addr().String())
	if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
		t.Error(err)
	}
	cancel()
	must(t, receive(t, served, "the server ends"))
}

// Each connection that says something else than yodel is worth a line, but not thousands of them.
func TestLinesAboutBadPeersAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		network := mem.New()
		refuse := errors.New("refused by the test")
		var refusing bool
		_, stop := announced(t, network, &book{}, yodel.ServerOptions{Logger: log.everything(), Accept: func(net.Conn) error {
			if refusing {
				return refuse
			}
			return nil
		}})
		synctest.Wait()
		dial := func(n int) {
			for range n {
				nc, err := network.Dial(t.Context(), "server")
				must(t, err)
				_, _ = nc.Write([]byte("GET / HTTP/1.1\r\n"))
				synctest.Wait()
				_ = nc.Close()
			}
			synctest.Wait()
		}
		const text = "a peer does not speak yodel"
		dial(500)
		if n := len(log.with(text)); n != 10 {
			t.Errorf("500 bad peers made %d lines, want 10", n)
		}
		refusing = true
		dial(20) // lines of another kind have their own limit
		if n := len(log.with("connection refused")); n != 10 {
			t.Errorf("20 refused peers made %d lines, want 10", n)
		}
		refusing = false
		time.Sleep(11 * time.Second)
		if left := log.with("left out"); len(left) != 2 || len(log.with(text+": more such lines were left out\" lines=490")) != 1 {
			t.Errorf("the log says %q of what was left out", left)
		}
		dial(12)
		if n := len(log.with(text)); n != 21 {
			t.Errorf("there are %d lines, want 10 for each period and one for those that were left out", n)
		}
		stop() // says at once what was left out
		if n := len(log.with("lines=2")); n != 1 {
			t.Errorf("the end of the server says %d times that 2 lines were left out", n)
		}
	})
}

// A blocking server has a method that runs until the test lets it go.
type blocking struct {
	*yodel.Server
	begun   chan struct{}
	release chan struct{}
	ended   chan error // the context's error when the method ended
}

func newBlocking(t testing.TB, o *yodel.ServerOptions, heedsContext bool) *blocking {
	t.Helper()
	b := &blocking{newServer(t, o), make(chan struct{}, 100), make(chan struct{}), make(chan error, 100)}
	handle(t, b.Server, "Block", func(ctx context.Context, _ *Empty) (*Reply, error) {
		b.begun <- struct{}{}
		var done <-chan struct{}
		if heedsContext {
			done = ctx.Done()
		}
		select {
		case <-b.release:
		case <-done:
		}
		b.ended <- ctx.Err()
		return &Reply{1}, ctx.Err()
	})
	return b
}

func TestShutdownFinishesAcceptedCallsAndSendsLaterOnesElsewhere(t *testing.T) {
	old, other := newBlocking(t, nil, true), newServer(t, nil)
	oldAddr, otherAddr := serve(t, old.Server), serve(t, other)
	c := newClient(t, nil, oldAddr, otherAddr)
	alone := newClient(t, nil, oldAddr)
	accepted := make(chan error, 2)
	for _, c := range []*yodel.Client{alone, c} {
		var ep *yodel.Endpoint
		until(t, "the endpoints are known", func() bool { return len(c.Endpoints()) > 0 })
		for _, ep = range c.Endpoints() {
			if ep.Addr() == oldAddr {
				break
			}
		}
		go func() {
			var reply Reply
			err := c.Do(context.Background(), &yodel.Call{Method: "Block", Args: &Empty{}, Reply: &reply, Endpoint: ep})
			if err == nil && reply.C != 1 {
				err = errors.New("an empty reply")
			}
			accepted <- err
		}()
		receive(t, old.begun, "the handler runs")
	}
	down := make(chan error)
	go func() { down <- old.Shutdown(context.Background()) }()
	until(t, "the server is shutting down", func() bool {
		_, err := Mul.Call(t.Context(), alone, &Args{})
		return err != nil
	})
	_, err := Mul.Call(t.Context(), alone, &Args{})
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unavailable || !e.NotProcessed {
		t.Errorf("a later call: got %+v, want unavailable, not executed", err)
	}
	for range 20 {
		if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
			t.Errorf("a later call with another server there: %v", err)
		}
	}
	select {
	case err := <-down:
		t.Errorf("Shutdown returned %v though a call was running", err)
	default:
	}
	close(old.release)
	for range 2 {
		if err := receive(t, accepted, "the accepted call ends"); err != nil {
			t.Errorf("an accepted call: %v", err)
		}
		if err := <-old.ended; err != nil {
			t.Errorf("an accepted call's context ended with %v", err)
		}
	}
	if err := receive(t, down, "Shutdown returns"); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownReturnsByItsContext(t *testing.T) {
	for _, heeds := range []bool{true, false} {
		s := newBlocking(t, nil, heeds)
		c := connect(t, s.Server, nil)
		outcome := make(chan error, 1)
		go func() { outcome <- c.Call(context.Background(), "Block", &Empty{}, nil) }()
		receive(t, s.begun, "the handler runs")
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
		defer cancel()
		began := time.Now()
		err := s.Shutdown(ctx)
		if took := time.Since(began); took > time.Second || !errors.Is(err, enough) {
			t.Errorf("heeding %t: Shutdown returned %v after %v", heeds, err, took)
		}
		if e := wantError(t, receive(t, outcome, "the call is cut off"), yodel.Unavailable, "YDL1104"); e.NotProcessed {
			t.Errorf("heeding %t: %v: want that it may have been executed", heeds, e)
		}
		if !heeds {
			close(s.release)
		}
		if err := receive(t, s.ended, "the handler ends"); heeds && !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context ended with %v", err)
		}
		must(t, s.Shutdown(t.Context())) // now there is nothing left
	}
}

func TestShutdownMayBeCalledTwiceAndAtOnce(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, nil)
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	began := time.Now()
	for range 8 {
		wg.Go(func() {
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("Shutdown of an idle server took %v", took)
	}
	must(t, s.Shutdown(t.Context()))
	must(t, yodel.NewServer(nil).Shutdown(t.Context())) // one that never served
}

func TestServeAfterShutdown(t *testing.T) {
	s := newServer(t, nil)
	must(t, s.Shutdown(t.Context()))
	l := listen(t)
	if err := s.Serve(t.Context(), l); !errors.Is(err, yodel.ErrServerClosed) {
		t.Errorf("Serve: got %v, want ErrServerClosed", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve left the listener open: %v", err)
	}
	if err := s.ListenAndServe(t.Context(), "127.0.0.1:0"); !errors.Is(err, yodel.ErrServerClosed) {
		t.Errorf("ListenAndServe: got %v, want ErrServerClosed", err)
	}
}

func TestServeEndsWithItsContextAndWithShutdown(t *testing.T) {
	s := newServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 3)
	for range 2 { // on two listeners
		l := listen(t)
		go func() { served <- s.Serve(ctx, l) }()
		c := yodel.Dial(l.Addr().String())
		must(t, c.Ready(t.Context()))
		defer c.Close()
	}
	cancel()
	for range 2 {
		if err := receive(t, served, "Serve returns"); err != nil {
			t.Errorf("with its context Serve returned %v, want nil", err)
		}
	}
	s = newServer(t, nil)
	l := listen(t)
	go func() { served <- s.Serve(t.Context(), l) }()
	c := newClient(t, nil, l.Addr().String())
	must(t, c.Ready(t.Context()))
	must(t, s.Shutdown(t.Context()))
	if err := receive(t, served, "Serve returns"); !errors.Is(err, yodel.ErrServerClosed) {
		t.Errorf("with Shutdown Serve returned %v, want ErrServerClosed", err)
	}
	b := newBlocking(t, &yodel.ServerOptions{DrainTimeout: 20 * time.Millisecond}, true)
	ctx, cancel = context.WithCancel(t.Context())
	l = listen(t)
	go func() { served <- b.Serve(ctx, l) }()
	c = newClient(t, nil, l.Addr().String())
	go func() { _ = c.Call(context.Background(), "Block", &Empty{}, nil) }()
	receive(t, b.begun, "the handler runs")
	cancel()
	if err := receive(t, served, "Serve returns"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with calls cut off Serve returned %v, want why", err)
	}
	<-b.ended
}

// A silent connection does not hold Shutdown up for long: nobody is there to say goodbye to.
func TestShutdownDoesNotWaitForSilentConnections(t *testing.T) {
	s := newServer(t, nil)
	addr := serve(t, s)
	for range 3 {
		nc, err := net.Dial("tcp", addr)
		must(t, err)
		defer nc.Close()
	}
	began := time.Now()
	must(t, s.Shutdown(t.Context()))
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Shutdown took %v", took)
	}
}

// The server accepts a connection that comes while it shuts down, and refuses its calls. A reset
// would leave calls in doubt that were sent before the server has answered.
func TestConnectionsThatComeDuringShutdownAreTold(t *testing.T) {
	come, goOn := make(chan struct{}, 1), make(chan struct{})
	s := newServer(t, &yodel.ServerOptions{Accept: func(net.Conn) error {
		come <- struct{}{}
		<-goOn
		return nil
	}})
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), l) }()
	other := serve(t, newServer(t, nil))
	r := newSettable(l.Addr().String())
	c := yodel.NewClient(r, nil)
	t.Cleanup(c.Close)
	alone := newClient(t, nil, l.Addr().String())
	outcomes := make(chan error, 2)
	for _, c := range []*yodel.Client{c, alone} {
		go func() {
			_, err := Mul.Call(context.Background(), c, &Args{})
			outcomes <- err
		}()
		receive(t, come, "a connection")
	}
	r.set(l.Addr().String(), other)
	until(t, "the client knows the other server", func() bool { return len(c.Endpoints()) == 2 })
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(t.Context()) }()
	receive(t, served, "the server accepts no more")
	close(goOn)
	for range 2 {
		err := receive(t, outcomes, "the call ends")
		e, ok := errors.AsType[*yodel.Error](err)
		if err != nil && (!ok || e.Code != yodel.Unavailable || !e.NotProcessed) {
			t.Errorf("got %+v, want unavailable, not executed, or success on the other server", err)
		}
		if err != nil && (len(e.Report.Attempts) == 0 || e.Report.Attempts[0].ID != "YDL3004") {
			t.Errorf("got %+v, want that the server said first that it was shutting down", err)
		}
	}
	must(t, receive(t, down, "Shutdown returns"))
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err)
	}
}

// One that is still being decided about when the patience of Shutdown ends is not let in any more.
func TestShutdownDoesNotWaitForTheAcceptFilterForEver(t *testing.T) {
	come, goOn := make(chan struct{}, 1), make(chan struct{})
	refused := make(chan introspect.ConnEvent, 1)
	s := newServer(t, &yodel.ServerOptions{
		Accept: func(net.Conn) error {
			come <- struct{}{}
			<-goOn
			return nil
		},
		OnConn: func(e introspect.ConnEvent) {
			if e.Kind == introspect.Refused {
				refused <- e
			}
		},
	})
	nc, err := net.Dial("tcp", serve(t, s))
	must(t, err)
	defer nc.Close()
	receive(t, come, "a connection")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown returned %v, want that it did not wait any longer", err)
	}
	close(goOn)
	if e := receive(t, refused, "the connection is refused"); !errors.Is(e.Err, yodel.ErrServerClosed) {
		t.Errorf("it was refused with %v", e.Err)
	}
	must(t, s.Shutdown(t.Context()))
}

// TestSuccessorAtTheSameAddressLosesNoCall replaces the server behind the only address that a
// client knows. It is connected to at once, and calls wait for it: each finds the old server or the
// new one.
func TestSuccessorAtTheSameAddressLosesNoCall(t *testing.T) {
	t.Attr("rerun", "never")
	const rounds = 10
	var addr atomic.Pointer[string]
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return yodel.TCP.Dial(ctx, *addr.Load()) }
	start := func() *yodel.Server {
		s := newServer(t, nil)
		now := serve(t, s)
		addr.Store(&now)
		return s
	}
	s := start()
	c := newClient(t, &yodel.ClientOptions{Transport: transportFunc(dial)}, "the only one")
	var calls [4]atomic.Int64 // of each caller
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range calls {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
					t.Errorf("%+v", err)
				}
				calls[i].Add(1)
			}
		})
	}
	for range rounds {
		for i := range calls { // so that no call sees two of them go
			seen := calls[i].Load()
			until(t, "calls go on", func() bool { return calls[i].Load() > seen+20 })
		}
		old := s
		s = start()
		must(t, old.Shutdown(t.Context()))
	}
	close(stop)
	wg.Wait()
}

// TestDrainUnderLoadLosesNoCall restarts one server after the other under load. No call fails, with
// retries off, and each is executed once.
func TestDrainUnderLoadLosesNoCall(t *testing.T) {
	t.Attr("rerun", "never")
	const rounds = 12
	var executed sync.Map // id → *atomic.Int64
	start := func() (*yodel.Server, string) {
		s := yodel.NewServer(nil)
		handle(t, s, "Do", func(_ context.Context, id *int64) (*int64, error) {
			n, _ := executed.LoadOrStore(*id, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			return id, nil
		})
		return s, serve(t, s)
	}
	const Do yodel.Method[int64, int64] = "Do"
	servers := make([]*yodel.Server, 2)
	addrs := make([]string, 2)
	for i := range servers {
		servers[i], addrs[i] = start()
	}
	r := newSettable(addrs...)
	c := yodel.NewClient(r, &yodel.ClientOptions{ConnsPerEndpoint: 2})
	t.Cleanup(c.Close)
	var calls atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	load := func(call func(id int64) (*int64, error)) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				id := calls.Add(1)
				if got, err := call(id); err != nil || *got != id {
					t.Errorf("call %d: %v", id, err)
				}
			}
		})
	}
	for range 6 {
		load(func(id int64) (*int64, error) { return Do.Call(t.Context(), c, &id) })
	}
	load(func(id int64) (*int64, error) { return Do.Go(t.Context(), c, &id).Get() })
	for round := range rounds {
		seen := calls.Load()
		until(t, "calls go on", func() bool { return calls.Load() > seen+100 })
		i := round % 2
		old := servers[i]
		if round%4 < 2 { // the registry learns first
			servers[i], addrs[i] = start()
			r.set(addrs...)
			must(t, old.Shutdown(t.Context()))
		} else { // or last
			must(t, old.Shutdown(t.Context()))
			servers[i], addrs[i] = start()
			r.set(addrs...)
		}
	}
	close(stop)
	wg.Wait()
	n := calls.Load()
	t.Logf("%d calls during %d restarts", n, rounds)
	for id := int64(1); id <= n; id++ {
		if times, ok := executed.Load(id); !ok || times.(*atomic.Int64).Load() != 1 {
			t.Errorf("call %d was not executed once", id)
		}
	}
}
