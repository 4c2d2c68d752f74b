// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rules_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// fewer returns how often a test repeats something: n, and with the race detector n/by.
func fewer(n, _ int) int { return n }

// A client whose service has no rules allocates nothing more for a call than a client without
// package rules. Under the race detector, pools lose what they hold by chance.
func TestNoRulesAllocateNothing(t *testing.T) {
	in := memory.New(nil)
	shop := openShop(t, in, discovery.Instance{Version: "v1"})
	count := func(r discovery.Resolver) float64 {
		c := yodel.NewClient(r, nil)
		defer c.Close()
		within(t, "the client is ready", func() bool { return c.Ready(t.Context()) == nil })
		arg, out := &order{}, &order{}
		return testing.AllocsPerRun(200, func() {
			if err := c.Call(t.Context(), string(buy), arg, out); err != nil {
				t.Fatal(err)
			}
		})
	}
	plain, ruled := count(discovery.Static(shop.addr)), count(rules.With(in, nil).Service("Shop"))
	if ruled > plain+0.5 {
		t.Errorf("a call allocates %v times with rules, and %v times without", ruled, plain)
	}
}

// Rules of other methods cost a call almost nothing, in clients and on servers: the rules of its
// method are chosen once. The bound is generous, because the machine of a test may be busy.
func TestRulesOfOtherMethodsCostLittle(t *testing.T) {
	const most = 1.6 // it was 2.9 when each call was compared with each rule
	pair := openPair(t)
	var ratios []float64
	for range 3 { // a busy machine may need another try
		ratios = ratios[:0]
		for range 41 {
			ratios = append(ratios, pair.ratio(t))
		}
		slices.Sort(ratios)
		t.Logf("with 63 rules of other methods, a call takes %.3f times as long (%.3f to %.3f)", ratios[20], ratios[10], ratios[30])
		if ratios[20] <= most {
			break
		}
	}
	if ratios[20] > most {
		t.Errorf("with 63 rules of other methods, a call takes %.2f times as long, want at most %v", ratios[20], most)
	}
	plain, ruled := allocations(t, pair.plain), allocations(t, pair.ruled)
	if ruled > plain+1.5 { // the server looks up the name of the service
		t.Errorf("a call allocates %v times with 63 rules of other methods, and %v times without", ruled, plain)
	}
}

// A pair is a client of a service without rules, and one of a service with 63 rules of methods that
// it does not call.
type pair struct{ plain, ruled *yodel.Client }

func openPair(t *testing.T) (p pair) {
	t.Helper()
	for _, c := range []struct {
		client **yodel.Client
		count  int
	}{{&p.plain, 0}, {&p.ruled, 63}} {
		in := memory.New(nil)
		book, err := rules.Open(in)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.count {
			r := ofOtherMethod[i%len(ofOtherMethod)]
			r.Service, r.ID, r.Method, r.Author, r.Reason = "Shop", fmt.Sprint("r", i), fmt.Sprint("Sell", i), "ann", "a test"
			if _, err := book.Put(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		governed := rules.With(in, nil)
		openShop(t, governed, discovery.Instance{Version: "v1"})
		client := yodel.NewClient(governed.Service("Shop"), nil)
		t.Cleanup(func() { client.Close() })
		within(t, "the client is ready", func() bool { return client.Ready(t.Context()) == nil })
		within(t, "the rules are in force", func() bool { return len(governed.Rules().Rules) == c.count })
		*c.client = client
	}
	return p
}

// ofOtherMethod has rules for each of the chains.
var ofOtherMethod = []rules.Rule{
	{Timeout: &rules.Timeout{After: rules.Duration(time.Second)}},
	{Limit: &rules.Limit{PerSecond: 10}},
	{Disable: &rules.Disable{}},
	{Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10}},
	{Route: &rules.Route{To: rules.Target{Version: "v1"}}},
	{Breaker: &rules.Breaker{Errors: 5}},
	{Fault: &rules.Fault{Code: "internal"}},
	{Fault: &rules.Fault{Code: "internal"}, Side: "server"},
	{Mock: &rules.Answer{Reply: json.RawMessage("{}")}, Side: "server"},
	{Retry: &rules.Retry{Times: 2}},
	{Timeout: &rules.Timeout{After: rules.Duration(time.Minute)}, Caller: "nobody"},
}

// ratio returns how much longer calls take with the rules than without. So many are in flight that
// the processors are busy.
func (p pair) ratio(t *testing.T) float64 {
	t.Helper()
	var took [2]time.Duration
	for range 4 {
		for i, c := range []*yodel.Client{p.plain, p.ruled} {
			var wg sync.WaitGroup
			began := time.Now()
			for range 32 {
				wg.Go(func() {
					arg, out := &order{}, &order{}
					for range 25 {
						if err := c.Call(t.Context(), string(buy), arg, out); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			took[i] += time.Since(began)
		}
	}
	return float64(took[1]) / float64(took[0])
}

func allocations(t *testing.T, c *yodel.Client) float64 {
	arg, out := &order{}, &order{}
	return testing.AllocsPerRun(200, func() {
		if err := c.Call(t.Context(), string(buy), arg, out); err != nil {
			t.Fatal(err)
		}
	})
}
