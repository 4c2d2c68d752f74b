// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file bounds what an instance can make the reader of a fleet hold and compute. The client's
// limits bound the size of an answer.

const (
	maxMethods = 5000 // of an instance
	maxSeries  = 5000 // of an instance
	maxSteps   = 120  // of a series
	maxBuckets = 256  // of a histogram
	maxEvents  = 256  // of an instance
	maxText    = 1024 // bytes of a name or a text
	maxCalls   = 1e12 // in a step, or in flight
)

// boundInfo leaves out of info the methods beyond a limit.
func boundInfo(info *introspect.Info) {
	info.Methods = info.Methods[:min(len(info.Methods), maxMethods)]
	for i := range info.Methods {
		info.Methods[i].Name = short(info.Methods[i].Name)
	}
}

// bound leaves out of live what no server of yodel would send, and makes the rest safe to add up.
func bound(live *introspect.Live) {
	live.Name, live.Left = short(live.Name), max(live.Left, 0)
	if live.Step <= 0 || live.Step > 24*time.Hour {
		live.Series = nil
	}
	if extra := len(live.Series) - maxSeries; extra > 0 {
		live.Series, live.Left = live.Series[:maxSeries], live.Left+extra
	}
	live.Series = slices.DeleteFunc(live.Series, func(s introspect.Series) bool { return len(s.Calls) > maxSteps })
	for i := range live.Series {
		boundSeries(&live.Series[i])
	}
	inflight := make(map[string]int64)
	for method, calls := range live.Inflight {
		if len(inflight) < maxMethods {
			inflight[short(method)] = min(max(calls, 0), maxCalls)
		}
	}
	live.Inflight = inflight
	live.Events = live.Events[max(len(live.Events)-maxEvents, 0):]
	for i := range live.Events {
		e := &live.Events[i]
		e.Kind, e.Object, e.What, e.By = short(e.Kind), short(e.Object), short(e.What), short(e.By)
	}
}

func boundSeries(s *introspect.Series) {
	s.Method, s.Peer = short(s.Method), short(s.Peer)
	boundCounts(s.Calls)
	for code, counts := range s.Errors {
		if !isCode(code) {
			delete(s.Errors, code)
			continue
		}
		boundCounts(counts)
	}
	for _, list := range [][]time.Duration{s.P50, s.P90, s.P99} {
		for i := range list {
			list[i] = max(list[i], 0)
		}
	}
	for i, buckets := range s.Latency {
		s.Latency[i] = buckets[:min(len(buckets), maxBuckets)]
		for j := range s.Latency[i] {
			b := &s.Latency[i][j]
			b.UpTo, b.Calls = max(b.UpTo, 0), min(b.Calls, maxCalls)
		}
	}
}

func boundCounts(counts []uint64) {
	for i := range counts {
		counts[i] = min(counts[i], maxCalls)
	}
}

// isCode reports whether a text is the name of a code.
func isCode(name string) bool {
	var c yodel.Code
	return c.UnmarshalText([]byte(name)) == nil
}

// short returns the first maxText bytes of a text.
func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "")
}
