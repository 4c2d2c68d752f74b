// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/middleware/breaker"
)

// A Breaker stops the calls of a client to an instance that fails. At least one of Errors and Share
// is set.
type Breaker struct {
	Errors   int      `json:"errors,omitempty"`   // failures in a row
	Share    float64  `json:"share,omitempty"`    // of the calls within Window, from 0 to 1
	Window   Duration `json:"window,omitempty"`   // default 10s
	MinCalls int      `json:"minCalls,omitempty"` // calls within Window before Share counts; default 20
	Open     Duration `json:"open,omitempty"`     // how long it stays open at first; default 1s
}

var breakerKind = kind{
	name:  "breaker",
	set:   func(r *Rule) bool { return r.Breaker != nil },
	form:  form{start: `{"errors":5}`},
	place: place{attempts: 10},
	check: func(c *checker, r *Rule) { c.breaker(r.Breaker) },
	does:  func(r *Rule, calls string) string { return r.Breaker.sentence(calls) },
	build: func(a *active) {
		b := a.Breaker
		a.endpoint = breaker.With(&breaker.Options{
			Errors: b.Errors, Share: b.Share, Window: time.Duration(b.Window), MinCalls: b.MinCalls, Open: time.Duration(b.Open), Name: a.name(),
		})
	},
}

func (c *checker) breaker(b *Breaker) {
	if b.Errors == 0 && b.Share == 0 {
		c.addf("YDL-R009", "breaker", "set errors or share", "it never opens")
	}
	c.number("breaker.errors", float64(b.Errors), 0, 1e6)
	c.number("breaker.share", b.Share, 0, 1)
	c.number("breaker.minCalls", float64(b.MinCalls), 0, 1e6)
	c.duration("breaker.window", b.Window, 0, time.Hour)
	c.duration("breaker.open", b.Open, 0, time.Hour)
}

func (b *Breaker) sentence(calls string) string {
	var parts []string
	if b.Errors > 0 {
		parts = append(parts, fmt.Sprintf("after %d failures in a row", b.Errors))
	}
	if b.Share > 0 || b.Errors == 0 {
		parts = append(parts, fmt.Sprintf("when %v %% of them fail", b.Share*100))
	}
	return fmt.Sprintf("Stop %s to an instance %s", calls, strings.Join(parts, " or "))
}
