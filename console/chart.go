// SPDX-License-Identifier: Apache-2.0

package console

import (
	"math"
	"time"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file has the numbers and the charts that several screens show.

// numbers is the traffic of something. A number that does not exist is null: the pages then say
// "idle", or "no data".
type numbers struct {
	Span     float64            `json:"span"`               // seconds in which the calls were counted
	Rate     *float64           `json:"rate"`               // calls per second; null if the instances share no live data
	OK       *float64           `json:"ok"`                 // the share of calls that did not fail, without canceled and limited ones; null without calls
	Canceled float64            `json:"canceled,omitempty"` // calls per second
	Limited  float64            `json:"limited,omitempty"`  // calls per second
	P50      *float64           `json:"p50"`                // milliseconds; null if no call was measured, as are the next two
	P90      *float64           `json:"p90"`
	P99      *float64           `json:"p99"`
	Inflight int64              `json:"inflight"`
	Errors   map[string]float64 `json:"errors,omitempty"` // per second, by code
	Spark    []float64          `json:"spark,omitempty"`
}

// numbersOf returns the numbers of some traffic.
func numbersOf(t *fleet.Traffic) numbers {
	n := numbers{Span: t.Span.Seconds(), Inflight: t.Inflight, Errors: t.Errors, Spark: rounded(t.Points), Canceled: round(t.Canceled), Limited: round(t.Limited)}
	if !t.Known {
		return n
	}
	rate := round(t.Rate)
	n.Rate = &rate
	if t.Judged() > 0 {
		ok := t.OK()
		n.OK = &ok
	}
	if t.P50 > 0 {
		n.P50, n.P90, n.P99 = millisOf(t.P50), millisOf(t.P90), millisOf(t.P99)
	}
	return n
}

func millisOf(d time.Duration) *float64 {
	ms := round(float64(d) / 1e6)
	return &ms
}

// round keeps three digits, or the whole number.
func round(f float64) float64 {
	if f == 0 || math.IsInf(f, 0) || math.IsNaN(f) {
		return 0
	}
	scale := math.Pow(10, max(2-math.Floor(math.Log10(math.Abs(f))), 0))
	return math.Round(f*scale) / scale
}

func rounded(list []float64) []float64 {
	out := make([]float64, len(list))
	for i, f := range list {
		out[i] = round(f)
	}
	return out
}

// A chart is the calls of several series over time.
type chart struct {
	End   time.Time            `json:"end"`             // of the last step that has ended
	Step  float64              `json:"step"`            // seconds
	Good  []float64            `json:"good"`            // calls per second that succeeded
	Codes map[string][]float64 `json:"codes,omitempty"` // errors per second, without canceled calls
	// Canceled is the calls per second that their callers have canceled; null if there are none.
	Canceled []float64  `json:"canceled,omitempty"`
	P50      []*float64 `json:"p50"` // milliseconds; null without calls
	P90      []*float64 `json:"p90"`
	P99      []*float64 `json:"p99"`
}

// chartOf adds series, which have the same step. The last step of each has not ended, and does not
// count.
func chartOf(live []*introspect.Live, wanted func(*introspect.Series) bool) *chart {
	c := &chart{Step: 1}
	var series []*introspect.Series
	n := 0
	for _, l := range live {
		if l.Step > 0 {
			c.Step = l.Step.Seconds()
		}
		if end := l.Now.Truncate(max(l.Step, 1)); end.After(c.End) {
			c.End = end
		}
		for i := range l.Series {
			if s := &l.Series[i]; isSane(s) && wanted(s) {
				series, n = append(series, s), max(n, len(s.Calls)-1)
			}
		}
	}
	c.Good, c.P50, c.P90, c.P99 = make([]float64, n), make([]*float64, n), make([]*float64, n), make([]*float64, n)
	for i := range n {
		c.fill(i, n, series)
	}
	for _, list := range c.Codes {
		copy(list, rounded(list))
	}
	c.Good = rounded(c.Good)
	copy(c.Canceled, rounded(c.Canceled))
	return c
}

// fill computes step i of n.
func (c *chart) fill(i, n int, series []*introspect.Series) {
	var calls, failed, measured float64
	var p50, p90, p99 float64
	for _, s := range series {
		j := i - (n - (len(s.Calls) - 1)) // lists end at the same time
		if j < 0 || s.Calls[j] == 0 {
			continue
		}
		here := float64(s.Calls[j])
		calls += here
		if s.P50[j] > 0 { // otherwise no call was measured
			measured += here
			p50 += here * float64(s.P50[j])
			p90 += here * float64(s.P90[j])
			p99 = max(p99, float64(s.P99[j]))
		}
		for code, list := range s.Errors {
			if j < len(list) && list[j] > 0 {
				failed += float64(list[j])
				c.fail(code, i, n, float64(list[j])/c.Step)
			}
		}
	}
	c.Good[i] = max(calls-failed, 0) / c.Step
	if measured > 0 {
		c.P50[i], c.P90[i], c.P99[i] = millisOf(time.Duration(p50/measured)), millisOf(time.Duration(p90/measured)), millisOf(time.Duration(p99))
	}
}

func (c *chart) fail(code string, i, n int, rate float64) {
	if introspect.OutcomeOf(code) == introspect.Canceled {
		if c.Canceled == nil {
			c.Canceled = make([]float64, n)
		}
		c.Canceled[i] += rate
		return
	}
	if c.Codes == nil {
		c.Codes = make(map[string][]float64)
	}
	if c.Codes[code] == nil {
		c.Codes[code] = make([]float64, n)
	}
	c.Codes[code][i] += rate
}

// isSane reports whether the lists of a series have an element for each step. A peer made them.
func isSane(s *introspect.Series) bool {
	n := len(s.Calls)
	return n > 0 && n <= 1000 && len(s.P50) >= n && len(s.P90) >= n && len(s.P99) >= n
}
