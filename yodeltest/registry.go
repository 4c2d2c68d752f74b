// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A Registry is a registry under test, with functions that control its server. Registrar and
// Service are required. They are used concurrently, by other goroutines than that of the test, so
// they must not call its FailNow. A rule that needs another function which is nil is skipped, and
// the output of the test says so.
type Registry struct {
	// Registrar announces to the registry.
	Registrar discovery.Registrar
	// Service returns a resolver for a service, as a client would use it. Each call returns a new
	// resolver that shares no state with the others.
	Service func(name string) discovery.Resolver

	// Another announces to the registry as another process does. It shares no state with Registrar.
	Another discovery.Registrar

	// TTL is the shortest time to live that the registry supports. Late is how long after that a
	// record may still exist. Default 1 s and 4 s: a machine that is busy is late too.
	TTL, Late time.Duration
	// Instances is the size of the largest service in the test. Default 5,000.
	Instances int

	// Kill ends the server as kill -9 does. Restart starts it again with its stored data, and
	// RestartEmpty without. Both return when the server answers.
	Kill, Restart, RestartEmpty func()
	// Stop makes the server hang, or cuts off its network. Continue ends that.
	Stop, Continue func()
	// Slow delays all data that the server sends. A delay of 0 ends that.
	Slow func(delay time.Duration)
	// Expire ends the leases or sessions of the records, without the knowledge of the programs that
	// hold them.
	Expire func()
}

// TestRegistry checks that a registry fulfills the contracts of discovery.Registrar and
// discovery.Resolver, even while its server is in trouble. It takes about half a minute, because
// leases have to expire.
func TestRegistry(t *testing.T, r Registry) {
	t.Helper()
	together, alone := registryRules(r, time.Minute, t.Logf)
	outcomes, wait := checkTogether(together)
	for _, rule := range together {
		t.Run(rule.name, func(t *testing.T) { rule.judge(t, <-outcomes[rule.name]) })
	}
	wait() // no rule has been waited for that the flag -run leaves out
	for _, rule := range alone {
		t.Run(rule.name, func(t *testing.T) { rule.judge(t, rule.broken()) })
	}
}

// judge fails or skips a test because of err, the outcome of the rule.
func (r rule) judge(t *testing.T, err error) {
	t.Helper()
	var no missing
	switch {
	case errors.As(err, &no):
		t.Skip("not tried:", no)
	case err != nil:
		t.Errorf("%v\nThe rule: %s.", err, r.why)
	}
}

// checkedAtOnce is how many rules of a registry are checked at once.
const checkedAtOnce = 4

// checkTogether checks rules beside each other, because they wait for most of their time. It
// returns a channel for the outcome of each, by name, and a function that waits for all.
func checkTogether(rules []rule) (outcomes map[string]chan error, wait func()) {
	outcomes = make(map[string]chan error)
	var all sync.WaitGroup
	places := make(chan struct{}, checkedAtOnce)
	for _, r := range rules {
		outcome := make(chan error, 1)
		outcomes[r.name] = outcome
		all.Go(func() {
			places <- struct{}{}
			err := errors.New("a function of the Registry has ended the goroutine")
			defer func() {
				<-places
				outcome <- err
			}()
			err = r.broken()
		})
	}
	return outcomes, all.Wait
}

// missing is the reason why a rule cannot be tested.
type missing string

func (m missing) Error() string { return string(m) }

