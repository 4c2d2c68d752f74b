// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// TestResolver checks that r fulfills the contract of discovery.Resolver. Set sets the instances in
// the source that r reads. If that is not possible, set is nil, and the test does not change the
// instances. Fail makes the source fail permanently, or is nil.
//
//	func TestStatic(t *testing.T) { yodeltest.TestResolver(t, discovery.Static("a:1"), nil, nil) }
func TestResolver(t *testing.T, r discovery.Resolver, set func([]discovery.Instance), fail func()) {
	t.Helper()
	runRules(t, resolverRules(r, set, fail, 20*time.Second))
}

func resolverRules(r discovery.Resolver, set func([]discovery.Instance), fail func(), patience time.Duration) []rule {
	x := resolverTrial{r, set, fail, patience}
	rules := []rule{
		{"at once", "Watch names the whole set before anything changes: calls wait for it", x.atOnce},
		{"ends", "Watch returns soon when its context ends, and never calls update afterwards: a client that is closed waits for it", x.ends},
		{"ended before", "Watch returns at once when its context has already ended", x.endedBefore},
		{"several watches", "a resolver may be watched by several clients at once, and again", x.several},
	}
	if set != nil {
		rules = append(rules,
			rule{"updates", "every change ends in an update with the whole set, not with the difference, also when the last instance goes", x.updates},
			rule{"slices", "what update was given does not change afterwards: the client keeps it", x.slices},
			rule{"one at a time", "one Watch calls update once at a time, however slow it is: updates that overtake each other end in an old set", x.oneAtATime})
	}
	if fail != nil {
		rules = append(rules, rule{"failure", "when the source fails, Watch returns an error and does not say that there are no instances: the last set stays in use", x.failure})
	}
	return rules
}

// A resolverTrial is a test of one resolver.
type resolverTrial struct {
	discovery.Resolver
	set      func([]discovery.Instance)
	fail     func()
	patience time.Duration
}

// A watch is one call of Watch, and its updates so far.
type watch struct {
	patience time.Duration
	cancel   context.CancelFunc
	ended    chan error

	mu      sync.Mutex
	updates [][]discovery.Instance // as passed to update
	copies  [][]discovery.Instance // copies made during update
	changed chan struct{}
	fault   error
	busy    bool
}

func (x resolverTrial) watch(slow time.Duration) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{patience: x.patience, cancel: cancel, ended: make(chan error, 1), changed: make(chan struct{}, 1)}
	go func() { w.ended <- x.Watch(ctx, func(instances []discovery.Instance) { w.update(instances, slow) }) }()
	return w
}

func (w *watch) update(instances []discovery.Instance, slow time.Duration) {
	w.mu.Lock()
	if w.busy {
		w.fault = errors.New("update was called while it had not returned")
	}
	w.busy = true
	w.updates, w.copies = append(w.updates, instances), append(w.copies, slices.Clone(instances))
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
	if slow > 0 {
		<-time.After(slow)
	}
	w.mu.Lock()
	w.busy = false
	w.mu.Unlock()
}

// until waits for an update with exactly these addresses.
func (w *watch) until(addrs ...string) error {
	return w.see(fmt.Sprintf("%q", addrs), func(instances []discovery.Instance) bool {
		return slices.Equal(addressesOf(instances), addrs)
	})
}

// see waits for an update that is right. want describes it.
func (w *watch) see(want string, right func([]discovery.Instance) bool) error {
	late := time.After(w.patience)
	for {
		w.mu.Lock()
		n, fault := len(w.copies), w.fault
		var last []discovery.Instance
		if n > 0 {
			last = w.copies[n-1]
		}
		w.mu.Unlock()
		if fault != nil {
			return fault
		}
		if n > 0 && right(last) {
			return nil
		}
		select {
		case <-w.changed:
		case err := <-w.ended:
			w.ended <- err
			return fmt.Errorf("Watch returned %v though its context had not ended; it had said %s", err, summary(n, last))
		case <-late:
			return fmt.Errorf("update said %s, want %s", summary(n, last), want)
		}
	}
}

// summary describes the last of n updates.
func summary(n int, last []discovery.Instance) string {
	if n == 0 {
		return "nothing"
	}
	text := fmt.Sprintf("%q", addressesOf(last))
	if len(text) > 200 {
		return fmt.Sprintf("%d instances", len(last))
	}
	return text
}

// stop cancels the Watch and waits until it has returned.
func (w *watch) stop() error {
	w.cancel()
	select {
	case <-w.ended:
		return nil
	case <-time.After(w.patience):
		return errors.New("Watch does not return when its context ends")
	}
}

func addressesOf(instances []discovery.Instance) []string {
	addrs := make([]string, 0, len(instances))
	for _, in := range instances {
		addrs = append(addrs, in.Addr)
	}
	slices.Sort(addrs)
	return addrs
}

