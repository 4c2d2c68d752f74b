// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// Rulings returns the rules that act now, for fleet.Options.Rules. As List, it may return a part of
// them together with an error.
func (b *Book) Rulings(ctx context.Context) ([]fleet.Ruling, error) {
	all, err := b.List(ctx, "")
	return RulingsOf(all), err
}

// RulingsOf returns those of some rules that act now, as package fleet names them in the problems
// of services.
func RulingsOf(all []Rule) []fleet.Ruling {
	var out []fleet.Ruling
	now := time.Now()
	for i := range all {
		r := all[i].acting(now)
		if r == nil {
			continue
		}
		does := r.does()
		one := fleet.Ruling{
			Service: r.Service, ID: r.ID, Kind: r.Kind(), Author: r.Author, Since: r.Created,
			What: strings.ToLower(does[:1]) + does[1:] + ": " + r.Reason,
		}
		if stops := r.kind().stops; stops != nil {
			one.Stops, one.All = stops(r)
		}
		everyCall := r.concernsAll()
		one.All = one.All && everyCall
		if everyCall && r.holds() {
			one.Holds = r.target().selects
		}
		out = append(out, one)
	}
	return out
}
