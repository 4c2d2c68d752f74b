// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/rules"
)

// Whatever ends a canary, its instances get what Canary.Then says until it is removed.
func TestAnEndedCanaryGetsNoCalls(t *testing.T) { //nolint:tparallel // no other test runs beside its subtests
	now := time.Now
	ends := map[string]func(t *testing.T, m *mall, r rules.Rule){
		"off": func(_ *testing.T, m *mall, r rules.Rule) {
			r.Off = true
			m.put(r)
		},
		"expiry": func(_ *testing.T, m *mall, r rules.Rule) {
			r.Expires = now().Add(50 * time.Millisecond)
			m.put(r)
		},
		"rollback": func(t *testing.T, m *mall, r rules.Rule) {
			t.Helper()
			r.Rollback = &rules.Rollback{Below: 99, For: rules.Duration(time.Second), Calls: 5}
			m.put(r)
			m.v2.fail.Store(true)
			await(t, 20*time.Second, "the rule is switched off", func() bool {
				m.works()
				return stateOf(m.rules, r.ID).State == "off"
			})
			m.v2.fail.Store(false)
		},
	}
	for name, end := range ends {
		for _, test := range []struct {
			then        string
			least, most float64
		}{{"", 0, 0}, {"stop", 0, 0}, {"keep", 0.25, 0.55}, {"spread", 0.45, 0.55}} {
			if test.then == "keep" && name == "rollback" {
				continue // it is switched off for ever, and goes on failing
			}
			t.Run(name+"/"+test.then, func(t *testing.T) {
				t.Parallel()
				m := newMall(t, nil)
				r := canary(40)
				r.ID, r.Canary.Then = "try", test.then
				end(t, m, m.put(r))
				within(t, "the rule has ended", func() bool {
					state := stateOf(m.rules, "try").State
					return state == "off" || state == "expired"
				})
				within(t, "the share of v2 is that of an ended canary", func() bool {
					share := m.share(200)
					return share >= test.least && share <= test.most
				})
				if err := m.book.Remove(t.Context(), "Shop", "try", 0, "ann", "a test"); err != nil {
					t.Fatal(err)
				}
				within(t, "v2 gets its share when the rule is removed", func() bool {
					share := m.share(100)
					return share > 0.45 && share < 0.55
				})
			})
		}
	}
}

// A canary that follows an ended one for the same instances gets its calls, in either order of IDs.
func TestACanaryActsBesideAnEndedOne(t *testing.T) {
	for _, ids := range [][2]string{{"a", "b"}, {"b", "a"}} {
		m := newMall(t, nil)
		ended, next := canary(40), canary(100)
		ended.ID, ended.Off, next.ID = ids[0], true, ids[1]
		m.put(ended)
		within(t, "v2 gets no calls", func() bool { return m.share(20) == 0 })
		m.put(next)
		within(t, "v2 gets all calls", func() bool { return m.share(20) == 1 })
	}
}

// With the recommended middleware, outlier ejects a version that fails, and other instances answer
// the calls that were meant for it. That is no success of the version.
func TestACanaryThatIsHeldBackIsRolledBack(t *testing.T) {
	m := newMall(t, recommended.Client(&yodel.ClientOptions{Timeout: time.Second}))
	m.v2.fail.Store(true)
	r := canary(20)
	r.ID, r.Rollback = "try", &rules.Rollback{Below: 99, For: rules.Duration(3 * time.Second)}
	m.put(r)
	held := ""
	deadline := time.Now().Add(20 * time.Second)
	var state introspect.RuleState
	for state.State != "off" && time.Now().Before(deadline) {
		for range 20 {
			_, _ = m.call(&yodel.Call{})
		}
		if state = stateOf(m.rules, "try"); state.Held != "" {
			held = state.Held
		}
		<-time.After(20 * time.Millisecond)
	}
	if state.State != "off" {
		t.Fatalf("the canary is not rolled back: %+v; v2 executed %d calls", state, m.v2.calls.Load())
	}
	if !strings.Contains(held, "held back by outlier: version v2 took ") {
		t.Errorf("the rule says %q, want that outlier holds v2 back", held)
	}
	changes, err := m.book.History(t.Context(), "Shop")
	if err != nil || !strings.Contains(changes[0].Reason, "held back by outlier") {
		t.Errorf("the history says %+v, %v", changes[:1], err)
	}
}

// A canary whose version does not run yet is not rolled back, and takes the calls when it does.
func TestACanaryBeforeItsVersionStaysOn(t *testing.T) {
	m := newMall(t, nil)
	r := canary(50)
	r.ID, r.Canary.To.Version = "try", "v3"
	r.Rollback = &rules.Rollback{Below: 99, For: rules.Duration(time.Second)}
	m.put(r)
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; {
		m.share(20)
	}
	if state := stateOf(m.rules, "try"); state.State != "active" || state.Held != "" {
		t.Errorf("%+v, want it active", state)
	}
}
