// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// Traffic is the calls of a method, a caller, an instance or a service in the recent past. The
// values of several instances are merged: shares come from sums of calls, and quantiles from the
// sum of their histograms. Calls that are canceled are neither successes nor failures: see
// introspect.Outcome.
type Traffic struct {
	// Known says whether the values were measured. They are all zero if not.
	Known bool `json:"known"`
	// Span is the time in which the calls were counted. It is shorter than View.Span if no process
	// that counted them has run so long. All rates are numbers of calls divided by it.
	Span time.Duration `json:"span"`
	Rate float64       `json:"rate"` // calls that ended in a second, with any outcome
	// Failed is the share of the calls that failed, 0 to 1. Calls that were limited or canceled do
	// not count.
	Failed   float64 `json:"failed"`
	Limited  float64 `json:"limited,omitempty"`  // calls in a second that a limit has refused
	Canceled float64 `json:"canceled,omitempty"` // calls in a second that their callers have canceled
	// Errors has the rates of the errors by code, also of limited and canceled calls.
	Errors   map[string]float64 `json:"errors,omitempty"`
	P50      time.Duration      `json:"p50"` // 0 if no call was measured: streams are not
	P90      time.Duration      `json:"p90"`
	P99      time.Duration      `json:"p99"`
	Inflight int64              `json:"inflight,omitempty"` // 0 for a caller
	// Points are the rates of the single steps, the oldest first, without the step that has not
	// ended. Step is their distance. There are no points without live data.
	Points []float64     `json:"points,omitempty"`
	Step   time.Duration `json:"step,omitempty"`
}

// OK returns the share of the calls that did not fail, 0 to 1. Like Failed, it leaves out calls
// that were limited or canceled.
func (t *Traffic) OK() float64 { return 1 - t.Failed }

// Judged returns how many calls ended in a second that say whether the service works: neither
// limited nor canceled ones.
func (t *Traffic) Judged() float64 { return max(t.Rate-t.Limited-t.Canceled, 0) }

// Calls returns how many calls a rate of t stands for.
func (t *Traffic) Calls(rate float64) int64 { return int64(math.Round(rate * t.Span.Seconds())) }

// Failing reports whether so many calls fail that a service is degraded: more than 1%.
func (t *Traffic) Failing() bool { return t.Failed > failing }

// Add adds other traffic to t, whose zero value has no calls. The rates are then those of the
// longer Span. A quantile is then the larger of both, because Traffic has no histograms. The
// traffic of a Service, of its methods and of its callers has exact quantiles. Add does not change
// other, and t shares no memory with it.
func (t *Traffic) Add(other *Traffic) {
	sum := t.tally()
	sum.add(other.tally())
	both := sum.traffic()
	both.P50, both.P90, both.P99 = max(t.P50, other.P50), max(t.P90, other.P90), max(t.P99, other.P99)
	*t = both
}

// tally returns the calls of t, without their latencies.
func (t *Traffic) tally() *tally {
	sum := &tally{known: t.Known, span: t.Span, calls: t.Rate * t.Span.Seconds(), inflight: t.Inflight, points: slices.Clone(t.Points), step: t.Step}
	for code, rate := range t.Errors {
		sum.end(code, rate*t.Span.Seconds())
	}
	return sum
}

// TrafficOf returns the calls of a series of live within span, as a View has them. Span is Counted
// of the processes whose calls are compared. The quantiles need Series.Latency.
func TrafficOf(live *introspect.Live, s *introspect.Series, span time.Duration) Traffic {
	return ofSeries(s, live, span).traffic()
}

// worst returns the code with an outcome that most calls have ended with, except one code, and its
// share of the calls that are judged; "" if there is none.
func (t *Traffic) worst(of introspect.Outcome, except string) (code string, share float64) {
	for _, one := range slices.Sorted(maps.Keys(t.Errors)) {
		if introspect.OutcomeOf(one) == of && one != except && (code == "" || t.Errors[one] > t.Errors[code]) {
			code = one
		}
	}
	if judged := t.Judged(); judged > 0 {
		share = min(t.Errors[code]/judged, 1)
	}
	return code, share
}

// A tally counts calls before they become Traffic.
type tally struct {
	known    bool
	span     time.Duration // in which the calls were counted
	calls    float64
	codes    map[string]float64 // of the calls that ended with an error
	latency  map[time.Duration]float64
	inflight int64
	points   []float64
	step     time.Duration
}

