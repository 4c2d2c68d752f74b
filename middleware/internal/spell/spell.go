// SPDX-License-Identifier: Apache-2.0

// Package spell says for how long an endpoint that fails is left alone.
package spell

import (
	"math/rand/v2"
	"time"
)

// forever is the longest spell: what is reckoned with it does not overflow.
const forever = 1 << 60 * time.Nanosecond // 36 years

// After returns how long the next spell lasts after so many of them in a row: first, doubled for
// each, at most longest. About is that, and exactly is a fifth more or less, by chance, so that
// many clients do not come back at once.
func After(spells int, first, longest time.Duration) (about, exactly time.Duration) {
	about, longest = min(first, forever), min(longest, forever)
	for i := 0; i < spells && about < longest; i++ {
		about *= 2
	}
	about = min(about, longest)
	return about, about*4/5 + rand.N(about*2/5+1)
}
