// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel/middleware/retry"
)

// A Retry sets how many attempts clients make in all for a call. It takes precedence over retries
// that the program has configured. With Times 1, calls and the calls that their handlers make are
// not retried.
type Retry struct {
	Times   int      `json:"times"`             // from 1 to 10
	Backoff Duration `json:"backoff,omitempty"` // default 50ms
}

var retryKind = kind{
	name:  "retry",
	set:   func(r *Rule) bool { return r.Retry != nil },
	form:  form{start: `{"times":2}`},
	place: place{calls: 70},
	check: func(c *checker, r *Rule) {
		c.number("retry.times", float64(r.Retry.Times), 1, 10)
		c.duration("retry.backoff", r.Retry.Backoff, 0, time.Minute)
	},
	does: func(r *Rule, calls string) string {
		return fmt.Sprintf("Make up to %d attempts for %s", r.Retry.Times, calls)
	},
	build: func(a *active) {
		a.around(retry.With(&retry.Options{Times: a.Retry.Times, Backoff: time.Duration(a.Retry.Backoff)}))
	},
}
