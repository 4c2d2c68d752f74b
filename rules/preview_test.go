// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/rules"
)

// traffic is that of three instances, of which one is version v2. Each executes 10 calls of
// Shop.Buy a second from web, and 5 of Shop.Sell from batch.
func traffic() *rules.Traffic {
	t, now := &rules.Traffic{Live: make(map[string]*introspect.Live)}, time.Now()
	for addr, version := range map[string]string{"a": "v1", "b": "v1", "c": "v2"} {
		t.Instances = append(t.Instances, yodel.Instance{Addr: addr, Version: version})
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
			all: []rules.Rule{{ID: "x", Disable: &rules.Disable{To: &rules.Target{Addr: "a"}}}}, moved: 15, c: 22.5},
		{what: "refuse", rule: rules.Rule{Method: "Sell", Disable: &rules.Disable{}}, refused: 15, c: 15, problems: "YDL-R022"},
		{what: "limit", rule: rules.Rule{Limit: &rules.Limit{PerSecond: 10}}, refused: 15, c: 15, problems: "YDL-R022"},
		{what: "no instance in the scope", rule: rules.Rule{Method: "Sell", Route: &rules.Route{To: rules.Target{Version: "v9"}, Strict: true}},
			refused: 15, c: 10, problems: "YDL-R012"},
		{what: "no weight anywhere", rule: rules.Rule{Weight: &rules.Weight{To: rules.Target{Version: "v*"}}}, c: 15},
		{what: "typo", rule: rules.Rule{Canary: &rules.Canary{To: rules.Target{Version: "v22"}, Percent: 10}}, c: 15, problems: "YDL-R012"},
		{what: "no call", rule: rules.Rule{Method: "Lend", Timeout: &rules.Timeout{After: rules.Duration(time.Second)}}, c: 15, problems: "YDL-R013"},
		{what: "same", rule: rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(time.Second)}},
			all: []rules.Rule{{ID: "x", Service: "Shop", Timeout: &rules.Timeout{After: 1}}}, c: 15, problems: "YDL-R016"},
		{what: "same switch", rule: rules.Rule{Switch: &rules.Switch{Name: "new"}},
			all: []rules.Rule{{ID: "x", Service: "Shop", Switch: &rules.Switch{Name: "new", On: true}}}, c: 15, problems: "YDL-R016"},
		{what: "another switch", rule: rules.Rule{Switch: &rules.Switch{Name: "new"}},
			all: []rules.Rule{{ID: "x", Service: "Shop", Switch: &rules.Switch{Name: "old", On: true}}}, c: 15},
		{what: "all", rule: rules.Rule{Disable: &rules.Disable{To: &rules.Target{Version: "v*"}}}, refused: 45, problems: "YDL-R022 YDL-R015"},
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
		t.Logf("%s: %s", test.what, e.Text)
	}
}

func TestPreviewWithoutTraffic(t *testing.T) {
	r := rules.Rule{Service: "Shop", Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10}}
	if e := rules.Preview(&r, nil, &rules.Traffic{}); e.Calls != 0 || e.Moved != 0 || e.Text != "there was no traffic in the last minutes" {
		t.Errorf("%+v", e)
	}
}

// The rates of a process are those of the time that it has lived.
func TestPreviewOfAYoungProcess(t *testing.T) {
	of := traffic()
	live := of.Live["c"]
	live.Process.Started = live.Now.Add(-1500 * time.Millisecond)
	live.Series = []introspect.Series{{Side: "server", Method: "Shop.Buy", Calls: append(make([]uint64, 58), 10, 20, 3)}}
	r := rules.Rule{Service: "Shop", Timeout: &rules.Timeout{After: rules.Duration(time.Second)}}
	if e := rules.Preview(&r, nil, of); e.Shares[2].Before != 15 || e.Calls != 45 {
		t.Errorf("got %+v", e)
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
