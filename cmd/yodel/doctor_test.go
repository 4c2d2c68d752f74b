// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// A call that takes less than SlowAfter leaves no record. So doctor advises commands that show
// calls without records.
func TestAdviceAboutWhatIsSlowShowsCalls(t *testing.T) {
	s := &fleet.Service{Name: "shop.Pay"}
	for _, test := range []struct {
		p    fleet.Problem
		want string
	}{
		{fleet.Problem{Kind: "laggard", Args: []string{"10.0.0.1:1", "24ms", "1.2ms", "Charge"}}, "yodel tap shop.Pay/Charge --slower 1.2ms -n 5"},
		{fleet.Problem{Kind: "slow", Args: []string{"90ms", "8ms"}}, "yodel tap shop.Pay --slower 8ms -n 5"},
	} {
		if got := fixOf(s, &test.p); got != test.want {
			t.Errorf("%s: %s, want %s", test.p.Kind, got, test.want)
		}
	}
	in := &fleet.Instance{Instance: discovery.Instance{Addr: "10.0.0.1:1"}, Service: "shop.Pay", State: fleet.Ejected}
	now := time.Now()
	if got := ofInstance(in, make(map[string]bool), span{now, now}); len(got) != 1 || got[0].Fix != "yodel describe 10.0.0.1:1" {
		t.Errorf("an ejected instance that does not fail: %+v", got)
	}
}
