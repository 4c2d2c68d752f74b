// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"math"
	"time"
)

// birth is the time at which Clock and Conn.now would return 0. It is one nanosecond before the
// program's start, so that they never return 0.
var birth = time.Now().Add(-1)

// Clock returns the time since the program began. It reads only the monotonic clock, which costs
// half as much as time.Now.
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
