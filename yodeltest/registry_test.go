// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// The page about registries says how many rules the suite has.
func TestPageCountsTheRules(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "discovery.md"))
	if err != nil {
		t.Fatal(err)
	}
	together, alone := registryRules(Registry{}, 0, t.Logf)
	if want := fmt.Sprintf("The suite has %d rules:", len(together)+len(alone)); !strings.Contains(string(page), want) {
		t.Errorf("docs/discovery.md does not say %q", want)
	}
}

func TestRegistrySuitePassesASoundOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, r := range allRules(newBook().registry(), 20*time.Second, t.Logf) {
			if err := r.broken(); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		}
	})
}

// A busy registrar announces an instance again too late, once.
type busy struct {
	discovery.Registrar
	announced atomic.Int32
}

func (b *busy) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	if b.announced.Add(1) == 2 {
		<-time.After(2 * ttl) // of the clock of synctest
	}
	return b.Registrar.Announce(context.WithoutCancel(ctx), service, in, ttl)
}

func TestRegistrySuiteForgivesABusyMachine(t *testing.T) {
	for _, name := range []string{"renewal", "slow"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newBook().registry()
				b := &busy{Registrar: r.Registrar}
				r.Registrar = b
				for _, rule := range allRules(r, 20*time.Second, t.Logf) {
					if rule.name != name {
						continue
					}
					if err := rule.broken(); err != nil || b.announced.Load() < 4 {
						t.Errorf("%v after %d announcements", err, b.announced.Load())
					}
				}
			})
		})
	}
}

func TestRegistrySuiteSaysWhatItCannotTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		skipped := 0
		for _, r := range allRules(Registry{Registrar: b, Service: b.service}, 20*time.Second, t.Logf) {
			var no missing
			if err := r.broken(); errors.As(err, &no) {
				skipped++
			} else if err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		}
		if skipped != 8 {
			t.Errorf("%d rules were skipped, want those of the five kinds of trouble, of lists, of another process, and of the settings of operators", skipped)
		}
	})
}

// A book is a registry in memory, and its server. Its faults are off.
type book struct {
	mu      sync.Mutex
	records map[string]map[string]page // by service and address
	changed chan struct{}              // closed and replaced
	down    chan struct{}              // nil while the server works; closed when it works again
	killed  bool
	delay   time.Duration

	forgetful, immortal, hasty, oneShot, mixes, cleans, firstOnly, stubborn             bool
	pretends, emptiesWhenDown, deaf, dropsFields, keepsOld, silent, volatile, impatient bool

	losesSettings, listsSettings, listsFew, withdrawsAll, cutsNames, refusesVaguely bool

	remembers bool // what it wrote, and does not write it again
	wrote     map[string]bool
}

// A page is a record. It ends if it is not written again.
type page struct {
	in  discovery.Instance
	end *time.Timer
}

func newBook() *book {
	return &book{records: make(map[string]map[string]page), changed: make(chan struct{}), wrote: make(map[string]bool)}
}

func (b *book) registry() Registry {
	return Registry{
		Registrar: newDesk(b), Another: newDesk(b), Service: b.service, Instances: 300,
		Kill: func() { b.fail(true) }, Restart: func() { b.work(false) }, RestartEmpty: func() { b.work(true) },
		Stop: func() { b.fail(false) }, Continue: func() { b.work(false) },
		Slow:   func(d time.Duration) { b.change(func() { b.delay = d }) },
		Expire: func() { b.change(b.clear) },
	}
}

// A desk is a process that uses a book. It keeps what operators set, as the instances of services
// of its own.
type desk struct {
	*book
	mu           sync.Mutex
	incarnations map[string]string // by service and address
}

func newDesk(b *book) *desk { return &desk{book: b, incarnations: make(map[string]string)} }

func (d *desk) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	d.mu.Lock()
	d.incarnations[service+in.Addr] = in.Incarnation
	d.mu.Unlock()
	return d.book.Announce(ctx, service, in, ttl)
}

