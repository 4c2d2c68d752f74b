// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/rate"
)

// A Limit bounds the calls in the rule's scope, in each process on its own. Calls beyond it are
// refused with ResourceExhausted. At least one of PerSecond and Concurrent is set.
type Limit struct {
	PerSecond  float64 `json:"perSecond,omitempty"`  // calls per second; 0 means no limit
	Burst      int     `json:"burst,omitempty"`      // calls at once after a pause; default a tenth of PerSecond
	Concurrent int     `json:"concurrent,omitempty"` // calls that run at a time, a stream until it ends; 0 means no limit
	Queue      int     `json:"queue,omitempty"`      // calls that wait for a place of Concurrent; default Concurrent, at least 4; -1 means none
	// By gives each user, address, caller, tenant, method or value of a header a rate of its own:
	// "user" (see rate.User), "address" (see rate.Peer), "caller", "tenant", "method" or
	// "header:NAME". Default: all calls share one. It needs PerSecond.
	By string `json:"by,omitempty"`
}

var limitKind = kind{
	name:   "limit",
	set:    func(r *Rule) bool { return r.Limit != nil },
	form:   form{start: `{"perSecond":100}`, ends: true},
	sides:  serversOrClients,
	place:  place{calls: 50, server: 20},
	check:  func(c *checker, r *Rule) { c.limit(r.Limit) },
	does:   func(r *Rule, calls string) string { return r.Limit.sentence(calls) },
	across: func(r *Rule, n int) string { return r.Limit.across(n) },
	build: func(a *active) {
		a.around(a.limits())
	},
	executes: func(r *Rule, rate float64, n int) float64 {
		if r.Limit.PerSecond <= 0 || r.Limit.By != "" || r.Side == "client" {
			return 1
		}
		return min(1, r.Limit.PerSecond*float64(max(n, 1))/max(rate, likely))
	},
}

func (c *checker) limit(l *Limit) {
	if l.PerSecond == 0 && l.Concurrent == 0 {
		c.addf("YDL-R009", "limit", "set perSecond or concurrent", "it limits nothing")
	}
	c.number("limit.perSecond", l.PerSecond, 0, 1e9)
	c.number("limit.burst", float64(l.Burst), 0, 1e9)
	c.number("limit.concurrent", float64(l.Concurrent), 0, 1e6)
	c.number("limit.queue", float64(l.Queue), -1, 1e6)
	c.by("limit.by", l.By, "user", "address", "caller", "tenant", "method")
	if l.By != "" && l.PerSecond == 0 {
		c.addf("YDL-R010", "limit.by", "set perSecond", "it divides only calls per second")
	}
}

func (l *Limit) sentence(calls string) string {
	var parts []string
	if l.PerSecond > 0 {
		text := fmt.Sprintf("%v a second", l.PerSecond)
		if l.By != "" {
			text += " for each " + strings.Replace(l.By, "header:", "value of the header ", 1)
		}
		parts = append(parts, text)
	}
	if l.Concurrent > 0 {
		parts = append(parts, fmt.Sprintf("%d at a time", l.Concurrent))
	}
	return fmt.Sprintf("Limit %s to %s in each process", calls, strings.Join(parts, " and "))
}

// limits returns the middleware of a Limit. An operator names what is limited, so Concurrent counts
// streams too.
func (a *active) limits() yodel.Middleware {
	l := a.Limit
	pass := func(next yodel.Handler) yodel.Handler { return next }
	perSecond, concurrent := yodel.Middleware(pass), yodel.Middleware(pass)
	if l.PerSecond > 0 {
		perSecond = rate.With(&rate.Limit{PerSecond: l.PerSecond, Burst: l.Burst, By: keyOf(l.By)})
	}
	if l.Concurrent > 0 {
		concurrent = limit.With(&limit.Options{Limit: l.Concurrent, Queue: l.Queue, Streams: true, Name: a.name()})
	}
	return func(next yodel.Handler) yodel.Handler { return perSecond(concurrent(next)) }
}

// keyOf returns the key of a rate limit by the word in Limit.By.
func keyOf(by string) func(context.Context, *yodel.Call) rate.Key {
	switch header, isHeader := strings.CutPrefix(by, "header:"); {
	case isHeader:
		return rate.Metadata(header)
	case by == "caller":
		return func(_ context.Context, call *yodel.Call) rate.Key { return rate.Key{Name: callerOf(call)} }
	case by == "tenant":
		return rate.Tenant
	case by == "user":
		return rate.User
	case by == "address":
		return rate.Peer
	case by == "method":
		return rate.Method
	}
	return nil
}

// across says what the limit means for a service with so many instances.
func (l *Limit) across(instances int) string {
	on := fmt.Sprintf("on each of %d instances", instances)
	if instances == 1 {
		on = "on the only instance"
	}
	var parts []string
	if l.PerSecond > 0 {
		each := ""
		if l.By != "" {
			each = " for each " + strings.Replace(l.By, "header:", "value of the header ", 1)
		}
		parts = append(parts, fmt.Sprintf("%v a second%s %s: %v in all%s", l.PerSecond, each, on, l.PerSecond*float64(instances), each))
	}
	if l.Concurrent > 0 {
		parts = append(parts, fmt.Sprintf("%d at a time %s: %d in all", l.Concurrent, on, l.Concurrent*instances))
	}
	return strings.Join(parts, ", and ")
}
