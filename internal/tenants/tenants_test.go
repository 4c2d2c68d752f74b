// SPDX-License-Identifier: Apache-2.0

package tenants_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/tenants"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestTenantsOfAMethodAreSortedByTheirCallsInTheLastMinute(t *testing.T) {
	var ts tenants.Counts
	now := time.Hour
	for i := range 10 {
		outcome := introspect.Answered
		switch {
		case i < 3:
			outcome = introspect.Failed
		case i < 5:
			outcome = introspect.Limited
		case i < 6:
			outcome = introspect.Canceled
		}
		ts.Count("Shop.Buy", "acme", outcome, now)
		ts.Count("Shop.Sell", "calm", introspect.Answered, now)
	}
	ts.Count("Shop.Buy", "calm", introspect.Answered, now)
	ts.Count("Shop.Buy", "last", introspect.Answered, now)
	want := "[{Shop.Buy acme 10 3 2} {Shop.Buy calm 1 0 0} {Shop.Sell calm 10 0 0}]"
	if got := fmt.Sprint(ts.Top("", 2, now)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// half of a minute that has ended 30 s ago is within the last minute
	if got := fmt.Sprint(ts.Top("Shop.Sell", 1, now+90*time.Second)); got != "[{Shop.Sell calm 5 0 0}]" {
		t.Errorf("90 s later: %s", got)
	}
	if got := ts.Top("", 9, now+3*time.Minute); len(got) != 0 {
		t.Errorf("3 minutes later: %v", got)
	}
	if got := ts.Top("", 0, now); got != nil {
		t.Errorf("a query for no tenants gets %v", got)
	}
}

// A peer that sends a new tenant with each call neither takes memory nor hides who floods.
func TestTenantsAreBoundedAndTheLargestStay(t *testing.T) {
	var ts tenants.Counts
	now := time.Hour
	for i := range 50_000 {
		name := fmt.Sprintf("new-%d", i) + strings.Repeat("x", 1000)
		ts.Count("Shop.Buy", name, introspect.Answered, now)
		if i%10 == 0 {
			ts.Count("Shop.Buy", "acme", introspect.Answered, now)
		}
		if i < 10_000 {
			ts.Count(fmt.Sprintf("Shop.Method%d", i), "acme", introspect.Answered, now)
		}
	}
	all := ts.Top("", 1000, now)
	bytes, of := 0, make(map[string][]introspect.TenantCalls)
	for _, one := range all {
		bytes += len(one.Method) + len(one.Tenant)
		of[one.Method] = append(of[one.Method], one)
	}
	if len(all) > 4096 || bytes > 1<<20 || len(of["Shop.Buy"]) > 32 {
		t.Errorf("%d tenants with %d bytes are kept, %d of one method", len(all), bytes, len(of["Shop.Buy"]))
	}
	if top := of["Shop.Buy"][0]; top.Tenant != "acme" || top.Calls < 4_000 || top.Calls > 5_000 {
		t.Errorf("the largest of %d is %+v, want acme with 5000 calls", len(of["Shop.Buy"]), top)
	}
	ts.Count("Shop.New", "acme", introspect.Answered, now+3*time.Minute) // the others are idle
	if got := ts.Top("", 9, now+3*time.Minute); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}
