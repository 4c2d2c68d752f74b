// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A book is a registrar that writes down what it is told.
type book struct {
	mu    sync.Mutex
	lines []string
	last  discovery.Instance
	err   error // of every call
	hook  func(what string)
}

func (b *book) write(format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	if b.hook != nil {
		b.hook(line)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	return b.err
}

func (b *book) Announce(_ context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	b.mu.Lock()
	b.last = in
	b.mu.Unlock()
	return b.write("+%s %s for %v", service, in.Addr, ttl)
}

func (b *book) Withdraw(_ context.Context, service, addr string) error {
	return b.write("-%s %s", service, addr)
}

func (b *book) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *book) record() discovery.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// since returns what was written, and forgets it.
func (b *book) since() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	b.lines = nil
	withdrawn := slices.IndexFunc(lines, func(line string) bool { return line[0] == '-' })
	if withdrawn >= 0 && !slices.ContainsFunc(lines[withdrawn:], func(line string) bool { return line[0] != '-' }) {
		slices.Sort(lines[withdrawn:]) // a server that ends withdraws its services in parallel
	}
	return lines
}

func (b *book) is(t *testing.T, want ...string) {
	t.Helper()
	if got := b.since(); !slices.Equal(got, want) {
		t.Errorf("the registry was told %q, want %q", got, want)
	}
}

// announced starts a server of two services at "server", which b is told of. Stop ends it.
func announced(t *testing.T, network *mem.Network, b *book, o yodel.ServerOptions) (s *yodel.Server, stop func()) {
	t.Helper()
	l, err := network.Listen("server")
	if err != nil {
		t.Fatal(err)
	}
	if o.Registrars == nil {
		o.Registrars = []discovery.Registrar{b}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s = yodel.NewServer(&o)
	handle := func(name string) {
		if err := s.Handle(name, func(n int) int { return 2 * n }); err != nil {
			t.Fatal(err)
		}
	}
	handle("A.Double")
	handle("Plain")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	return s, func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, yodel.ErrServerClosed) { // a test may have shut it down
			t.Errorf("Serve: %v", err)
		}
	}
}

func TestAServerIsAnnouncedWhileItServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, network := &book{}, mem.New()
		b.hook = func(what string) { // before and after everything that the registry knows of it, the server serves
			c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
			defer c.Close()
			if err := c.Call(context.Background(), "A.Double", yodel.Values{1}, nil); err != nil {
				t.Errorf("while the registry is told %q: %v", what, err)
			}
		}
		_, stop := announced(t, network, b, yodel.ServerOptions{Instance: discovery.Instance{Weight: 3, Zone: "east"}})
		b.is(t, "+A server for 30s", "+Plain server for 30s")
		if in := b.record(); in.Weight != 3 || in.Zone != "east" || in.Started.IsZero() {
			t.Errorf("announced as %+v", in)
		}
		time.Sleep(10 * time.Second)
		b.is(t, "+A server for 30s", "+Plain server for 30s")
		stop()
		b.is(t, "-A server", "-Plain server")
	})
}

// Clients may have to dial another address than the one at which the server listens.
func TestTheAddressOfAnInstanceIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		_, stop := announced(t, mem.New(), b, yodel.ServerOptions{Instance: discovery.Instance{Addr: "gateway:8972"}})
		b.is(t, "+A gateway:8972 for 30s", "+Plain gateway:8972 for 30s")
		stop()
		b.is(t, "-A gateway:8972", "-Plain gateway:8972")
	})
}

// A server announces the protocols that it speaks, so that clients of other systems find it.
func TestProtocolsOfAServerAreAnnounced(t *testing.T) {
	for _, test := range []struct{ set, want []string }{
		{nil, []string{"yodel", "lines"}},
		{[]string{"lines"}, []string{"lines"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &book{}
			_, stop := announced(t, mem.New(), b, yodel.ServerOptions{
				Protocols: []yodel.Protocol{lines{codec: yodel.JSON}}, Instance: discovery.Instance{Protocols: test.set},
			})
			defer stop()
			b.since()
			if got := b.record().Protocols; !slices.Equal(got, test.want) {
				t.Errorf("with the Protocols %q, the instance is announced with %q, want %q", test.set, got, test.want)
			}
		})
	}
}

func TestNewsOfAServerIsAnnouncedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		s, stop := announced(t, mem.New(), b, yodel.ServerOptions{AnnounceEvery: time.Minute})
		defer stop()
		b.is(t, "+A server for 3m0s", "+Plain server for 3m0s")
		s.UpdateInstance(func(in *discovery.Instance) { in.State, in.Weight = "inactive", 7 })
		b.is(t, "+A server for 3m0s", "+Plain server for 3m0s")
		if in := b.record(); in.State != "inactive" || in.Weight != 7 {
			t.Errorf("announced as %+v", in)
		}
		s.UpdateInstance(func(in *discovery.Instance) { in.Addr = "outside" }) // nobody reaches it at the old address
		b.is(t, "+A outside for 3m0s", "+Plain outside for 3m0s", "-A server", "-Plain server")
		s.UpdateInstance(func(in *discovery.Instance) { in.Addr = "" })
		b.is(t, "+A server for 3m0s", "+Plain server for 3m0s", "-A outside", "-Plain outside")
		if err := s.Handle("B.Triple", func(n int) int { return 3 * n }); err != nil {
			t.Fatal(err)
		}
		b.is(t, "+A server for 3m0s", "+B server for 3m0s", "+Plain server for 3m0s")
		if err := s.Alias("A.Double", "C.Double"); err != nil {
			t.Fatal(err)
		}
		b.is(t, "+A server for 3m0s", "+B server for 3m0s", "+C server for 3m0s", "+Plain server for 3m0s")
	})
}

func TestAnAnnouncementThatFailsIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := &book{err: errors.New("no quorum")}
		s, stop := announced(t, mem.New(), b, yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		state := func() introspect.Announced {
			if all := s.Stats().Announced; len(all) == 1 && all[0].Addr == "server" && all[0].Registry == "yodel_test" {
				return all[0]
			}
			t.Fatalf("the statistics have %+v", s.Stats().Announced)
			return introspect.Announced{}
		}
		const outage = 10 * time.Minute
		time.Sleep(outage)
		if now := state(); !now.Failing || !now.At.IsZero() {
			t.Errorf("during the outage: got %+v", now)
		}
		if n := len(b.since()); n < int(outage/(2*time.Second)) {
			t.Errorf("%d attempts in %v", n, outage)
		}
		b.fail(nil)
		time.Sleep(2 * time.Second)
		b.is(t, "+A server for 30s", "+Plain server for 30s")
		if now := state(); now.Failing || time.Since(now.At) > 2*time.Second {
			t.Errorf("after the outage: got %+v", now)
		}
		b.fail(errors.New("no quorum"))
		if s.Stats().Draining {
			t.Error("the server drains already")
		}
		stop() // in spite of that, and soon
		if !s.Stats().Draining {
			t.Error("the server does not drain")
		}
		for _, want := range []string{"could not be announced", "no quorum", "announced again", "could not be withdrawn"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &log)
			}
		}
		if n := strings.Count(log.String(), "level=WARN"); n > 3+int(outage/time.Minute) { // it is repeated once a minute
			t.Errorf("%d lines in the log:\n%s", n, &log)
		}
	})
}

// A picky registry refuses one service.
type picky struct{ *book }

func (p picky) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	err := p.book.Announce(ctx, service, in, ttl)
	if service == "A" {
		err = errors.New("no permission")
	}
	return err
}