func (t *tally) add(other *tally) {
	t.known, t.span = t.known || other.known, max(t.span, other.span)
	t.calls += other.calls
	t.inflight += other.inflight
	for code, calls := range other.codes {
		t.end(code, calls)
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

// end counts calls that ended with a code.
func (t *tally) end(code string, calls float64) {
	if calls == 0 {
		return
	}
	if t.codes == nil {
		t.codes = make(map[string]float64)
	}
	t.codes[code] += calls
}

func (t *tally) took(upTo time.Duration, calls float64) {
	if t.latency == nil {
		t.latency = make(map[time.Duration]float64)
	}
	t.latency[upTo] += calls
}

// measured returns how many calls are in the histogram.
func (t *tally) measured() (calls float64) {
	for _, n := range t.latency {
		calls += n
	}
	return calls
}

// of returns how many calls ended with an outcome that is not Answered.
func (t *tally) of(outcome introspect.Outcome) (calls float64) {
	for code, n := range t.codes {
		if introspect.OutcomeOf(code) == outcome {
			calls += n
		}
	}
	return calls
}

// judged returns how many calls say whether the service works, and the share of them that failed.
func (t *tally) judged() (calls, failed float64) {
	calls = max(t.calls-t.of(introspect.Limited)-t.of(introspect.Canceled), 0)
	if calls > 0 {
		failed = min(t.of(introspect.Failed)/calls, 1)
	}
	return calls, failed
}

// traffic returns the calls as rates.
func (t *tally) traffic() Traffic {
	out := Traffic{Known: t.known, Span: t.span, Inflight: t.inflight, Points: t.points, Step: t.step}
	_, out.Failed = t.judged()
	if seconds := t.span.Seconds(); seconds > 0 {
		out.Rate, out.Limited, out.Canceled = t.calls/seconds, t.of(introspect.Limited)/seconds, t.of(introspect.Canceled)/seconds
		for code, calls := range t.codes {
			if out.Errors == nil {
				out.Errors = make(map[string]float64)
			}
			out.Errors[code] = calls / seconds
		}
	}
	out.P50, out.P90, out.P99 = t.quantile(0.5), t.quantile(0.9), t.quantile(0.99)
	return out
}

// quantile returns the latency that a share q of the measured calls did not exceed.
func (t *tally) quantile(q float64) time.Duration {
	total, seen := t.measured(), 0.0
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

// tallies returns the calls of a service within a window, by method and by caller.
func tallies(service string, a *answer, w *window) (methods, callers map[string]*tally) {
	methods, callers = make(map[string]*tally), make(map[string]*tally)
	switch {
	case a.live != nil:
		for i := range a.live.Series {
			s := &a.live.Series[i]
			if s.Side != "server" || ServiceOf(s.Method) != service {
				continue
			}
			t := ofSeries(s, a.live, w.own[a.live])
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
				methods[m.Name] = ofStats(m, a, w.all)
			}
		}
	}
	return methods, callers
}

// Counted returns the time in which processes count calls, as a View has it: from the start of the
// oldest process on, or from the first step of its live data, to the end of the last step. It is at
// least a step: the rate of a few milliseconds says nothing.
func Counted(processes ...*introspect.Live) (span time.Duration) {
	for _, live := range processes {
		span = max(span, counted(live))
	}
	return span
}

func counted(live *introspect.Live) time.Duration {
	if live.Step <= 0 {
		return 0
	}
	steps, first := 0, 0
	for i := range live.Series {
		calls := live.Series[i].Calls
		steps = max(steps, len(calls)-1)
		if at := slices.IndexFunc(calls, func(n uint64) bool { return n > 0 }); at >= 0 {
			first = max(first, len(calls)-1-at)
		}
	}
	ended := live.Now.Truncate(live.Step) // a step begins at a multiple of its length
	span := ended.Sub(live.Process.Started)
	// A call may count in a step before the one in which the process has started.
	if begun := time.Duration(first) * live.Step; begun-span >= live.Step {
		span = begun
	}
	return min(max(span, live.Step), time.Duration(steps)*live.Step)
}

// A window is the time in which the processes of a view count calls.
type window struct {
	all time.Duration                      // of the oldest process
	own map[*introspect.Live]time.Duration // of each process with live data
}

// window returns the window of the instances. Statistics of servers without live data count only if
// no process has live data.
func (v *View) window(lives []*introspect.Live) *window {
	w := &window{own: make(map[*introspect.Live]time.Duration)}
	for _, live := range lives {
		w.own[live] = Counted(live)
		w.all = max(w.all, w.own[live])
	}
	for _, s := range v.Services {
		for _, in := range s.Instances {
			if a := in.answer; a != nil && len(lives) == 0 {
				w.all = max(w.all, a.span)
			}
		}
	}
	return w
}

// ofSeries returns the calls of a series within span, in which the process has counted. The last
// step has not ended, so it does not count.
func ofSeries(s *introspect.Series, live *introspect.Live, span time.Duration) *tally {
	t := &tally{known: true, span: max(span, 0)}
	step := live.Step
	if step <= 0 || span <= 0 {
		return t
	}
	n := min(max(len(s.Calls)-1, 0), int((span+step-1)/step))
	from := len(s.Calls) - 1 - n
	points := make([]float64, max(n, 0))
	for i := range points {
		t.calls += float64(s.Calls[from+i])
		points[i] = float64(s.Calls[from+i]) / step.Seconds()
	}
	t.addPoints(points, step)
	for code, counts := range s.Errors {
		for i := max(from, 0); i < min(from+n, len(counts)); i++ {
			t.end(code, float64(counts[i]))
		}
	}
	for i := max(from, 0); i < min(from+n, len(s.Latency)); i++ {
		for _, b := range s.Latency[i] {
			t.took(b.UpTo, float64(b.Calls))
		}
	}
	return t
}

// ofStats returns the calls of a method since the last read, or since the start of the server, as
// they would be within span.
func ofStats(m *introspect.MethodStats, a *answer, span time.Duration) *tally {
	t := &tally{known: true, inflight: m.Inflight}
	if a.span <= 0 {
		return t
	}
	share := span.Seconds() / a.span.Seconds()
	if t.span = span; a.before == nil { // all calls since the start are within span, if it is longer
		share, t.span = min(share, 1), min(span, a.span)
	}
	before := a.before[m.Name]
	t.calls = share * float64(m.Calls-min(before.Calls, m.Calls))
	for code, n := range m.Errors {
		t.end(code, share*float64(n-min(before.Errors[code], n)))
	}
	earlier := make(map[time.Duration]uint64)
	for _, b := range before.Latency {
		earlier[b.UpTo] = b.Calls
	}
	for _, b := range m.Latency {
		if calls := b.Calls - min(earlier[b.UpTo], b.Calls); calls > 0 {
			t.took(b.UpTo, share*float64(calls))
		}
	}
	return t
}
