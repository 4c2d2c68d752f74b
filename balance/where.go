// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// The balancers in this file pass a subset of the endpoints to another balancer. They can be
// nested. Endpoints outside of the subset get no call, even if no other endpoint is ready. If the
// subset is empty, calls fail with YDL1002. The subset is computed when the set of endpoints
// changes, and not for each call.

// Where makes b choose among the endpoints whose instances keep accepts.
func Where(keep func(discovery.Instance) bool, b yodel.Balancer) yodel.Balancer {
	if keep == nil {
		panic("balance: Where with a nil function")
	}
	return filter(b, keep, func([]*yodel.Endpoint) string { return "Where keeps none of them" })
}

// Group makes b choose among the endpoints whose instances are in a group. An instance may be in
// several groups, separated by commas. An empty name selects the instances without a group.
func Group(name string, b yodel.Balancer) yodel.Balancer {
	return filter(b,
		func(in discovery.Instance) bool {
			for group, rest, more := strings.Cut(in.Group, ","); ; group, rest, more = strings.Cut(rest, ",") {
				if strings.TrimSpace(group) == name || !more {
					return strings.TrimSpace(group) == name
				}
			}
		},
		func(all []*yodel.Endpoint) string {
			return missing("group", name, all, func(in discovery.Instance) []string {
				groups := strings.Split(in.Group, ",")
				for i := range groups {
					groups[i] = strings.TrimSpace(groups[i])
				}
				return groups
			})
		})
}

// Version makes b choose among the endpoints whose instances have this version.
func Version(name string, b yodel.Balancer) yodel.Balancer {
	return filter(b,
		func(in discovery.Instance) bool { return in.Version == name },
		func(all []*yodel.Endpoint) string {
			return missing("version", name, all, func(in discovery.Instance) []string { return []string{in.Version} })
		})
}

// Tag makes b choose among the endpoints whose instances have this tag.
func Tag(name string, b yodel.Balancer) yodel.Balancer {
	return filter(b,
		func(in discovery.Instance) bool { return slices.Contains(in.Tags, name) },
		func(all []*yodel.Endpoint) string {
			return missing("tag", name, all, func(in discovery.Instance) []string { return in.Tags })
		})
}

// filter makes b choose among the endpoints that keep accepts. why describes why there are none.
func filter(b yodel.Balancer, keep func(discovery.Instance) bool, why func(all []*yodel.Endpoint) string) yodel.Balancer {
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

// A nobody is the picker of a filter that accepts no endpoint. It keeps the inner picker until the
// filter accepts one again.
type nobody struct {
	last yodel.Picker
	why  string
}

func (*nobody) Pick(*yodel.Call) *yodel.Endpoint { return nil }

// String returns why there is no endpoint to pick.
func (p *nobody) String() string { return p.why }

// missing returns the error text for a filter that accepts no instance. The text lists the values
// that the instances have.
func missing(what, name string, all []*yodel.Endpoint, has func(discovery.Instance) []string) string {
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