func instancesAt(addrs ...string) []discovery.Instance {
	instances := make([]discovery.Instance, len(addrs))
	for i, addr := range addrs {
		instances[i] = discovery.Instance{Addr: addr, Metadata: yodel.Metadata{"n": strings.Repeat("x", i)}}
	}
	return instances
}

// prepare sets the instances, if it can, and returns the addresses that the first update of a Watch
// must have.
func (x resolverTrial) prepare() []string {
	if x.set == nil {
		return nil
	}
	x.set(instancesAt("127.0.0.1:1", "127.0.0.1:2"))
	return []string{"127.0.0.1:1", "127.0.0.1:2"}
}

// first waits for the first update. It must have the addresses want, unless want is not known.
func (w *watch) first(want []string) error {
	if want != nil {
		return w.until(want...)
	}
	select {
	case <-w.changed:
		return nil
	case err := <-w.ended:
		w.ended <- err
		return fmt.Errorf("Watch returned %v and never called update", err)
	case <-time.After(w.patience):
		return errors.New("update was never called")
	}
}

func (x resolverTrial) atOnce() error {
	want := x.prepare()
	w := x.watch(0)
	return errors.Join(w.first(want), w.stop())
}

func (x resolverTrial) ends() error {
	w := x.watch(0)
	if err := errors.Join(w.first(x.prepare()), w.stop()); err != nil {
		return err
	}
	if x.set == nil {
		return nil
	}
	select { // an update before the end
	case <-w.changed:
	default:
	}
	other := x.watch(0) // when other has seen the change, the ended Watch would have seen it too
	x.set(instancesAt("127.0.0.1:3"))
	if err := errors.Join(other.until("127.0.0.1:3"), other.stop()); err != nil {
		return err
	}
	select {
	case <-w.changed:
		return errors.New("update was called after Watch had returned")
	case <-time.After(afterwards):
		return nil
	}
}

// afterwards is how long a test waits for an update that must not come.
const afterwards = 50 * time.Millisecond

func (x resolverTrial) endedBefore() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ended := make(chan struct{})
	go func() {
		_ = x.Watch(ctx, func([]discovery.Instance) {})
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(x.patience):
		return errors.New("Watch does not return though its context ended before")
	}
}

func (x resolverTrial) several() error {
	want := x.prepare()
	a, b := x.watch(0), x.watch(0)
	if err := errors.Join(a.first(want), b.first(want), a.stop()); err != nil {
		return errors.Join(err, b.stop())
	}
	if x.set != nil { // the end of one Watch does not end another
		x.set(instancesAt("127.0.0.1:4"))
		want = []string{"127.0.0.1:4"}
		if err := b.until(want...); err != nil {
			return errors.Join(err, b.stop())
		}
	}
	again := x.watch(0)
	return errors.Join(again.first(want), again.stop(), b.stop())
}

func (x resolverTrial) updates() error {
	w := x.watch(0)
	for _, addrs := range [][]string{{"127.0.0.1:1"}, {"127.0.0.1:1", "127.0.0.1:2"}, {"127.0.0.1:2"}, {}, {"127.0.0.1:3"}} {
		x.set(instancesAt(addrs...))
		if err := w.until(addrs...); err != nil {
			return errors.Join(err, w.stop())
		}
	}
	return w.stop()
}

func (x resolverTrial) slices() error {
	w := x.watch(0)
	for _, addrs := range [][]string{{"127.0.0.1:1", "127.0.0.1:2"}, {"127.0.0.1:2"}, {"127.0.0.1:3"}} {
		x.set(instancesAt(addrs...))
		if err := w.until(addrs...); err != nil {
			return errors.Join(err, w.stop())
		}
	}
	err := w.stop()
	for i, given := range w.updates {
		if got, was := addressesOf(given), addressesOf(w.copies[i]); !slices.Equal(got, was) {
			return errors.Join(err, fmt.Errorf("an update said %q and later holds %q", was, got))
		}
	}
	return err
}

func (x resolverTrial) oneAtATime() error {
	want := x.prepare()
	w := x.watch(20 * time.Millisecond)
	if err := w.until(want...); err != nil { // update was called, and takes a while
		return errors.Join(err, w.stop())
	}
	for i := range 20 {
		x.set(instancesAt(fmt.Sprintf("127.0.0.1:%d", i+1)))
	}
	return errors.Join(w.until("127.0.0.1:20"), w.stop())
}

func (x resolverTrial) failure() error {
	want := x.prepare()
	w := x.watch(0)
	if err := w.first(want); err != nil {
		return errors.Join(err, w.stop())
	}
	x.fail()
	select {
	case err := <-w.ended:
		w.ended <- err
		if err == nil {
			return errors.Join(errors.New("Watch returned nil when its source failed"), w.stop())
		}
	case <-time.After(w.patience):
		return errors.Join(errors.New("Watch does not return when its source fails"), w.stop())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.copies); len(w.copies[n-1]) == 0 && len(want) > 0 {
		return errors.New("when its source failed, Watch said that there are no instances")
	}
	return nil
}
