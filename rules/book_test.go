// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
		for all := <-seen; len(all) != 1; all = <-seen {
		}
		if err := book.Remove(ctx, "Shop", "c", "ann", "done"); err != nil {
			t.Fatal(err)
		}
		for all := <-seen; len(all) != 0; all = <-seen {
		}
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