func TestAServiceThatIsRefusedDoesNotHideTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := &book{}
		s, stop := announced(t, mem.New(), b, yodel.ServerOptions{
			Registrars: []discovery.Registrar{picky{b}}, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		b.is(t, "+A server for 30s", "+Plain server for 30s")
		const while = 10 * time.Minute
		time.Sleep(while)
		// Soon at first, and then about as often as without trouble: it may be refused for ever.
		if n := len(b.since()) / 2; n < int(while/(10*time.Second)) || n > int(while/(5*time.Second)) {
			t.Errorf("%d times in %v", n, while)
		}
		s.UpdateInstance(func(in *discovery.Instance) { in.Weight = 7 })
		b.is(t, "+A server for 30s", "+Plain server for 30s") // news does not wait
		stop()
		b.is(t, "-A server", "-Plain server")
		if n := strings.Count(log.String(), "announce A: no permission"); n < 2 || n > 1+int(while/time.Minute) || n != strings.Count(log.String(), "\n") {
			t.Errorf("want a warning each minute, that A is refused:\n%s", &log)
		}
	})
}

// A late registry does what it was asked some time later, whether or not it is still waited for.
type late struct{ *book }

func (l late) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	done := make(chan error, 1)
	go func() {
		time.Sleep(finishTime / 2)
		done <- l.book.Announce(context.WithoutCancel(ctx), service, in, ttl)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// finishTime is how long a server lets an announcement finish when it is shut down.
const finishTime = time.Second

func TestAWithdrawalIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		s, stop := announced(t, mem.New(), b, yodel.ServerOptions{Registrars: []discovery.Registrar{late{b}}})
		time.Sleep(2 * finishTime)
		b.is(t, "+A server for 30s", "+Plain server for 30s")
		s.UpdateInstance(func(in *discovery.Instance) { in.State = "inactive" })
		synctest.Wait()
		stop()
		time.Sleep(2 * finishTime)
		b.is(t, "+A server for 30s", "-A server", "-Plain server")
	})
}

// elsewhere is why a server ends at whose address another process serves.
type elsewhere string

func (elsewhere) Error() string { return "handed over" }

func (e elsewhere) Serves(addr net.Addr) bool { return addr.String() == string(e) }

// The record of an address that was handed over is its new owner's.
func TestAnAddressThatWasHandedOverIsNotWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, b := mem.New(), &book{}
		s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{b}, Logger: slog.New(slog.DiscardHandler)})
		if err := s.Handle("A.Double", func(n int) int { return 2 * n }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		served := make(chan error, 2)
		for _, addr := range []string{"one", "two"} {
			l, err := network.Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			go func() { served <- s.Serve(ctx, l) }()
		}
		if told := b.since(); len(told) != 2 {
			t.Errorf("the registry was told %q", told)
		}
		cancel(fmt.Errorf("the end: %w", elsewhere("one")))
		for range 2 {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
		b.is(t, "-A two")
	})
}

func TestARegistryThatHangsDoesNotHoldUpAShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		b := &book{hook: func(what string) {
			if what[0] == '-' {
				<-hang
			}
		}}
		s, stop := announced(t, mem.New(), b, yodel.ServerOptions{})
		b.since()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_ = s.Shutdown(ctx) // its time is up
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		close(hang)
		stop()
	})
}

func TestTheLoadOfAServerIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, network := &book{}, mem.New()
		s, stop := announced(t, network, b, yodel.ServerOptions{})
		defer stop()
		release := make(chan struct{})
		if err := s.Handle("A.Wait", func() { <-release }); err != nil {
			t.Fatal(err)
		}
		c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
		defer c.Close()
		for range 300 {
			if err := c.Call(t.Context(), "A.Double", yodel.Values{1}, nil); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := c.Call(context.Background(), "A.Wait", yodel.Values{}, nil); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * time.Second)
		if in := b.record(); in.CallRate < 25 || in.CallRate > 36 || in.Inflight != 5 {
			t.Errorf("announced as %+v", in)
		}
		close(release)
		wg.Wait()
	})
}

