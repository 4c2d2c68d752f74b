// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/rules"
)

// traffic is that of three instances, of which one is version v2. Each executes 10 calls of
// Shop.Buy a second from web, and 5 of Shop.Sell from batch.
func traffic() *rules.Traffic {
	t, now := &rules.Traffic{Live: make(map[string]*introspect.Live)}, time.Now()
	for _, addr := range []string{"a", "b", "c"} {
		version := "v1"
		if addr == "c" {
			version = "v2"
		}
		t.Instances = append(t.Instances, discovery.Instance{Addr: addr, Version: version})
		t.Live[addr] = &introspect.Live{Now: now, Step: time.Second, Process: introspect.Process{Started: now.Add(-time.Hour)}, Series: []introspect.Series{
			{Side: "server", Method: "Shop.Buy", Peer: "web", Calls: []uint64{10, 10, 10, 3}},
			{Side: "server", Method: "Shop.Sell", Peer: "batch", Calls: []uint64{5, 5, 5, 0}},
			{Side: "client", Method: "Shop.Buy", Calls: []uint64{99, 99, 99, 99}},
			{Side: "server", Method: "Other.Do", Calls: []uint64{99, 99, 99, 99}},
		}}
	}
	return t
}

func TestPreview(t *testing.T) {
	v2 := rules.Target{Version: "v2"}
	for _, test := range []struct {
		what     string
		rule     rules.Rule
		all      []rules.Rule
		moved    float64
		refused  float64
		c        float64 // the rate of the instance c after the rule
		problems string
	}{
		{what: "canary", rule: rules.Rule{Canary: &rules.Canary{To: v2, Percent: 10}}, moved: 10.5, c: 4.5, problems: "YDL-R021"},
		{what: "scope", rule: rules.Rule{Method: "Buy", Caller: "web", Canary: &rules.Canary{To: v2, Percent: 100}}, moved: 20, c: 35, problems: "YDL-R021"},
		{what: "disable", rule: rules.Rule{Disable: &rules.Disable{To: &v2}}, moved: 15, problems: "YDL-R022"},
		{what: "weight", rule: rules.Rule{Weight: &rules.Weight{To: v2, Percent: 50}}, moved: 6, c: 9},
		{what: "below a rule", rule: rules.Rule{Route: &rules.Route{To: rules.Target{Addr: "a"}}},
			all: []rules.Rule{{ID: "x", Disable: &rules.Disable{To: &rules.Target{Addr: "a"}}}}, moved: 15, c: 22.5, problems: "YDL-R029"},
		{what: "refuse", rule: rules.Rule{Method: "Sell", Disable: &rules.Disable{}}, refused: 15, c: 10, problems: "YDL-R022 YDL-R025"},
		{what: "limit", rule: rules.Rule{Limit: &rules.Limit{PerSecond: 10}}, refused: 15, c: 10, problems: "YDL-R022"},
		{what: "no instance in the scope", rule: rules.Rule{Method: "Sell", Route: &rules.Route{To: rules.Target{Version: "v9"}, Strict: true}},
			refused: 15, c: 10, problems: "YDL-R025 YDL-R012"},
		{what: "no weight anywhere", rule: rules.Rule{Weight: &rules.Weight{To: rules.Target{Version: "v*"}}}, c: 15},
		{what: "typo", rule: rules.Rule{Canary: &rules.Canary{To: rules.Target{Version: "v22"}, Percent: 10}}, c: 15, problems: "YDL-R012"},
		{what: "no call", rule: rules.Rule{Method: "Lend", Timeout: &rules.Timeout{After: rules.Duration(time.Second)}}, c: 15, problems: "YDL-R013"},
		{what: "same", rule: rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(time.Second)}},
			all: []rules.Rule{{ID: "x", Service: "Shop", Timeout: &rules.Timeout{After: 1}}}, c: 15, problems: "YDL-R016"},
		{what: "a timeout of streams", rule: rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(time.Second), Streams: true}},
			all: []rules.Rule{{ID: "x", Service: "Shop", Timeout: &rules.Timeout{After: 1}}}, c: 15},
		{what: "same switch", rule: rules.Rule{Switch: &rules.Switch{Name: "new"}},
			all: []rules.Rule{{ID: "x", Service: "Shop", Switch: &rules.Switch{Name: "new", On: true}}}, c: 15, problems: "YDL-R029 YDL-R016"},
		{what: "another switch", rule: rules.Rule{Switch: &rules.Switch{Name: "new"}},
			all: []rules.Rule{{ID: "x", Service: "Shop", Switch: &rules.Switch{Name: "old", On: true}}}, c: 15},
		{what: "all", rule: rules.Rule{Disable: &rules.Disable{To: &rules.Target{Version: "v*"}}}, refused: 45, problems: "YDL-R022 YDL-R025 YDL-R015"},
		{what: "dark", rule: rules.Rule{Canary: &rules.Canary{To: rules.Target{Version: "v3"}}}, c: 15, problems: "YDL-R012"},
		{what: "steep", rule: rules.Rule{Canary: &rules.Canary{To: v2, Percent: 100}}, moved: 30, c: 45, problems: "YDL-R021"},
		{what: "invalid", rule: rules.Rule{Canary: &rules.Canary{To: v2, Percent: 200}}, c: 15, problems: "YDL-R006"},
	} {
		test.rule.Service = "Shop"
		e := rules.Preview(&test.rule, test.all, traffic())
		var problems []string
		for _, p := range e.Problems {
			problems = append(problems, p.ID)
		}
		if got := e.Shares[2]; e.Calls != 45 || math.Abs(e.Moved-test.moved) > 0.01 || math.Abs(e.Refused-test.refused) > 0.01 ||
			math.Abs(got.After-test.c) > 0.01 || got.Addr != "c" || strings.Join(problems, " ") != test.problems {
			t.Errorf("%s: %+v %v", test.what, e, problems)
		}
		if none := test.what == "typo" || test.what == "dark"; strings.HasPrefix(e.Text, "none of 45 calls/s move: no instance has version v") != none {
			t.Errorf("%s: the effect is %q", test.what, e.Text)
		}
		t.Logf("%s: %s", test.what, e.Text)
	}
}

