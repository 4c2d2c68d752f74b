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
	maxCallers = 256  // of a method
	maxEvents  = 256  // of an instance
	maxConns   = 1000 // of an instance
	maxText    = 1024 // bytes of a name or a text
	maxCalls   = 1e12 // in a step, or in flight
)

// boundInfo leaves out of info the methods and the overrides beyond a limit.
func boundInfo(info *introspect.Info) {
	info.Methods, info.Overrides = first(info.Methods, maxMethods), first(info.Overrides, maxMethods)
	for i := range info.Methods {
		info.Methods[i].Name = short(info.Methods[i].Name)
	}
}

// boundStats leaves out of stats what no server of yodel would send, and makes the rest safe to add
// up.
func boundStats(stats *introspect.Stats) {
	stats.Methods = first(stats.Methods, maxMethods)
	for i := range stats.Methods {
		m := &stats.Methods[i]
		m.Name, m.Calls, m.Inflight = short(m.Name), min(m.Calls, maxCalls), min(max(m.Inflight, 0), maxCalls)
		boundErrors(m.Errors)
		m.Latency = boundBuckets(m.Latency)
		m.Callers = first(m.Callers, maxCallers)
		for j := range m.Callers {
			c := &m.Callers[j]
			c.Name, c.Calls = short(c.Name), min(c.Calls, maxCalls)
			boundErrors(c.Errors)
		}
	}
}

func boundErrors(errors map[string]uint64) {
	for code, calls := range errors {
		if isCode(code) {
			errors[code] = min(calls, maxCalls)
		} else {
			delete(errors, code)
		}
	}
}

// boundConns leaves out of conns the connections beyond a limit.
func boundConns(conns *introspect.Conns) {
	conns.Left = max(conns.Left, 0) + max(len(conns.Conns)-maxConns, 0)
	conns.Conns = first(conns.Conns, maxConns)
	for i := range conns.Conns {
		c := &conns.Conns[i]
		c.Addr, c.Peer, c.Agent, c.Protocol = short(c.Addr), short(c.Peer), short(c.Agent), short(c.Protocol)
	}
}

// first returns the first n elements of a list. It copies them if there are more, so that those do
// not remain in memory.
func first[T any](list []T, n int) []T {
	if len(list) <= n {
		return list
	}
	return slices.Clone(list[:n])
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
		s.Latency[i] = boundBuckets(buckets)
	}
}

func boundBuckets(buckets []introspect.Bucket) []introspect.Bucket {
	buckets = first(buckets, maxBuckets)
	for i := range buckets {
		b := &buckets[i]
		b.UpTo, b.Calls = max(b.UpTo, 0), min(b.Calls, maxCalls)
	}
	return buckets
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
