// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Traffic is the calls of a method, a caller, an instance or a service in the recent past. The
// values of several instances are merged: the quantiles come from the sum of their histograms.
type Traffic struct {
	// Known says whether the values were measured. They are all zero if not.
	Known bool    `json:"known"`
	Rate  float64 `json:"rate"` // calls that ended in a second
	// Failed is the share of the calls that failed, 0 to 1. A call that its caller has left or
	// canceled did not fail: many streams end in this way.
	Failed float64 `json:"failed"`
	// Errors has the rates of the errors by code, also of canceled calls.
	Errors   map[string]float64 `json:"errors,omitempty"`
	P50      time.Duration      `json:"p50"` // 0 if there were no calls
	P90      time.Duration      `json:"p90"`
	P99      time.Duration      `json:"p99"`
	Inflight int64              `json:"inflight,omitempty"` // 0 for a caller
	// Points are the rates of the single steps, the oldest first, without the step that has not
	// ended. Step is their distance. There are no points without live data.
	Points []float64     `json:"points,omitempty"`
	Step   time.Duration `json:"step,omitempty"`
}

// OK returns the share of the calls that succeeded, 0 to 1.
func (t *Traffic) OK() float64 { return 1 - t.Failed }

// Failing reports whether so many calls fail that a service is degraded: more than 1%.
func (t *Traffic) Failing() bool { return t.Rate > 0 && t.Failed > failing }

// Add adds other traffic of the same time to t, whose zero value has no calls. A quantile is then
// the larger of both, because Traffic has no histograms. The traffic of a Service, of its methods
// and of its callers has exact quantiles. Add does not change other, and t shares no memory with
// it.
func (t *Traffic) Add(other *Traffic) {
	sum := tally{points: slices.Clone(t.Points), step: t.Step}
	if len(other.Points) > 0 {
		sum.addPoints(other.Points, other.Step)
	}
	failed := t.Rate*t.Failed + other.Rate*other.Failed
	t.Known, t.Rate, t.Failed = t.Known || other.Known, t.Rate+other.Rate, 0
	if t.Rate > 0 {
		t.Failed = min(failed/t.Rate, 1)
	}
	sum.errors = maps.Clone(t.Errors)
	for code, rate := range other.Errors {
		sum.fail(code, rate)
	}
	t.Errors, t.Points, t.Step = sum.errors, sum.points, sum.step
	t.P50, t.P90, t.P99 = max(t.P50, other.P50), max(t.P90, other.P90), max(t.P99, other.P99)
	t.Inflight += other.Inflight
}

// TrafficOf returns the calls of a series of live, without the step that has not ended. The
// quantiles need Series.Latency.
func TrafficOf(live *introspect.Live, s *introspect.Series) Traffic {
	return ofSeries(s, live).traffic()
}

// canceled is the code of calls that their callers have left.
var canceled = yodel.Canceled.String()

// failures describes the failed calls, with the most frequent code.
func (t *Traffic) failures() string {
	errs := maps.Clone(t.Errors)
	delete(errs, canceled)
	codes := slices.SortedFunc(maps.Keys(errs), func(a, b string) int {
		switch {
		case t.Errors[a] > t.Errors[b]:
			return -1
		case t.Errors[a] < t.Errors[b]:
			return 1
		}
		return strings.Compare(a, b)
	})
	said := fmt.Sprintf("%.1f%% of the calls fail", 100*t.Failed)
	switch {
	case len(codes) == 1:
		said += " with " + codes[0]
	case len(codes) > 1:
		said += ", mostly with " + codes[0]
	}
	return said
}

// A tally counts calls before they become Traffic.
type tally struct {
	known    bool
	rate     float64
	errors   map[string]float64 // rates
	latency  map[time.Duration]float64
	inflight int64
	points   []float64
	step     time.Duration
}

func (t *tally) add(other *tally) {
	t.known = t.known || other.known
	t.rate += other.rate
	t.inflight += other.inflight
	for code, rate := range other.errors {
		t.fail(code, rate)
	}
	for upTo, calls := range other.latency {
		t.took(upTo, calls)
	}
	if len(other.points) > 0 {
		t.addPoints(other.points, other.step)
	}
}

// addPoints adds points that end at the same time as those of t.
func (t *tally) addPoints(points []float64, step time.Duration) {
	t.step = step
	if missing := len(points) - len(t.points); missing > 0 {
		t.points = append(make([]float64, missing), t.points...)
	}
	from := len(t.points) - len(points)
	for i, rate := range points {
		t.points[from+i] += rate
	}
}

