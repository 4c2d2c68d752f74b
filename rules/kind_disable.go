// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A Disable with a target stops all calls to the selected instances, in clients. Without a target
// it refuses the calls in the rule's scope with FailedPrecondition (YDL3601).
type Disable struct {
	To *Target `json:"to,omitempty"`
	// Except has the names of callers whose calls are not refused. A '*' stands for any text. It
	// must be empty if there is a target.
	Except []string `json:"except,omitempty"`
}

var disableKind = kind{
	name:  "disable",
	set:   func(r *Rule) bool { return r.Disable != nil },
	form:  form{ends: true},
	sides: onBothSides,
	place: place{calls: 30, server: 10},
	check: checkDisable,
	does: func(r *Rule, calls string) string {
		switch {
		case r.Disable.To != nil:
			return fmt.Sprintf("Send none of %s to %s", calls, r.Disable.To)
		case len(r.Disable.Except) > 0:
			return fmt.Sprintf("Refuse %s, except from %s", calls, strings.Join(r.Disable.Except, ", "))
		}
		return "Refuse " + calls
	},
	concerns: func(r *Rule, _ *yodel.Call, caller string) bool {
		return !slices.ContainsFunc(r.Disable.Except, func(name string) bool { return like(name, caller) })
	},
	build: func(a *active) {
		if a.Disable.To == nil {
			a.around(a.refuse)
		}
	},
	executes: func(*Rule, float64, int) float64 { return 0 },
	stops: func(r *Rule) (some, all bool) {
		return r.Disable.To == nil, len(r.Disable.Except) == 0
	},
	routes: &routes{
		order:   10,
		target:  func(r *Rule) *Target { return r.Disable.To },
		narrows: func(*Rule, bool) narrowing { return narrowing{leaves: otherInstances} },
		examine: func(c *checker, _ *Rule, selected, all int) {
			if selected == all {
				c.warnf("YDL-R015", "disable.to", "", "all %d instances would be disabled", selected)
			}
		},
	},
}

func checkDisable(c *checker, r *Rule) {
	d := r.Disable
	if d.To != nil {
		c.target("disable.to", d.To)
		if len(d.Except) > 0 {
			c.addf("YDL-R010", "disable.except", "make the scope of the rule smaller", "a rule that disables instances has no exceptions")
		}
	}
	if len(d.Except) > maxExcept {
		c.addf("YDL-R006", "disable.except", "", "it has %d entries, want at most %d", len(d.Except), maxExcept)
	}
	for i, name := range d.Except[:min(len(d.Except), maxExcept)] {
		c.text(fmt.Sprintf("disable.except[%d]", i), name, true)
	}
}

// refuse is the middleware of a Disable without a target.
func (a *active) refuse(yodel.Handler) yodel.Handler {
	return func(_ context.Context, call *yodel.Call) error {
		return &yodel.Error{
			Code: yodel.FailedPrecondition, ID: "YDL3601", NotProcessed: true,
			Message: fmt.Sprintf("%s: rule %s of %s refuses it: %s", call.Method, a.ID, a.Author, a.Reason),
		}
	}
}

// disableAll reports whether the rules that concern all calls leave no instance.
func disableAll(all []Rule, instances []discovery.Instance) bool {
	now := time.Now()
	left := slices.Clone(instances)
	for i := range all {
		r := &all[i]
		if r.Disable == nil || !r.Active(now) || !r.concernsAll() {
			continue
		}
		if r.Disable.To == nil && len(r.Disable.Except) == 0 {
			return true
		}
		left = slices.DeleteFunc(left, func(in discovery.Instance) bool { return r.Disable.To != nil && r.Disable.To.selects(&in) })
	}
	return len(left) == 0
}
