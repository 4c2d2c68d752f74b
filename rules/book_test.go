// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	if err := book.Remove(ctx, "Shop", "c", "bob", "done"); err != nil {
		t.Fatal(err)
	}
	history, err := book.History(ctx, "Shop")
	if err != nil || len(history) != 4 || history[0].What != "remove" || history[0].Author != "bob" || history[0].After != nil {
		t.Fatalf("history %+v, %v", history, err)
	}
	if diff := strings.Join(history[2].Diff(), "\n"); !strings.Contains(diff, "- canary.percent: 10\n") || !strings.Contains(diff, "+ canary.percent: 50") {
		t.Errorf("diff:\n%s", diff)
	}
	if err := book.Rollback(ctx, "Shop", 1, "carol", "back"); err != nil {
		t.Fatal(err)
	}
	all, err := book.List(ctx, "")
	if err != nil || len(all) != 1 || all[0].Canary.Percent != 10 || all[0].Author != "carol" || !all[0].Created.Equal(first.Created) {
		t.Errorf("after the rollback: %+v, %v", all, err)
	}
	for _, revision := range []int{-1, 7} {
		if err := book.Rollback(ctx, "Shop", revision, "carol", "back"); !errors.Is(err, rules.ErrNoRule) {
			t.Errorf("revision %d: %v", revision, err)
		}
	}
	if err := book.Remove(ctx, "Shop", "nothing", "bob", "done"); !errors.Is(err, rules.ErrNoRule) {
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
	book := open(t, memory.New(nil))
	refused := func(r rules.Rule, id string) bool {
		t.Helper()
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
		if err := book.Remove(t.Context(), r.Service, stored.ID, "ann", "done"); err != nil {
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
	if err := book.Rollback(t.Context(), "Shop", 20, "ann", "back"); err != nil {
		t.Errorf("back to the first: %v", err)
	}
	if err := book.Rollback(t.Context(), "Shop", 19, "ann", "back"); !errors.Is(err, rules.ErrNoRule) {
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
		if err := book.Remove(ctx, "Shop", "c", "ann", "done"); err != nil {
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
