// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// A service is the rules of one service in this process. While a client or a server uses it, a
// goroutine follows the registry.
type service struct {
	of   *Rules
	name string

	table atomic.Pointer[table] // nil if no rule acts, and unloaded before the registry has answered

	mu         sync.Mutex
	users      int
	cancel     context.CancelFunc // ends the goroutine; nil if there is none
	done       chan struct{}      // closed when the goroutine has ended
	loaded     chan struct{}      // closed when the registry has answered for the first time
	changed    chan struct{}      // closed and replaced when the table has changed
	news       chan struct{}      // capacity 1: the records have changed
	known      map[string]*active // the last valid rules, by ID
	invalid    map[string]string  // why the records of these IDs are refused
	rejected   map[string]string  // the authors of these records
	tripped    map[string]trip    // rules that this process has rolled back, by ID
	heard      bool
	unreported bool // the first rules are in force, and the OnChange hook was not called yet
	notes      notes
}

// A trip is a rule that was rolled back.
type trip struct {
	revision int
	why      string
}

// A table is the rules of a service that act. It does not change.
type table struct {
	rules    []*active // sorted by ID
	routing  []*active // those that choose instances, in the order in which they apply
	switches map[string]bool
}

// unloaded is the table of a service whose rules are not known yet.
var unloaded = &table{}

func newService(of *Rules, name string) *service {
	s := &service{
		of: of, name: name, loaded: make(chan struct{}), changed: make(chan struct{}), news: make(chan struct{}, 1),
		known: make(map[string]*active), invalid: make(map[string]string), tripped: make(map[string]trip),
		notes: notes{to: make(map[*noter]bool)},
	}
	s.table.Store(unloaded)
	return s
}

// rules returns the table, or nil if no rule acts.
func (s *service) rules() *table {
	if t := s.table.Load(); t != unloaded {
		return t
	}
	return nil
}

// await returns the table for a call that begins before the rules are known. It waits for them, but
// only once if the registry does not answer.
func (s *service) await(ctx context.Context) *table {
	s.load(ctx)
	if ctx.Err() == nil {
		s.table.CompareAndSwap(unloaded, nil)
	}
	return s.rules()
}

// use makes the process follow the rules until release is called. Release waits for the goroutine
// if nothing else uses the service.
func (s *service) use() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		before, done := s.done, make(chan struct{})
		s.cancel, s.done = cancel, done
		go func() {
			defer close(done)
			if before != nil {
				<-before
			}
			s.follow(ctx)
		}()
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.users--
		last, cancel, done := s.users == 0, s.cancel, s.done
		s.mu.Unlock()
		if last {
			cancel()
			<-done
		}
	})
}

// firstLoad is how long a client or a server waits for the first rules of a service.
const firstLoad = time.Second

// load waits for the first rules. A caller of use calls it.
func (s *service) load(ctx context.Context) {
	timer := time.NewTimer(firstLoad)
	defer timer.Stop()
	select {
	case <-s.loaded:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// follow keeps the rules in step with the registry and with the time.
func (s *service) follow(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.read(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
		case <-timer.C:
		}
		broken, next := s.refresh(time.Now())
		for _, b := range broken {
			wg.Go(func() { s.rollBack(ctx, b) })
		}
		timer.Reset(next)
	}
}

// Waits between two attempts to read rules from a registry that fails.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

// read reads the records until ctx ends.
func (s *service) read(ctx context.Context) {
	wait, last := firstWait, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := s.of.registry.Kept(ctx, s.name, rulesKind, func(records map[string][]byte) {
			last = ""
			s.set(records)
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("the registry stopped watching")
		}
		if text := err.Error(); text != last {
			last = text
			s.of.opts.Logger.Warn("yodel: the rules cannot be read, and are read again; the last rules stay in force", "service", s.name, "err", err)
		}
		if time.Since(began) > lastWait {
			wait = firstWait
		}
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
		}
		wait = min(2*wait, lastWait)
	}
}

