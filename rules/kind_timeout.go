// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/timeout"
)

// A Timeout ends calls in clients. It takes the place of ClientOptions.Timeout. An earlier deadline
// of the caller stays in force, and a later one is shortened.
type Timeout struct {
	After Duration `json:"after"`
	// Streams makes the rule concern the calls with a stream, in place of
	// ClientOptions.StreamTimeout. Default false: it concerns the others.
	Streams bool `json:"streams,omitempty"`
}

var timeoutKind = kind{
	name:    "timeout",
	set:     func(r *Rule) bool { return r.Timeout != nil },
	form:    form{start: `{"after":"1s"}`},
	place:   place{calls: 40},
	decides: firstRule,
	same:    func(r, o *Rule) bool { return r.Timeout.Streams == o.Timeout.Streams },
	check: func(c *checker, r *Rule) {
		c.duration("timeout.after", r.Timeout.After, time.Millisecond, 24*time.Hour)
	},
	does: func(r *Rule, calls string) string {
		if r.Timeout.Streams {
			calls = "streams among " + calls
		}
		return fmt.Sprintf("End %s after %v", calls, r.Timeout.After)
	},
	concerns: func(r *Rule, call *yodel.Call, _ string) bool { return r.Timeout.Streams == call.Streams() },
	build: func(a *active) {
		end := timeout.After
		if a.Timeout.Streams {
			end = timeout.Streams
		}
		a.around(end(time.Duration(a.Timeout.After)))
	},
}
