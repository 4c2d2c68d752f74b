// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math"
	"time"
)

// birth is the zero of Clock and Conn.now. It is one nanosecond before the start, so that they are
// never 0.
var birth = time.Now().Add(-1)

// Clock returns the time since the program began. It reads the monotonic clock once, for half of
// the cost of time.Now.
func Clock() time.Duration { return time.Since(birth) }

// TimeOf converts a reading of Clock to a time. Its monotonic part is exact. Its wall clock part is
// computed from the program's start, so that the wall clock is not read.
func TimeOf(reading time.Duration) time.Time { return birth.Add(reading) }

const never = math.MaxInt64

// later returns the clock reading now plus all durations. It returns never if the sum overflows.
func later(now int64, by ...time.Duration) int64 {
	for _, d := range by {
		if now > 0 && int64(d) > never-now { // in the fake time of tests, now is negative
			return never
		}
		now += int64(d)
	}
	return now
}

func neverIfZero(t int64) int64 {
	if t == 0 {
		return never
	}
	return t
}
