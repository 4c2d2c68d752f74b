// SPDX-License-Identifier: Apache-2.0

// Package defaults sets the default values of options, and bounds large values, so that
// calculations with options do not overflow.
package defaults

import (
	"math"
	"time"
)

// Forever is the longest duration of an option, a hundred years. The sum of two such durations
// does not overflow.
const Forever = 100 * 365 * 24 * time.Hour

// Positive returns v, or otherwise if v is zero or negative. It returns at most Forever for a
// duration, and at most an eighth of the largest int for a number.
func Positive[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	switch v := any(v).(type) {
	case time.Duration:
		return T(min(v, Forever))
	case int:
		return T(min(v, math.MaxInt/8))
	}
	return v
}
