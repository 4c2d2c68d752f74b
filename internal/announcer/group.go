// SPDX-License-Identifier: Apache-2.0

package announcer

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/address"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/introspect"
)

// An In is a registry in which a Group announces its server. Its functions may panic or end their
// goroutine.
type In struct {
	discovery.Registrar
	Name string // default: the name of the Registrar's package
	// Overrides returns the settings of operators for a service, in the form of instances. It may
	// return nil. It is nil if the registry has no settings.
	Overrides func(service string) discovery.Resolver
}

// A Group announces a server in all of its registries, at each address at which it listens. Its
// exported fields do not change after SetUp. Its methods may be called concurrently.
type Group struct {
	In    []In
	Every time.Duration // how often the announcements are renewed
	Log   *slog.Logger
	Guard *guard.Guard
	// Services returns the sorted names of the services under which the record is announced.
	Services func() []string
	// Load returns how many calls the server has executed, and how many are in flight.
	Load func() (calls uint64, inflight int)
	// Ready returns an error if the server should get no calls at present.
	Ready func() error
	// Note adds an event to the live data of the server.
	Note        func(introspect.Event)
	Started     time.Time // when the server began to serve
	Incarnation []byte    // identifies this run of the server

	updating chan struct{} // holds the token of the running Update

	mu     sync.Mutex
	record discovery.Instance
	anew   chan struct{} // closed and replaced when there is a change to announce
	all    []*announcement
	ended  bool // Withdraw was called
}

// An announcement announces one address of a server. It implements Server.
type announcement struct {
	group *Group
	at    net.Addr // of the listener
	addr  string   // the address that clients dial, unless the record has one
	load  *load
	in    []*Announcer

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// SetUp sets the record. An empty address stands for that of the listener. SetUp must be called
// before all other methods.
func (g *Group) SetUp(record discovery.Instance) {
	for i := range g.In {
		in := &g.In[i]
		byPackage, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", in.Registrar), "*"), ".")
		in.Name = cmp.Or(in.Name, byPackage)
	}
	g.record, g.anew, g.updating = record, make(chan struct{}), make(chan struct{}, 1)
}

// Check returns an error if clients cannot dial the address that would be announced for a listener
// at an address.
func (g *Group) Check(at net.Addr) error {
	_, err := address.Reachable(at, g.current().Addr)
	return err
}

func (g *Group) current() discovery.Instance {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.record
}

// Update changes the record, and announces it at once. Changes run one after the other, each on a
// copy of the present record. If change panics, the record remains as it was.
func (g *Group) Update(change func(record *discovery.Instance)) {
	g.updating <- struct{}{}
	defer func() { <-g.updating }()
	record := g.current()
	record.Tags, record.Metadata = slices.Clone(record.Tags), maps.Clone(record.Metadata) // registrars may be reading the old ones
	change(&record)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record = record
	g.againLocked()
}

// Again announces at once, because there is something new.
func (g *Group) Again() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.againLocked()
}

func (g *Group) againLocked() {
	close(g.anew)
	g.anew = make(chan struct{})
}

// Announce begins to announce a listener at an address, unless Group.Withdraw was called. The
// function withdraw stops the announcement of this listener. It waits until the registries have
// removed its records, or for a short time.
func (g *Group) Announce(at net.Addr) (withdraw func()) {
	a := &announcement{group: g, at: at, load: newLoad()}
	a.addr, _ = address.Reachable(at, "") // there is no address that could be wrong
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended || len(g.In) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
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
func (a *announcement) announcer(in In) *Announcer {
	g := a.group
	one := &Announcer{
		Server: a, Registrar: in.Registrar, Guard: g.Guard, Name: in.Name, Every: g.Every, At: a.at, Addr: a.addr, Log: g.Log,
	}
	if in.Overrides != nil {
		one.Settings = &Settings{
			Open: g.settings(in.Overrides), Addr: a.advertised, Changed: g.Again, Name: in.Name, Log: g.Log,
		}
	}
	return one
}

func (a *announcement) withdraw() {
	a.cancel()
	a.wg.Wait()
}

// advertised returns the address that is announced.
func (a *announcement) advertised() string {
	return cmp.Or(a.group.current().Addr, a.addr)
}

// Record implements Server.
func (a *announcement) Record() discovery.Instance {
	g := a.group
	record := g.current()
	record.Addr = cmp.Or(record.Addr, a.addr)
	if a.load.due(g.Every) {
		calls, inflight := g.Load()
		a.load.measure(g.Every, calls, inflight)
	}
	record.CallRate, record.Inflight = a.load.announced()
	if g.Ready() != nil {
		record.State = discovery.Inactive
	}
	record.Started = g.Started.UTC().Truncate(time.Millisecond)
	record.Incarnation = hex.EncodeToString(g.Incarnation)
	return record
}

// Services implements Server.
func (a *announcement) Services() []string { return a.group.Services() }

// Changed implements Server.
func (a *announcement) Changed() <-chan struct{} {
	a.group.mu.Lock()
	defer a.group.mu.Unlock()
	return a.group.anew
}

// Leave handles the reason why the server ends. The reason of package restart says that another
// process serves an address from now on. That process announces the address, so its records stay in
// the registries when this server withdraws.
func (g *Group) Leave(why error) {
	other, ok := errors.AsType[interface {
		error
		Serves(addr net.Addr) bool
	}](why)
	if !ok {
		return
	}
	for _, a := range g.announcements() {
		keep := other.Serves(a.at)
		for _, one := range a.in {
			one.Keep(keep)
		}
	}
}

func (g *Group) announcements() []*announcement {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.all)
}

// Withdraw withdraws the server from all registries. It returns when that is done, when ctx ends,
// or when the registries' share of ctx's time has passed: a quarter, and at most 3 s. The function
// wait waits until the withdrawal is done, ctx ends, or 3 s have passed since the call of Withdraw.
// First is false if Withdraw was called before.
func (g *Group) Withdraw(ctx context.Context) (first bool, wait func()) {
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
func (g *Group) State() (out []introspect.Announced) {
	for _, a := range g.announcements() {
		for _, one := range a.in {
			at, failing := one.State()
			out = append(out, introspect.Announced{Registry: one.Name, Addr: a.addr, At: at, Failing: failing})
		}
	}
	return out
}

// Overrides returns the settings of operators for the server, sorted by service and registry.
func (g *Group) Overrides() (list []introspect.Override) {
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
