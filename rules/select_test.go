// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/rules"
)

// Each method has the rules of its scope, also if a client calls more methods than it remembers.
func TestEachOfManyMethodsHasItsRules(t *testing.T) {
	m := newMall(t, nil)
	for id, r := range map[string]rules.Rule{
		"a": {Method: "*5", Mock: &rules.Answer{Code: "not_found"}},
		"b": {Method: "Shop.Lend*", Mock: &rules.Answer{Code: "aborted"}},
		"c": {Method: "L*", Mock: &rules.Answer{Code: "data_loss"}},
	} {
		r.ID = id
		m.put(r)
	}
	call := func(method string) yodel.Code {
		return yodel.CodeOf(m.client.Call(t.Context(), "Shop."+method, &order{}, &order{}))
	}
	within(t, "the rules are in force", func() bool {
		return call("Let5") == yodel.NotFound && call("Lend6") == yodel.Aborted && call("Let6") == yodel.DataLoss
	})
	for range 2 {
		for i := range 1500 {
			method, want := fmt.Sprint("Let", i), yodel.DataLoss
			if i%2 == 0 {
				method, want = fmt.Sprint("Lend", i), yodel.Aborted
			}
			if strings.HasSuffix(method, "5") {
				want = yodel.NotFound
			}
			if got := call(method); got != want {
				t.Fatalf("%s: got %v, want %v", method, got, want)
			}
		}
	}
	if !m.works() {
		t.Error("a rule concerns another method")
	}
}

// The kind decides which rule is outside, and not the ID.
func TestTheOrderOfKindsIsNotThatOfIDs(t *testing.T) {
	m := newMall(t, nil)
	for _, r := range []rules.Rule{ // a process that follows d follows the others
		{ID: "a", Method: "Buy", Retry: &rules.Retry{Times: 1}},
		{ID: "b", Method: "Buy", Timeout: &rules.Timeout{After: rules.Duration(time.Minute)}},
		{ID: "c", Timeout: &rules.Timeout{After: rules.Duration(time.Hour)}},
		{ID: "d", Method: "Buy", Fallback: &rules.Answer{Reply: []byte(`{"by":"fallback"}`)}},
	} {
		m.put(r)
	}
	fail := func(yes bool) {
		m.v1.fail.Store(yes)
		m.v2.fail.Store(yes)
	}
	fail(true)
	within(t, "the last rule is in force", func() bool {
		out, err := m.call(&yodel.Call{})
		return err == nil && out.By == "fallback"
	})
	fail(false)
	before := hits(m, "a")
	if out, err := m.call(&yodel.Call{}); err != nil || out.Left <= 0 || out.Left > time.Minute {
		t.Errorf("got %+v, %v: the first timeout in the scope acts below the fallback", out, err)
	}
	if now := hits(m, "a"); now != before+1 {
		t.Errorf("the rule of the innermost kind acted %d times on a call", now-before)
	}
	if n := hits(m, "c"); n != 0 {
		t.Errorf("the second timeout acted %d times", n)
	}
	fail(true)
	if out, err := m.call(&yodel.Call{}); err != nil || out.By != "fallback" {
		t.Errorf("got %+v, %v", out, err)
	}
}

func hits(m *mall, id string) uint64 { return stateOf(m.rules, id).Hits }
