// SPDX-License-Identifier: Apache-2.0

package breaker

import "time"

// A window counts recent calls, in steps of a tenth of its length. It counts a failure when it
// happens. It counts successes in groups, so that not every success reads the clock, and spreads
// each group evenly over the time since the previous one.
type window struct {
	size time.Duration // 0 before the first look
	at   time.Duration // of the last look, on the clock
	part [buckets]struct{ good, bad float64 }
}

const buckets = 10

// look advances the window to now, and adds the successes since the last look.
func (w *window) look(size, now time.Duration, goods int64) {
	step := size / buckets
	if w.size != size { // the options have changed
		*w = window{size: size, at: now}
	}
	now = max(now, w.at) // another goroutine may have read the clock later
	last, cur := int64(w.at/step), int64(now/step)
	for i := max(last, cur-buckets) + 1; i <= cur; i++ {
		w.part[i%buckets].good, w.part[i%buckets].bad = 0, 0
	}
	if span := now - w.at; span == 0 {
		w.part[cur%buckets].good += float64(goods)
	} else if goods > 0 {
		for i := max(last, cur-buckets+1); i <= cur; i++ {
			from, to := max(time.Duration(i)*step, w.at), min(time.Duration(i+1)*step, now)
			w.part[i%buckets].good += float64(goods) * float64(to-from) / float64(span)
		}
	}
	w.at = now
}

// fail counts a failure at the time of the last look.
func (w *window) fail() { w.part[int64(w.at/(w.size/buckets))%buckets].bad++ }

func (w *window) sum() (good, bad float64) {
	for _, p := range w.part {
		good += p.good
		bad += p.bad
	}
	return good, bad
}