// Live data has no tenants, headers, networks and identities, so the effect of such a rule is an
// upper bound.
func TestPreviewOfAScopeThatIsNotSeen(t *testing.T) {
	const bound, across = ", if all calls have the ", "; 10 a second on each of 3 instances: 30 in all"
	for want, r := range map[string]rules.Rule{
		"15 of 45 calls/s are refused or not executed" + bound + "tenant of the rule" + across: {Tenant: "acme"},
		"15 of 45 calls/s are refused or not executed" + bound + "network and the identity of the rule" + across: {
			Network: "10.0.0.0/8", Identity: map[string]string{"subject": "ann"},
		},
		"15 of 45 calls/s are refused or not executed" + across: {Caller: "*"},
	} {
		r.Service, r.Limit = "Shop", &rules.Limit{PerSecond: 10}
		if e := rules.Preview(&r, nil, traffic()); e.Text != want {
			t.Errorf("got %q, want %q", e.Text, want)
		}
	}
}

func TestPreviewWithoutTraffic(t *testing.T) {
	r := rules.Rule{Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10}}
	if e := rules.Preview(&r, nil, &rules.Traffic{}); e.Calls != 0 || e.Moved != 0 || e.Text != "there was no traffic in the last minutes" {
		t.Errorf("%+v", e)
	}
}

