// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
)

var mockKind = kind{
	name:  "mock",
	set:   func(r *Rule) bool { return r.Mock != nil },
	form:  form{ends: true},
	sides: clientsOrServers,
	place: place{calls: 20, server: 40},
	check: func(c *checker, r *Rule) { c.answer("mock", r.Mock) },
	does: func(r *Rule, calls string) string {
		if r.Mock.Code != "" {
			return fmt.Sprintf("Answer %s with the error %s, without executing them", calls, r.Mock.Code)
		}
		return fmt.Sprintf("Answer %s with a fixed reply, without executing them", calls)
	},
	build:    func(a *active) { a.answers(a.Mock, true) },
	executes: func(*Rule, float64, int) float64 { return 0 },
	stops:    func(r *Rule) (some, all bool) { return true, r.Mock.Code != "" },
}
