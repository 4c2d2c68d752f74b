// SPDX-License-Identifier: Apache-2.0

// Package monotime reads the monotonic clock of the process, and converts its readings. A reading
// is the time since the program began. It is never 0, so 0 can mean "no time". Reading this clock
// costs half as much as time.Now, which also reads the wall clock.
package monotime

import (
	"math"
	"time"
)

// birth is the time at which Now would return 0. It is one nanosecond before the program's start,
// so that Now never returns 0.
var birth = time.Now().Add(-1)

// Never is a reading that the clock does not reach, in nanoseconds.
const Never = math.MaxInt64

// Now returns the time since the program began.
func Now() time.Duration { return time.Since(birth) }

// Of returns the reading of the clock at t.
func Of(t time.Time) time.Duration { return t.Sub(birth) }

// Time converts a reading to a time. Its monotonic part is exact. Its wall clock part is computed
// from the program's start, so that the wall clock is not read.
func Time(reading time.Duration) time.Time { return birth.Add(reading) }

// Later returns the reading now, in nanoseconds, plus all durations. It returns Never if the sum
// overflows.
func Later(now int64, by ...time.Duration) int64 {
	for _, d := range by {
		if now > 0 && int64(d) > Never-now { // in the fake time of tests, now is negative
			return Never
		}
		now += int64(d)
	}
	return now
}

// Wall converts a reading to a time of the wall clock, in UTC. The result has no monotonic part,
// because the wall clock may have been set meanwhile. Wall reads both clocks at once, so that the
// order of two readings is that of their times, unless the wall clock is set.
func Wall(reading time.Duration) time.Time {
	now := time.Now()
	return now.Add(reading - Of(now)).Round(0).UTC()
}
