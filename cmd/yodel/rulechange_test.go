// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// Each way in which an operator can stop the calls of a service needs --force.
func TestChangesThatStopCallsNeedForce(t *testing.T) {
	folder := startShop(t)
	addrs := strings.Fields(run(t, folder, "ls", "shop.Cart", "-o", "name").out)
	boom := filepath.Join(t.TempDir(), "boom.json")
	if err := os.WriteFile(boom, []byte(`{"service":"shop.Pay","id":"boom","fault":{"code":"unavailable"},"reason":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const all = "100 % of the calls of shop.Pay would not be executed"
	for _, test := range []struct{ line, want string }{
		{"rule disable shop.Pay --id boom --reason x", all},
		{"rule off shop.Pay boom --reason x", ""},
		{"rule on shop.Pay boom --reason x", all},
		{"rule rm shop.Pay boom --reason x", ""},
		{"rule rollback shop.Pay 1 --reason x", all},
		{"rule off shop.Pay boom --reason x", ""},
		{"rule set @" + boom + " --reason x", all},
		{"rule rollback shop.Pay 0 --reason x", ""},
		{"rule disable shop.Pay --to v* --reason x", all},
		{"rule rollback shop.Pay 0 --reason x", ""},
		{"rule disable shop.Payy --reason x", `there is no service shop.Payy; did you mean "shop.Pay"?`},
		{"rule limit shop.Pay --method Chrage --per-second 1000 --reason x", `shop.Pay has no method Chrage; did you mean "Charge"?`},
		{"rule weight shop.Pay --to v9 --percent 50 --reason x", "version v9 is none of the 2 instances that run"},
		{"rule limit shop.Cart --caller webb --per-second 1000 --reason x", `no process with the name webb has called shop.Cart in the last minutes; did you mean "web"?`},
		{"disable shop.Cart " + addrs[0], ""},
		{"disable shop.Cart " + addrs[1], addrs[1] + " is the last instance of shop.Cart that gets calls"},
		{"enable shop.Cart " + addrs[0], ""},
		{"enable shop.Cart " + addrs[1], ""},
	} {
		r := run(t, folder, strings.Fields(test.line)...)
		if test.want == "" {
			if r.code != exitOK {
				t.Errorf("%s: exit code %d, %s%s", test.line, r.code, r.out, r.err)
			}
			continue
		}
		next := "yodel " + strings.NewReplacer("v*", "'v*'").Replace(test.line)
		if r.code != exitUsage || !strings.Contains(r.err, test.want) || !strings.Contains(r.err, next) || !strings.Contains(r.err, " --force\n") {
			t.Errorf("%s: exit code %d, want %q and %s … --force, got %s%s", test.line, r.code, test.want, next, r.out, r.err)
		}
		if r := run(t, folder, append(strings.Fields(test.line), "--force")...); r.code != exitOK {
			t.Errorf("%s --force: exit code %d, %s%s", test.line, r.code, r.out, r.err)
		}
	}
}

// Rules that stop calls or answer for a method end by themselves, unless the operator says
// otherwise.
func TestRulesThatStopCallsExpire(t *testing.T) {
	folder := startShop(t)
	for _, test := range []struct {
		line    string
		expires time.Duration
	}{
		{"rule disable shop.Pay --id r --caller nobody", 24 * time.Hour},
		{"rule disable shop.Pay --id r --caller nobody --expires 1h", time.Hour},
		{"rule disable shop.Pay --id r --caller nobody --expires 0", 0},
		{`rule set {"service":"shop.Pay","id":"r","fault":{"percent":1,"code":"unavailable"}}`, 24 * time.Hour},
		{`rule set {"service":"shop.Pay","id":"r","caller":"nobody","mock":{"code":"not_found"}}`, 24 * time.Hour},
		{"rule limit shop.Pay --id r --per-second 1000", 0},
	} {
		r := run(t, folder, append(strings.Fields(test.line), "--reason", "x", "--force")...)
		if said := strings.Contains(r.out, "It ends at "); r.code != exitOK || said != (test.expires > 0) {
			t.Errorf("%s: exit code %d, %s%s", test.line, r.code, r.out, r.err)
		}
		var stored rules.Rule
		if err := json.Unmarshal([]byte(run(t, folder, "rule", "get", "shop.Pay", "r", "-o", "json").out), &stored); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(stored.Expires); test.expires == 0 && !stored.Expires.IsZero() || test.expires > 0 && (left > test.expires || left < test.expires-time.Minute) {
			t.Errorf("%s: it ends in %v", test.line, left)
		}
	}
}

// A rule that another operator has changed since it was read is not overwritten.
func TestAnOldRevisionIsRefused(t *testing.T) {
	folder := startShop(t)
	if r := run(t, folder, "rule", "limit", "shop.Pay", "--id", "hot", "--per-second", "1000", "--reason", "x"); r.code != exitOK {
		t.Fatal(r.err)
	}
	saved := filepath.Join(t.TempDir(), "hot.json")
	if err := os.WriteFile(saved, []byte(run(t, folder, "rule", "get", "shop.Pay", "hot").out), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, folder, "rule", "limit", "shop.Pay", "--id", "hot", "--per-second", "2000", "--reason", "more", "--author", "bob"); r.code != exitOK {
		t.Fatal(r.err)
	}
	r := run(t, folder, "rule", "set", "@"+saved, "--reason", "y")
	for _, want := range []string{"bob has changed the rule hot of shop.Pay to revision 2 (more), and the change is based on revision 1", "- limit.perSecond: 1000", "+ limit.perSecond: 2000", "rule set @" + saved + " --reason y --force"} {
		if r.code != exitFailed || !strings.Contains(r.err, want) {
			t.Errorf("exit code %d, want %q:\n%s%s", r.code, want, r.out, r.err)
		}
	}
	if r := run(t, folder, "rule", "set", "@"+saved, "--reason", "y", "--force"); r.code != exitOK || !strings.Contains(r.out, "revision 3") {
		t.Errorf("with --force: exit code %d, %s%s", r.code, r.out, r.err)
	}
}

// The end of a canary, and what cannot be read, stand where an operator looks.
func TestEndedCanariesAndBrokenRecordsAreNamed(t *testing.T) {
	folder := startShop(t)
	registry := file.New(folder, nil)
	keep := func(id, record string) {
		if err := registry.Keep(t.Context(), "shop.Cart", "rules", id, []byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	keep("try", fmt.Sprintf(`{"schema":1,"id":"try","service":"shop.Cart","canary":{"to":{"version":"v1.1.0"},"percent":10},"off":true,"ended":%q,"author":"auto-rollback","reason":"90 %% of 55 calls succeeded"}`,
		time.Now().Add(-30*time.Hour).UTC().Format(time.RFC3339)))
	keep("torn", `{"schema":1,`)
	if r := run(t, folder, "rule", "ls", "shop.Cart"); !strings.Contains(r.out, "rolled back") || !strings.Contains(r.out, "30h ago") && !strings.Contains(r.out, "1d ago") ||
		!strings.Contains(r.out, "Until it is removed, version v1.1.0 gets none of them.") || !strings.Contains(r.out, "90 % of 55 calls succeeded") {
		t.Errorf("rule ls: %s%s", r.out, r.err)
	}
	for _, want := range []string{"the canary try of shop.Cart ended ", "yodel rule on shop.Cart try", "the record torn of shop.Cart is not a valid rule"} {
		if r := run(t, folder, "doctor", "shop.Cart"); !strings.Contains(r.out, want) {
			t.Errorf("doctor lacks %q: %s%s", want, r.out, r.err)
		}
	}
	if r := run(t, folder, "ls"); !strings.Contains(r.err, "the record torn of shop.Cart is not a valid rule") {
		t.Errorf("ls: %s%s", r.out, r.err)
	}
}

// A call's explanation has the rules that concern the call.
func TestExplainedCallsHaveTheirRules(t *testing.T) {
	folder := startShop(t)
	for id, scope := range map[string]string{"mine": `"method":"Add"`, "other": `"method":"Get"`, "batch": `"caller":"batch-report"`, "beta": `"header":{"beta":"1"}`} {
		if r := run(t, folder, "rule", "set", `{"service":"shop.Cart","id":"`+id+`",`+scope+`,"retry":{"times":2}}`, "--reason", "x", "--force"); r.code != exitOK {
			t.Fatal(r.err)
		}
	}
	for _, test := range []struct {
		args []string
		want string
	}{{nil, "mine"}, {[]string{"-m", "beta=1"}, "beta mine"}} {
		r := run(t, folder, append([]string{"call", "shop.Cart/Add", "--explain"}, test.args...)...)
		var found []string
		for _, id := range []string{"batch", "beta", "mine", "other"} {
			if strings.Contains(r.out, "rule  "+id+":") {
				found = append(found, id)
			}
		}
		if got := strings.Join(found, " "); r.code != exitOK || got != test.want {
			t.Errorf("%v: the rules %q, want %q: %s%s", test.args, got, test.want, r.out, r.err)
		}
	}
}
