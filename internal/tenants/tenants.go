// SPDX-License-Identifier: Apache-2.0

// Package tenants counts the calls of a server's methods by tenant: who floods a method. It keeps a
// bounded number of tenants, because their names come from callers.
package tenants

import (
	"cmp"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// Bounds of Counts. Together they are about 1 MiB.
const (
	maxTenants     = 32   // of a method
	maxAllTenants  = 4096 // of all methods
	maxTenantBytes = 100  // of a name
	tenantWindow   = time.Minute
)

// Counts has the calls of methods by tenant in the last minute. It knows the tenants with most
// calls: when a method has too many, a new tenant displaces the one with fewest calls. The zero
// value is ready to use. It may be used concurrently.
//
// The names of tenants come from callers, so a peer can send a new one with each call. A tenant
// with many calls stays nevertheless, because a new one displaces a tenant only if it has the
// lowest rank, and gets the rank after it.
type Counts struct {
	mu      sync.Mutex
	methods map[string]map[string]*tenant
	all     int
	swept   time.Duration // the window in which dropIdleLocked ran last
}

// A tenant is the calls for one tenant of a method, in the current window and in the one before.
type tenant struct {
	window                         time.Duration // when the current window began
	calls, failed, limited, ranked [2]uint64     // current, and before; ranked counts displaced tenants too
}

// at moves on to the window of now.
func (t *tenant) at(now time.Duration) *tenant {
	switch window := now.Truncate(tenantWindow); window {
	case t.window:
	case t.window + tenantWindow:
		t.window = window
		for _, n := range []*[2]uint64{&t.calls, &t.failed, &t.limited, &t.ranked} {
			n[0], n[1] = 0, n[0]
		}
	default:
		*t = tenant{window: window}
	}
	return t
}

func (t *tenant) rank() uint64 { return t.ranked[0] + t.ranked[1] }

// Count counts a call of a method for a tenant. Now is a reading of a clock that never goes back.
func (ts *Counts) Count(method, name string, outcome introspect.Outcome, now time.Duration) {
	name = text.Clip(name, maxTenantBytes)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.methods[method][name]
	if t == nil {
		if t = ts.addLocked(method, name, now); t == nil {
			return
		}
	}
	t.at(now)
	t.calls[0]++
	t.ranked[0]++
	switch outcome {
	case introspect.Failed:
		t.failed[0]++
	case introspect.Limited:
		t.limited[0]++
	default:
	}
}

// addLocked adds a tenant of a method. It returns nil if there is no memory for it.
func (ts *Counts) addLocked(method, name string, now time.Duration) *tenant {
	of := ts.methods[method]
	t := &tenant{window: now.Truncate(tenantWindow)}
	if len(of) >= maxTenants || ts.all >= maxAllTenants {
		ts.dropIdleLocked(now)
		of = ts.methods[method]
	}
	if len(of) >= maxTenants || ts.all >= maxAllTenants {
		least := ""
		for other, o := range of {
			if rank := o.at(now).rank(); least == "" || rank < of[least].rank() || rank == of[least].rank() && other < least {
				least = other
			}
		}
		if least == "" {
			return nil
		}
		t.ranked[0] = of[least].rank()
		delete(of, least)
		ts.all--
	}
	if of == nil {
		of = make(map[string]*tenant)
		if ts.methods == nil {
			ts.methods = make(map[string]map[string]*tenant)
		}
		ts.methods[method] = of
	}
	of[name] = t
	ts.all++
	return t
}

// dropIdleLocked removes the tenants without calls in the last two windows. It runs once in a
// window, because it looks at all tenants.
func (ts *Counts) dropIdleLocked(now time.Duration) {
	window := now.Truncate(tenantWindow)
	if ts.swept == window {
		return
	}
	ts.swept = window
	for method, of := range ts.methods {
		for name, t := range of {
			if t.at(now).rank() == 0 {
				delete(of, name)
				ts.all--
			}
		}
		if len(of) == 0 {
			delete(ts.methods, method)
		}
	}
}

// Top returns the limit tenants with most calls of each method that a query selects, or of all
// methods if the query names none.
func (ts *Counts) Top(method string, limit int, now time.Duration) (top []introspect.TenantCalls) {
	if limit <= 0 {
		return nil
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for of, tenants := range ts.methods {
		if method != "" && method != of {
			continue
		}
		var rows []introspect.TenantCalls
		for name, t := range tenants {
			if calls := lastMinute(t.at(now).calls, now); calls > 0 {
				one := introspect.TenantCalls{Method: of, Tenant: name, Calls: calls, Failed: min(lastMinute(t.failed, now), calls)}
				one.Limited = min(lastMinute(t.limited, now), calls-one.Failed)
				rows = append(rows, one)
			}
		}
		sort.Slice(rows, func(i, j int) bool { // smaller code than slices.SortFunc
			a, b := &rows[i], &rows[j]
			return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Tenant, b.Tenant)) < 0
		})
		top = append(top, rows[:min(len(rows), limit)]...)
	}
	sort.SliceStable(top, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &top[i], &top[j]
		return a.Method < b.Method
	})
	return top
}

// lastMinute estimates the number of the last minute: that of the current window, and the part of
// the window before that is within the minute.
func lastMinute(n [2]uint64, now time.Duration) uint64 {
	past := float64(now%tenantWindow) / float64(tenantWindow)
	return n[0] + uint64(float64(n[1])*(1-past)+0.5)
}