func (t *tally) fail(code string, rate float64) {
	if rate == 0 {
		return
	}
	if t.errors == nil {
		t.errors = make(map[string]float64)
	}
	t.errors[code] += rate
}

func (t *tally) took(upTo time.Duration, calls float64) {
	if t.latency == nil {
		t.latency = make(map[time.Duration]float64)
	}
	t.latency[upTo] += calls
}

func (t *tally) traffic() Traffic {
	out := Traffic{Known: t.known, Rate: t.rate, Errors: t.errors, Inflight: t.inflight, Points: t.points, Step: t.step}
	failed := 0.0
	for code, rate := range t.errors {
		if code != canceled {
			failed += rate
		}
	}
	if t.rate > 0 {
		out.Failed = min(failed/t.rate, 1)
	}
	out.P50, out.P90, out.P99 = t.quantile(0.5), t.quantile(0.9), t.quantile(0.99)
	return out
}

// quantile returns the latency that a share q of the calls did not exceed.
func (t *tally) quantile(q float64) time.Duration {
	total, seen := 0.0, 0.0
	for _, calls := range t.latency {
		total += calls
	}
	for _, upTo := range slices.Sorted(maps.Keys(t.latency)) {
		if seen += t.latency[upTo]; seen > 0 && seen >= q*total {
			return upTo
		}
	}
	return 0
}

// merge adds the tallies of from to those in to.
func merge(to, from map[string]*tally) {
	for name, t := range from {
		if to[name] == nil {
			to[name] = new(tally)
		}
		to[name].add(t)
	}
}

// tallies returns the calls of a service by method and by caller.
func tallies(service string, a *answer) (methods, callers map[string]*tally) {
	methods, callers = make(map[string]*tally), make(map[string]*tally)
	switch {
	case a.live != nil:
		for i := range a.live.Series {
			s := &a.live.Series[i]
			if s.Side != "server" || ServiceOf(s.Method) != service {
				continue
			}
			t := ofSeries(s, a.live)
			merge(methods, map[string]*tally{s.Method: t})
			merge(callers, map[string]*tally{s.Peer: t})
		}
		for method, calls := range a.live.Inflight {
			if ServiceOf(method) == service {
				merge(methods, map[string]*tally{method: {known: true, inflight: calls}})
			}
		}
	case a.stats != nil:
		for i := range a.stats.Methods {
			if m := &a.stats.Methods[i]; ServiceOf(m.Name) == service {
				methods[m.Name] = ofStats(m, a)
			}
		}
	}
	return methods, callers
}

// ofSeries returns the calls of a series. The last step has not ended, so it does not count. The
// steps before the start of the process do not count either.
func ofSeries(s *introspect.Series, live *introspect.Live) *tally {
	t := &tally{known: true}
	step := live.Step
	n := max(len(s.Calls)-1, 0)
	if lived := live.Now.Sub(live.Process.Started); step > 0 && lived < time.Duration(n)*step {
		n = min(n, int((lived+step-1)/step))
	}
	if n <= 0 || step <= 0 {
		return t
	}
	from := len(s.Calls) - 1 - n
	seconds := step.Seconds()
	span := float64(n) * seconds
	points := make([]float64, n)
	for i := range n {
		points[i] = float64(s.Calls[from+i]) / seconds
		t.rate += float64(s.Calls[from+i]) / span
	}
	t.addPoints(points, step)
	for code, counts := range s.Errors {
		for i := from; i < min(from+n, len(counts)); i++ {
			t.fail(code, float64(counts[i])/span)
		}
	}
	for i := from; i < min(from+n, len(s.Latency)); i++ {
		for _, b := range s.Latency[i] {
			t.took(b.UpTo, float64(b.Calls))
		}
	}
	return t
}

// ofStats returns the calls of a method since the last read, or since the start of the server.
func ofStats(m *introspect.MethodStats, a *answer) *tally {
	t := &tally{known: true, inflight: m.Inflight}
	before := a.before[m.Name]
	seconds := a.span.Seconds()
	if seconds <= 0 {
		return t
	}
	t.rate = float64(m.Calls-min(before.Calls, m.Calls)) / seconds
	for code, n := range m.Errors {
		t.fail(code, float64(n-min(before.Errors[code], n))/seconds)
	}
	earlier := make(map[time.Duration]uint64)
	for _, b := range before.Latency {
		earlier[b.UpTo] = b.Calls
	}
	for _, b := range m.Latency {
		if calls := b.Calls - min(earlier[b.UpTo], b.Calls); calls > 0 {
			t.took(b.UpTo, float64(calls))
		}
	}
	return t
}
