// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// A Canary sends a percentage of the calls to the selected instances, and all others to the
// remaining instances. It acts in clients. If no selected instance can take a call, another
// instance gets it, and the other way round.
type Canary struct {
	To Target `json:"to"`
	// Percent is from 0 to 100, with up to two decimals.
	Percent float64 `json:"percent"`
	// By makes calls of the same caller, tenant, key or header go the same way: "caller", "tenant",
	// "key" or "header:NAME". Default: each call is drawn by itself.
	By string `json:"by,omitempty"`
	// Then says what the selected instances get when the rule is switched off, by hand or by its
	// Rollback, or has expired, until it is removed: "stop" gives them none of these calls, "keep"
	// the same percentage as before, and "spread" the share of an ordinary instance. Default
	// "stop".
	Then string `json:"then,omitempty"`
}

// What an ended canary does: see Canary.Then.
const (
	thenStop   = "stop"
	thenKeep   = "keep"
	thenSpread = "spread"
)

var canaryKind = kind{
	name: "canary",
	set:  func(r *Rule) bool { return r.Canary != nil },
	form: form{start: `{"percent":10}`},
	check: func(c *checker, r *Rule) {
		c.target("canary.to", &r.Canary.To)
		c.number("canary.percent", r.Canary.Percent, 0, 100)
		c.by("canary.by", r.Canary.By, "caller", "tenant", "key")
		if then := r.Canary.Then; then != "" && then != thenStop && then != thenKeep && then != thenSpread {
			c.word("canary.then", then, thenStop, thenKeep, thenSpread)
		}
	},
	does: func(r *Rule, calls string) string {
		text := fmt.Sprintf("Send %v %% of %s to %s", r.Canary.Percent, calls, &r.Canary.To)
		if r.Canary.By != "" {
			text += ", drawn by " + strings.Replace(r.Canary.By, "header:", "header ", 1)
		}
		return text
	},
	afterwards: func(r *Rule, active bool) string { return r.Canary.afterwards(active) },
	routes: &routes{
		order:  30,
		target: func(r *Rule) *Target { return &r.Canary.To },
		narrows: func(_ *Rule, drawn bool) narrowing {
			if drawn {
				return narrowing{leaves: selectedInstances, soft: true}
			}
			return narrowing{leaves: otherInstances, soft: true}
		},
		share: func(r *Rule) float64 { return r.Canary.Percent / 100 },
		draws: func(r *Rule, call *yodel.Call) bool { return r.Canary.draws(r.ID, call) },
		rest:  restOfCanary,
		examine: func(c *checker, r *Rule, selected, _ int) {
			if selected == 1 {
				c.warnf("YDL-R021", "canary.to", "", "%s is a single instance; no failover inside the canary", &r.Canary.To)
			}
		},
	},
}

// restOfCanary returns what acts when a canary has ended: see Canary.Then.
func restOfCanary(r *Rule) *Rule {
	if r.Canary.Then == thenSpread {
		return nil
	}
	rest, canary := *r, *r.Canary
	if canary.Then != thenKeep {
		canary.Percent = 0
	}
	rest.Canary = &canary
	return &rest
}

// afterwards says what the instances of a canary get when it has ended.
func (c *Canary) afterwards(active bool) string {
	when := "Until it is removed"
	if active {
		when = "When it has ended"
	}
	switch c.Then {
	case thenKeep:
		return fmt.Sprintf("%s, %s keeps %v %% of them.", when, &c.To, c.Percent)
	case thenSpread:
		return fmt.Sprintf("%s, %s gets the share of ordinary instances.", strings.Replace(when, "Until it is removed", "Now", 1), &c.To)
	}
	return fmt.Sprintf("%s, %s gets none of them.", when, &c.To)
}

// draws reports whether the canary takes a call.
func (c *Canary) draws(id string, call *yodel.Call) bool {
	share := uint64(math.Round(c.Percent * (drawSteps / 100)))
	by := ""
	switch header, isHeader := strings.CutPrefix(c.By, "header:"); {
	case isHeader:
		by = call.Metadata[header]
	case c.By == "caller":
		by = callerOf(call)
	case c.By == "tenant":
		by = call.Tenant
	case c.By == "key":
		by = call.Key
	}
	if by == "" {
		return rand.Uint64N(drawSteps) < share
	}
	return hashOf(id, by)%drawSteps < share
}
