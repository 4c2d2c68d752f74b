// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/rules"
)

// TestRulingsHoldInstances asks which rules leave the instances of a version without calls.
func TestRulingsHoldInstances(t *testing.T) {
	v2 := rules.Target{Version: "v2"}
	past := time.Now().Add(-time.Minute)
	canary := func(percent float64, then string) *rules.Canary {
		return &rules.Canary{To: v2, Percent: percent, Then: then}
	}
	for name, test := range map[string]struct {
		rule  rules.Rule
		holds bool
	}{
		"canary":                         {rules.Rule{Canary: canary(10, "")}, false},
		"canary of 0 %":                  {rules.Rule{Canary: canary(0, "")}, true},
		"canary that is off":             {rules.Rule{Canary: canary(10, ""), Off: true}, true},
		"canary that has expired":        {rules.Rule{Canary: canary(10, ""), Expires: past}, true},
		"canary that keeps its share":    {rules.Rule{Canary: canary(10, "keep"), Off: true}, false},
		"canary that spreads":            {rules.Rule{Canary: canary(10, "spread"), Off: true}, false},
		"canary of 0 % for one caller":   {rules.Rule{Canary: canary(0, ""), Caller: "web"}, false},
		"disabled":                       {rules.Rule{Disable: &rules.Disable{To: &v2}}, true},
		"disabled until now":             {rules.Rule{Disable: &rules.Disable{To: &v2}, Expires: past}, false},
		"weight of 0 %":                  {rules.Rule{Weight: &rules.Weight{To: v2}}, true},
		"weight of 50 %":                 {rules.Rule{Weight: &rules.Weight{To: v2, Percent: 50}}, false},
		"all calls of a method disabled": {rules.Rule{Method: "Buy", Disable: &rules.Disable{}}, false},
	} {
		held, other := false, false
		for _, r := range rules.RulingsOf([]rules.Rule{test.rule}) {
			if r.Holds != nil {
				held, other = r.Holds(&discovery.Instance{Version: "v2"}), r.Holds(&discovery.Instance{Version: "v1"})
			}
		}
		if held != test.holds || other {
			t.Errorf("%s: v2 is held back: %t, want %t; v1: %t", name, held, test.holds, other)
		}
	}
}

// A limit of each process is said for all instances of the service.
func TestALimitIsSaidForAllInstances(t *testing.T) {
	for _, test := range []struct {
		rule      rules.Rule
		instances int
		want      string
	}{
		{rules.Rule{Limit: &rules.Limit{PerSecond: 24}}, 3, "24 a second on each of 3 instances: 72 in all"},
		{rules.Rule{Limit: &rules.Limit{PerSecond: 0.5, By: "caller"}}, 3, "0.5 a second for each caller on each of 3 instances: 1.5 in all for each caller"},
		{rules.Rule{Limit: &rules.Limit{PerSecond: 24, Concurrent: 2}}, 1, "24 a second on the only instance: 24 in all, and 2 at a time on the only instance: 2 in all"},
		{rules.Rule{Limit: &rules.Limit{PerSecond: 24}}, 0, ""},
		{rules.Rule{Limit: &rules.Limit{PerSecond: 24}, Side: "client"}, 3, ""}, // there may be any number of clients
		{rules.Rule{Disable: &rules.Disable{}}, 3, ""},
	} {
		if got := test.rule.Across(test.instances); got != test.want {
			t.Errorf("%s of %d: got %q, want %q", test.rule.Sentence(), test.instances, got, test.want)
		}
	}
}