// The rates of all instances are those of the same time, so that their sum is the rate of the
// service in the lists.
func TestPreviewOfAYoungProcess(t *testing.T) {
	of := traffic()
	live := of.Live["c"]
	live.Now = live.Now.Truncate(time.Second)
	live.Process.Started = live.Now.Add(-1500 * time.Millisecond)
	live.Series = []introspect.Series{{Side: "server", Method: "Shop.Buy", Calls: append(make([]uint64, 58), 10, 20, 3)}}
	r := rules.Rule{Service: "Shop", Timeout: &rules.Timeout{After: rules.Duration(time.Second)}}
	if e := rules.Preview(&r, nil, of); e.Shares[2].Before != 10 || e.Calls != 40 {
		t.Errorf("got %+v", e)
	}
	of.Instances = of.Instances[2:] // the young one alone: its calls are those of one and a half seconds
	if e := rules.Preview(&r, nil, of); e.Calls != 20 || fleet.Counted(live) != 1500*time.Millisecond {
		t.Errorf("alone: got %+v in %v", e, fleet.Counted(live))
	}
}

// If all instances are disabled, a preview says so, and has the traffic that they had before.
func TestPreviewWithoutAnInstanceThatTakesCalls(t *testing.T) {
	r := rules.Rule{ID: "new", Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10}}
	none := rules.Rule{ID: "none", Service: "Shop", Disable: &rules.Disable{To: &rules.Target{Version: "v*"}}}
	elsewhere := none
	elsewhere.Caller = "batch"
	refused := rules.Rule{ID: "closed", Service: "Shop", Disable: &rules.Disable{}}
	spared := rules.Rule{ID: "closed", Service: "Shop", Disable: &rules.Disable{Except: []string{"web"}}}
	for _, test := range []struct {
		what          string
		all           []rules.Rule
		inactive      int  // how many of the three instances
		silent, shown bool // there was no traffic; the preview says that all instances are disabled
	}{
		{what: "the states of instances", inactive: 3, shown: true},
		{what: "the states of instances, long ago", inactive: 3, silent: true, shown: true},
		{what: "the state of an instance", inactive: 1},
		{what: "a rule", all: []rules.Rule{none}, silent: true, shown: true},
		{what: "a rule and a moment ago", all: []rules.Rule{none}, shown: true},
		{what: "a rule for some callers", all: []rules.Rule{elsewhere}},
		{what: "a rule that refuses all calls", all: []rules.Rule{refused}, silent: true, shown: true},
		{what: "a rule that refuses some calls", all: []rules.Rule{spared}, silent: true},
	} {
		of := traffic()
		for i := range test.inactive {
			of.Instances[i].State = "inactive"
		}
		if test.silent {
			of.Live = nil
		}
		e := rules.Preview(&r, test.all, of)
		warned := slices.ContainsFunc(e.Problems, func(p rules.Problem) bool { return p.ID == "YDL-R024" && p.Warning })
		if told := strings.Contains(e.Text, "all 3 instances are disabled"); told != test.shown || warned != test.shown || (e.Calls == 0) != test.silent ||
			strings.HasPrefix(e.Text, "there was no traffic") != test.silent {
			t.Errorf("%s: %+v", test.what, e)
		}
	}
}

