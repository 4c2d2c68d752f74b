// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"slices"
	"testing"
)

// What a server does with calls it does with one-way calls too.
func TestOneWayCallsOverEveryWire(t *testing.T) {
	t.Parallel()
	t.Attr("rerun", "never")
	overWires(t, oneWayGuarantees(), inTurn())
}

// oneWayGuarantees returns the rows of other tables that hold for one-way calls. Those that are
// left out are about replies.
func oneWayGuarantees() (rows []Guarantee) {
	for _, from := range []struct {
		rows  []Guarantee
		names []string
	}{
		{middlewareGuarantees, []string{"limit", "rate", "once", "fault", "auth", "timeout", "accesslog", "recovery", "validation"}},
		{clientGuarantees, []string{"observers", "trace context"}},
		{ruleGuarantees(), []string{"disable", "limit", "fault"}},
		{frameworkGuarantees, []string{"deadline", "MaxOpen", "metadata", "statistics", "samples", "live data"}},
	} {
		for _, g := range from.rows {
			if !slices.Contains(from.names, g.Name) || g.Server == nil && g.Client != nil {
				continue
			}
			if g.Name != "accesslog" {
				g.Client = nil // the client does not know the outcome
			}
			if g.Name == "auth" {
				g.Lacks = lacksOneWayAuth(g.Lacks)
			}
			g.oneWay, g.Only = true, ""
			if g.Servers == 0 && from.names[0] == "disable" {
				g.Name = "rule: " + g.Name
			}
			rows = append(rows, g)
		}
	}
	return rows
}

// lacksOneWayAuth adds the reason why refused one-way calls over rpcx cannot be counted.
func lacksOneWayAuth(lacks func(w *Wire, shape Shape) string) func(w *Wire, shape Shape) string {
	return func(w *Wire, shape Shape) string {
		if w.Name == "rpcx" {
			return "a server of rpcx closes the connection of a call without the right token, and a one-way call that is on its way then is lost"
		}
		return lacks(w, shape)
	}
}
