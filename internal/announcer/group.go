// SPDX-License-Identifier: Apache-2.0

package announcer

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/introspect"
)

// An In is a registry in which a Group announces its server. Its functions may panic or end their
// goroutine.
type In[R any] struct {
	Registry[R]
	Name string
	// Settings opens the settings of operators for a service. It may return nil. It is nil if the
	// registry has no settings.
	Settings func(service string) Watch
}

// A Group announces a server in all of its registries, at each address at which it listens. Its
// exported fields do not change after SetUp. Its methods may be called concurrently.
type Group[R any] struct {
	In    []In[R]
	Every time.Duration // how often the announcements are renewed
	Log   *slog.Logger
	Guard *guard.Guard
	// Services returns the sorted names of the services under which the record is announced.
	Services func() []string
	// Load returns how many calls the server has executed, and how many are in flight.
	Load func() (calls uint64, inflight int)
	// Addr returns the address in a record. An empty one stands for that of the listener.
	Addr func(record *R) *string
	// Complete adds to a copy of the record what the server knows at that moment. Rate is in calls
	// per second.
	Complete func(record *R, rate float64, inflight int)

	updating chan struct{} // holds the token of the running Update

	mu     sync.Mutex
	record R
	anew   chan struct{} // closed and replaced when there is a change to announce
	all    []*announcement[R]
	ended  bool // Withdraw was called
}

// An announcement announces one address of a server. It implements Server.
type announcement[R any] struct {
	group *Group[R]
	at    net.Addr // of the listener
	addr  string   // the address that clients dial, unless the record has one
	load  *load
	in    []*Announcer[R]

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// SetUp sets the record. It must be called before all other methods.
func (g *Group[R]) SetUp(record R) {
	g.record, g.anew, g.updating = record, make(chan struct{}), make(chan struct{}, 1)
}

// Check returns an error if clients cannot dial the address that would be announced for a listener
// at an address.
func (g *Group[R]) Check(at net.Addr) error {
	record := g.current()
	_, err := Reachable(at, *g.Addr(&record))
	return err
}

func (g *Group[R]) current() R {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.record
}

// Update changes the record, and announces it at once. Changes run one after the other, each on a
// copy of the present record. If change panics, the record remains as it was.
func (g *Group[R]) Update(change func(record *R)) {
	g.updating <- struct{}{}
	defer func() { <-g.updating }()
	record := g.current()
	change(&record)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record = record
	g.againLocked()
}

// Again announces at once, because there is something new.
func (g *Group[R]) Again() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.againLocked()
}

func (g *Group[R]) againLocked() {
	close(g.anew)
	g.anew = make(chan struct{})
}

// Announce begins to announce a listener at an address, unless Group.Withdraw was called. The
// function withdraw stops the announcement of this listener. It waits until the registries have
// removed its records, or for a short time.
func (g *Group[R]) Announce(at net.Addr) (withdraw func()) {
	a := &announcement[R]{group: g, at: at, load: newLoad()}
	a.addr, _ = Reachable(at, "") // there is no address that could be wrong
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended || len(g.In) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:gosec // Withdraw calls it
	a.cancel = cancel
	for _, in := range g.In {
		one := a.announcer(in)
		a.in = append(a.in, one)
		a.wg.Go(func() { one.Run(ctx) })
	}
	g.all = append(g.all, a)
	return a.withdraw
}

// announcer returns the announcer for one registry.
func (a *announcement[R]) announcer(in In[R]) *Announcer[R] {
	g := a.group
	one := &Announcer[R]{
		Server: a, Registry: guarded[R]{in.Registry, g.Guard}, Name: in.Name, Every: g.Every, At: a.at, Addr: a.addr, Log: g.Log,
	}
	if in.Settings != nil {
		one.Settings = &Settings{
			Open: guardedSettings(in.Settings, g.Guard), Addr: a.advertised, Changed: g.Again, Name: in.Name, Log: g.Log,
		}
	}
	return one
}

func (a *announcement[R]) withdraw() {
	a.cancel()
	a.wg.Wait()
}

// advertised returns the address that is announced.
func (a *announcement[R]) advertised() string {
	record := a.group.current()
	return cmp.Or(*a.group.Addr(&record), a.addr)
}

// Record implements Server.
func (a *announcement[R]) Record() (record R, addr string) {
	g := a.group
	record = g.current()
	at := g.Addr(&record)
	*at = cmp.Or(*at, a.addr)
	if a.load.due(g.Every) {
		calls, inflight := g.Load()
		a.load.measure(g.Every, calls, inflight)
	}
	rate, inflight := a.load.announced()
	g.Complete(&record, rate, inflight)
	return record, *at
}

// Services implements Server.
func (a *announcement[R]) Services() []string { return a.group.Services() }

// Changed implements Server.
func (a *announcement[R]) Changed() <-chan struct{} {
	a.group.mu.Lock()
	defer a.group.mu.Unlock()
	return a.group.anew
}

// Keep leaves the records of the addresses in the registries when the server withdraws, for which
// serves returns true: another process serves them from then on.
func (g *Group[R]) Keep(serves func(addr net.Addr) bool) {
	for _, a := range g.announcements() {
		keep := serves(a.at)
		for _, one := range a.in {
			one.Keep(keep)
		}
	}
}

func (g *Group[R]) announcements() []*announcement[R] {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.all)
}

// Withdraw withdraws the server from all registries. It returns when that is done, when ctx ends,
// or when the registries' share of ctx's time has passed: a quarter, and at most 3 s. The function
// wait waits until the withdrawal is done, ctx ends, or 3 s have passed since the call of Withdraw.
// First is false if Withdraw was called before.
func (g *Group[R]) Withdraw(ctx context.Context) (first bool, wait func()) {
	const most = FinishTime + withdrawTime
	began, done := time.Now(), make(chan struct{})
	g.mu.Lock()
	first = !g.ended
	g.ended = true
	all := slices.Clone(g.all)
	g.mu.Unlock()
	if len(all) == 0 {
		return first, func() {}
	}
	go func() {
		defer close(done)
		for _, a := range all {
			a.cancel()
		}
		for _, a := range all {
			a.wg.Wait()
		}
	}()
	share := most
	if end, ok := ctx.Deadline(); ok {
		share = min(share, time.Until(end)/4)
	}
	if late := !within(ctx, share, done); late && first && ctx.Err() == nil {
		g.Log.Warn("yodel: a registry has not answered yet; the server drains meanwhile", "waited", share)
	}
	return first, func() { within(ctx, most-time.Since(began), done) }
}

// within waits for done, and reports whether it was closed before ctx ended and a time passed.
func within(ctx context.Context, limit time.Duration, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-time.After(limit):
	}
	return false
}

// State returns the state of each address in each registry.
func (g *Group[R]) State() (out []introspect.Announced) {
	for _, a := range g.announcements() {
		for _, one := range a.in {
			at, failing := one.State()
			out = append(out, introspect.Announced{Registry: one.Name, Addr: a.addr, At: at, Failing: failing})
		}
	}
	return out
}

// Overrides returns the settings of operators for the server, sorted by service and registry.
func (g *Group[R]) Overrides() (list []introspect.Override) {
	for _, a := range g.announcements() {
		for _, one := range a.in {
			if one.Settings == nil {
				continue
			}
			for service, set := range one.Settings.InForce() {
				list = append(list, introspect.Override{
					Service: service, Registry: one.Name, Addr: set.Addr, State: set.State, Weight: set.Weight, Problem: set.Problem,
				})
			}
		}
	}
	slices.SortFunc(list, introspect.Override.Compare)
	return list
}
