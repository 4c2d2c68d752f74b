// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

func canary(percent float64) rules.Rule {
	return rules.Rule{
		ID: "c", Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: percent},
		Author: "ann", Reason: "try v2",
	}
}

func open(t *testing.T, r any) *rules.Book {
	t.Helper()
	book, err := rules.Open(r)
	if err != nil {
		t.Fatal(err)
	}
	return book
}

func put(t *testing.T, book *rules.Book, r rules.Rule) rules.Rule {
	t.Helper()
	stored, err := book.Put(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func TestABookKeepsHistoryAndRollsBack(t *testing.T) {
	book := open(t, memory.New(nil))
	ctx := t.Context()
	first := put(t, book, canary(10))
	if first.Revision != 1 || first.Created.IsZero() || first.Schema != rules.Schema {
		t.Errorf("stored %+v", first)
	}
	put(t, book, canary(50))
	other := put(t, book, rules.Rule{Service: "Shop", Timeout: &rules.Timeout{After: rules.Duration(time.Second)}, Author: "bob", Reason: "slow"})
	if !strings.HasPrefix(other.ID, "timeout-") {
		t.Errorf("the ID is %q", other.ID)
	}
	if err := book.Remove(ctx, "Shop", "c", 0, "bob", "done"); err != nil {
		t.Fatal(err)
	}
	history, err := book.History(ctx, "Shop")
	if err != nil || len(history) != 4 || history[0].What != "remove" || history[0].Author != "bob" || history[0].After != nil {
		t.Fatalf("history %+v, %v", history, err)
	}
	if diff := strings.Join(history[2].Diff(), "\n"); !strings.Contains(diff, "- canary.percent: 10\n") || !strings.Contains(diff, "+ canary.percent: 50") {
		t.Errorf("diff:\n%s", diff)
	}
	if err := book.Rollback(ctx, "Shop", 1, 0, "carol", "back"); err != nil {
		t.Fatal(err)
	}
	all, err := book.List(ctx, "")
	if err != nil || len(all) != 1 || all[0].Canary.Percent != 10 || all[0].Author != "carol" || !all[0].Created.Equal(first.Created) {
		t.Errorf("after the rollback: %+v, %v", all, err)
	}
	for _, revision := range []int{-1, 7} {
		if err := book.Rollback(ctx, "Shop", revision, 0, "carol", "back"); !errors.Is(err, rules.ErrNoRule) {
			t.Errorf("revision %d: %v", revision, err)
		}
	}
	if err := book.Remove(ctx, "Shop", "nothing", 0, "bob", "done"); !errors.Is(err, rules.ErrNoRule) {
		t.Errorf("remove an unknown rule: %v", err)
	}
}

func TestABookRefusesRules(t *testing.T) {
	book := open(t, memory.New(nil))
	unsigned := canary(10)
	unsigned.Reason = ""
	expired := canary(10)
	expired.Expires = time.Now().Add(-time.Second)
	for id, r := range map[string]rules.Rule{"YDL-R004": unsigned, "YDL-R011": expired, "YDL-R006": canary(101), "YDL-R005": {Service: "Shop", Author: "a", Reason: "b"}} {
		_, err := book.Put(t.Context(), r)
		if invalid, ok := errors.AsType[*rules.InvalidError](err); !ok || invalid.Problems[0].ID != id {
			t.Errorf("got %v, want %s", err, id)
		}
	}
	if _, err := rules.Open(struct{}{}); err == nil {
		t.Error("a struct{} keeps rules")
	}
}

// Book.Put succeeds only if processes accept what it stores: the ID, the revision and the time that
// it adds count too.
func TestABookRefusesWhatProcessesRefuse(t *testing.T) {
	refused := func(r rules.Rule, id string) bool {
		t.Helper()
		book := open(t, memory.New(nil)) // without the history of the other rules, which each change would read
		stored, err := book.Put(t.Context(), r)
		if invalid, ok := errors.AsType[*rules.InvalidError](err); ok {
			if invalid.Problems[0].ID != id {
				t.Errorf("got %v, want %s", err, id)
			}
			return true
		}
		all, err2 := book.List(t.Context(), r.Service)
		if err != nil || err2 != nil || len(all) != 1 || all[0].ID != stored.ID {
			t.Fatalf("Put returned %v, and the rules are %v, %v", err, all, err2)
		}
		if err := book.Remove(t.Context(), r.Service, stored.ID, 0, "ann", "done"); err != nil {
			t.Fatal(err)
		}
		return false
	}
	late := canary(10)
	late.Expires = time.Now().AddDate(11, 0, 0)
	if !refused(late, "YDL-R011") {
		t.Error("a new rule that lasts 11 years is accepted")
	}
	if late.Created = time.Now().AddDate(2, 0, 0); !refused(late, "YDL-R011") {
		t.Error("a new rule that lasts 11 years is accepted if it says when it was made")
	}
	accepted := 0
	for n := range 256 {
		if refused(large(62, n+1), "YDL-R003") {
			break
		}
		accepted = n + 1
	}
	if accepted == 0 || accepted == 256 {
		t.Errorf("rules with up to %d bytes more are accepted", accepted)
	}
}

// large returns a rule with n texts of 256 bytes and one of last bytes.
func large(n, last int) rules.Rule {
	except := append(slices.Repeat([]string{strings.Repeat("x", 256)}, n), strings.Repeat("x", last))
	return rules.Rule{Service: "Shop", Disable: &rules.Disable{Except: except}, Author: "a", Reason: "b"}
}

// A rule has more bytes when its Rollback has switched it off, and is a valid rule then too.
func TestALargeRuleIsRolledBack(t *testing.T) {
	book := open(t, memory.New(nil))
	for n := 256; n > 0; n-- {
		r := large(61, n)
		r.Method, r.Rollback = strings.Repeat("m", 32), &rules.Rollback{Below: 99, For: rules.Duration(time.Minute)}
		stored, err := book.Put(t.Context(), r)
		if err != nil {
			continue
		}
		if err := rules.RolledBack(book, t.Context(), "Shop", stored.ID, stored.Revision, strings.Repeat("y", 100)); err != nil {
			t.Error(err)
		}
		if all, err := book.List(t.Context(), "Shop"); err != nil || len(all) != 1 || !all[0].Off || all[0].Author != "auto-rollback" {
			t.Errorf("got %v, %v", all, err)
		}
		return
	}
	t.Error("no rule of this size is accepted")
}

func TestHistoryIsBounded(t *testing.T) {
	r := memory.New(nil)
	book := open(t, r)
	for i := range 120 {
		put(t, book, canary(float64(i%100)))
	}
	history, err := book.History(t.Context(), "Shop")
	if err != nil || len(history) != 100 || history[0].Revision != 120 || history[99].Revision != 21 {
		t.Errorf("%d changes, %v", len(history), err)
	}
	if err := book.Rollback(t.Context(), "Shop", 20, 0, "ann", "back"); err != nil {
		t.Errorf("back to the first: %v", err)
	}
	if err := book.Rollback(t.Context(), "Shop", 19, 0, "ann", "back"); !errors.Is(err, rules.ErrNoRule) {
		t.Errorf("too far back: %v", err)
	}
}

func TestABookNamesInvalidRecords(t *testing.T) {
	in := memory.New(nil)
	book := open(t, in)
	put(t, book, canary(10))
	for id, record := range map[string]string{"broken": "{", "other": `{"schema":1,"id":"c","service":"Shop"}`, "future": `{"schema":9}`} {
		if err := in.Keep(t.Context(), "Shop", "rules", id, []byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	for _, service := range []string{"Shop", ""} {
		all, err := book.Invalid(t.Context(), service)
		var got []string
		for _, r := range all {
			got = append(got, r.Service+"/"+r.ID+" "+r.State+" "+r.Problem[max(len(r.Problem)-10, 0):])
		}
		if want := "Shop/broken invalid [YDL-R001], Shop/future invalid [YDL-R004], Shop/other invalid [YDL-R004]"; err != nil || strings.Join(got, ", ") != want {
			t.Errorf("got %v, %v", got, err)
		}
	}
	if all, err := book.List(t.Context(), "Shop"); err != nil || len(all) != 1 {
		t.Errorf("the rules are %v, %v", all, err)
	}
}

// A hoarder is a registry that removes no entry of the history while it is full.
type hoarder struct {
	*registry.Registry

	full bool
}

func (h *hoarder) Keep(ctx context.Context, service, kind, id string, value []byte) error {
	if h.full && kind == "history" && value == nil {
		return errors.New("the registry is full")
	}
	return h.Registry.Keep(ctx, service, kind, id, value)
}

func TestAChangeSucceedsIfTheHistoryIsNotPruned(t *testing.T) {
	in := &hoarder{Registry: memory.New(nil), full: true}
	book := open(t, in)
	for i := range 105 {
		put(t, book, canary(float64(i%100)))
	}
	entries := func() (n int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := in.Kept(ctx, "Shop", "history", func(all map[string][]byte) {
			n = len(all)
			cancel()
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := entries(); n != 105 {
		t.Errorf("the full registry has %d entries", n)
	}
	in.full = false
	if put(t, book, canary(1)); entries() != 100 {
		t.Errorf("after the next change, the registry has %d entries", entries())
	}
}

// awaitRules waits until n rules are reported.
func awaitRules(seen <-chan []rules.Rule, n int) {
	for {
		if len(<-seen) == n {
			return
		}
	}
}

func TestABookWatches(t *testing.T) {
	r := memory.New(nil)
	book := open(t, r)
	for _, service := range []string{"Shop", ""} {
		ctx, cancel := context.WithCancel(t.Context())
		seen := make(chan []rules.Rule, 100)
		ended := make(chan error)
		go func() { ended <- book.Watch(ctx, service, func(all []rules.Rule) { seen <- all }) }()
		<-seen
		put(t, book, canary(10))
		awaitRules(seen, 1)
		if err := book.Remove(ctx, "Shop", "c", 0, "ann", "done"); err != nil {
			t.Fatal(err)
		}
		awaitRules(seen, 0)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestAServiceHasABoundedNumberOfRules(t *testing.T) {
	book := open(t, memory.New(nil))
	for i := range 64 {
		r := canary(1)
		r.ID = fmt.Sprint("c", i)
		put(t, book, r)
	}
	_, err := book.Put(t.Context(), canary(1))
	if invalid, ok := errors.AsType[*rules.InvalidError](err); !ok || invalid.Problems[0].ID != "YDL-R014" {
		t.Errorf("got %v", err)
	}
}

// A change that is based on an old revision is refused, with what has changed since.
func TestAChangeOfAnOldRevisionIsRefused(t *testing.T) {
	registry := memory.New(nil)
	ann, bob := open(t, registry), open(t, registry)
	seen := put(t, ann, canary(10))
	next := seen
	next.Canary = &rules.Canary{To: seen.Canary.To, Percent: 30}
	next.Author = "bob"
	put(t, bob, next)
	seen.Canary.Percent = 20
	_, err := ann.Put(t.Context(), seen)
	conflict, ok := errors.AsType[*rules.ConflictError](err)
	if !ok || conflict.Now.Canary.Percent != 30 || !slices.Contains(conflict.Diff, "- canary.percent: 10") || !slices.Contains(conflict.Diff, "+ canary.percent: 30") {
		t.Fatalf("put: %v, %+v", err, conflict)
	}
	if want := "bob has changed the rule " + seen.ID + " of Shop to revision 2"; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if err := ann.Remove(t.Context(), "Shop", seen.ID, seen.Revision, "ann", "x"); !errors.As(err, &conflict) {
		t.Errorf("remove: %v", err)
	}
	if err := ann.Rollback(t.Context(), "Shop", 0, 1, "ann", "x"); !errors.As(err, &conflict) {
		t.Errorf("rollback: %v", err)
	}
	if all, err := ann.List(t.Context(), "Shop"); err != nil || len(all) != 1 || all[0].Canary.Percent != 30 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := ann.Remove(t.Context(), "Shop", seen.ID, 2, "ann", "x"); err != nil {
		t.Error(err)
	}
	if _, err := ann.Put(t.Context(), next); !errors.As(err, &conflict) || conflict.Now != nil {
		t.Errorf("put after remove: %v", err)
	}
}

// Of several processes that change a rule at the same time, each on top of the revision that it has
// read, one at a time succeeds: no change is lost, and no two have the same revision.
func TestNoConcurrentChangeIsLost(t *testing.T) {
	t.Attr("rerun", "never")
	registry := memory.New(nil)
	first := put(t, open(t, registry), canary(0))
	const writers, changes = 4, 5
	var all sync.WaitGroup
	for range writers {
		book := open(t, registry)
		all.Go(func() {
			for done := 0; done < changes; {
				list, err := book.List(t.Context(), "Shop")
				if err != nil {
					t.Error(err)
					return
				}
				r := list[0]
				r.Canary = &rules.Canary{To: r.Canary.To, Percent: r.Canary.Percent + 1}
				switch _, err := book.Put(t.Context(), r); {
				case err == nil:
					done++
				case !errors.As(err, new(*rules.ConflictError)):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	book := open(t, registry)
	list, err := book.List(t.Context(), "Shop")
	if err != nil || list[0].Canary.Percent != writers*changes || list[0].Revision != first.Revision+writers*changes {
		t.Errorf("%+v, %v: want %d changes", list, err, writers*changes)
	}
	history, err := book.History(t.Context(), "Shop")
	if err != nil || len(history) != 1+writers*changes {
		t.Errorf("the history has %d entries, %v", len(history), err)
	}
}

// An interleaved keeper runs something once, before a record of a kind is written.
type interleaved struct {
	rules.Keeper

	kind string
	run  func()
}

func (k *interleaved) Keep(ctx context.Context, service, kind, id string, value []byte) error {
	if run := k.run; run != nil && kind == k.kind && value != nil {
		k.run = nil
		run()
	}
	return k.Keeper.Keep(ctx, service, kind, id, value)
}

// Two operators change a rule at the same moment: wherever the change of the second one falls into
// that of the first one, one of them is refused, and the other one's rule is what is stored.
func TestOneOfTwoChangesAtTheSameMomentIsRefused(t *testing.T) {
	t.Attr("rerun", "never")
	for _, kind := range []string{"history", "rules"} {
		registry := memory.New(nil)
		first := put(t, open(t, registry), canary(1))
		bob := open(t, registry)
		ended := make(chan error, 1)
		of := func(percent float64, author string) rules.Rule {
			r := first
			r.Canary, r.Author = &rules.Canary{To: first.Canary.To, Percent: percent}, author
			return r
		}
		ann := open(t, &interleaved{registry, kind, func() {
			go func() {
				_, err := bob.Put(t.Context(), of(3, "bob"))
				ended <- err
			}()
			select {
			case err := <-ended: // bob was faster
				ended <- err
			case <-time.After(100 * time.Millisecond): // bob waits for ann
			}
		}})
		stored, err := ann.Put(t.Context(), of(2, "ann"))
		other := <-ended
		conflict := new(rules.ConflictError)
		if (err == nil) == (other == nil) || err != nil && !errors.As(err, &conflict) || other != nil && !errors.As(other, &conflict) {
			t.Fatalf("%s: ann %v, bob %v: want that one is refused", kind, err, other)
		}
		want := 3.0
		if err == nil {
			want = stored.Canary.Percent
		}
		if list, err := bob.List(t.Context(), "Shop"); err != nil || list[0].Canary.Percent != want || list[0].Revision != 2 {
			t.Errorf("%s: %+v, %v: want %v %%", kind, list, err, want)
		}
	}
}
