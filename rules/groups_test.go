// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"math"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// TestWeightsBetweenGroupsAndZonesHold divides 10,000 calls among three groups, each in a zone of
// its own, with one, two and three instances. The share of each group is within 2 % of all calls.
// Calls are drawn at random, so that a share misses that by chance about once in 10,000 times: the
// calls are then made once more. With the race detector, there are 2,000 calls, and the share is
// within 4.5 %, which it misses as rarely.
func TestWeightsBetweenGroupsAndZonesHold(t *testing.T) {
	calls := fewer(10_000, 5)
	tolerance := 2 / math.Sqrt(float64(calls))
	group := func(name string) rules.Target { return rules.Target{Group: name} }
	zone := func(name string) rules.Target { return rules.Target{Zone: name} }
	for name, balancer := range map[string]yodel.Balancer{"RoundRobin": nil, "Smooth": balance.Smooth, "P2C": balance.P2C} {
		registry := memory.New(nil)
		m := &mall{t: t, book: open(t, registry), rules: rules.With(registry, nil)}
		var executed shares
		for i, in := range []discovery.Instance{{Group: "blue", Zone: "a"}, {Group: "green", Zone: "b"}, {Group: "gray,spare", Zone: "c"}} {
			for range i + 1 {
				s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{m.rules}, Instance: in})
				buy.Handle(s, func(context.Context, *order) (*order, error) {
					executed[i]++ // calls are made one after the other
					return &order{By: in.Group}, nil
				})
				serve(t, s)
			}
		}
		m.client = yodel.NewClient(m.rules.Service("Shop"), &yodel.ClientOptions{Balancer: balancer})
		t.Cleanup(m.client.Close)
		within(t, "all instances get calls", func() bool {
			ready := 0
			for _, ep := range m.client.Endpoints() {
				if ep.Connected() {
					ready++
				}
			}
			return m.works() && ready == 6
		})
		for _, test := range []struct {
			what  string
			rules []rules.Rule
			want  shares
		}{
			{"no rule", nil, shares{1. / 6, 2. / 6, 3. / 6}},
			{"a group three times", []rules.Rule{{Weight: &rules.Weight{To: group("blue"), Percent: 300}}}, shares{3. / 8, 2. / 8, 3. / 8}},
			{"a zone by half", []rules.Rule{{Weight: &rules.Weight{To: zone("b"), Percent: 50}}}, shares{1. / 5, 1. / 5, 3. / 5}},
			{"one of several groups", []rules.Rule{{Weight: &rules.Weight{To: group("spare"), Percent: 50}}}, shares{1. / 4.5, 2. / 4.5, 1.5 / 4.5}},
			{
				"a group and a zone",
				[]rules.Rule{{Weight: &rules.Weight{To: group("blue"), Percent: 400}}, {Weight: &rules.Weight{To: zone("c"), Percent: 200}}},
				shares{4. / 12, 2. / 12, 6. / 12},
			},
			{"no calls to a zone", []rules.Rule{{Weight: &rules.Weight{To: zone("c")}}}, shares{1. / 3, 2. / 3, 0}},
			{"60 % to a group", []rules.Rule{{Canary: &rules.Canary{To: group("blue"), Percent: 60}}}, shares{.6, .4 * 2 / 5, .4 * 3 / 5}},
			{
				"50 : 30 : 20 between zones",
				[]rules.Rule{{ID: "1", Canary: &rules.Canary{To: zone("a"), Percent: 50}}, {ID: "2", Canary: &rules.Canary{To: zone("b"), Percent: 60}}},
				shares{.5, .3, .2},
			},
		} {
			if balancer != nil && len(test.rules) < 2 {
				continue // what the rules do does not depend on the balancer
			}
			for i, r := range test.rules {
				test.rules[i] = m.put(r)
				m.follows(test.rules[i])
			}
			within(t, "the rules act", func() bool { // the picker is made after the rules have been read
				executed = shares{}
				m.work(500)
				return executed.near(test.want, 500, 0.1)
			})
			hold := func() bool {
				executed = shares{}
				return m.work(calls) && executed.near(test.want, float64(calls), tolerance)
			}
			if once := hold(); !once && !hold() {
				t.Errorf("%s, %s: of %d calls, the groups have executed %v, want %v", name, test.what, calls, executed, test.want)
			}
			for _, r := range test.rules {
				m.remove(r)
			}
		}
	}
}

// shares are the calls of the groups blue, green and gray.
type shares [3]float64

// near reports whether the groups have executed what they should of n calls.
func (s shares) near(want shares, n, tolerance float64) bool {
	for i := range s {
		if math.Abs(s[i]/n-want[i]) > tolerance {
			return false
		}
	}
	return true
}