// The built-in methods, and health and reflection of gRPC, are no services of the program.
func TestWhatDescribesServersIsNotAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		s, stop := announced(t, mem.New(), b, yodel.ServerOptions{})
		for _, name := range []string{"grpc.health.v1.Health/Check", "grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "C.Double"} {
			must(t, s.Handle(name, func() {}))
		}
		time.Sleep(20 * time.Second)
		for _, line := range b.since() {
			if !strings.HasPrefix(line, "+A ") && !strings.HasPrefix(line, "+Plain ") && !strings.HasPrefix(line, "+C ") {
				t.Errorf("the registry was told %q", line)
			}
		}
		stop()
		b.is(t, "-A server", "-C server", "-Plain server")
	})
}

func TestServices(t *testing.T) {
	s := yodel.NewServer(nil)
	for _, name := range []string{"shop.Cart/Add", "shop.Cart.Remove", "Arith.Mul", "alone"} {
		must(t, s.Handle(name, func() {}))
	}
	if got := strings.Join(s.Services(), " "); got != "Arith alone shop.Cart" {
		t.Errorf("got %q", got)
	}
}

// A server whose Instance has an address that clients cannot dial does not begin to serve.
func TestAnAddressThatClientsCannotDialIsRefused(t *testing.T) {
	for _, addr := range []string{":8972", "0.0.0.0:8972", "10.0.0.7", "tcp://10.0.0.7:8972"} {
		s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{new(book)}, Instance: discovery.Instance{Addr: addr}})
		err := s.ListenAndServe(t.Context(), "127.0.0.1:0")
		if err == nil || !strings.Contains(err.Error(), "clients cannot dial Instance.Addr \""+addr+"\": ") {
			t.Errorf("%q: %v", addr, err)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

type resolverFunc func(ctx context.Context, update func([]discovery.Instance)) error

func (f resolverFunc) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	return f(ctx, update)
}

// A settable resolver is told by the test which instances there are.
type settable struct {
	mu        sync.Mutex
	instances []discovery.Instance
	changed   chan struct{}
	err       error // of Watch; nil while it works
}

func newSettable(addrs ...string) *settable {
	r := &settable{changed: make(chan struct{})}
	r.set(addrs...)
	return r
}

func (r *settable) set(addrs ...string) {
	instances := make([]discovery.Instance, len(addrs))
	for i, addr := range addrs {
		instances[i].Addr = addr
	}
	r.setInstances(instances)
}

func (r *settable) setInstances(instances []discovery.Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instances, r.err = instances, nil
	close(r.changed)
	r.changed = make(chan struct{})
}

// fail makes Watch fail until other instances are set.
func (r *settable) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *settable) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		r.mu.Lock()
		instances, changed, err := r.instances, r.changed, r.err
		r.mu.Unlock()
		if err != nil {
			return err
		}
		update(instances)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// A named resolver knows of which service the instances are.
type named struct {
	*settable
	service string
}

func (r *named) Describe() yodel.Description { return yodel.Description{Service: r.service} }

// A resolver that lists an address twice, as inactive and as active, names an active instance.
func TestAnAddressThatIsListedTwice(t *testing.T) {
	for _, states := range [][]string{{"", "inactive"}, {"inactive", ""}, {"inactive", "", "inactive"}} {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			s := yodel.NewServer(&yodel.ServerOptions{Transport: network, Logger: slog.New(slog.DiscardHandler)})
			open := yodel.Method[int, int]("Shop.Open")
			open.Handle(s, func(_ context.Context, in *int) (*int, error) { return in, nil })
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.ListenAndServe(ctx, "shop") }()
			synctest.Wait() // until it listens
			r := newSettable()
			var instances []discovery.Instance
			for _, state := range states {
				instances = append(instances, discovery.Instance{Addr: "shop", State: state})
			}
			r.setInstances(instances)
			c := yodel.NewClient(r, &yodel.ClientOptions{Transport: network, Logger: slog.New(slog.DiscardHandler)})
			if _, err := open.Call(t.Context(), c, new(int)); err != nil {
				t.Errorf("with the states %q: %v", states, err)
			}
			c.Close()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

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
