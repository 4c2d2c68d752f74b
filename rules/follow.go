// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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

// A table is the rules of a service that act. Apart from methods, it does not change.
type table struct {
	rules    []*active // sorted by ID
	routing  []*active // those that choose instances, in the order in which they apply
	switches map[string]bool
	scoped   uint64                      // rules with a method in their scope: bits by their index
	methods  []atomic.Pointer[selection] // what selected remembers; nil if scoped is 0
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
	defer s.of.outage.leave(s.name)
	wait := firstWait
	for ctx.Err() == nil {
		began := time.Now()
		err := s.of.registry.Kept(ctx, s.name, rulesKind, func(records map[string][]byte) {
			s.of.outage.end(s.name, cmp.Or(s.of.opts.Logger, slog.Default()))
			s.set(records)
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("the registry stopped watching")
		}
		s.of.outage.note(s.name, err, cmp.Or(s.of.opts.Logger, slog.Default()))
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

// An outage logs that a registry does not answer: when the first service cannot be read, once a
// minute from then on, and when all services can be read again. An outage that begins soon after
// another one is logged later, so that a registry that fails now and then does not fill the log.
type outage struct {
	mu     sync.Mutex
	failed map[string]bool // the services that cannot be read
	at     time.Time       // of the last warning
	warned bool            // of this outage
}

// Pauses between two warnings of the same outage, and of two.
const (
	betweenWarnings = time.Minute
	betweenOutages  = 10 * time.Second
)

// note notes that the rules of a service cannot be read.
func (o *outage) note(service string, err error, log *slog.Logger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		o.failed = make(map[string]bool)
	}
	o.failed[service] = true
	pause := betweenOutages
	if o.warned {
		pause = betweenWarnings
	}
	if time.Since(o.at) < pause {
		return
	}
	o.at, o.warned = time.Now(), true
	log.Warn("yodel: the rules cannot be read, and are read again; the last rules stay in force",
		"services", len(o.failed), "rpcService", service, "err", err)
}

// end notes that the rules of a service can be read.
func (o *outage) end(service string, log *slog.Logger) {
	if o.leave(service) {
		log.Info("yodel: the rules can be read again")
	}
}

// leave removes a service, and reports whether that ends an outage of which there was a warning.
func (o *outage) leave(service string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failed, service)
	over := o.warned && len(o.failed) == 0
	o.warned = o.warned && !over
	return over
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
		cmp.Or(s.of.opts.Logger, slog.Default()).Warn("yodel: a rule in the registry is refused", "rpcService", s.name, "rule", id, "err", invalid[id])
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
	if !s.heard { // calls wait for the rules
		s.mu.Unlock()
		return nil, next
	}
	for _, a := range s.known {
		if !a.Active(now) || s.tripped[a.ID].revision == a.Revision && s.tripped[a.ID].why != "" {
			a.held = ""
			continue
		}
		if !a.Expires.IsZero() {
			next = min(next, a.Expires.Sub(now))
		}
		if a.Rollback == nil && !a.drawing() {
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
	var ended []*active // they act if there is room
	for _, id := range slices.Sorted(maps.Keys(s.known)) {
		a := s.known[id]
		if _, tripped := s.tripped[id]; tripped || !a.Active(now) {
			if a.rest != nil {
				ended = append(ended, a.rest)
			}
			continue
		}
		t = t.add(a)
	}
	for _, a := range ended {
		t = t.add(a)
	}
	if t != nil {
		slices.SortStableFunc(t.rules, func(a, b *active) int { return strings.Compare(a.ID, b.ID) })
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
	if t != nil {
		t.finish()
	}
	s.table.Store(t)
	if (old == nil) != (t == nil) {
		s.of.count(t != nil)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return true
}

// add adds a rule if there is room, and returns the table, which it makes if there is none.
func (t *table) add(a *active) *table {
	if t == nil {
		t = &table{}
	}
	if len(t.rules) >= maxRules {
		return t
	}
	t.rules = append(t.rules, a)
	if a.target() != nil {
		t.routing = append(t.routing, a)
	}
	if a.kind.fill != nil {
		a.kind.fill(t, &a.Rule)
	}
	return t
}

// routeOrder returns the order in which rules choose instances. A rule that draws no calls comes
// after those of its kind that do, so that it does not take their instances away.
func routeOrder(a *active) int {
	order := 2 * a.kind.routes.order
	if share, ok := a.draws(); ok && share == 0 {
		order++
	}
	return order
}

// report calls the OnChange hook.
func (s *service) report() {
	defer func() {
		if value := recover(); value != nil {
			cmp.Or(s.of.opts.Logger, slog.Default()).Error("yodel: the OnChange hook of the rules panicked", "rpcService", s.name, "panic", fmt.Sprint(value))
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
	at           time.Time
	good, bad    uint64
	meant, taken uint64
}

// heldSpan is the time over which a canary without a Rollback is watched.
const heldSpan = 10 * time.Second

// broken takes a sample of the counts. It returns why the Rollback condition is broken, or "", and
// sets held.
func (a *active) broken(now time.Time) string {
	span := heldSpan
	if a.Rollback != nil {
		span = time.Duration(a.Rollback.For)
	}
	if n := len(a.samples); n > 0 && now.Sub(a.samples[n-1].at) < time.Second*9/10 {
		return ""
	}
	current := sample{now, a.counts.good.Load(), a.counts.bad.Load(), a.counts.meant.Load(), a.counts.taken.Load()}
	a.samples = append(a.samples, current)
	first := 0
	for first+1 < len(a.samples) && now.Sub(a.samples[first+1].at) >= span {
		first++
	}
	a.samples = slices.Delete(a.samples, 0, first)
	then := a.samples[0]
	meant, taken := current.meant-then.meant, current.taken-then.taken
	a.held = ""
	if 2*taken < meant {
		a.held = fmt.Sprintf("%s: %s took %d of %d calls that were meant for it", a.holders(), a.target(), taken, meant)
	}
	if a.Rollback == nil || now.Sub(then.at) < span {
		return ""
	}
	good, bad := current.good-then.good, current.bad-then.bad
	calls := good + bad
	if calls == 0 || calls < uint64(a.Rollback.least()) {
		if a.held != "" && meant >= uint64(a.Rollback.least()) {
			return fmt.Sprintf("%s within %v; %d of the %d calls that it executed succeeded, want %v %%", a.held, a.Rollback.For, good, calls, a.Rollback.Below)
		}
		return ""
	}
	if share := 100 * float64(good) / float64(calls); share < a.Rollback.Below {
		return fmt.Sprintf("%.4g %% of %d calls succeeded within %v, want %v %%", share, calls, a.Rollback.For, a.Rollback.Below)
	}
	return ""
}

// holders says what keeps the instances of a canary from their calls.
func (a *active) holders() string {
	c := a.counts.via.Load()
	if c == nil {
		return "held back"
	}
	selected, unreachable, by := make(map[string]bool), false, make(map[string]bool)
	for _, ep := range c.Endpoints() {
		if in := ep.Instance(); a.target().selects(&in) {
			selected[in.Addr] = true
			unreachable = unreachable || !ep.Connected()
		}
	}
	for _, ep := range c.Stats().Endpoints {
		if !selected[ep.Addr] {
			continue
		}
		for _, name := range ep.NotReady {
			by[name] = true
		}
		for name := range ep.Ejections { // it may be ready for a moment
			by[name] = true
		}
	}
	switch {
	case unreachable:
		return "unreachable"
	case len(by) > 0:
		return "held back by " + strings.Join(slices.Sorted(maps.Keys(by)), " and ")
	}
	return "held back"
}

// rollBack switches a rule off in the registry. This process does not apply it any more, whether
// the registry works or not.
func (s *service) rollBack(ctx context.Context, b broken) {
	cmp.Or(s.of.opts.Logger, slog.Default()).Warn("yodel: a rule is rolled back", "rpcService", s.name, "rule", b.id, "reason", b.why)
	var warned time.Time
	for wait := firstWait; ctx.Err() == nil; wait = min(2*wait, lastWait) {
		one, cancel := context.WithTimeout(ctx, lastWait)
		err := s.of.book.rolledBack(one, s.name, b.id, b.revision, b.why)
		cancel()
		if err == nil {
			return
		}
		if time.Since(warned) >= betweenWarnings {
			warned = time.Now()
			cmp.Or(s.of.opts.Logger, slog.Default()).Warn("yodel: a rule could not be switched off in the registry", "rpcService", s.name, "rule", b.id, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// statesLocked returns the rules with their counters, sorted by ID.
func (s *service) statesLocked(now time.Time) (all []introspect.RuleState) {
	ids := slices.AppendSeq(slices.Collect(maps.Keys(s.known)), maps.Keys(s.invalid))
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		a := s.known[id]
		if a == nil {
			all = append(all, introspect.RuleState{Service: s.name, ID: id, State: "invalid", Problem: s.invalid[id]})
			continue
		}
		state := introspect.RuleState{
			Service: s.name, ID: id, Kind: a.Kind(), Revision: a.Revision, State: "active", Since: a.since,
			Hits: a.hits(), Good: a.counts.good.Load(), Bad: a.counts.bad.Load(),
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
		default:
			state.Held = a.held
		}
		all = append(all, state)
	}
	return all
}

// states returns the rules with their counters.
func (s *service) states(now time.Time) []introspect.RuleState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statesLocked(now)
}
