// SPDX-License-Identifier: Apache-2.0

package announcer

import (
	"math"
	"sync"
	"time"
)

// A load is the load of a server as its record shows it. It changes only when the measured load has
// changed a lot, because each write of a record notifies every client. Its methods may be called
// concurrently.
type load struct {
	mu       sync.Mutex
	rate     float64
	inflight int
	calls    uint64 // the number of calls that were executed before since
	since    time.Time
}

// newLoad returns the load of a server that begins now.
func newLoad() *load { return &load{since: time.Now()} }

// due reports whether at least half of every has passed since the last measurement.
func (l *load) due(every time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dueLocked(every)
}

func (l *load) dueLocked(every time.Duration) bool { return time.Since(l.since) >= every/2 }

// measure tells l how many calls the server has executed and how many are in flight. It does
// nothing if another goroutine has called measure since the call of due.
func (l *load) measure(every time.Duration, calls uint64, inflight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dueLocked(every) {
		return
	}
	rate := math.Round(float64(max(calls, l.calls)-l.calls) / time.Since(l.since).Seconds()) // unregistering lowers calls
	l.calls, l.since = calls, time.Now()
	if differs(rate, l.rate) || differs(float64(inflight), float64(l.inflight)) {
		l.rate, l.inflight = rate, inflight
	}
}

// announced returns the load for the record: calls per second, and calls in flight.
func (l *load) announced() (rate float64, inflight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate, l.inflight
}

// differs reports whether a load differs enough from the announced one.
func differs(now, before float64) bool {
	return math.Abs(now-before) > max(before/4, 2)
}
