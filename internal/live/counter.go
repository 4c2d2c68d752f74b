// SPDX-License-Identifier: Apache-2.0

package live

import (
	"iter"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/stats"
)

// The buckets of a histogram are those of package stats from firstBucket on, without the shortest
// and the longest ones: there are four between a duration and its double. The first bucket also has
// all shorter calls, and the last one all longer calls.
const (
	firstBucket = 35  // up to 1023 ns
	buckets     = 121 // up to 18 minutes
	// unmeasured is the index of the calls that are in no bucket, after the codes from 1 on.
	unmeasured = buckets + stats.Codes - 1
	// values is how many numbers a step of a series has.
	values = unmeasured + 1
)

func bucketOf(took time.Duration) int {
	return min(max(stats.BucketOf(uint64(max(took, 0)))-firstBucket, 0), buckets-1)
}

func bucketEnd(i int) time.Duration { return stats.BucketEnd(i + firstBucket) }

// A Counter counts the calls of a series. Its owner must keep it as long as it may count: when the
// Counter is garbage, the Recorder frees the memory of its counts. A Counter may be used
// concurrently.
type Counter struct{ *counts }

// counts has the calls of a series that have ended since the last step. A call takes one atomic
// addition.
type counts struct {
	untimed atomic.Uint32 // calls that have succeeded and were not timed, since the last timed one
	last    atomic.Uint32 // the bucket of the last timed call
	values  [values]atomic.Uint32
}

// End counts a call that has ended. Took is mux.Untimed if the call was not timed, and
// stats.Unmeasured if its duration is not a latency. Code is 0 if the call succeeded. An untimed
// call counts in the bucket of the next timed one.
func (c *counts) End(took time.Duration, code int) {
	if took == mux.Untimed && code == 0 {
		c.untimed.Add(1)
		return
	}
	if code >= stats.Codes { // it has no name
		code = int(catalogue.Unknown)
	}
	if code != 0 {
		c.values[buckets-1+code].Add(1)
	}
	if !stats.IsLatency(took, code) {
		c.values[unmeasured].Add(1)
		return
	}
	bucket := c.last.Load()
	if took != mux.Untimed {
		if b := uint32(bucketOf(took)); b != bucket { //nolint:gosec // small
			bucket = b
			c.last.Store(b)
		}
	}
	c.values[bucket].Add(1 + c.takeUntimed())
}

// takeUntimed removes the untimed calls, and returns how many they were.
func (c *counts) takeUntimed() uint32 {
	if c.untimed.Load() == 0 {
		return 0
	}
	return c.untimed.Swap(0)
}

// A Step has the numbers of one step of a series.
type Step [values]uint64

// readLocked adds the counts to to, and reports whether there were any. If take is set, the counts
// begin at zero again.
func (c *counts) readLocked(to *Step, take bool) (some bool) {
	untimed := c.untimed.Load()
	if take {
		untimed = c.takeUntimed()
	}
	if untimed > 0 {
		to[c.last.Load()] += uint64(untimed)
		some = true
	}
	for i := range c.values {
		n := c.values[i].Load()
		if n == 0 {
			continue
		}
		if take {
			n = c.values[i].Swap(0)
		}
		to[i] += uint64(n)
		some = true
	}
	return some
}

// Calls returns how many calls have ended.
func (s *Step) Calls() (n uint64) {
	return s.measured() + s[unmeasured]
}

// measured returns how many calls are in the buckets.
func (s *Step) measured() (n uint64) {
	for _, calls := range s[:buckets] {
		n += calls
	}
	return n
}

// Failed returns how many calls have ended with a code, which is not 0 and less than stats.Codes.
func (s *Step) Failed(code int) uint64 { return s[buckets-1+code] }

// Quantile returns the end of the bucket that contains the share q of the measured calls, or 0 if
// there were none.
func (s *Step) Quantile(q float64) time.Duration {
	total, seen := s.measured(), uint64(0)
	for i, calls := range s[:buckets] {
		if seen += calls; seen > 0 && float64(seen) >= q*float64(total) {
			return bucketEnd(i)
		}
	}
	return 0
}

// Latency returns the buckets that contain calls, as stats.Method.Latency does.
func (s *Step) Latency() iter.Seq2[time.Duration, uint64] {
	return func(yield func(time.Duration, uint64) bool) {
		for i, calls := range s[:buckets] {
			if calls > 0 && !yield(bucketEnd(i), calls) {
				return
			}
		}
	}
}
