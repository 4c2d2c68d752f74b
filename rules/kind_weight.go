// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
)

// A Weight changes the share of the calls that the selected instances get. It acts in clients.
type Weight struct {
	To Target `json:"to"`
	// Percent is the percentage of their usual share, from 0 to 10,000. 100 changes nothing. With 0
	// they get calls only if no other instance can take them.
	Percent int `json:"percent"`
}

var weightKind = kind{
	name: "weight",
	set:  func(r *Rule) bool { return r.Weight != nil },
	form: form{start: `{"percent":50}`},
	same: func(_, _ *Rule) bool { return false }, // each changes what the ones before have left
	check: func(c *checker, r *Rule) {
		c.target("weight.to", &r.Weight.To)
		c.number("weight.percent", float64(r.Weight.Percent), 0, 10_000)
	},
	does: func(r *Rule, calls string) string {
		return fmt.Sprintf("Give %s %d %% of their usual share of %s", &r.Weight.To, r.Weight.Percent, calls)
	},
	routes: &routes{
		order:  40,
		target: func(r *Rule) *Target { return &r.Weight.To },
		narrows: func(r *Rule, _ bool) narrowing {
			return narrowing{leaves: allInstances, share: float64(r.Weight.Percent) / 100}
		},
	},
}