// registryRules returns the rules that can be checked together, and those that trouble the server.
func registryRules(r Registry, patience time.Duration, logf func(string, ...any)) (together, alone []rule) {
	if r.TTL == 0 {
		r.TTL = time.Second
	}
	if r.Late == 0 {
		r.Late = 4 * time.Second
	}
	if r.Instances == 0 {
		r.Instances = 5000
	}
	x := registryTrial{r, patience + r.TTL + r.Late, logf}
	together = []rule{
		{"fields", "what an instance says of itself reaches clients: group, version, weight, zone, coordinates, state, tags, metadata, start and load", x.fields},
		{"update", "Announce replaces the record of an address, and clients learn it", x.update},
		{"withdraw", "what is withdrawn is unknown at once; that there is nothing to withdraw is no error", x.withdrawn},
		{"no instances", "of a service that nobody has announced Watch says at once that it has no instances: a client waits for the first set", x.nobody},
		{"ttl", "a record that is not announced again lives as long as its ttl, not shorter and not much longer", x.ttl},
		{"renewal", "a record that is announced again in time is never gone meanwhile", x.renewal},
		{"services", "the instances of one service are not those of another, whatever characters their names have", x.services},
		{"long names", "a name is carried as it is, or refused with the name and the registry's limit; no two names are one", x.longNames},
		{"addresses", "whatever form an address has, clients get it as it was announced", x.addresses},
		{"clients", "all clients see the same, whenever they began to look", x.clients},
		{"ended before", "Announce and Withdraw fail when their context has already ended: the server shuts down", x.endedBefore},
		{"concurrent use", "calls at the same time do not lose each other's records", x.concurrently},
		{"list", "the list of services names all that are announced", x.listed},
		{"address of another", "a server that ends leaves the record of another server that has announced itself at its address since", x.ofAnother},
		{"override", "what an operator sets for an instance stays until it is removed, whatever becomes of the instance, and is no instance itself", x.override},
	}
	alone = []rule{
		{"restarted with its data", "a server that is killed makes Announce fail and leaves clients the set they have; when it is back, all works as before", x.restarted},
		{"restarted empty", "a server that lost everything has again within one ttl what is announced again and again, and clients see it", x.restartedEmpty},
		{"hangs", "a server that does not answer makes Announce end with its context and leaves clients the set they have; when it answers again, all works as before", x.hangs},
		{"slow", "a server that answers slowly is used slowly, and no record is lost", x.slow},
		{"expired", "a lease or session that was lost is made anew by the next Announce", x.expired},
		{"many", "a service may have thousands of instances, and a change among them is seen soon", x.many},
	}
	for _, about := range resolverRules(discovery.Static(), func([]discovery.Instance) {}, nil, 0) {
		check := func() error { return x.resolver(about.name) }
		together = append(together, rule{"resolver " + about.name, about.why, check})
	}
	return together, alone
}

// A registryTrial is a test of one registry.
type registryTrial struct {
	Registry
	patience time.Duration
	logf     func(string, ...any)
}

// name returns a new name of a service, because the registry may remember the services of earlier
// rules and tests.
func (x registryTrial) name() string { return fmt.Sprintf("Yodel.Test%016x", rand.Uint64()) }

// long returns a ttl that does not end during the test of a rule.
func (x registryTrial) long() time.Duration { return max(time.Minute, 10*x.TTL) }

func (x registryTrial) announce(service string, ttl time.Duration, instances ...discovery.Instance) error {
	ctx, cancel := context.WithTimeout(context.Background(), x.patience)
	defer cancel()
	for _, in := range instances {
		if err := x.Registrar.Announce(ctx, service, in, ttl); err != nil {
			return fmt.Errorf("Announce %s: %w", in.Addr, err)
		}
	}
	return nil
}

func (x registryTrial) withdraw(service string, addrs ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), x.patience)
	defer cancel()
	for _, addr := range addrs {
		if err := x.Registrar.Withdraw(ctx, service, addr); err != nil {
			return fmt.Errorf("Withdraw %s: %w", addr, err)
		}
	}
	return nil
}

