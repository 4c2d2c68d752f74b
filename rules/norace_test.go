// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rules_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// A client whose service has no rules allocates nothing more for a call than a client without
// package rules. Under the race detector, pools lose what they hold by chance.
func TestNoRulesAllocateNothing(t *testing.T) {
	in := memory.New(nil)
	shop := openShop(t, in, yodel.Instance{Version: "v1"})
	count := func(r yodel.Resolver) float64 {
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
	plain, ruled := count(yodel.Static(shop.addr)), count(rules.With(in, nil).Service("Shop"))
	if ruled > plain+0.5 {
		t.Errorf("a call allocates %v times with rules, and %v times without", ruled, plain)
	}
}
