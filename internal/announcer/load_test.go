// SPDX-License-Identifier: Apache-2.0

package announcer

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLoadChangesOnlyWhenItDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 10 * time.Second
		l := newLoad()
		steps := []struct {
			calls    uint64
			inflight int
			rate     float64
			shown    int
		}{
			{1000, 3, 100, 3},
			{2200, 4, 100, 3}, // 120 per second: a fifth more
			{4000, 4, 180, 4},
			{3000, 4, 0, 4}, // a method was unregistered
			{3010, 6, 0, 4}, // 1 per second and 2 more
			{3020, 7, 1, 7},
		}
		for i, step := range steps {
			if l.due(every) {
				t.Fatalf("step %d: due at once", i)
			}
			l.measure(every, 1<<40, 1<<20) // too early
			time.Sleep(every)
			if !l.due(every) {
				t.Fatalf("step %d: not due", i)
			}
			l.measure(every, step.calls, step.inflight)
			if rate, inflight := l.announced(); rate != step.rate || inflight != step.shown {
				t.Errorf("step %d: announced %v and %d, want %v and %d", i, rate, inflight, step.rate, step.shown)
			}
		}
	})
}