func (d *desk) Withdraw(ctx context.Context, service, addr string) error {
	d.mu.Lock()
	ours := d.incarnations[service+addr]
	d.mu.Unlock()
	d.book.mu.Lock()
	found := d.records[service][addr].in.Incarnation
	d.book.mu.Unlock()
	if found != ours && !d.withdrawsAll {
		return ctx.Err()
	}
	return d.book.Withdraw(ctx, service, addr)
}

// Services lists the services that have an instance.
func (d *desk) Services(context.Context) (names []string, err error) {
	d.book.mu.Lock()
	defer d.book.mu.Unlock()
	for name, pages := range d.records {
		if len(pages) > 0 && (len(names) < 20 || !d.listsFew) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (d *desk) Describe() yodel.Description {
	return yodel.Description{Overrides: d.overrides, Override: d.override}
}

func (d *desk) override(ctx context.Context, service, addr, state string, weight int) error {
	if state == "" && weight == 0 {
		return d.book.Withdraw(ctx, service+"^", addr)
	}
	in, ttl := discovery.Instance{Addr: addr, State: state, Weight: weight}, time.Hour
	if d.losesSettings {
		ttl = time.Second / 2 // before the record of the instance ends
	}
	if d.listsSettings {
		return d.Announce(ctx, service, in, ttl)
	}
	return d.Announce(ctx, service+"^", in, ttl)
}

func (d *desk) overrides(service string) discovery.Resolver { return d.service(service + "^") }

func (b *book) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *book) clear() {
	for _, pages := range b.records {
		for _, p := range pages {
			p.end.Stop()
		}
	}
	clear(b.records)
}

func (b *book) fail(killed bool) {
	b.change(func() { b.down, b.killed = make(chan struct{}), killed })
}

func (b *book) work(empty bool) {
	b.change(func() {
		if empty || b.volatile {
			b.clear()
		}
		close(b.down)
		b.down = nil
	})
}

var errBook = errors.New("the server has been killed")

// reach waits until the server answers.
func (b *book) reach(ctx context.Context) error {
	for {
		b.mu.Lock()
		down, killed, delay := b.down, b.killed, b.delay
		b.mu.Unlock()
		done := ctx.Done()
		if b.deaf {
			done = nil
		}
		switch {
		case down == nil && delay == 0:
			// Not time.After(0). In a bubble of synctest, goroutines run timers that have already
			// ended at the same time, and all timers of a bubble have one state in the race
			// detector, which crashes then (go.dev/issue/78156).
			return context.Cause(ctx)
		case down == nil:
			select {
			case <-time.After(delay):
				return context.Cause(ctx)
			case <-done:
				return context.Cause(ctx)
			}
		case killed && !b.deaf:
			return errBook
		}
		select {
		case <-down:
		case <-done:
			return context.Cause(ctx)
		}
	}
}

func (b *book) key(service string) string {
	switch {
	case b.cleans:
		return path.Clean(service)
	case b.cutsNames:
		return service[:min(len(service), 255)]
	}
	return service
}

func (b *book) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	if err := b.reach(ctx); err != nil {
		if b.pretends {
			return nil
		}
		return err
	}
	b.mu.Lock()
	slow := b.delay > 0
	b.mu.Unlock()
	if slow && b.impatient {
		return nil
	}
	if b.refusesVaguely && len(service) > 255 {
		return errors.New("the name is too long")
	}
	service = b.key(service)
	if b.dropsFields {
		in.Zone = ""
	}
	b.change(func() {
		if b.remembers && b.wrote[service+in.Addr] {
			if p, ok := b.records[service][in.Addr]; ok {
				p.end.Reset(ttl)
			}
			return
		}
		b.wrote[service+in.Addr] = true
		pages := b.records[service]
		if pages == nil {
			pages = make(map[string]page)
			b.records[service] = pages
		}
		old, known := pages[in.Addr]
		switch {
		case known && b.oneShot: // does not renew
			return
		case known && b.keepsOld:
			in = old.in
		}
		if known {
			old.end.Stop()
		}
		if b.hasty {
			ttl /= 2
		}
		p := page{in: in}
		p.end = time.AfterFunc(ttl, func() {
			if !b.immortal {
				b.remove(service, in.Addr)
			}
		})
		pages[in.Addr] = p
	})
	return nil
}

