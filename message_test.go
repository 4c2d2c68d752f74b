// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"math"
	"testing"
)

func TestLargeMessagesRaiseTheMemoryOfAConnection(t *testing.T) {
	for _, test := range []struct{ message, want int }{
		{0, 64 << 20}, {1 << 20, 64 << 20}, {16 << 20, 128 << 20}, {math.MaxInt, math.MaxInt / 64 * 8}, {math.MaxInt / 4, math.MaxInt / 64 * 8},
	} {
		limits := Limits{MaxMessage: test.message}
		if got := limits.withDefaults().MaxMemory; got != test.want {
			t.Errorf("with MaxMessage %d, MaxMemory is %d, want %d", test.message, got, test.want)
		}
	}
}