// What an operator has to confirm, whatever the way in which the rules change.
func TestPreviewSaysWhatToConfirm(t *testing.T) {
	try := rules.Rule{ID: "try", Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 20}}
	off, gone := try, try
	off.Off, gone.Expires = true, time.Now().Add(-time.Hour)
	refuse := func(r rules.Rule) rules.Rule {
		r.ID, r.Service, r.Disable = "boom", "Shop", &rules.Disable{}
		return r
	}
	for _, test := range []struct {
		what          string
		before, after []rules.Rule
		confirm       string // the start of the text of the problem
		text          string
	}{
		{"the canary ends", []rules.Rule{try}, []rules.Rule{off}, "", "v1 gets 100 % of the calls (now 80 %), v2 0 % (now 20 %)"},
		{"the canary is removed", []rules.Rule{try}, nil, "version v2 would get 33.3 % of the calls, now 20 %", "v1 gets 66.7 % of the calls (now 80 %), v2 33.3 % (now 20 %)"},
		{"the ended canary is removed", []rules.Rule{off}, nil, "version v2 would get 33.3 % of the calls, now 0 %", "v1 gets 66.7 % of the calls (now 100 %), v2 33.3 % (now 0 %)"},
		{"the expired canary is removed", []rules.Rule{gone}, nil, "version v2 would get 33.3 % of the calls, now 0 %", "v1 gets 66.7 % of the calls (now 100 %), v2 33.3 % (now 0 %)"},
		{"the ended canary goes on", []rules.Rule{off}, []rules.Rule{try}, "", "v1 gets 80 % of the calls (now 100 %), v2 20 % (now 0 %)"},
		{"all calls are refused", nil, []rules.Rule{refuse(rules.Rule{})}, "100 % of the calls of Shop would not", ""},
		{"one method is refused", nil, []rules.Rule{refuse(rules.Rule{Method: "Sell"})}, "100 % of the calls of Shop.Sell would not", ""},
		{"a method without calls is refused", nil, []rules.Rule{refuse(rules.Rule{Method: "Lend"})}, "100 % of the calls of Shop.Lend would not", ""},
		{"the main caller is refused", nil, []rules.Rule{refuse(rules.Rule{Caller: "web"})}, "66.7 % of the calls of Shop would not", ""},
		{"another caller is refused", nil, []rules.Rule{refuse(rules.Rule{Caller: "nobody"})}, "", ""},
		{"a tenant is refused", nil, []rules.Rule{refuse(rules.Rule{Tenant: "acme"})}, "", ""},
		{"they were refused before", []rules.Rule{refuse(rules.Rule{})}, []rules.Rule{refuse(rules.Rule{Method: "Sell"})}, "", ""},
		{"a fault fails all calls", nil, []rules.Rule{{ID: "f", Service: "Shop", Fault: &rules.Fault{Code: "unavailable"}}}, "100 % of the calls of Shop would not", ""},
		{"a fault fails some calls", nil, []rules.Rule{{ID: "f", Service: "Shop", Fault: &rules.Fault{Percent: 40, Code: "unavailable"}}}, "", ""},
		{"a mock answers all calls", nil, []rules.Rule{{ID: "m", Service: "Shop", Mock: &rules.Answer{Code: "not_found"}}}, "100 % of the calls of Shop would not", ""},
		{"a limit refuses most calls", nil, []rules.Rule{{ID: "l", Service: "Shop", Limit: &rules.Limit{PerSecond: 1}}}, "93.3 % of the calls of Shop would not", ""},
		{"all instances are disabled", nil, []rules.Rule{{ID: "d", Service: "Shop", Disable: &rules.Disable{To: &rules.Target{Version: "v*"}}}}, "100 % of the calls of Shop would not", ""},
		{"a strict route leads nowhere", nil, []rules.Rule{{ID: "r", Service: "Shop", Route: &rules.Route{To: rules.Target{Version: "v9"}, Strict: true}}}, "100 % of the calls of Shop would not", ""},
	} {
		for _, quiet := range []bool{false, true} { // without traffic, the service as a whole and the named methods count
			of := traffic()
			if quiet {
				if strings.Contains(test.what, "caller") || strings.Contains(test.what, "limit") {
					continue
				}
				of.Live = nil
			}
			e := rules.PreviewChange("Shop", test.before, test.after, of)
			var all []string
			for _, p := range e.Problems {
				if p.Force {
					all = append(all, p.Text)
				}
			}
			confirm := strings.Join(all, "; ")
			if !strings.HasPrefix(confirm, test.confirm) || test.confirm == "" && confirm != "" || test.text != "" && e.Text != test.text {
				t.Errorf("%s, quiet %v: %q, to confirm %q", test.what, quiet, e.Text, confirm)
			}
		}
	}
}

