// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A book is a registrar that writes down what it is told.
type book struct {
	mu    sync.Mutex
	lines []string
	last  yodel.Instance
	err   error // of every call
	hook  func(what string)

	refused string // a service that may not be announced
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

func (b *book) Announce(_ context.Context, service string, in yodel.Instance, ttl time.Duration) error {
	b.mu.Lock()
	b.last = in
	b.mu.Unlock()
	if service == b.refused {
		return errors.New("permission denied")
	}
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

func (b *book) record() yodel.Instance {
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
	o.Registrars = []yodel.Registrar{b}
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
			c := yodel.NewClient(yodel.Static("server"), &yodel.ClientOptions{Transport: network})
			defer c.Close()
			if err := c.Call(context.Background(), "A.Double", yodel.Values{1}, nil); err != nil {
				t.Errorf("while the registry is told %q: %v", what, err)
			}
		}
		_, stop := announced(t, network, b, yodel.ServerOptions{Instance: yodel.Instance{Weight: 3, Zone: "east"}})
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

func TestNewsOfAServerIsAnnouncedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		s, stop := announced(t, mem.New(), b, yodel.ServerOptions{AnnounceEvery: time.Minute})
		defer stop()
		b.is(t, "+A server for 3m0s", "+Plain server for 3m0s")
		s.UpdateInstance(func(in *yodel.Instance) { in.State, in.Weight = "inactive", 7 })
		b.is(t, "+A server for 3m0s", "+Plain server for 3m0s")
		if in := b.record(); in.State != "inactive" || in.Weight != 7 {
			t.Errorf("announced as %+v", in)
		}
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
		_, stop := announced(t, mem.New(), b, yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		const outage = 10 * time.Minute
		time.Sleep(outage)
		if n := len(b.since()); n < int(outage/(2*time.Second)) {
			t.Errorf("%d attempts in %v", n, outage)
		}
		b.fail(nil)
		time.Sleep(2 * time.Second)
		if lines := slices.Sorted(slices.Values(b.since())); !slices.Equal(lines, []string{"+A server for 30s", "+Plain server for 30s"}) {
			t.Errorf("the registry was told %q", lines)
		}
		b.fail(errors.New("no quorum"))
		stop() // in spite of that, and soon
		for _, want := range []string{"could not be announced", "no quorum", "announced again", "could not be withdrawn"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &log)
			}
		}
		if n := strings.Count(log.String(), "\n"); n > 5 {
			t.Errorf("%d lines in the log:\n%s", n, &log)
		}
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
		c := yodel.NewClient(yodel.Static("server"), &yodel.ClientOptions{Transport: network})
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

// That a registry refuses one service does not keep the others out of it.
func TestARegistryThatRefusesOneService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, refused := range []string{"A", "Plain"} {
			b := &book{refused: refused}
			_, stop := announced(t, mem.New(), b, yodel.ServerOptions{})
			time.Sleep(time.Minute)
			lines := b.since()
			other := map[string]string{"A": "+Plain server for 30s", "Plain": "+A server for 30s"}[refused]
			if n := len(lines); n == 0 || n > 60 || lines[0] != other || lines[n-1] != other {
				t.Errorf("%s is refused, and the registry was told %q", refused, lines)
			}
			stop()
		}
	})
}
