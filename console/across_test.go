// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/rules"
)

// The list of rules has on how many instances each limit holds. The texts of what that means are in
// both languages, as are those of what a rule refuses and of errors that are passed on.
func TestLimitsAreSaidForAllInstances(t *testing.T) {
	now := time.Now()
	inactive := up(4, now)
	inactive.Instance.State = "inactive"
	c := newScripted(t, func() (*fleet.View, error) {
		return &fleet.View{At: now, Services: []*fleet.Service{{Name: "Shop", Instances: []*fleet.Instance{up(1, now), up(2, now), up(3, now), inactive}}}}, nil
	})
	for _, r := range []rules.Rule{
		{ID: "few", Limit: &rules.Limit{PerSecond: 24}},
		{ID: "own", Limit: &rules.Limit{PerSecond: 24}, Side: "client"},
	} {
		r.Service, r.Author, r.Reason = "Shop", "ann", "test"
		if _, err := c.book.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	_, answer := direct(t, c, http.MethodGet, "/api/rules?service=Shop", "")
	var list struct {
		Rules []struct {
			ID     string
			Across int
		}
	}
	if err := json.Unmarshal([]byte(answer), &list); err != nil || len(list.Rules) != 2 {
		t.Fatalf("%v: %s", err, answer)
	}
	for _, r := range list.Rules {
		if want := map[string]int{"few": 3, "own": 0}[r.ID]; r.Across != want {
			t.Errorf("rule %s holds on %d instances, want %d", r.ID, r.Across, want)
		}
	}
	for file, texts := range map[string][]string{
		"en.ts":      {`"rules.across.rate"`, `"problem.disabled"`, `"problem.passer"`},
		"zh.ts":      {`"rules.across.rate": "{0} 个实例`, `"problem.disabled": "每秒 {0} 个调用被规则拒绝`, `"problem.passer": "{0} 有 {1} 的调用失败`},
		"phrases.ts": {`["passes on errors of {0}", "`, `["{0} instances of {1}: {2} and others: {3}", "`, `["they are disabled", "`, `["an operator has disabled them", "`, `{1} a second on each of {2} instances: {3} in all", "`},
	} {
		source, err := os.ReadFile("web/src/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if !strings.Contains(string(source), text) {
				t.Errorf("%s has no %s", file, text)
			}
		}
	}
}
