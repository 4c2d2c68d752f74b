// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"maps"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// This file keeps the calls of an instance across its restart. The counters of the new process
// begin at zero, and the calls that the old one has executed still belong to the last minute. So a
// Fleet that was reading the old process adds them to those of the new one.

// remember adds to live what earlier processes at the address have counted, as far as they were
// read and it is not too old.
func (n *node) remember(live *introspect.Live) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lived != nil && live.Process.Started.After(n.lived.Process.Started) {
		n.gone = n.lived
	}
	if n.gone != nil && !join(live, n.gone) {
		n.gone = nil
	}
	n.lived = live
}

// join adds the steps of gone to those of live that are of the same time. It reports whether there
// are any. Live has data of its own afterwards.
func join(live, gone *introspect.Live) bool {
	if live.Step <= 0 || live.Step != gone.Step {
		return false
	}
	later := live.Now.Truncate(live.Step).Sub(gone.Now.Truncate(gone.Step)) / live.Step
	if later < 0 || later >= time.Duration(steps(gone)) {
		return false
	}
	type key struct{ side, method, peer string }
	at := make(map[key]int)
	for i := range live.Series {
		s := &live.Series[i]
		at[key{s.Side, s.Method, s.Peer}] = i
	}
	length := max(steps(live), steps(gone))
	for i := range gone.Series {
		s := &gone.Series[i]
		k := key{s.Side, s.Method, s.Peer}
		if _, ok := at[k]; !ok {
			at[k] = len(live.Series)
			live.Series = append(live.Series, introspect.Series{Side: s.Side, Method: s.Method, Peer: s.Peer})
		}
		joinSeries(&live.Series[at[k]], s, length, int(later))
	}
	return true
}

// steps returns how many steps the series of live have.
func steps(live *introspect.Live) (n int) {
	for i := range live.Series {
		n = max(n, len(live.Series[i].Calls))
	}
	return n
}

// joinSeries adds the steps of from, which ended some steps later ago, to a series that then has
// length steps.
func joinSeries(to, from *introspect.Series, length, later int) {
	to.Calls = joined(to.Calls, from.Calls, length, later, sum)
	to.P50 = joined(to.P50, from.P50, length, later, longer)
	to.P90 = joined(to.P90, from.P90, length, later, longer)
	to.P99 = joined(to.P99, from.P99, length, later, longer)
	if len(from.Latency) > 0 {
		to.Latency = joined(to.Latency, from.Latency, length, later, func(a, b []introspect.Bucket) []introspect.Bucket { return slices.Concat(a, b) })
	}
	to.Errors = maps.Clone(to.Errors)
	for code, counts := range from.Errors {
		if to.Errors == nil {
			to.Errors = make(map[string][]uint64)
		}
		to.Errors[code] = joined(to.Errors[code], counts, length, later, sum)
	}
}

func sum(a, b uint64) uint64 { return a + b }

func longer(a, b time.Duration) time.Duration { return max(a, b) }

// joined returns a list of length steps with those of a and, some steps later ago, those of b. Both
// end with the step in which they were read.
func joined[T any](a, b []T, length, later int, add func(a, b T) T) []T {
	all := make([]T, length)
	copy(all[length-min(len(a), length):], a)
	for i := range b {
		if to := length - len(b) + i - later; to >= 0 && to < length {
			all[to] = add(all[to], b[i])
		}
	}
	return all
}
