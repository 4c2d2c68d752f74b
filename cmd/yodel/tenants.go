// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// topTenants is how many tenants of each method top shows.
const topTenants = 20

// tenantRows asks the instances of a view for the tenants with most calls, and returns a row for
// each tenant of a method, the method and the tenant with most calls first. An instance that does
// not answer adds nothing.
func tenantRows(ctx context.Context, f *fleet.Fleet, view *fleet.View) []topRow {
	type key struct{ method, tenant string }
	var mu sync.Mutex
	sums := make(map[key]introspect.TenantCalls)
	var wg sync.WaitGroup
	for _, addr := range addressesOf(view, true) {
		client := f.Client(addr)
		if client == nil {
			continue
		}
		wg.Go(func() {
			live, err := inspect.Live.Call(ctx, client, &introspect.LiveQuery{Side: "server", Tenants: topTenants})
			if err != nil {
				return // top says elsewhere which instances do not answer
			}
			mu.Lock()
			defer mu.Unlock()
			for _, t := range live.Tenants {
				sum := sums[key{t.Method, t.Tenant}]
				sums[key{t.Method, t.Tenant}] = introspect.TenantCalls{Calls: sum.Calls + t.Calls, Failed: sum.Failed + t.Failed, Limited: sum.Limited + t.Limited}
			}
		})
	}
	wg.Wait()
	rows := []topRow{}
	for _, s := range view.Services {
		var of []topRow
		for k, n := range sums {
			if fleet.ServiceOf(k.method) == s.Name {
				of = append(of, topRow{Name: shown(k.method), Tenant: k.tenant, trafficRow: minuteOf(n)})
			}
		}
		sort.Slice(of, func(i, j int) bool {
			a, b := &of[i], &of[j]
			return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Name, b.Name), strings.Compare(a.Tenant, b.Tenant)) < 0
		})
		rows = append(rows, of[:min(len(of), topTenants)]...)
	}
	return rows
}

// minuteOf converts the calls of a minute.
func minuteOf(n introspect.TenantCalls) trafficRow {
	return trafficRow{
		Measured: true, Span: time.Minute, Calls: int64(n.Calls), Failed: int64(n.Failed), Limited: int64(n.Limited), //nolint:gosec // counts of a minute
		Rate: float64(n.Calls) / 60, OK: 1 - float64(n.Failed)/float64(max(n.Calls, n.Limited+1)-n.Limited),
	}
}
