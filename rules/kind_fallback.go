// SPDX-License-Identifier: Apache-2.0

package rules

var fallbackKind = kind{
	name:  "fallback",
	set:   func(r *Rule) bool { return r.Fallback != nil },
	form:  form{hidden: []string{"code", "message"}},
	sides: clientsOrServers,
	place: place{calls: 10, server: 30},
	check: func(c *checker, r *Rule) {
		if r.Fallback.Code != "" {
			c.addf("YDL-R010", "fallback.code", "use a mock", "a fallback has a reply and no code")
			return
		}
		c.answer("fallback", r.Fallback)
	},
	does:  func(_ *Rule, calls string) string { return "Answer " + calls + " with a fixed reply if they fail" },
	build: func(a *active) { a.answers(a.Fallback, false) },
}
