// SPDX-License-Identifier: Apache-2.0

package rate_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/rate"
)

const (
	every = 100 * time.Millisecond
	burst = 5 * time.Second
)

// take returns how many of n tokens a bucket has.
func take(b *rate.Bucket, now time.Duration, n int) (taken int) {
	for range n {
		if b.Take(now, every, burst) {
			taken++
		}
	}
	return taken
}

func TestABucketAllowsABurstAndThenARate(t *testing.T) {
	for _, start := range []time.Duration{1, time.Second, time.Hour} {
		var b rate.Bucket
		for _, step := range []struct {
			after time.Duration
			want  int
		}{{0, 50}, {0, 0}, {every - 1, 0}, {every, 1}, {time.Second, 9}, {time.Second + every/2, 0}, {time.Hour, 50}} {
			if got := take(&b, start+step.after, 100); got != step.want {
				t.Errorf("%v after %v: took %d tokens, want %d", step.after, start, got, step.want)
			}
		}
	}
}

func TestConcurrentTakesShareTheTokens(t *testing.T) {
	var b rate.Bucket
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { taken.Add(int64(take(&b, time.Hour, 20))) })
	}
	wg.Wait()
	if taken.Load() != 50 {
		t.Errorf("took %d, want 50", taken.Load())
	}
}
