// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
)

// A Route sends the calls in the rule's scope to the selected instances. It acts in clients.
type Route struct {
	To Target `json:"to"`
	// Strict makes calls fail if no selected instance can take them. Default false: they go to
	// other instances.
	Strict bool `json:"strict,omitempty"`
}

var routeKind = kind{
	name:  "route",
	set:   func(r *Rule) bool { return r.Route != nil },
	check: func(c *checker, r *Rule) { c.target("route.to", &r.Route.To) },
	does: func(r *Rule, calls string) string {
		text := fmt.Sprintf("Send %s to %s", calls, &r.Route.To)
		if r.Route.Strict {
			text += " only"
		}
		return text
	},
	routes: &routes{
		order:  20,
		target: func(r *Rule) *Target { return &r.Route.To },
		narrows: func(r *Rule, _ bool) narrowing {
			return narrowing{leaves: selectedInstances, soft: !r.Route.Strict}
		},
	},
}
