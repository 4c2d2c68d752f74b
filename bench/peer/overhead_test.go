// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"math"
	"testing"
	"time"
)

// What the loops cost for each call, beside the call: closed, then asynchronous with replies on
// another goroutine.

func BenchmarkClosedLoop(b *testing.B) {
	r := newRun(order{Mode: closed, Callers: 1}, time.Sleep)
	n := 0
	call := func() error {
		if n++; n == b.N {
			r.until.Store(0)
		}
		return nil
	}
	r.from.Store(0)
	r.until.Store(math.MaxInt64)
	b.ReportAllocs()
	b.ResetTimer()
	r.repeat(call, r.latency.shard(0))
}

func BenchmarkAsyncLoop(b *testing.B) {
	r := newRun(order{Mode: async, Window: 1000}, time.Sleep)
	replies := make(chan [64]func(error), 64)
	go func() {
		for batch := range replies {
			for _, done := range batch {
				if done != nil {
					done(nil)
				}
			}
		}
	}()
	n := 0
	var batch [64]func(error)
	start := func(done func(error)) {
		batch[n%64] = done
		n++
		if n == b.N {
			r.until.Store(0)
		}
		if n%64 == 0 || n >= b.N {
			replies <- batch
			batch = [64]func(error){}
		}
	}
	r.from.Store(0)
	b.ReportAllocs()
	b.ResetTimer()
	r.issue(start)
	b.StopTimer()
	close(replies)
}
