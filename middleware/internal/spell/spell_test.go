// SPDX-License-Identifier: Apache-2.0

package spell_test

import (
	"math"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/middleware/internal/spell"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestASpellDoublesUpToTheLongest(t *testing.T) {
	const forever = 1 << 60
	for _, test := range []struct {
		spells               int
		first, longest, want time.Duration
	}{
		{0, 1, 1, 1},
		{0, time.Second, time.Minute, time.Second},
		{1, time.Second, time.Minute, 2 * time.Second},
		{5, time.Second, time.Minute, 32 * time.Second},
		{6, time.Second, time.Minute, time.Minute},
		{math.MaxInt, time.Second, time.Minute, time.Minute},
		{0, math.MaxInt64, math.MaxInt64, forever},
		{1, math.MaxInt64, math.MaxInt64, forever},
		{100, time.Second, math.MaxInt64, forever},
		{100, math.MaxInt64 / 3, math.MaxInt64, forever},
	} {
		for range 100 {
			about, exactly := spell.After(test.spells, test.first, test.longest)
			if about != test.want || exactly < about-about/5-1 || exactly > about+about/5+1 {
				t.Errorf("%d of %v, up to %v: got %v and %v, want %v", test.spells, test.first, test.longest, about, exactly, test.want)
			}
		}
	}
}
