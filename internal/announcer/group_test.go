// SPDX-License-Identifier: Apache-2.0

package announcer_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/guard"
)

// here and there are addresses of listeners.
var here, there = &net.UnixAddr{Name: "here"}, &net.UnixAddr{Name: "there"}

// A card is a record of a server.
type card struct {
	addr, says string
	rate       float64
}

// cards is a registry of cards that writes into a book.
type cards struct{ *book }

// Announce implements announcer.Registry.
func (c cards) Announce(ctx context.Context, service string, r card, ttl time.Duration) error {
	return c.book.Announce(ctx, service, r.addr+"="+r.says, ttl)
}

// group returns a Group that announces the service A in registries.
func group(t *testing.T, log *strings.Builder, in ...announcer.In[card]) *announcer.Group[card] {
	t.Helper()
	to := slog.New(slog.NewTextHandler(log, nil))
	g := &announcer.Group[card]{
		In: in, Every: 10 * time.Second, Log: to, Guard: guard.New(to, errors.New),
		Services: func() []string { return []string{"A"} },
		Load:     func() (uint64, int) { return 0, 0 },
		Addr:     func(r *card) *string { return &r.addr },
		Complete: func(r *card, rate float64, _ int) { r.says, r.rate = r.says+"!", rate },
	}
	g.SetUp(card{says: "hello"})
	return g
}

func TestAGroupAnnouncesEachAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		g := group(t, &log, announcer.In[card]{Registry: cards{b}, Name: "book"})
		g.Announce(here)
		withdraw := g.Announce(there)
		synctest.Wait()
		expectSorted(t, b, "+A here=hello! for 30s", "+A there=hello! for 30s")
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
		g := group(t, &log, announcer.In[card]{Registry: cards{b}, Name: "book"})
		g.Announce(here)
		synctest.Wait()
		b.take()
		func() {
			defer func() { _ = recover() }()
			g.Update(func(r *card) {
				r.says = "nothing"
				panic("of the program")
			})
		}()
		g.Update(func(r *card) { r.addr = "outside" })
		synctest.Wait()
		expect(t, b, "+A outside=hello! for 30s", "-A here")
		if state := g.State(); len(state) != 1 || state[0].Registry != "book" || state[0].Addr != "here" || state[0].Failing || state[0].At.IsZero() {
			t.Errorf("the state is %+v", state)
		}
		g.Update(func(r *card) { r.addr = ":1" })
		if err := g.Check(&net.TCPAddr{Port: 1}); err == nil {
			t.Error("an address without a host passes the check")
		}
		_, wait := g.Withdraw(t.Context())
		wait()
	})
}

func TestAGroupKeepsTheRecordsThatAnotherProcessServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBook()
		g := group(t, &log, announcer.In[card]{Registry: cards{b}, Name: "book"})
		g.Announce(here)
		g.Announce(there)
		synctest.Wait()
		b.take()
		g.Keep(func(addr net.Addr) bool { return addr == there })
		_, wait := g.Withdraw(t.Context())
		wait()
		expect(t, b, "-A here")
	})
}

// slowly is a registry whose Withdraw takes long.
type slowly struct{ cards }

// Withdraw implements announcer.Registry.
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
			g := group(t, &log, announcer.In[card]{Registry: slowly{cards{newBook()}}, Name: "book"})
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
type panics struct{ cards }

// Announce implements announcer.Registry.
func (panics) Announce(context.Context, string, card, time.Duration) error { panic("of the registry") }

func TestARegistryThatPanicsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		settings := func(string) announcer.Watch { panic("of the settings") }
		g := group(t, &log, announcer.In[card]{Registry: panics{cards{newBook()}}, Name: "book", Settings: settings})
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
		settings := func(string) announcer.Watch {
			return func(ctx context.Context, update func([]announcer.Setting)) error {
				update([]announcer.Setting{{Addr: "here", Weight: 3}, {Addr: "there", Weight: 4}})
				<-ctx.Done()
				return ctx.Err()
			}
		}
		b := newBook()
		g := group(t, &log,
			announcer.In[card]{Registry: cards{b}, Name: "two", Settings: settings},
			announcer.In[card]{Registry: cards{b}, Name: "one", Settings: settings},
			announcer.In[card]{Registry: cards{b}, Name: "none"})
		g.Announce(here)
		synctest.Wait()
		var got []string
		for _, o := range g.Overrides() {
			got = append(got, o.Registry+" "+o.Service+" "+o.Addr)
			if o.Weight != 3 {
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