func TestPreviewNamesWhatDoesNotExist(t *testing.T) {
	for _, test := range []struct {
		rule rules.Rule
		want string
	}{
		{rules.Rule{Service: "Shopp"}, `there is no service Shopp; did you mean "Shop"?`},
		{rules.Rule{Service: "Shop", Method: "Bui"}, `Shop has no method Bui; did you mean "Buy"?`},
		{rules.Rule{Service: "Shop", Method: "Shop/Sel"}, `Shop has no method Shop/Sel; did you mean "Shop/Sell"?`},
		{rules.Rule{Service: "Shop", Caller: "wep"}, `no process with the name wep has called Shop in the last minutes; did you mean "web"?`},
		{rules.Rule{Service: "Shop", Method: "B*", Caller: "w*"}, ""},
		{rules.Rule{Service: "Shop", Method: "Shop.Lend"}, ""},
	} {
		of := traffic()
		of.Services, of.Methods = []string{"Shop", "Bank"}, []string{"Shop.Buy", "Shop.Sell", "Shop.Lend"}
		test.rule.Timeout = &rules.Timeout{After: rules.Duration(time.Second)}
		var got []string
		for _, p := range rules.Preview(&test.rule, nil, of).Problems {
			if p.Force {
				got = append(got, p.String())
			}
		}
		if test.want == "" && got != nil || !strings.Contains(strings.Join(got, "; "), test.want) {
			t.Errorf("%+v: %q, want %q", test.rule, got, test.want)
		}
	}
}

// A rule that another one leaves nothing to do is stored without an effect, which its author should
// learn.
func TestPreviewNamesTheRuleThatLeavesNoEffect(t *testing.T) {
	v1, v2 := rules.Target{Version: "v1"}, rules.Target{Version: "v2"}
	with := func(id string, r rules.Rule) rules.Rule {
		r.ID, r.Service = id, "Shop"
		return r
	}
	timeout := rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(time.Second)}}
	for _, test := range []struct {
		what string
		rule rules.Rule
		all  []rules.Rule
		by   string
	}{
		{"a canary beside a strict route", with("try", rules.Rule{Canary: &rules.Canary{To: v2, Percent: 10}}), []rules.Rule{with("r", rules.Rule{Route: &rules.Route{To: v1, Strict: true}})}, "r"},
		{"a canary beside a disabled version", with("try", rules.Rule{Canary: &rules.Canary{To: v2, Percent: 10}}), []rules.Rule{with("d", rules.Rule{Disable: &rules.Disable{To: &v2}})}, "d"},
		{"a weight in a method that is refused", with("w", rules.Rule{Method: "Buy", Weight: &rules.Weight{To: v2, Percent: 10}}), []rules.Rule{with("x", timeout), with("d", rules.Rule{Disable: &rules.Disable{}})}, "d"},
		{"a timeout after another", with("b", timeout), []rules.Rule{with("a", timeout)}, "a"},
		{"a timeout before another", with("a", timeout), []rules.Rule{with("b", timeout)}, ""},
		{"a timeout for streams", with("b", rules.Rule{Timeout: &rules.Timeout{After: 1, Streams: true}}), []rules.Rule{with("a", timeout)}, ""},
		{"a switch before another", with("a", rules.Rule{Switch: &rules.Switch{Name: "n"}}), []rules.Rule{with("b", rules.Rule{Switch: &rules.Switch{Name: "n", On: true}})}, "b"},
		{"a canary beside an ended one", with("b", rules.Rule{Canary: &rules.Canary{To: v2, Percent: 10}}), []rules.Rule{with("a", rules.Rule{Off: true, Canary: &rules.Canary{To: v2, Percent: 10}})}, ""},
		{"a canary by itself", with("try", rules.Rule{Canary: &rules.Canary{To: v2, Percent: 10}}), nil, ""},
	} {
		got := ""
		for _, p := range rules.Preview(&test.rule, test.all, traffic()).Problems {
			if p.ID == "YDL-R029" {
				got = p.Text
			}
		}
		if want := "rule " + test.by + " leaves it no effect"; got != want && (test.by != "" || got != "") {
			t.Errorf("%s: %q, want %q", test.what, got, want)
		}
	}
}