func (b *book) remove(service, addr string) {
	b.change(func() {
		if p, ok := b.records[service][addr]; ok {
			p.end.Stop()
			delete(b.records[service], addr)
		}
	})
}

func (b *book) Withdraw(ctx context.Context, service, addr string) error {
	if err := b.reach(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	_, known := b.records[b.key(service)][addr]
	b.mu.Unlock()
	if b.stubborn && !known {
		return errors.New("there is no such record")
	}
	if !b.forgetful {
		b.remove(b.key(service), addr)
	}
	return nil
}

func (b *book) service(name string) discovery.Resolver { return chapter{b, b.key(name)} }

// A chapter is one service of a book.
type chapter struct {
	*book
	name string
}

func (c chapter) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for first := true; ctx.Err() == nil; first = false {
		if err := c.reach(ctx); err != nil {
			if c.emptiesWhenDown && ctx.Err() == nil {
				update(nil)
			}
			return err
		}
		c.mu.Lock()
		changed := c.changed
		var all []discovery.Instance
		for _, service := range slices.Sorted(maps.Keys(c.records)) {
			if service == c.name || c.mixes && strings.HasPrefix(service, c.name) {
				for _, addr := range slices.Sorted(maps.Keys(c.records[service])) {
					all = append(all, c.records[service][addr].in)
				}
			}
		}
		c.mu.Unlock()
		if len(all) > 0 || !first || !c.silent {
			update(all)
		}
		if c.firstOnly {
			<-ctx.Done()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

func TestRegistryRulesCatchFaults(t *testing.T) {
	for _, fault := range []struct {
		rule string
		put  func(*book)
	}{
		{"fields", func(b *book) { b.dropsFields = true }},
		{"update", func(b *book) { b.keepsOld = true }},
		{"withdraw", func(b *book) { b.forgetful = true }},
		{"withdraw", func(b *book) { b.stubborn = true }},
		{"no instances", func(b *book) { b.silent = true }},
		{"ttl", func(b *book) { b.immortal = true }},
		{"ttl", func(b *book) { b.hasty = true }},
		{"renewal", func(b *book) { b.oneShot = true }},
		{"services", func(b *book) { b.mixes = true }},
		{"services", func(b *book) { b.cleans = true }},
		{"long names", func(b *book) { b.cutsNames = true }},
		{"long names", func(b *book) { b.refusesVaguely = true }},
		{"clients", func(b *book) { b.firstOnly = true }},
		{"restarted with its data", func(b *book) { b.volatile = true }},
		{"restarted with its data", func(b *book) { b.pretends = true }},
		{"restarted with its data", func(b *book) { b.emptiesWhenDown = true }},
		{"restarted empty", func(b *book) { b.emptiesWhenDown = true }},
		{"restarted empty", func(b *book) { b.pretends = true }},
		{"hangs", func(b *book) { b.deaf = true }},
		{"slow", func(b *book) { b.impatient = true }},
		{"expired", func(b *book) { b.remembers = true }},
		{"restarted empty", func(b *book) { b.remembers = true }},
		{"override", func(b *book) { b.losesSettings = true }},
		{"override", func(b *book) { b.listsSettings = true }},
		{"list", func(b *book) { b.listsFew = true }},
		{"address of another", func(b *book) { b.withdrawsAll = true }},
		{"many", func(b *book) { b.firstOnly = true }},
		{"resolver updates", func(b *book) { b.firstOnly = true }},
	} {
		t.Run(fault.rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				fault.put(b)
				for _, r := range allRules(b.registry(), 5*time.Second, t.Logf) {
					if r.name == fault.rule && r.broken() == nil {
						t.Error("the rule does not notice")
					}
				}
			})
		})
	}
}

func allRules(r Registry, patience time.Duration, logf func(string, ...any)) []rule {
	together, alone := registryRules(r, patience, logf)
	return append(together, alone...)
}
