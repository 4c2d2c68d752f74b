// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// The functions of this page stand in front of another balancer, or of each other, and leave it
// some of the endpoints. What does not pass gets no call, even when nobody else is ready. When no
// instance passes, calls fail with YDL1002. Instances are looked at when the set changes, never for
// a call.

// Where has b choose among the endpoints whose instances keep accepts.
func Where(keep func(yodel.Instance) bool, b yodel.Balancer) yodel.Balancer {
	if keep == nil {
		panic("balance: Where with a nil function")
	}
	return filter(b, keep, func([]*yodel.Endpoint) string { return "Where keeps none of them" })
}

// Group has b choose among the endpoints whose instances are in a group; an instance may be in
// several, separated by commas. With "" it is those that are in none.
func Group(name string, b yodel.Balancer) yodel.Balancer {
	return filter(b,
		func(in yodel.Instance) bool {
			for group, rest, more := strings.Cut(in.Group, ","); ; group, rest, more = strings.Cut(rest, ",") {
				if strings.TrimSpace(group) == name || !more {
					return strings.TrimSpace(group) == name
				}
			}
		},
		func(all []*yodel.Endpoint) string {
			return missing("group", name, all, func(in yodel.Instance) []string {
				groups := strings.Split(in.Group, ",")
				for i := range groups {
					groups[i] = strings.TrimSpace(groups[i])
				}
				return groups
			})
		})
}

// Version has b choose among the endpoints whose instances are of a version.
func Version(name string, b yodel.Balancer) yodel.Balancer {
	return filter(b,
		func(in yodel.Instance) bool { return in.Version == name },
		func(all []*yodel.Endpoint) string {
			return missing("version", name, all, func(in yodel.Instance) []string { return []string{in.Version} })
		})
}

// Tag has b choose among the endpoints whose instances have a tag.
func Tag(name string, b yodel.Balancer) yodel.Balancer {
	return filter(b,
		func(in yodel.Instance) bool { return slices.Contains(in.Tags, name) },
		func(all []*yodel.Endpoint) string {
			return missing("tag", name, all, func(in yodel.Instance) []string { return in.Tags })
		})
}

// filter has b choose among the endpoints that keep accepts. Why says why there are none.
func filter(b yodel.Balancer, keep func(yodel.Instance) bool, why func(all []*yodel.Endpoint) string) yodel.Balancer {
	if b == nil {
		panic("balance: a filter with a nil Balancer")
	}
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		var kept []*yodel.Endpoint
		for _, ep := range endpoints {
			if keep(ep.Instance()) {
				kept = append(kept, ep)
			}
		}
		if none, ok := last.(*nobody); ok {
			last = none.last
		}
		p := b(kept, last)
		if _, ok := p.(*nobody); !ok && len(kept) == 0 && len(endpoints) > 0 {
			return &nobody{last: p, why: why(endpoints)}
		}
		return p
	}
}

// A nobody is the picker of a filter that nothing passes. It keeps the picker behind the filter for
// when something does.
type nobody struct {
	last yodel.Picker
	why  string
}

func (*nobody) Pick(*yodel.Call) *yodel.Endpoint { return nil }

// String says why nobody is picked.
func (p *nobody) String() string { return p.why }

// missing says that no instance has what was asked for, and what they have instead.
func missing(what, name string, all []*yodel.Endpoint, has func(yodel.Instance) []string) string {
	known := make(map[string]bool)
	for _, ep := range all {
		for _, one := range has(ep.Instance()) {
			known[one] = true
		}
	}
	const shown = 5
	names := slices.Sorted(maps.Keys(known))
	text := fmt.Sprintf("none of them has the %s %q; they have %q", what, name, names[:min(shown, len(names))])
	if len(names) > shown {
		text += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return text
}
