// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// Each change that stops calls, or frees a version that a canary holds back, asks for the name of
// the service, and is made when it is given.
func TestChangesThatStopCallsAreConfirmed(t *testing.T) {
	c := newScripted(t, func() (*fleet.View, error) {
		s := &fleet.Service{Name: "Shop", State: fleet.Healthy, Up: 2}
		for i, version := range []string{"v1", "v2"} {
			s.Instances = append(s.Instances, &fleet.Instance{Instance: discovery.Instance{Addr: fmt.Sprintf("10.0.0.%d:1", i), Version: version}, Service: "Shop", State: fleet.Up})
		}
		return &fleet.View{Services: []*fleet.Service{s}}, nil
	})
	const canary = `{"service":"Shop","id":"try","canary":{"to":{"version":"v2"},"percent":10},"reason":"x"}`
	if status, answer := direct(t, c, http.MethodPost, "/api/rules/put", canary); status != http.StatusOK {
		t.Fatalf("a canary: %d %s", status, answer)
	}
	for _, test := range []struct{ path, body, want string }{
		{"rules/put", `{"service":"Shop","id":"boom","disable":{},"reason":"x"}`, "100 % of the calls of Shop would not be executed"},
		{"rules/put", `{"service":"Shopp","id":"boom","retry":{"times":2},"reason":"x"}`, "there is no service Shopp"},
		{"rules/rollback", `{"service":"Shop","revision":0,"reason":"x"}`, "version v2 would get 50 % of the calls, now 10 %"},
		{"rules/remove", `{"service":"Shop","id":"try","reason":"x"}`, "version v2 would get 50 % of the calls, now 10 %"},
	} {
		service := "Shop"
		if strings.Contains(test.body, "Shopp") {
			service = "Shopp"
		}
		for _, typed := range []string{"", "?confirm=", "?confirm=shop"} {
			status, answer := direct(t, c, http.MethodPost, "/api/"+test.path+typed, test.body)
			if status != http.StatusConflict || !strings.Contains(answer, `"confirm":"`+service+`"`) || !strings.Contains(answer, test.want) {
				t.Errorf("%s%s %s: got %d %s", test.path, typed, test.body, status, answer)
			}
		}
		if status, answer := direct(t, c, http.MethodPost, "/api/"+test.path+"?confirm="+service, test.body); status != http.StatusOK {
			t.Errorf("%s %s, confirmed: got %d %s", test.path, test.body, status, answer)
		}
		if test.path != "rules/remove" { // back to the canary alone
			for _, id := range []string{"boom"} {
				_, _ = direct(t, c, http.MethodPost, "/api/rules/remove?confirm=Shop", `{"service":"Shop","id":"`+id+`","reason":"x"}`)
			}
			if status, answer := direct(t, c, http.MethodPost, "/api/rules/put?confirm=Shop", canary); status != http.StatusOK {
				t.Fatalf("a canary: %d %s", status, answer)
			}
		}
	}
}

// A change that is based on an old revision gets the difference.
func TestAnOldRevisionIsAConflict(t *testing.T) {
	c := newScripted(t, func() (*fleet.View, error) { return &fleet.View{}, nil })
	put := func(perSecond, revision int) (int, string) {
		return direct(t, c, http.MethodPost, "/api/rules/put", fmt.Sprintf(`{"service":"Shop","id":"hot","limit":{"perSecond":%d},"revision":%d,"reason":"x"}`, perSecond, revision))
	}
	for i, n := range []int{10, 99} {
		if status, answer := put(n, i); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	status, answer := put(11, 1)
	if status != http.StatusConflict || !strings.Contains(answer, "bob has changed the rule hot of Shop to revision 2") ||
		!strings.Contains(answer, `"- limit.perSecond: 10"`) || !strings.Contains(answer, `"+ limit.perSecond: 99"`) {
		t.Errorf("put: %d %s", status, answer)
	}
	if status, answer := direct(t, c, http.MethodPost, "/api/rules/remove", `{"service":"Shop","id":"hot","revision":1,"reason":"x"}`); status != http.StatusConflict {
		t.Errorf("remove: %d %s", status, answer)
	}
	if status, answer := direct(t, c, http.MethodPost, "/api/rules/rollback", `{"service":"Shop","revision":0,"from":1,"reason":"x"}`); status != http.StatusConflict {
		t.Errorf("rollback: %d %s", status, answer)
	}
}

// A canary that ended a day ago is a warning, and so is a record that is not a rule.
func TestChecksNameEndedCanariesAndBrokenRecords(t *testing.T) {
	r := memory.New(nil)
	c := newDirect(t, r, Options{})
	c.fleet.open = func(time.Duration) reader {
		return &scripted{newCrowd(0, 0), func() (*fleet.View, error) {
			return &fleet.View{Services: []*fleet.Service{{Name: "Shop", State: fleet.Healthy}}}, nil
		}}
	}
	for id, ended := range map[string]time.Duration{"old": 25 * time.Hour, "new": time.Hour} {
		rule := fmt.Sprintf(`{"schema":1,"id":%q,"service":"Shop","canary":{"to":{"version":"v2"},"percent":10},"off":true,"ended":%q,"author":"ann","reason":"x"}`,
			id, time.Now().Add(-ended).UTC().Format(time.RFC3339))
		must(t, r.Keep(t.Context(), "Shop", "rules", id, []byte(rule)))
	}
	must(t, r.Keep(t.Context(), "Shop", "rules", "torn", []byte(`{"schema":1,`)))
	_, answer := direct(t, c, http.MethodGet, "/api/checks", "")
	for _, want := range []string{
		`{"kind":"ended","severity":"warn","service":"Shop","args":["old",`, `{"kind":"ended","severity":"info","service":"Shop","args":["new",`,
		`{"kind":"record","severity":"bad","service":"Shop","args":["torn",`, `version v2 gets none of them`,
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("the checks lack %s:\n%s", want, answer)
		}
	}
}

