// SPDX-License-Identifier: Apache-2.0

// Package samples keeps records of calls that failed, were slow, or were to be explained. It keeps
// a bounded number of records and accepts them at a bounded rate, so that a storm of failures takes
// little memory and time.
package samples

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Kind is the reason why there is a record of a call. Each kind has its own bounds, so that a
// storm of records of one kind does not displace the records of the other kinds.
type Kind int

// The kinds of records.
const (
	Explained Kind = iota // the caller asked for it
	Failed
	Slow
	kinds
)

// KindOf returns the kind of the record of a call that has ended.
func KindOf(explained, failed bool) Kind {
	switch {
	case explained:
		return Explained
	case failed:
		return Failed
	}
	return Slow
}

// How many records are kept, and at which rate records of each kind are accepted.
const (
	keptFailed    = 128
	keptSlow      = 64
	keptExplained = 64
	every         = 10 * time.Millisecond // one, after a burst of
	burst         = 64
)

// A Sampler keeps records of the calls of one client or server. It may be used concurrently.
type Sampler[Record any] struct {
	kinds   [kinds]sampled[Record]
	leftOut atomic.Uint64
}

// sampled has the records of one kind.
type sampled[Record any] struct {
	seen atomic.Uint64
	due  atomic.Int64 // on the clock; the further it is behind the present, the more records may be accepted at once

	mu      sync.Mutex
	records []*Record // a ring
	next    int       // the index of the oldest record
	limit   int
}

// New returns a sampler without records.
func New[Record any]() *Sampler[Record] {
	s := &Sampler[Record]{}
	for kind, limit := range [...]int{Explained: keptExplained, Failed: keptFailed, Slow: keptSlow} {
		s.kinds[kind].limit = limit
	}
	return s
}

// Admit counts a call for which a record can be made, and reports whether that record is to be
// kept. Now is a reading of a clock that never goes back.
func (s *Sampler[Record]) Admit(kind Kind, now time.Duration) bool {
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

// Keep keeps a record that was admitted, in place of the oldest of its kind if there are too many.
// R must not be changed any more.
func (s *Sampler[Record]) Keep(kind Kind, r *Record) {
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
func (s *Sampler[Record]) Seen(kind Kind) uint64 { return s.kinds[kind].seen.Load() }

// LeftOut returns how many of the counted calls were not admitted.
func (s *Sampler[Record]) LeftOut() uint64 { return s.leftOut.Load() }

// Records returns all kept records, grouped by kind.
func (s *Sampler[Record]) Records() []*Record {
	var all []*Record
	for i := range s.kinds {
		k := &s.kinds[i]
		k.mu.Lock()
		all = append(all, k.records...)
		k.mu.Unlock()
	}
	return all
}