// set takes the records over. A record that is not a valid rule leaves the last valid rule with its
// ID in force.
func (s *service) set(records map[string][]byte) {
	s.mu.Lock()
	known, invalid, rejected := make(map[string]*active, len(records)), make(map[string]string), make(map[string]string)
	var refused []string
	for _, id := range slices.Sorted(maps.Keys(records)) {
		data, old := records[id], s.known[id]
		if old != nil && bytes.Equal(old.source, data) {
			known[id] = old
			continue
		}
		r, err := ruleIn(s.name, id, data)
		switch {
		case err == nil:
			known[id] = newActive(r, data, old)
			continue
		case old != nil:
			known[id] = old
		}
		rejected[id] = authorOf(data)
		if invalid[id] = err.Error(); s.invalid[id] != invalid[id] {
			refused = append(refused, id)
		}
	}
	s.known, s.invalid, s.rejected = known, invalid, rejected
	maps.DeleteFunc(s.tripped, func(id string, t trip) bool { return known[id] == nil || known[id].Revision != t.revision })
	if !s.heard {
		s.heard = true
		s.unreported = s.compileLocked(time.Now())
		close(s.loaded)
	}
	s.mu.Unlock()
	for _, id := range refused {
		s.of.opts.Logger.Warn("yodel: a rule in the registry is refused", "service", s.name, "rule", id, "err", invalid[id])
	}
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// refresh compiles the rules that act now. It returns the rules whose Rollback condition is broken,
// and the time until refresh has to be called again.
func (s *service) refresh(now time.Time) (broken []broken, next time.Duration) {
	s.mu.Lock()
	next = time.Hour
	for _, a := range s.known {
		if !a.Active(now) || s.tripped[a.ID].revision == a.Revision && s.tripped[a.ID].why != "" {
			continue
		}
		if !a.Expires.IsZero() {
			next = min(next, a.Expires.Sub(now))
		}
		if a.Rollback == nil {
			continue
		}
		next = min(next, time.Second)
		if why := a.broken(now); why != "" {
			s.tripped[a.ID] = trip{a.Revision, why}
			broken = append(broken, brokenRule(a, why))
		}
	}
	changed := s.compileLocked(now) || s.unreported
	s.unreported = false
	events, due := s.noteLocked(now)
	next = min(next, due)
	s.mu.Unlock()
	s.publish(events)
	if changed && s.of.opts.OnChange != nil {
		s.report()
	}
	return broken, max(next, time.Millisecond)
}

// A broken rule is one whose Rollback condition is broken.
type broken struct {
	id       string
	revision int
	why      string
}

func brokenRule(a *active, why string) broken { return broken{a.ID, a.Revision, why} }

// compileLocked compiles the rules that act, and reports whether they have changed.
func (s *service) compileLocked(now time.Time) (changed bool) {
	var t *table
	for _, id := range slices.Sorted(maps.Keys(s.known)) {
		a := s.known[id]
		_, tripped := s.tripped[id]
		if !a.Active(now) || tripped || t != nil && len(t.rules) >= maxRules {
			continue
		}
		if t == nil {
			t = &table{}
		}
		t.add(a)
	}
	if t != nil {
		slices.SortStableFunc(t.routing, func(a, b *active) int { return cmp.Compare(routeOrder(a), routeOrder(b)) })
	}
	old := s.rules()
	if old == nil && t == nil {
		s.table.CompareAndSwap(unloaded, nil)
		return false
	}
	if old != nil && t != nil && slices.Equal(old.rules, t.rules) {
		return false
	}
	s.table.Store(t)
	if (old == nil) != (t == nil) {
		s.of.count(t != nil)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return true
}

func (t *table) add(a *active) {
	t.rules = append(t.rules, a)
	if a.target() != nil {
		t.routing = append(t.routing, a)
	}
	if a.Switch != nil {
		if t.switches == nil {
			t.switches = make(map[string]bool)
		}
		t.switches[a.Switch.Name] = a.Switch.On
	}
}

// routeOrder returns the order in which rules choose instances.
func routeOrder(a *active) int {
	switch {
	case a.Disable != nil:
		return 0
	case a.Route != nil:
		return 1
	case a.Canary != nil:
		return 2
	}
	return 3
}

// report calls the OnChange hook.
func (s *service) report() {
	defer func() {
		if value := recover(); value != nil {
			s.of.opts.Logger.Error("yodel: the OnChange hook of the rules panicked", "service", s.name, "panic", fmt.Sprint(value))
		}
	}()
	var all []Rule
	if t := s.rules(); t != nil {
		for _, a := range t.rules {
			all = append(all, a.Rule)
		}
	}
	s.of.opts.OnChange(s.name, all)
}

// A sample is the counts of a rule at a time.
type sample struct {
	at        time.Time
	good, bad uint64
}

// broken takes a sample of the counts. It returns why the Rollback condition is broken, or "".
func (a *active) broken(now time.Time) string {
	span := time.Duration(a.Rollback.For)
	if n := len(a.samples); n > 0 && now.Sub(a.samples[n-1].at) < time.Second*9/10 {
		return ""
	}
	current := sample{now, a.counts.good.Load(), a.counts.bad.Load()}
	a.samples = append(a.samples, current)
	first := 0
	for first+1 < len(a.samples) && now.Sub(a.samples[first+1].at) >= span {
		first++
	}
	a.samples = slices.Delete(a.samples, 0, first)
	then := a.samples[0]
	if now.Sub(then.at) < span {
		return ""
	}
	good, bad := current.good-then.good, current.bad-then.bad
	calls := good + bad
	if calls == 0 || calls < uint64(a.Rollback.least()) {
		return ""
	}
	if share := 100 * float64(good) / float64(calls); share < a.Rollback.Below {
		return fmt.Sprintf("%.4g %% of %d calls succeeded within %v, want %v %%", share, calls, a.Rollback.For, a.Rollback.Below)
	}
	return ""
}

// rollBack switches a rule off in the registry. This process does not apply it any more, whether
// the registry works or not.
func (s *service) rollBack(ctx context.Context, b broken) {
	s.of.opts.Logger.Warn("yodel: a rule is rolled back", "service", s.name, "rule", b.id, "why", b.why)
	for wait := firstWait; ctx.Err() == nil; wait = min(2*wait, lastWait) {
		one, cancel := context.WithTimeout(ctx, lastWait)
		err := s.of.book.rolledBack(one, s.name, b.id, b.revision, b.why)
		cancel()
		if err == nil {
			return
		}
		s.of.opts.Logger.Warn("yodel: a rule could not be switched off in the registry", "service", s.name, "rule", b.id, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// statesLocked returns the rules with their counters.
func (s *service) statesLocked(now time.Time) (all []introspect.RuleState) {
	for id, a := range s.known {
		state := introspect.RuleState{
			Service: s.name, ID: id, Kind: a.Kind(), Revision: a.Revision, State: "active", Since: a.since,
			Hits: a.counts.hits.Load() + a.injected(), Good: a.counts.good.Load(), Bad: a.counts.bad.Load(),
		}
		switch t, tripped := s.tripped[id]; {
		case s.invalid[id] != "":
			state.State, state.Problem = "invalid", s.invalid[id]
		case tripped:
			state.State, state.Problem = "rolled back", t.why
		case a.Off:
			state.State = "off"
		case !a.Active(now):
			state.State = "expired"
		}
		all = append(all, state)
	}
	for id, why := range s.invalid {
		if s.known[id] == nil {
			all = append(all, introspect.RuleState{Service: s.name, ID: id, State: "invalid", Problem: why})
		}
	}
	return all
}

// states returns the rules with their counters.
func (s *service) states(now time.Time) []introspect.RuleState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statesLocked(now)
}