// A setting that cannot be read is named once, with its record, though its instance has it too.
func TestChecksNameABrokenSettingOnce(t *testing.T) {
	r := memory.New(nil)
	c := newDirect(t, r, Options{})
	c.fleet.open = func(time.Duration) reader {
		return &scripted{newCrowd(0, 0), func() (*fleet.View, error) {
			return &fleet.View{Services: []*fleet.Service{{Name: "Shop", State: fleet.Healthy, Problems: []fleet.Problem{
				{Kind: "setting", Severity: fleet.Info, Addr: "10.0.0.1:1", Args: []string{"10.0.0.1:1", "the same"}},
				{Kind: "setting", Severity: fleet.Info, Addr: "10.0.0.2:1", Args: []string{"10.0.0.2:1", "in the process alone"}},
			}}}}, nil
		}}
	}
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	must(t, r.Keep(t.Context(), "Shop", "overrides", "10.0.0.1:1", []byte(`{"state":"off"}`)))
	_, answer := direct(t, c, http.MethodGet, "/api/checks", "")
	if strings.Contains(answer, "the same") || strings.Count(answer, `"kind":"setting"`) != 1 || !strings.Contains(answer, "in the process alone") {
		t.Errorf("got %s", answer)
	}
}

// The list of rules tells a rule that its condition has ended from one that a person has.
func TestTheListOfRulesSaysWhoHasEndedThem(t *testing.T) {
	r := memory.New(nil)
	c := newDirect(t, r, Options{})
	for id, author := range map[string]string{"a": "ann", "b": "auto-rollback"} {
		rule := fmt.Sprintf(`{"schema":1,"id":%q,"service":"Shop","limit":{"perSecond":5},"off":true,"author":%q,"reason":"x"}`, id, author)
		must(t, r.Keep(t.Context(), "Shop", "rules", id, []byte(rule)))
	}
	_, answer := direct(t, c, http.MethodGet, "/api/rules?service=Shop", "")
	var got struct{ Rules []struct{ ID, State string } }
	must(t, json.Unmarshal([]byte(answer), &got))
	if want := []struct{ ID, State string }{{"a", "off"}, {"b", "rolled back"}}; !slices.Equal(got.Rules, want) {
		t.Errorf("got %v, want %v", got.Rules, want)
	}
}

// A setting that another operator has changed since the form was opened is not overwritten, and the
// last instance that gets calls is taken only if the user confirms it.
func TestSettingsAreConfirmedAndNotOverwritten(t *testing.T) {
	c := newScripted(t, func() (*fleet.View, error) {
		s := &fleet.Service{Name: "Shop", State: fleet.Healthy, Up: 2}
		for _, addr := range []string{"10.0.0.1:1", "10.0.0.2:1"} {
			s.Instances = append(s.Instances, &fleet.Instance{Instance: discovery.Instance{Addr: addr}, Service: "Shop", State: fleet.Up})
		}
		return &fleet.View{Services: []*fleet.Service{s}}, nil
	})
	for _, test := range []struct {
		confirm, body string
		status        int
		want          string
	}{
		{"", `"addr":"10.0.0.1:1","weight":3,"was":{"state":"","weight":0}`, http.StatusOK, ""},
		{"", `"addr":"10.0.0.1:1","weight":5,"was":{"state":"","weight":0}`, http.StatusConflict, "it was its own state and weight, and is weight 3"},
		{"", `"addr":"10.0.0.1:1","state":"inactive","was":{"state":"","weight":3}`, http.StatusOK, ""},
		{"", `"addr":"10.0.0.2:1","state":"inactive","was":{"state":"","weight":0}`, http.StatusConflict, "10.0.0.2:1 is the last instance of Shop that gets calls"},
		{"?confirm=Shop", `"addr":"10.0.0.2:1","state":"inactive"`, http.StatusOK, ""},
	} {
		status, answer := direct(t, c, http.MethodPost, "/api/instance"+test.confirm, `{"service":"Shop","reason":"x",`+test.body+`}`)
		if status != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%s %s: got %d %s", test.confirm, test.body, status, answer)
		}
	}
}