// keep announces an instance repeatedly, as a server does, until stop is called. It continues after
// an error. Stop returns the longest time from the start of an Announce to the end of the next one
// that succeeded: if that is at most ttl, then the instance was announced again in time.
func (x registryTrial) keep(service string, in discovery.Instance, ttl time.Duration) (stop func() (longest time.Duration)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var longest time.Duration
	wg.Go(func() {
		var last time.Time // the start of the last Announce that succeeded
		for backoff := ttl / 50; ctx.Err() == nil; {
			began := time.Now()
			one, done := context.WithTimeout(ctx, ttl)
			err := x.Registrar.Announce(one, service, in, ttl)
			done()
			pause := ttl / 3
			if err != nil {
				pause, backoff = backoff, min(2*backoff, ttl/3)
			} else {
				if !last.IsZero() {
					longest = max(longest, time.Since(last))
				}
				last, backoff = began, ttl/50
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
		if !last.IsZero() {
			longest = max(longest, time.Since(last)) // the next Announce has not come yet
		}
	})
	return func() time.Duration { cancel(); wg.Wait(); return longest }
}

// A follower calls Watch again each time that it fails, as a client does.
type follower struct{ discovery.Resolver }

func (f follower) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for ctx.Err() == nil {
		_ = f.Resolver.Watch(ctx, update) // the last update stays in use
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// follow watches a service as a new client does.
func (x registryTrial) follow(service string) *watch {
	return resolverTrial{follower{x.Service(service)}, nil, nil, x.patience}.watch(0)
}

// neverEmpty checks that no update was empty after the first one with instances.
func (w *watch) neverEmpty() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := false
	for _, update := range w.copies {
		if known && len(update) == 0 {
			return errors.New("update said that there are no instances, and that was not so")
		}
		known = known || len(update) > 0
	}
	return nil
}

// resolver tests a rule for resolvers with a service of the registry.
func (x registryTrial) resolver(name string) error {
	service := x.name()
	known := make(map[string]bool)
	var failed error
	set := func(instances []discovery.Instance) {
		failed = errors.Join(failed, x.announce(service, x.long(), instances...))
		for addr := range known {
			if !slices.ContainsFunc(instances, func(in discovery.Instance) bool { return in.Addr == addr }) {
				failed = errors.Join(failed, x.withdraw(service, addr))
				delete(known, addr)
			}
		}
		for _, in := range instances {
			known[in.Addr] = true
		}
	}
	for _, r := range resolverRules(x.Service(service), set, nil, x.patience) {
		if r.name == name {
			err := r.broken()
			set(nil)
			return errors.Join(err, failed)
		}
	}
	return fmt.Errorf("there is no rule %q", name)
}

func (x registryTrial) fields() error {
	service := x.name()
	full := discovery.Instance{
		Addr: "127.0.0.1:1", Group: "red,blue", Version: "v1.2.3", Weight: 7, Zone: "eu-1a", Latitude: 47.3769, Longitude: -8.5417,
		State: "active", Tags: []string{"canary", "a b&c=d"}, Metadata: yodel.Metadata{"owner": "Zoë & co", "empty": "", "=?": "%20;"},
		Incarnation: "00ff", Protocols: []string{"yodel", "netrpc"}, Started: time.Date(2026, 7, 8, 9, 10, 11, 12e6, time.UTC), CallRate: 1234.5, Inflight: 17,
	}
	sparse := discovery.Instance{Addr: "127.0.0.1:2", State: "inactive"}
	w := x.follow(service)
	err := x.announce(service, x.long(), full, sparse)
	if err == nil {
		err = w.until(full.Addr, sparse.Addr)
	}
	if err == nil {
		for _, got := range w.last() {
			if want := map[string]discovery.Instance{full.Addr: full, sparse.Addr: sparse}[got.Addr]; !reflect.DeepEqual(got, want) {
				err = errors.Join(err, fmt.Errorf("%+v came back as %+v", want, got))
			}
		}
	}
	return errors.Join(err, w.stop(), x.withdraw(service, full.Addr, sparse.Addr))
}

// last returns the last update.
func (w *watch) last() []discovery.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.copies[len(w.copies)-1]
}

func (x registryTrial) update() error {
	service := x.name()
	in := discovery.Instance{Addr: "127.0.0.1:1", Weight: 1}
	err := x.announce(service, x.long(), in)
	w := x.follow(service)
	if err == nil {
		err = w.until(in.Addr)
	}
	for _, change := range []func(){
		func() { in.Weight = 9 },
		func() { in.State, in.Tags = "inactive", []string{"new"} },
		func() { in.State, in.Tags, in.CallRate = "", nil, 100 },
		func() { in.Metadata = yodel.Metadata{"owner": "Ann", "cell": "a"} },
		func() { in.Metadata = yodel.Metadata{"owner": "Ben"} },
		func() { in = discovery.Instance{Addr: in.Addr} },
	} {
		change()
		if err == nil {
			err = x.announce(service, x.long(), in)
		}
		if err == nil {
			err = w.see(fmt.Sprintf("%+v alone", in), func(got []discovery.Instance) bool {
				return len(got) == 1 && reflect.DeepEqual(got[0], in)
			})
		}
	}
	return errors.Join(err, w.stop(), x.withdraw(service, in.Addr))
}

func (x registryTrial) withdrawn() error {
	service := x.name()
	w := x.follow(service)
	err := x.withdraw(service, "127.0.0.1:1")
	if err == nil {
		err = x.announce(service, x.long(), instancesAt("127.0.0.1:1", "127.0.0.1:2")...)
	}
	for _, left := range [][]string{{"127.0.0.1:1", "127.0.0.1:2"}, {"127.0.0.1:1"}, {}} {
		if err == nil {
			err = w.until(left...)
		}
		if err == nil && len(left) > 0 {
			last := left[len(left)-1]
			err = x.withdraw(service, last, last)
		}
	}
	return errors.Join(err, w.stop())
}

func (x registryTrial) nobody() error {
	w := x.follow(x.name())
	return errors.Join(w.until(), w.stop())
}

func (x registryTrial) ttl() error {
	service := x.name()
	w := x.follow(service)
	began := time.Now()
	err := x.announce(service, x.TTL, discovery.Instance{Addr: "127.0.0.1:1"})
	answered := time.Now()
	if err == nil {
		err = w.until("127.0.0.1:1")
	}
	if err == nil {
		err = w.until()
	}
	if err == nil {
		if lived := time.Since(began); lived < x.TTL {
			err = fmt.Errorf("a record with a ttl of %v lived for %v", x.TTL, lived)
		}
		if lived := time.Since(answered); lived > x.TTL+x.Late {
			err = fmt.Errorf("a record with a ttl of %v lived for %v", x.TTL, lived)
		}
	}
	return errors.Join(err, w.stop())
}

func (x registryTrial) renewal() error { return x.neverGone(2 * x.TTL) }

// neverGone checks that clients have an instance all the time while it is announced again in time.
// A busy machine may announce it too late, and then the record may be gone: it is tried again with
// a longer ttl.
func (x registryTrial) neverGone(ttl time.Duration) error {
	for tries := 3; ; tries-- {
		longest, err := x.kept(ttl)
		if err == nil || longest <= ttl || tries == 1 {
			return err
		}
		x.logf("with a ttl of %v an instance was announced again after up to %v, and %v", ttl, longest.Round(time.Millisecond), err)
		ttl *= 2
	}
}

// kept keeps an instance for longer than one ttl, and checks that clients have it all the time. It
// returns what the stop of keep returns.
func (x registryTrial) kept(ttl time.Duration) (longest time.Duration, err error) {
	service, in := x.name(), discovery.Instance{Addr: "127.0.0.1:1"}
	stop := x.keep(service, in, ttl)
	w := x.follow(service)
	err = w.until(in.Addr)
	if err == nil {
		<-time.After(ttl + x.Late) // living for one ttl is not enough
		err = errors.Join(w.neverEmpty(), w.until(in.Addr))
	}
	longest = stop()
	err = errors.Join(err, x.withdraw(service, in.Addr))
	if err == nil {
		err = w.until()
	}
	return longest, errors.Join(err, w.stop())
}

func (x registryTrial) services() error {
	base := x.name()
	names := []string{
		base, base + "2", base + "/2", base + "/", base + ".Two", base + " 2", base + "%2F2", base + "?a=1#b", base + "+", base + "@tcp",
		base + ":8080", base + "-Übung-日本", "../" + base, base + `\"'*`,
	}
	var err error
	for i, name := range names {
		err = errors.Join(err, x.announce(name, x.long(), discovery.Instance{Addr: fmt.Sprintf("127.0.0.1:%d", i+1)}))
	}
	for i, name := range names {
		w := x.follow(name)
		only := fmt.Sprintf("127.0.0.1:%d", i+1)
		if wrong := errors.Join(w.until(only), w.stop(), x.withdraw(name, only)); wrong != nil {
			err = errors.Join(err, fmt.Errorf("service %q: %w", name, wrong))
		}
	}
	return err
}

func (x registryTrial) addresses() error {
	service := x.name()
	addrs := []string{"/run/a.sock", "10.0.0.1:80", "@abstract", "[fe80::1%eth0]:8080", "host-1.example.com:http", "ws://host:1/path?x=1"}
	w := x.follow(service)
	err := x.announce(service, x.long(), instancesAt(addrs...)...)
	if err == nil {
		err = w.until(slices.Sorted(slices.Values(addrs))...)
	}
	err = errors.Join(err, x.withdraw(service, addrs...))
	if err == nil {
		err = w.until()
	}
	return errors.Join(err, w.stop())
}

func (x registryTrial) clients() error {
	service := x.name()
	var watches []*watch
	var addrs []string
	var err error
	for i := range 4 { // one more client each time
		w := x.follow(service)
		watches = append(watches, w)
		err = errors.Join(err, w.until(addrs...))
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", i+1))
		err = errors.Join(err, x.announce(service, x.long(), discovery.Instance{Addr: addrs[i]}))
	}
	for _, w := range watches {
		err = errors.Join(err, w.until(addrs...), w.stop())
	}
	return errors.Join(err, x.withdraw(service, addrs...))
}

func (x registryTrial) override() error {
	settings := yodel.Description{}.Over(x.Registrar)
	if settings.Override == nil || settings.Overrides == nil {
		return missing("the registry keeps no settings of operators")
	}
	ctx, cancel := context.WithTimeout(context.Background(), x.patience)
	defer cancel()
	service, in := x.name(), discovery.Instance{Addr: "127.0.0.1:1", Weight: 3}
	instances := x.follow(service)
	set := resolverTrial{follower{settings.Overrides(service)}, nil, nil, x.patience}.watch(0)
	want := func(state string, weight int) error {
		return set.see(fmt.Sprintf("the setting %q, %d", state, weight), func(got []discovery.Instance) bool {
			return len(got) == 1 && got[0].Addr == in.Addr && got[0].State == state && got[0].Weight == weight
		})
	}
	err := errors.Join(set.until(), x.announce(service, x.TTL, in), instances.until(in.Addr), settings.Override(ctx, service, in.Addr, "inactive", 0))
	if err == nil {
		err = want("inactive", 0)
	}
	if err == nil {
		err = errors.Join(settings.Override(ctx, service, in.Addr, "inactive", 7), want("inactive", 7))
	}
	if err == nil { // the record of the instance ends, but the setting does not
		err = errors.Join(instances.until(), set.neverEmpty(), want("inactive", 7))
	}
	if err == nil {
		err = errors.Join(x.announce(service, x.long(), in), instances.until(in.Addr), x.withdraw(service, in.Addr), instances.until(), want("inactive", 7))
	}
	if err == nil {
		err = errors.Join(settings.Override(ctx, service, in.Addr, "", 0), settings.Override(ctx, service, in.Addr, "", 0), set.until())
	}
	return errors.Join(err, instances.stop(), set.stop())
}

// A test that waits for a list of services reads all of it after each pause. The first pause is
// firstPause. Each further pause is twice as long, up to lastPause.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// listed announces many services, and waits until the list has all of them.
func (x registryTrial) listed() error {
	lister, ok := x.Registrar.(interface {
		Services(ctx context.Context) ([]string, error)
	})
	if !ok {
		return missing("the registry does not list services")
	}
	in, first := discovery.Instance{Addr: "127.0.0.1:1"}, x.name()
	names := make([]string, max(30, min(100, x.Instances/10)))
	each := func(do func(service string) error) error {
		return x.inParallel(len(names), func(i int) error { return do(names[i]) })
	}
	for i := range names {
		names[i] = fmt.Sprintf("%s.N%03d", first, i)
	}
	err := each(func(service string) error { return x.announce(service, x.long(), in) })
	ctx, cancel := context.WithTimeout(context.Background(), x.patience)
	defer cancel()
	for pause := firstPause; err == nil; pause = min(2*pause, lastPause) {
		known, failed := lister.Services(ctx)
		known = slices.DeleteFunc(known, func(name string) bool { return !slices.Contains(names, name) })
		if failed == nil && slices.Equal(known, names) {
			break
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("the list has %d of %d services, or is not sorted: %w", len(known), len(names), errors.Join(failed, ctx.Err()))
		}
		select {
		case <-time.After(pause): // a registry that is polled may list late
		case <-ctx.Done():
		}
	}
	return errors.Join(err, each(func(service string) error { return x.withdraw(service, in.Addr) }))
}

// ofAnother withdraws an instance after another process has announced itself at its address.
func (x registryTrial) ofAnother() error {
	if x.Another == nil {
		return missing("there is no function for another process")
	}
	other := x
	other.Registrar = x.Another
	service := x.name()
	w := x.follow(service)
	ours := discovery.Instance{Addr: "127.0.0.1:1", Incarnation: "0a", Version: "v1"}
	theirs := discovery.Instance{Addr: ours.Addr, Incarnation: "0b", Version: "v2"}
	sees := func(version string) error {
		return w.see(version+" alone", func(got []discovery.Instance) bool { return len(got) == 1 && got[0].Version == version })
	}
	err := errors.Join(x.announce(service, x.long(), ours), sees("v1"))
	if err == nil {
		err = errors.Join(other.announce(service, x.long(), theirs), sees("v2"))
	}
	if err == nil { // the third instance shows that the client has heard of the withdrawal
		third := discovery.Instance{Addr: "127.0.0.1:3"}
		err = errors.Join(x.withdraw(service, ours.Addr), x.announce(service, x.long(), third), w.until(ours.Addr, third.Addr), x.withdraw(service, third.Addr), sees("v2"))
	}
	return errors.Join(err, other.withdraw(service, theirs.Addr), w.until(), w.stop())
}

func (x registryTrial) endedBefore() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	service := x.name()
	if x.Registrar.Announce(ctx, service, discovery.Instance{Addr: "127.0.0.1:1"}, x.long()) == nil {
		return errors.Join(errors.New("Announce did something though its context had ended"), x.withdraw(service, "127.0.0.1:1"))
	}
	if x.Registrar.Withdraw(ctx, service, "127.0.0.1:1") == nil {
		return errors.New("Withdraw did something though its context had ended")
	}
	return nil
}

func (x registryTrial) concurrently() error {
	service := x.name()
	var wg sync.WaitGroup
	faults := make([]error, 40)
	var left []string
	for i := range faults {
		addr := fmt.Sprintf("127.0.0.1:%d", 100+i)
		if i%2 == 0 {
			left = append(left, addr)
		}
		wg.Go(func() {
			for round := range 3 {
				if faults[i] = x.announce(service, x.long(), discovery.Instance{Addr: addr, Weight: round}); faults[i] != nil {
					return
				}
			}
			if i%2 != 0 {
				faults[i] = x.withdraw(service, addr)
			}
		})
	}
	wg.Wait()
	err := errors.Join(faults...)
	w := x.follow(service)
	if err == nil {
		err = w.until(left...)
	}
	return errors.Join(err, w.stop(), x.withdraw(service, left...))
}
