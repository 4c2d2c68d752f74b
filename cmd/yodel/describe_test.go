// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/rules"
)

// says checks that a command prints some texts.
func says(t *testing.T, r result, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.out+r.err, text) {
			t.Errorf("it does not say %q:\n%s%s", text, r.out, r.err)
		}
	}
}

// A service is described with its rules and its instances. A limit of each process says what it
// means for all instances, wherever it is shown. The rule that stops the service is named, and what
// undoes it.
func TestDescribeNamesRulesAndInstances(t *testing.T) {
	l := newLedger(t)
	addrs := make([]string, 3)
	for i := range addrs {
		addrs[i], _ = l.serve("Price", "v1", l.quote())
	}
	l.serve("Gate", "v1", l.gate())
	until(t, "a call succeeds", func() bool { l.call(1, "ok"); return l.books.get("Price").calls > 0 })
	const across = "24 a second on each of 3 instances: 72 in all"
	until(t, "the calls are counted", func() bool {
		return strings.Contains(run(t, l.folder, "rule", "limit", "Price", "--per-second", "24", "--reason", "test", "--dry-run").err, across)
	})
	l.rule(rules.Rule{ID: "few", Limit: &rules.Limit{PerSecond: 24}})
	says(t, run(t, l.folder, "rule", "ls"), across)
	says(t, run(t, l.folder, "rule", "explain", "Price"), across)
	described := run(t, l.folder, "describe", "Price")
	says(t, described, append(addrs, "rule     few: Limit the calls of Price", across, "By ann: test", "Price/Quote(purchase)")...)

	l.rule(rules.Rule{ID: "boom", Disable: &rules.Disable{}})
	says(t, run(t, l.folder, "describe", "Price"), "Price  down", "rule boom of ann stops all calls", "undo: yodel rule rm Price boom")
}

// If one method fails on one instance, the instance shows the calls, failures and latency of each
// of its methods, and the failed records are grouped by this method and instance, not by the caller
// that kept them.
func TestAMethodThatFailsOnOneInstanceIsNamed(t *testing.T) {
	l := newLedger(t)
	const list yodel.Method[purchase, struct{}] = "Price.List"
	var sick, well string
	for _, of := range []*string{&sick, &well} {
		*of, _ = l.serve("Price", "v1", func(s *yodel.Server, addr string) {
			l.quote()(s, addr)
			list.Handle(s, func(context.Context, *purchase) (*struct{}, error) { return &struct{}{}, nil })
		})
	}
	gate, _ := l.serve("Gate", "v1", l.gate())
	l.sick.Store(&sick)
	until(t, "both instances have calls", func() bool {
		l.call(1, "ok")
		return l.books.get(sick).calls >= 3 && l.books.get(well).calls >= 3
	})
	for _, addr := range []string{sick, well} {
		c := yodel.NewClient(discovery.Static(addr), nil)
		for range 4 {
			if _, err := list.Call(t.Context(), c, &purchase{}); err != nil {
				t.Error(err)
			}
		}
		c.Close()
	}
	if s := l.books.get(sick); s.failed != s.calls || l.books.get(well).failed != 0 {
		t.Fatalf("the books: got %v and %v", s, l.books.get(well))
	}
	for _, addr := range []string{sick, well} {
		want := map[string]account{"List": {calls: 4}, "Quote": l.books.get(addr)}
		until(t, "yodel describe shows the calls of each method of "+addr, func() bool {
			var shown struct {
				Methods []struct {
					shownRow

					P99 time.Duration
				}
			}
			l.yodel(&shown, "describe", addr)
			got := make(map[string]account)
			for i := range shown.Methods {
				m := &shown.Methods[i]
				if got[strings.TrimPrefix(m.Name, "Price/")] = m.account(); m.Calls > 0 && m.P99 <= 0 {
					t.Errorf("%s of %s has no latency", m.Name, addr)
				}
			}
			return maps.Equal(got, want)
		})
		says(t, run(t, l.folder, "describe", addr), "METHOD", "CALLS/S", "OK", "P99", "Price/List", "Price/Quote")
		until(t, "the console shows the calls of each method of "+addr, func() bool {
			var shown struct {
				Methods []struct {
					numbersShown

					P99 *float64
				}
			}
			l.page(&shown, "instance?service=Price&addr="+addr)
			got := make(map[string]account)
			for i := range shown.Methods {
				m := &shown.Methods[i]
				if got[strings.TrimPrefix(m.Name, "Price.")] = m.account(); m.Rate > 0 && m.P99 == nil {
					t.Errorf("%s of %s has no latency", m.Name, addr)
				}
			}
			return maps.Equal(got, want)
		})
	}
	type group struct{ Method, Addr, Via string }
	var samples struct{ Groups []group }
	l.page(&samples, "samples?kind=failed")
	if want := (group{"Price.Quote", sick, "Gate.Buy"}); len(samples.Groups) != 1 || samples.Groups[0] != want {
		t.Errorf("the groups of failed calls: got %+v, want %+v; the caller is %s", samples.Groups, want, gate)
	}
	// A call that reaches no instance failed at none, and not at the caller that kept the record.
	l.rule(rules.Rule{ID: "boom", Method: "Quote", Disable: &rules.Disable{}})
	until(t, "the refused calls have a group without an address", func() bool {
		l.call(1, "ok")
		l.page(&samples, "samples?kind=failed")
		for _, g := range samples.Groups {
			if g.Method == "Price.Quote" && g.Addr == gate {
				t.Fatalf("the group names the caller: %+v", g)
			}
		}
		return slices.ContainsFunc(samples.Groups, func(g group) bool { return g.Method == "Price.Quote" && g.Addr == "" })
	})
}

// In a fleet without services, doctor has checked nothing, and says so.
func TestDoctorSaysThatItFoundNothing(t *testing.T) {
	l := newLedger(t)
	r := run(t, l.folder, "doctor")
	says(t, r, "found nothing to check: no service is registered in file:"+l.folder, "ServerOptions.Registrars", "1 problem (0 errors, 1 warning)")
	if r.code != exitOK || strings.Contains(r.out, "no problems") {
		t.Errorf("exit code %d: %s", r.code, r.out)
	}
}

// The name of a service may have a slash. The part behind it is not taken for a method, and the
// methods of the service are found too.
func TestAServiceWithASlashInItsName(t *testing.T) {
	l := newLedger(t)
	const stock yodel.Method[purchase, struct{}] = "team/Shop.Stock"
	addr, _ := l.serve("team/Shop", "v1", func(s *yodel.Server, _ string) {
		stock.Handle(s, func(context.Context, *purchase) (*struct{}, error) { return &struct{}{}, nil })
	})
	for _, args := range []string{"describe team/Shop", "describe team/Shop/Stock", "ls team/Shop", "samples team/Shop", "doctor team/Shop"} {
		r := run(t, l.folder, strings.Fields(args)...)
		if r.code != exitOK {
			t.Errorf("yodel %s: got %d\n%s%s", args, r.code, r.out, r.err)
		}
		if strings.HasPrefix(args, "describe") {
			says(t, r, "team/Shop/Stock(purchase)")
		}
	}
	says(t, run(t, l.folder, "describe", "team/Shop"), "team/Shop  ", addr)
	if r := run(t, l.folder, "describe", "team/Shp"); r.code != exitFailed {
		t.Errorf("a name that does not exist: got %d %s", r.code, r.err)
	}
}
