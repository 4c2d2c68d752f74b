// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestPausesBecomeLongerAndTheLastOneLastsToTheEnd(t *testing.T) {
	const unit = 250 * time.Millisecond
	for drain, want := range map[time.Duration][]int{ // when pauses begin and end, in units
		0:                {2, 4, 8, 12, 20, 28, 44, 60, 92, 124}, // for as long as calls run
		30 * time.Second: {2, 4, 8, 12, 20, 28, 44},
		10 * time.Second: {2, 4, 8, 12, 20},
		5 * time.Second:  {2, 4, 8},
		2 * time.Second:  {2},
		time.Second:      {1},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, end := time.Now(), time.Time{}
			if drain > 0 {
				end = began.Add(drain)
			}
			var got []int
			for p := newPauses(end); p.turn != nil && len(got) < 10; {
				at := <-p.turn
				if begins := p.next(); begins != (len(got)%2 == 0) {
					t.Errorf("a pause begins: %v, after %d turns", begins, len(got))
				}
				got = append(got, int(at.Sub(began)/unit))
			}
			if !slices.Equal(got, want) {
				t.Errorf("a drain of %v has pauses at %v, want %v", drain, got, want)
			}
		})
	}
}
