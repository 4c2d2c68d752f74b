// SPDX-License-Identifier: Apache-2.0

package governed

import (
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/rules"
)

// These are the sizes of a registry whose lists have to be complete.
var (
	listed  = flag.Int("governed.services", 1100, "how many services a list has")
	foreign = flag.Int("governed.foreign", 20_000, "how many keys of other programs are in the registry's database")
	history = flag.Int("governed.history", 20, "how many changes of its rule each service of Lists has had")
	listIn  = flag.Duration("governed.listed", time.Minute, "how long a list may take, beside the tests of other packages")
	held    = flag.Int("governed.announced", 150, "how many services Announced announces")
	ruled   = flag.Int("governed.ruled", 20, "how many services of Announced have a rule")
)

// A Record is a key and its value in the layout of registry.New.
type Record struct{ Key, Value string }

// Foreign returns the keys of another program, with and without the prefix "yodel".
func Foreign() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for i := range *foreign {
			prefix := "session:"
			if i%2 == 1 {
				prefix = "yodeling:"
			}
			if !yield(Record{fmt.Sprint(prefix, i), "x"}) {
				return
			}
		}
	}
}

// Records returns the records of many services. Each has one instance, and a rule with a history.
func Records(t testing.TB) iter.Seq[Record] {
	t.Helper()
	return func(yield func(Record) bool) {
		for i := range *listed {
			name := serviceAt(i)
			in, err := json.Marshal(discovery.Instance{Addr: "127.0.0.1:1"})
			must(t, err)
			if !yield(Record{"yodel/" + name + "/127.0.0.1:1", string(in)}) || !yield(Record{"yodel/" + name + "^rules/late", string(ruleOf(t, name))}) {
				return
			}
			for revision := range *history {
				if !yield(Record{fmt.Sprintf("yodel/%s^history/%09d-0000", name, revision+1), "{}"}) {
					return
				}
			}
		}
	}
}

// ruleOf returns the record of a rule.
func ruleOf(t testing.TB, service string) []byte {
	t.Helper()
	rule, err := json.Marshal(rules.Rule{
		Schema: rules.Schema, Service: service, ID: "late", Author: "ann", Reason: "test", Revision: *history, Created: time.Now(),
		Timeout: &rules.Timeout{After: rules.Duration(time.Second)},
	})
	must(t, err)
	return rule
}

// Announced announces many services in a registry, at most as many as it holds, and checks that its
// lists are complete. Announce replaces that of r if it is not nil.
func Announced(t *testing.T, r interface {
	Listed
	discovery.Registrar
}, holds int, announce func(service string) error) {
	t.Helper()
	services := min(*held, holds)
	if announce == nil {
		announce = func(service string) error {
			return r.Announce(t.Context(), service, discovery.Instance{Addr: "127.0.0.1:1"}, time.Hour)
		}
	}
	began := time.Now()
	inParallel(t, services, announce)
	t.Logf("%d services announced in %v", services, time.Since(began))
	began = time.Now()
	inParallel(t, *ruled, func(service string) error { return r.Keep(t.Context(), service, "rules", "late", ruleOf(t, service)) })
	t.Logf("%d rules kept in %v", *ruled, time.Since(began))
	lists(t, r, services, *ruled)
}

// inParallel calls do for the first services, sixteen at a time.
func inParallel(t *testing.T, n int, do func(service string) error) {
	t.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(serviceAt(i)); err != nil {
					t.Errorf("%s: %v", serviceAt(i), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func serviceAt(i int) string { return fmt.Sprintf("shop.S%06d", i) }

// A Listed is a registry whose services can be listed.
type Listed interface {
	rules.Keeper
	fleet.Source
}

// Lists checks that the lists of a registry with the records of Records are complete: those of
// services, of instances and of rules.
func Lists(t *testing.T, r Listed) {
	t.Helper()
	lists(t, r, *listed, *listed)
}

// lists is Lists for a number of services, and of those with a rule.
func lists(t *testing.T, r Listed, services, ruled int) {
	t.Helper()
	began := time.Now()
	f := fleet.New(r, &fleet.Options{Timeout: *listIn})
	defer f.Close()
	names, err := f.Services(t.Context())
	if err != nil || len(names) != services || names[0] != serviceAt(0) || names[len(names)-1] != serviceAt(services-1) {
		t.Fatalf("a list of services has %d of %d names, %v", len(names), services, err)
	}
	t.Logf("%d services listed in %v", len(names), time.Since(began))
	began = time.Now()
	view, err := f.Read(t.Context())
	if err != nil || view.Err != "" || len(view.Services) != services {
		t.Fatalf("a view has %d of %d services, %s, %v", len(view.Services), services, view.Err, err)
	}
	for _, s := range view.Services {
		if len(s.Instances) != 1 {
			t.Fatalf("%s has %d instances, want 1, %s", s.Name, len(s.Instances), s.Err)
		}
	}
	t.Logf("%d services read in %v", len(names), time.Since(began))
	began = time.Now()
	book, err := rules.Open(r)
	must(t, err)
	all, err := book.List(t.Context(), "")
	if err != nil || len(all) != ruled {
		t.Fatalf("a list of rules has %d of %d, %v", len(all), ruled, err)
	}
	t.Logf("%d rules read in %v", len(all), time.Since(began))
}
