// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file bounds what an instance or a registry can make the reader of a fleet hold and compute.
// The client's limits bound the size of an answer.

const (
	maxMethods = 5000 // of an instance
	maxSeries  = 5000 // of an instance
	maxSteps   = 120  // of a series
	maxBuckets = 256  // of a histogram
	maxCallers = 256  // of a method
	maxEvents  = 256  // of an instance
	maxConns   = 1000 // of an instance
	maxText    = 1024 // bytes of a name or a text
	maxList    = 64   // tags, protocols or pairs of a record
	maxCalls   = 1e12 // in a step, or in flight
)

// boundInfo leaves out of info the methods and the overrides beyond a limit.
func boundInfo(info *introspect.Info) {
	info.Methods, info.Overrides = first(info.Methods, maxMethods), first(info.Overrides, maxMethods)
	shorten(reflect.ValueOf(info))
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
	shorten(reflect.ValueOf(conns))
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
	shorten(reflect.ValueOf(live.Events))
	shorten(reflect.ValueOf(&live.Process))
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

// isCode reports whether a text is the name under which calls are counted that ended with an error.
func isCode(name string) bool {
	var c yodel.Code
	return name == introspect.Disabled || c.UnmarshalText([]byte(name)) == nil
}

// short returns the first maxText bytes of a text, without the memory of the rest.
func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:maxText], ""))
}

// shorten applies short to the texts in v, a pointer or a list, except those in maps.
func shorten(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			shorten(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				shorten(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			shorten(v.Index(i))
		}
	case reflect.String:
		v.SetString(short(v.String()))
	default: // numbers
	}
}

// Bounded returns a resolver with the instances of r, whose records have texts of at most 1 KiB,
// and at most 64 tags, protocols and pairs of metadata.
func Bounded(r discovery.Resolver) discovery.Resolver { return bounded{r} }

type bounded struct{ discovery.Resolver }

// Describe implements the optional method of discovery.Resolver.
func (b bounded) Describe() yodel.Description { return yodel.Description{}.Over(b.Resolver) }

func (b bounded) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	return b.Resolver.Watch(ctx, func(all []discovery.Instance) {
		all = slices.Clone(all) // the resolver may go on using it
		for i := range all {
			boundRecord(&all[i])
		}
		update(all)
	})
}

func boundRecord(in *discovery.Instance) {
	in.Protocols, in.Tags = slices.Clone(first(in.Protocols, maxList)), slices.Clone(first(in.Tags, maxList))
	all := in.Metadata
	in.Metadata = make(yodel.Metadata)
	for _, name := range first(slices.Sorted(maps.Keys(all)), maxList) {
		in.Metadata[short(name)] = short(all[name])
	}
	shorten(reflect.ValueOf(in))
}
