// SPDX-License-Identifier: Apache-2.0

// Package rate limits how often something is done, without a lock and without a timer.
package rate

import (
	"sync/atomic"
	"time"
)

// A Bucket is a token bucket. The zero value is full. It may be used concurrently.
type Bucket struct {
	// due is when the tokens taken so far have come back, less the burst, plus origin. Its distance
	// to the present determines how many tokens are left.
	due atomic.Int64
}

// origin makes the zero value of Bucket.due a time long before all times.
const origin = 1 << 62

// Take takes a token, and reports whether there was one. A token comes back in each interval of
// every, and the bucket holds at most as many as come back in burst. Now is the present on any
// clock that does not go back.
func (b *Bucket) Take(now, every, burst time.Duration) bool {
	for {
		due := b.due.Load()
		from := max(due-origin, int64(now-burst))
		if from > int64(now-every) {
			return false
		}
		if b.due.CompareAndSwap(due, from+int64(every)+origin) {
			return true
		}
	}
}
