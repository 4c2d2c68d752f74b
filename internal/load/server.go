// SPDX-License-Identifier: Apache-2.0

package load

import (
	"sync/atomic"
	"time"
)

// How often the load of a server is counted and reported. A reply that has fields takes one more
// allocation and about ten more bytes.
const (
	countTime = int64(10 * time.Millisecond) // at most
	renewTime = int64(fadeTime / 4)          // after this time, a busy server reports an unchanged load
	share     = 8                            // reported when it has changed by more than this fraction
)

// A Server is the number of calls that a server is executing, counted from time to time. It may be
// used concurrently.
type Server struct {
	calls atomic.Int64
	due   atomic.Int64 // when to count next, on the clock
}

// Due reports whether the caller should count the calls and Set their number. It returns true to
// one caller at a time.
func (s *Server) Due(now time.Duration) bool {
	due := s.due.Load()
	return (due == 0 || int64(now) >= due) && s.due.CompareAndSwap(due, int64(now)+countTime)
}

// Set stores the number of calls.
func (s *Server) Set(calls int64) { s.calls.Store(calls) }

// A Told is the load that a server has last reported to a client. The zero Told is none. It may be
// used concurrently.
type Told struct {
	calls atomic.Int64 // 0 before the first report
	at    atomic.Int64 // on the clock
	due   atomic.Int64 // when to check again
}

// Due reports whether it is time to call Next.
func (t *Told) Due(now time.Duration) bool {
	due := t.due.Load()
	return due == 0 || int64(now) >= due
}

// Next returns the load of s to report to the client, or 0 if there is nothing new to report. It is
// at least 1, because the server is executing the call whose reply carries it. Now is approximately
// the current time.
func (t *Told) Next(s *Server, now time.Duration) uint64 {
	at := int64(now)
	t.due.Store(at + countTime)
	calls, told := max(s.calls.Load(), 1), t.calls.Load()
	changed := told == 0 || max(calls-told, told-calls) > max(told/share, 1)
	if !changed && (calls == 1 || at-t.at.Load() < renewTime) {
		return 0
	}
	t.calls.Store(calls)
	t.at.Store(at)
	return uint64(calls) // at least 1
}
