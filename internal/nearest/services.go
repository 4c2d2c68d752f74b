// SPDX-License-Identifier: Apache-2.0

package nearest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// shownServices is how many services a suggestion names.
const shownServices = 3

// Services returns a suffix for a message that names the known services most similar to asked.
func Services(asked string, known []string) string {
	type service struct {
		name     string
		distance int
	}
	limit := len(asked)/3 + 1
	var near, others []service
	for _, name := range known {
		d := 0
		if !strings.EqualFold(name, asked) {
			d = Distance(name, asked, limit)
		}
		switch {
		case name == asked: // the service has records but no instance
		case d < limit:
			near = append(near, service{name, d})
		default:
			others = append(others, service{name, limit})
		}
	}
	found := near
	if len(near) == 0 {
		found = others
	}
	if len(found) == 0 {
		return "; the registry knows no other service there"
	}
	slices.SortFunc(found, func(a, b service) int { return cmp.Or(a.distance-b.distance, strings.Compare(a.name, b.name)) })
	shown := make([]string, 0, shownServices)
	for _, f := range found[:min(len(found), shownServices)] {
		shown = append(shown, fmt.Sprintf("%.40q", f.name))
	}
	list := strings.Join(shown, " or ")
	if len(near) > 0 {
		return "; did you mean " + list + "?"
	}
	list = strings.Join(shown, ", ")
	if more := len(found) - len(shown); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return "; the services there are " + list
}