// Every form that can stop calls, or free a version that a canary holds back, asks for the name of
// the service. It does nothing until the name is typed as it is.
func TestBrowserFormsAskForTheName(t *testing.T) {
	addrs := []string{"10.0.0.1:1", "10.0.0.2:1"}
	c := newConsole(t, &shop{registry: memory.New(nil)}, &Options{Tokens: map[string]User{adminToken: {"bob", Admin}}})
	read := func() (*fleet.View, error) {
		s := &fleet.Service{Name: "Shop", State: fleet.Degraded, Up: 2, Problems: []fleet.Problem{
			{Kind: "ruled", Severity: fleet.Warn, Rule: "dark", Args: []string{"dark", "bob", "send 0 % of the calls of Shop to version v2: a try", "1m"}},
		}}
		for i, addr := range addrs {
			s.Instances = append(s.Instances, &fleet.Instance{Instance: discovery.Instance{Addr: addr, Version: fmt.Sprint("v", i+1)}, Service: "Shop", State: fleet.Up})
		}
		return &fleet.View{At: time.Now(), Services: []*fleet.Service{s}}, nil
	}
	c.fleet.open = func(time.Duration) reader { return &scripted{newCrowd(0, 0), read} }
	b, base := newBrowser(t), serveConsole(t, c)
	b.enter(c, base, "Shop")
	change := func(path, body string) {
		t.Helper()
		if status, answer := direct(t, c, http.MethodPost, "/api/"+path+"?confirm=Shop", `{"service":"Shop","reason":"a try",`+body+`}`); status != http.StatusOK {
			t.Fatalf("%s %s: %d %s", path, body, status, answer)
		}
	}
	const canary, boom = `"id":"dark","canary":{"to":{"version":"v2"},"percent":0}`, `"id":"boom","disable":{}`
	for _, form := range []struct {
		name, path, open, reason, submit, action string
		before                                   func()
	}{
		{"undo on the Overview", "/", "[data-undo-rule=dark]", "[name=undoreason]", ".cards form [type=submit]", "unrule", func() { change("rules/put", canary) }},
		{"undo of problems of a service", "/services/Shop", "[data-undo-rule=dark]", "[name=undoreason]", "main form [type=submit]", "unrule", func() { change("rules/put", canary) }},
		{"the removal of a canary", "/rules?service=Shop&rule=Shop/dark", "", ".panel [required]", ".panel [type=submit]", "unrule", func() { change("rules/put", canary) }},
		{"a rollback to an old revision", "/rules?service=Shop", ".history li:nth-child(2) [data-undo]", "[name=undoreason]", ".history [type=submit]", "rollback", func() {
			change("rules/put", canary)
			change("rules/put", `"id":"slow","timeout":{"after":"1s"}`)
		}},
		{"a revert in the audit log", "/audit", "tbody tr:nth-child(1) [data-revert]", "[name=revertreason]", ".panel [type=submit]", "rollback", func() {
			change("rules/put", boom)
			change("rules/remove", `"id":"boom"`)
		}},
		{"the last instance", "/services/Shop/" + addrs[0], "#set-instance", ".panel [required]", ".panel [type=submit]", "instance", func() {
			change("instance", fmt.Sprintf(`"addr":%q,"state":"inactive"`, addrs[1]))
		}},
		{"the last instance, in the table", "/services/Shop?tab=instances", "tbody tr:nth-child(1) button", ".panel [required]", ".panel [type=submit]", "instance", func() {
			change("instance", fmt.Sprintf(`"addr":%q,"state":""`, addrs[0]))
		}},
		{"an instance that a revert disables", "/audit", "tbody tr:nth-child(1) [data-revert]", "[name=revertreason]", ".panel [type=submit]", "instance", func() {
			change("instance", fmt.Sprintf(`"addr":%q,"state":""`, addrs[0])) // the form before has disabled it
		}},
	} {
		form.before()
		b.open(base+form.path, "Shop")
		if form.open != "" {
			b.click(form.open)
		}
		b.fill(form.reason, "it is urgent")
		if b.eval("!!document.querySelector('.panel select')") == "true" {
			b.pick(".panel select", "inactive")
		}
		for _, typed := range []string{"", "shop", "Shop"} {
			before := actions(c)
			if typed != "" {
				b.fill("main [name=confirm]", typed)
			}
			b.until(fmt.Sprintf("!document.querySelector(%q).disabled", form.submit))
			b.click(form.submit)
			if typed == "Shop" {
				eventually(t, form.name+" is sent", func() bool { return actions(c) == before+" > "+form.action })
				continue
			}
			b.waitFor("Type Shop to go on all the same")
			b.until(`document.querySelector("main [name=confirm]").value === ""`) // it has been refused
			if actions(c) != before {
				t.Errorf("%s: with %q typed, the audit log has %s, and had %s", form.name, typed, actions(c), before)
			}
		}
		b.mu.Lock()
		b.faults = nil // each status 409
		b.mu.Unlock()
		b.check(form.name)
	}
}
