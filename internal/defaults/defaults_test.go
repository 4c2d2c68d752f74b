// SPDX-License-Identifier: Apache-2.0

package defaults_test

import (
	"math"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/defaults"
)

func TestPositive(t *testing.T) {
	for v, want := range map[int]int{math.MinInt: 5, -1: 5, 0: 5, 1: 1, 7: 7, math.MaxInt: math.MaxInt / 8} {
		if got := defaults.Positive(v, 5); got != want {
			t.Errorf("%d becomes %d, want %d", v, got, want)
		}
	}
	for v, want := range map[time.Duration]time.Duration{-1: time.Hour, 0: time.Hour, 1: 1, math.MaxInt64: defaults.Forever} {
		if got := defaults.Positive(v, time.Hour); got != want {
			t.Errorf("%v becomes %v, want %v", v, got, want)
		}
	}
	if 2*defaults.Forever < defaults.Forever {
		t.Error("the sum of the longest durations overflows")
	}
}
