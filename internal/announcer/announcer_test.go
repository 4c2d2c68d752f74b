// SPDX-License-Identifier: Apache-2.0

package announcer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/guard"
)

// A server is an announcer.Server whose records have an address and a version, as in "h:1=a".
type server struct {
	mu       sync.Mutex
	record   string
	services []string
	changed  chan struct{}
}

func newServer(record string, services ...string) *server {
	return &server{record: record, services: services, changed: make(chan struct{})}
}

// change makes the server announce another record and other services.
func (s *server) change(record string, services ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, s.services = record, services
	close(s.changed)
	s.changed = make(chan struct{})
}

// Record implements announcer.Server.
func (s *server) Record() discovery.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr, version, _ := strings.Cut(s.record, "=")
	return discovery.Instance{Addr: addr, Version: version}
}

// Services implements announcer.Server.
func (s *server) Services() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.services
}

// Changed implements announcer.Server.
func (s *server) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// A book is a registry that notes what is asked of it.
type book struct {
	began time.Time

	mu    sync.Mutex
	lines []string
	last  discovery.Instance
	fails map[string]error // by service
	late  time.Duration    // how long an announcement takes
}

func newBook() *book { return &book{began: time.Now(), fails: make(map[string]error)} }

func (b *book) fail(service string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails[service] = err
}

func (b *book) note(line, service string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.fails[service]
	if err != nil {
		line += " failed"
	}
	b.lines = append(b.lines, line)
	return err
}

// Announce implements discovery.Registrar.
func (b *book) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	if b.late > 0 {
		select {
		case <-time.After(b.late):
		case <-ctx.Done():
			_ = b.note("+"+service+" cut off", service)
			return ctx.Err()
		}
	}
	b.mu.Lock()
	b.last = in
	b.mu.Unlock()
	return b.note(fmt.Sprintf("+%s %s=%s for %v", service, in.Addr, in.Version, ttl), service)
}

// Withdraw implements discovery.Registrar.
func (b *book) Withdraw(_ context.Context, service, addr string) error {
	return b.note("-"+service+" "+addr, service)
}

// record returns the record that was announced last.
func (b *book) record() discovery.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// take returns what was noted since the last call.
func (b *book) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	b.lines = nil
	return lines
}

// run runs an announcer until the returned function is called.
func run(t *testing.T, s *server, b *book, a *announcer.Announcer) (stop func()) {
	t.Helper()
	a.Server, a.Registrar, a.Name, a.Every = s, b, "book", 10*time.Second
	if a.Log == nil {
		a.Log = slog.New(slog.DiscardHandler)
	}
	a.Guard = guard.New(a.Log, errors.New)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func expect(t *testing.T, b *book, want ...string) {
	t.Helper()
	if got := b.take(); !slices.Equal(got, want) {
		t.Errorf("the registry was asked\n %q, want\n %q", got, want)
	}
}

// expectSorted is expect for what is done in parallel.
func expectSorted(t *testing.T, b *book, want ...string) {
	t.Helper()
	got := b.take()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the registry was asked\n %q, want\n %q", got, want)
	}
}

func TestRecordsAreRenewedAndWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		stop := run(t, newServer("h:1=a", "A", "B"), b, &announcer.Announcer{})
		synctest.Wait()
		expect(t, b, "+A h:1=a for 30s", "+B h:1=a for 30s")
		time.Sleep(8 * time.Second)
		expect(t, b)
		time.Sleep(2 * time.Second) // a renewal comes up to an eighth early
		expect(t, b, "+A h:1=a for 30s", "+B h:1=a for 30s")
		stop()
		expectSorted(t, b, "-A h:1", "-B h:1")
	})
}

func TestChangesAreAnnouncedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newBook(), newServer("h:1=a", "A", "B")
		stop := run(t, s, b, &announcer.Announcer{})
		synctest.Wait()
		b.take()
		s.change("h:1=b", "B")
		synctest.Wait()
		expect(t, b, "+B h:1=b for 30s", "-A h:1")
		s.change("h:2=b", "B")
		synctest.Wait()
		expect(t, b, "+B h:2=b for 30s", "-B h:1")
		stop()
		expect(t, b, "-B h:2")
	})
}

func TestFailedAnnouncementsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		b.fail("A", errors.New("no quorum"))
		stop := run(t, newServer("h:1=a", "A"), b, &announcer.Announcer{Log: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(time.Minute)
		synctest.Wait()
		// The pause grows to between 0.75 and 1.5 s.
		if n := len(b.take()); n < 40 || n > 90 {
			t.Errorf("%d attempts in a minute, want 40 to 90", n)
		}
		b.fail("A", nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		expect(t, b, "+A h:1=a for 30s")
		b.fail("A", errors.New("no quorum"))
		stop()
		expect(t, b, "-A h:1 failed")
		for _, want := range []string{"could not be announced", "announce A: no quorum", "announced again", "could not be withdrawn"} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("the log does not say once %q: %s", want, &log)
			}
		}
	})
}

// A registry that refuses one service for ever gets the others in time, and is not asked often.
func TestOneRefusedServiceDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		b.fail("A", errors.New("no permission"))
		stop := run(t, newServer("h:1=a", "A", "B"), b, &announcer.Announcer{})
		time.Sleep(time.Hour)
		lines := b.take()
		if !slices.Contains(lines, "+B h:1=a for 30s") || !slices.Contains(lines, "+A h:1=a for 30s failed") {
			t.Errorf("the registry was asked %q", lines[:4])
		}
		if n := len(lines) / 2; n < 360 || n > 800 {
			t.Errorf("%d announcements in an hour, want one each 5 to 10 s", n)
		}
		stop()
		expectSorted(t, b, "-A h:1 failed", "-B h:1")
	})
}

func TestKeepLeavesTheRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, a := newBook(), new(announcer.Announcer)
		stop := run(t, newServer("h:1=a", "A"), b, a)
		synctest.Wait()
		b.take()
		a.Keep(true)
		stop()
		expect(t, b)
	})
}

// An announcement must not overtake the withdrawal, so it ends before.
func TestLateAnnouncementEndsBeforeTheWithdrawal(t *testing.T) {
	tests := []struct {
		late, took time.Duration
		line       string
	}{
		{announcer.FinishTime / 2, announcer.FinishTime / 2, "+A h:1=a for 30s"},
		{time.Minute, announcer.FinishTime, "+A cut off"},
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			b := newBook()
			b.late = test.late
			stop := run(t, newServer("h:1=a", "A"), b, &announcer.Announcer{})
			synctest.Wait()
			began := time.Now()
			stop()
			if took := time.Since(began); took != test.took {
				t.Errorf("the end took %v, want %v", took, test.took)
			}
			expect(t, b, test.line, "-A h:1")
		})
	}
}

func TestSettingsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := make(chan []announcer.Setting)
		var opened atomic.Int32
		var log strings.Builder
		changes := 0
		settings := &announcer.Settings{
			Addr: func() string { return "h:1" },
			Open: func(service string) announcer.Watch {
				opened.Add(1)
				if service != "A" {
					return nil
				}
				return func(ctx context.Context, update func([]announcer.Setting)) error {
					for {
						select {
						case set := <-sets:
							if set == nil {
								return errors.New("the registry fails")
							}
							update(set)
						case <-ctx.Done():
							return ctx.Err()
						}
					}
				}
			},
			Changed: func() { changes++ },
			Name:    "book",
			Log:     slog.New(slog.NewTextHandler(&log, nil)),
		}
		b := newBook()
		stop := run(t, newServer("h:1=a", "A", "B"), b, &announcer.Announcer{Settings: settings})
		mine := announcer.Setting{Addr: "h:1", State: "inactive", Weight: 3}
		other := announcer.Setting{Addr: "h:2", Weight: 9}
		broken := announcer.Setting{Addr: "h:1", Problem: "it is not JSON"}
		for _, set := range [][]announcer.Setting{{other}, {other, mine}, {mine}, nil, {mine}, {other}, {broken}} {
			sets <- set
			synctest.Wait()
			want := 0
			if len(set) != 1 || set[0] != other { // the last settings stay in force
				want = 1
			}
			if got := settings.InForce(); len(got) != want || want == 1 && got["A"] != mine && got["A"] != broken {
				t.Errorf("in force after %v: %v", set, got)
			}
		}
		stop()
		if changes != 3 {
			t.Errorf("%d changes, want 3", changes)
		}
		for _, want := range []string{
			`msg="yodel: an operator has set the instance" rpcService=A registry=book addr=h:1 state=inactive weight=3`,
			`msg="yodel: an operator's settings were removed" rpcService=A registry=book addr=h:1`,
			`level=WARN msg="yodel: the setting of an operator cannot be read and does not count" rpcService=A registry=book addr=h:1 err="it is not JSON"`,
		} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("the log does not say once %s:\n%s", want, &log)
			}
		}
		if opened.Load() != 2 {
			t.Errorf("opened %d times, want once for each service", opened.Load())
		}
	})
}
