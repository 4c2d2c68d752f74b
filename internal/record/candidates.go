// SPDX-License-Identifier: Apache-2.0

package record

import (
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// Candidates is the endpoints to which an attempt could have gone. It lists a bounded number of
// them, first those with a verdict.
type Candidates struct {
	Picker string        // that chose among them
	At     time.Duration // when they were examined, on the clock
	judged []introspect.Candidate
	others []introspect.Candidate // without a verdict
	more   int                    // how many are in no list
}

// Add adds a candidate. One without a verdict was not chosen.
func (c *Candidates) Add(one introspect.Candidate) {
	list := &c.judged
	if one.Verdict == "" {
		one.Verdict, list = "not chosen", &c.others
	}
	if len(*list) == maxCandidates {
		c.more++
		return
	}
	one.Addr, one.Zone, one.Verdict = text.Cut(one.Addr, MaxName), text.Cut(one.Zone, MaxName), text.Cut(one.Verdict, MaxText)
	*list = append(*list, one)
}

// Describe adds the candidates to the report of a call that began at a time of the clock.
func (c *Candidates) Describe(to *introspect.CallReport, began time.Duration) {
	if c == nil {
		return
	}
	others := c.others[:min(len(c.others), maxCandidates-len(c.judged))]
	to.Picker, to.CandidatesAt = text.Cut(c.Picker, MaxText), max(c.At-began, 0)
	to.Candidates = append(slices.Clip(c.judged), others...)
	to.MoreCandidates = c.more + len(c.others) - len(others)
}
