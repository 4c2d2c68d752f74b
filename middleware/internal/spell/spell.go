// SPDX-License-Identifier: Apache-2.0

// Package spell computes for how long a failing endpoint is out of use.
package spell

import (
	"math/rand/v2"
	"time"
)

// forever is the longest spell. It is short enough that sums do not overflow.
const forever = 1 << 60 * time.Nanosecond // 36 years

// After returns how long the next spell lasts after this many consecutive spells. about is first,
// doubled for each of them, and at most longest. exactly is about plus or minus a random part of up
// to a fifth, so that many clients do not return at once.
func After(spells int, first, longest time.Duration) (about, exactly time.Duration) {
	about, longest = min(first, forever), min(longest, forever)
	for i := 0; i < spells && about < longest; i++ {
		about *= 2
	}
	about = min(about, longest)
	return about, about*4/5 + rand.N(about*2/5+1)
}
