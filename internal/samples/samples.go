// SPDX-License-Identifier: Apache-2.0

// Package samples keeps records of calls that failed, were slow, or were to be explained. It keeps
// a bounded number of records and accepts them at a bounded rate, so that a storm of failures takes
// little memory and time.
package samples

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Kind is the reason why there is a record of a call. Each kind has its own bounds, so that a
// storm of records of one kind does not displace the records of the other kinds.
type Kind int

// The kinds of records.
const (
	explained Kind = iota // the caller asked for it
	failed
	canceled // by its caller
	slow
	kinds
)

// KindOf returns the kind of the record of a call that has ended with a code, which is 0 if it
// succeeded.
func KindOf(wanted bool, code int) Kind {
	switch {
	case wanted:
		return explained
	case code == int(catalogue.Canceled):
		return canceled
	case code != 0:
		return failed
	}
	return slow
}

// How many records are kept, and at which rate records of each kind are accepted.
const (
	keptFailed    = 128
	keptCanceled  = 32
	keptSlow      = 64
	keptExplained = 64
	every         = 10 * time.Millisecond // one, after a burst of
	burst         = 64
)

// SlowAfter returns the value of an option for the duration from which calls are slow. 0 means a
// second, and a negative option means that no call is slow.
func SlowAfter(option time.Duration) time.Duration {
	switch {
	case option < 0:
		return math.MaxInt64
	case option == 0:
		return time.Second
	}
	return option
}

// A Sampler keeps records of the calls of one client or server. It may be used concurrently.
type Sampler struct {
	kinds   [kinds]sampled
	leftOut atomic.Uint64
}

// sampled has the records of one kind.
type sampled struct {
	seen atomic.Uint64
	due  atomic.Int64 // on the clock; the further it is behind the present, the more records may be accepted at once

	mu      sync.Mutex
	records []*introspect.CallReport // a ring
	next    int                      // the index of the oldest record
	limit   int
}

// New returns a sampler without records.
func New() *Sampler {
	s := &Sampler{}
	for kind, limit := range [...]int{explained: keptExplained, failed: keptFailed, canceled: keptCanceled, slow: keptSlow} {
		s.kinds[kind].limit = limit
	}
	return s
}

// Admit counts a call for which a record can be made, and reports whether that record is to be
// kept. Now is a reading of a clock that never goes back.
func (s *Sampler) Admit(kind Kind, now time.Duration) bool {
	k := &s.kinds[kind]
	k.seen.Add(1)
	for {
		due := k.due.Load()
		from := int64(now - burst*every)
		if due < int64(now+10*every) { // otherwise it is another clock: tests have clocks of their own
			from = max(from, due)
		}
		if from >= int64(now) {
			s.leftOut.Add(1)
			return false
		}
		if k.due.CompareAndSwap(due, from+int64(every)) {
			return true
		}
	}
}

// An Admission is the samplers that keep the record of a call.
type Admission struct {
	kind Kind
	to   [2]*Sampler
}

// Admit asks at most two samplers to keep the record of a call that has ended with a code: see
// Sampler.Admit. Samplers that are nil, or the same as the first one, are left out. Wanted says
// that the caller asked for the record.
func Admit(wanted bool, code int, now time.Duration, samplers ...*Sampler) Admission {
	a := Admission{kind: KindOf(wanted, code)}
	for i, s := range samplers {
		if s != nil && (i == 0 || s != samplers[0]) && s.Admit(a.kind, now) {
			a.to[i] = s
		}
	}
	return a
}

// Any reports whether a sampler keeps the record.
func (a *Admission) Any() bool { return a.to != [2]*Sampler{} }

// Keep gives the record to the samplers that keep it: see Sampler.Keep.
func (a *Admission) Keep(r *introspect.CallReport) {
	for _, s := range a.to {
		if s != nil {
			s.Keep(a.kind, r)
		}
	}
}

// Keep keeps a record that was admitted, in place of the oldest of its kind if there are too many.
// R must not be changed any more.
func (s *Sampler) Keep(kind Kind, r *introspect.CallReport) {
	k := &s.kinds[kind]
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.records) < k.limit {
		k.records = append(k.records, r)
		return
	}
	k.records[k.next] = r
	k.next = (k.next + 1) % k.limit
}

// Seen returns how many calls of a kind were counted.
func (s *Sampler) Seen(kind Kind) uint64 { return s.kinds[kind].seen.Load() }

// LeftOut returns how many of the counted calls were not admitted.
func (s *Sampler) LeftOut() uint64 { return s.leftOut.Load() }

// Read returns the records that match q, the newest first. A nil q matches all records.
func (s *Sampler) Read(q *introspect.SamplesQuery) *introspect.Samples {
	if q == nil {
		q = &introspect.SamplesQuery{}
	}
	out := &introspect.Samples{
		Failed: s.Seen(failed), Canceled: s.Seen(canceled), Slow: s.Seen(slow), Explained: s.Seen(explained), LeftOut: s.LeftOut(), Calls: []introspect.CallReport{},
	}
	all := !q.Failed && !q.Slow && !q.Explained
	trace := cmp.Or(TraceID(q.Trace), strings.ToLower(q.Trace))
	for _, r := range s.Records() {
		kind := all || q.Failed && r.Failed() || q.Slow && r.Slow || q.Explained && r.Explained
		if kind && (q.Method == "" || q.Method == r.Method) && (q.Side == "" || q.Side == r.Side) &&
			(trace == "" || trace == r.Trace) && (q.Tenant == "" || q.Tenant == r.Tenant) {
			out.Calls = append(out.Calls, *r)
		}
	}
	slices.SortStableFunc(out.Calls, func(a, b introspect.CallReport) int { return b.Began.Add(b.Took).Compare(a.Began.Add(a.Took)) })
	if q.Limit > 0 && q.Limit < len(out.Calls) {
		out.Calls = out.Calls[:q.Limit]
	}
	return out
}

// Records returns all kept records, grouped by kind.
func (s *Sampler) Records() []*introspect.CallReport {
	var all []*introspect.CallReport
	for i := range s.kinds {
		k := &s.kinds[i]
		k.mu.Lock()
		all = append(all, k.records...)
		k.mu.Unlock()
	}
	return all
}

// TraceID returns the ID of the trace in parent, which has the form of yodel.Call.Trace. It returns
// "" if parent is not valid.
func TraceID(parent string) string {
	// 00-TRACE_ID-PARENT_ID-FLAGS: 2, 32, 16 and 2 hexadecimal digits
	if len(parent) < 55 || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
		return ""
	}
	id := strings.ToLower(parent[3:35])
	if strings.Trim(id, "0123456789abcdef") != "" || strings.Trim(id, "0") == "" {
		return ""
	}
	return id
}

// Sampled reports whether parent, which has the form of yodel.Call.Trace, says that the trace is
// recorded.
func Sampled(parent string) bool {
	if len(parent) < 55 || parent[52] != '-' {
		return false
	}
	flags, err := strconv.ParseUint(parent[53:55], 16, 8)
	return err == nil && flags&1 != 0
}
