// SPDX-License-Identifier: Apache-2.0

package announcer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/introspect"
)

// here and there are addresses of listeners.
var here, there = &net.UnixAddr{Name: "here"}, &net.UnixAddr{Name: "there"}

// group returns a Group that announces the service A in registries.
func group(t *testing.T, log *strings.Builder, in ...announcer.In) *announcer.Group {
	t.Helper()
	to := slog.New(slog.NewTextHandler(log, nil))
	g := &announcer.Group{
		In: in, Every: 10 * time.Second, Log: to, Guard: guard.New(to, errors.New),
		Services: func() []string { return []string{"A"} },
		Load:     func() (uint64, int) { return 0, 0 },
		Ready:    func() error { return nil },
	}
	g.SetUp(discovery.Instance{Version: "hello"})
	return g
}

func TestAGroupAnnouncesEachAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		g := group(t, &log, announcer.In{Registrar: b, Name: "book"})
		g.Announce(here)
		withdraw := g.Announce(there)
		synctest.Wait()
		expectSorted(t, b, "+A here=hello for 30s", "+A there=hello for 30s")
		withdraw()
		expect(t, b, "-A there")
		first, wait := g.Withdraw(t.Context())
		wait()
		expect(t, b, "-A here")
		if again, _ := g.Withdraw(t.Context()); !first || again {
			t.Errorf("the first Withdraw is the first: %v, and so is the second: %v", first, again)
		}
		withdraw = g.Announce(here)
		synctest.Wait()
		withdraw()
		expect(t, b)
	})
}

func TestUpdatesOfAGroupAreAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		g := group(t, &log, announcer.In{Registrar: b, Name: "book"})
		g.Announce(here)
		synctest.Wait()
		b.take()
		func() {
			defer func() { _ = recover() }()
			g.Update(func(in *discovery.Instance) {
				in.Version = "nothing"
				panic("of the program")
			})
		}()
		g.Update(func(in *discovery.Instance) { in.Addr = "outside" })
		synctest.Wait()
		expect(t, b, "+A outside=hello for 30s", "-A here")
		if state := g.State(); len(state) != 1 || state[0].Registry != "book" || state[0].Addr != "here" || state[0].Failing || state[0].At.IsZero() {
			t.Errorf("the state is %+v", state)
		}
		g.Update(func(in *discovery.Instance) { in.Addr = ":1" })
		if err := g.Check(&net.TCPAddr{Port: 1}); err == nil {
			t.Error("an address without a host passes the check")
		}
		_, wait := g.Withdraw(t.Context())
		wait()
	})
}

// servesThere is the reason why a server ends whose address there another process serves.
type servesThere struct{}

func (servesThere) Error() string             { return "another process serves" }
func (servesThere) Serves(addr net.Addr) bool { return addr == there }

func TestAGroupKeepsTheRecordsThatAnotherProcessServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		g := group(t, &log, announcer.In{Registrar: b, Name: "book"})
		g.Announce(here)
		g.Announce(there)
		synctest.Wait()
		b.take()
		g.Leave(errors.New("the program ends"))
		g.Leave(fmt.Errorf("restarted: %w", servesThere{}))
		_, wait := g.Withdraw(t.Context())
		wait()
		expect(t, b, "-A here")
	})
}

// slowly is a registry whose Withdraw takes long.
type slowly struct{ *book }

// Withdraw implements discovery.Registrar.
func (s slowly) Withdraw(ctx context.Context, _, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// A server that is shut down needs most of its time for its calls.
func TestWithdrawWaitsForAShareOfItsTime(t *testing.T) {
	tests := []struct{ allowed, returns, most time.Duration }{
		{time.Second, 250 * time.Millisecond, time.Second},
		{time.Minute, 2 * time.Second, 2 * time.Second}, // the withdrawal has given up
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			g := group(t, &log, announcer.In{Registrar: slowly{newBook()}, Name: "book"})
			g.Announce(here)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), test.allowed)
			defer cancel()
			began := time.Now()
			_, wait := g.Withdraw(ctx)
			returned := time.Since(began)
			wait()
			if waited := time.Since(began); returned != test.returns || waited != test.most {
				t.Errorf("of %v, Withdraw took %v and wait %v, want %v and %v", test.allowed, returned, waited, test.returns, test.most)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if early := test.returns < test.most; strings.Contains(log.String(), "has not answered yet") != early {
				t.Errorf("the log is %s", &log)
			}
		})
	}
}

// panics is a registry that panics.
type panics struct{ *book }

// Announce implements discovery.Registrar.
func (panics) Announce(context.Context, string, discovery.Instance, time.Duration) error {
	panic("of the registry")
}

func TestARegistryThatPanicsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		overrides := func(string) discovery.Resolver { panic("of the settings") }
		g := group(t, &log, announcer.In{Registrar: panics{newBook()}, Name: "book", Overrides: overrides})
		g.Announce(here)
		synctest.Wait()
		if state := g.State(); len(state) != 1 || !state[0].Failing {
			t.Errorf("the state is %+v", state)
		}
		_, wait := g.Withdraw(t.Context())
		wait()
		for _, want := range []string{"of the registry", "of the settings"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q: %s", want, &log)
			}
		}
	})
}

func TestOverridesOfAllRegistries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		broken := map[string]string{"problem": "it is not JSON"}
		overrides := func(string) discovery.Resolver {
			return discovery.Fixed{{Addr: "here", Weight: 3, State: discovery.Inactive, Metadata: broken}, {Addr: "there", Weight: 4}}
		}
		nothing := func(string) discovery.Resolver { return nil }
		b := newBook()
		g := group(t, &log,
			announcer.In{Registrar: b, Name: "two", Overrides: overrides},
			announcer.In{Registrar: b, Name: "one", Overrides: overrides},
			announcer.In{Registrar: b, Name: "none"},
			announcer.In{Registrar: b, Name: "nothing", Overrides: nothing})
		g.Announce(here)
		synctest.Wait()
		var got []string
		for _, o := range g.Overrides() {
			got = append(got, o.Registry+" "+o.Service+" "+o.Addr)
			if o.Weight != 3 || o.State != discovery.Inactive || o.Problem != "it is not JSON" {
				t.Errorf("got %+v", o)
			}
		}
		if want := []string{"one A here", "two A here"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		_, wait := g.Withdraw(t.Context())
		wait()
	})
}

// noting is a Resolver of settings that adds an event.
type noting struct{}

// Watch implements discovery.Resolver.
func (noting) Watch(ctx context.Context, _ func([]discovery.Instance)) error {
	introspect.NoteOf(ctx)(introspect.Event{Kind: "setting"})
	<-ctx.Done()
	return ctx.Err()
}

func TestSettingsCanAddEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		g := group(t, &log, announcer.In{Registrar: newBook(), Overrides: func(string) discovery.Resolver { return noting{} }})
		events := make(chan introspect.Event, 1)
		g.Note = func(e introspect.Event) { events <- e }
		g.Announce(here)
		synctest.Wait()
		_, wait := g.Withdraw(t.Context())
		wait()
		if e := <-events; e.Kind != "setting" {
			t.Errorf("got the event %+v", e)
		}
	})
}

func TestAGroupCompletesItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		g := group(t, &log, announcer.In{Registrar: b})
		var loading atomic.Bool
		g.Ready = func() error {
			if loading.Load() {
				return errors.New("it is loading")
			}
			return nil
		}
		g.Started, g.Incarnation = time.Date(2026, 1, 1, 0, 0, 0, 1234567, time.FixedZone("", 3600)), []byte{0xab, 1}
		var calls atomic.Uint64
		g.Load = func() (uint64, int) { return calls.Load(), 7 }
		g.Announce(here)
		synctest.Wait()
		want := discovery.Instance{Addr: "here", Version: "hello", Started: g.Started.UTC().Truncate(time.Millisecond), Incarnation: "ab01"}
		if got := b.record(); !reflect.DeepEqual(got, want) {
			t.Errorf("announced %+v, want %+v", got, want)
		}
		calls.Store(1000)
		loading.Store(true)
		time.Sleep(10 * time.Second)
		g.Again()
		synctest.Wait()
		if got := b.record(); got.State != discovery.Inactive || got.CallRate < 90 || got.Inflight != 7 {
			t.Errorf("announced %+v, want it inactive with 100 calls per second", got)
		}
		if state := g.State(); len(state) != 1 || state[0].Registry != "announcer_test" {
			t.Errorf("the registry is named by its package: got %+v", state)
		}
		_, wait := g.Withdraw(t.Context())
		wait()
	})
}

// A registrar may be reading the record while a program changes it.
func TestAnUpdateChangesACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		g := group(t, &log, announcer.In{Registrar: b})
		g.SetUp(discovery.Instance{Tags: []string{"a"}, Metadata: map[string]string{"k": "1"}})
		g.Announce(here)
		synctest.Wait()
		before := b.record()
		g.Update(func(in *discovery.Instance) { in.Tags[0], in.Metadata["k"] = "b", "2" })
		synctest.Wait()
		if before.Tags[0] != "a" || before.Metadata["k"] != "1" {
			t.Errorf("the announced record has changed: %+v", before)
		}
		if now := b.record(); now.Tags[0] != "b" || now.Metadata["k"] != "2" {
			t.Errorf("announced %+v", now)
		}
		_, wait := g.Withdraw(t.Context())
		wait()
	})
}
