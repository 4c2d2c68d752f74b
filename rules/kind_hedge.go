// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel/middleware/hedge"
)

// A Hedge makes clients send a second attempt elsewhere if the first one is slow. It concerns calls
// that may be executed twice. One of After and Percentile is set.
type Hedge struct {
	After      Duration `json:"after,omitempty"`
	Percentile float64  `json:"percentile,omitempty"` // of the recent durations
}

var hedgeKind = kind{
	name:  "hedge",
	set:   func(r *Rule) bool { return r.Hedge != nil },
	form:  form{start: `{"after":"100ms"}`},
	place: place{calls: 60},
	check: func(c *checker, r *Rule) { c.hedge(r.Hedge) },
	does: func(r *Rule, calls string) string {
		if r.Hedge.After > 0 {
			return fmt.Sprintf("Send a second attempt for %s that take longer than %v", calls, r.Hedge.After)
		}
		return fmt.Sprintf("Send a second attempt for %s that are slower than %v %% of them", calls, r.Hedge.Percentile)
	},
	build: func(a *active) {
		a.around(hedge.With(&hedge.Options{After: time.Duration(a.Hedge.After), Percentile: a.Hedge.Percentile}))
	},
}

func (c *checker) hedge(h *Hedge) {
	switch {
	case h.After == 0 && h.Percentile == 0:
		c.addf("YDL-R009", "hedge", "set after or percentile", "it hedges nothing")
	case h.After != 0 && h.Percentile != 0:
		c.addf("YDL-R010", "hedge", "set one of after and percentile", "it has both")
	case h.After != 0:
		c.duration("hedge.after", h.After, 100*time.Microsecond, time.Hour)
	default:
		c.number("hedge.percentile", h.Percentile, 1, 99.99)
	}
}
