// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/introspect"
)

// A Pair is two sums that grow together, for example the bytes received and sent. Adding to both
// normally takes one atomic instruction. The zero value is two zeros. A Pair may be used
// concurrently.
type Pair struct {
	recent atomic.Uint64 // the first sum in the low 32 bits, the second one in the high 32 bits
	mu     sync.Mutex
	sums   [2]uint64 // without recent; guarded by mu
}

const (
	// pairSmall is the limit below which values are added to recent.
	pairSmall = 1 << 20
	// pairFull has the highest bit of each half of recent. Once one of them is set, recent is moved
	// to sums. By then, the half has room for 2048 more values.
	pairFull = 1<<63 | 1<<31
	pairLow  = 1<<32 - 1
)

// Add adds to the sums.
func (p *Pair) Add(first, second uint64) {
	if first|second >= pairSmall {
		p.addLarge(first, second)
		return
	}
	if p.recent.Add(first|second<<32)&pairFull != 0 {
		p.addLarge(0, 0)
	}
}

// addLarge adds to the sums, and moves recent to them.
func (p *Pair) addLarge(first, second uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	recent := p.recent.Swap(0)
	p.sums[0] += first + recent&pairLow
	p.sums[1] += second + recent>>32
}

// Sums returns the sums.
func (p *Pair) Sums() (first, second uint64) {
	if p.recent.Load() != 0 {
		p.addLarge(0, 0)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sums[0], p.sums[1]
}

// Calls counts the calls of a method on the side that makes them, when they have ended. The zero
// value has counted no calls. A Calls may be used concurrently.
type Calls struct {
	Bytes    Pair // received and sent
	Messages Pair // on streams, received and sent
	Extra    Pair // attempts after the first one: retries, and attempts beside another one
	codes    [Codes]atomic.Uint64
	others   atomic.Uint64        // calls that are in no bucket
	buckets  [64 * perOctave]Pair // calls, and the nanoseconds that they took together
}

// End counts a call. Took is Unmeasured if its duration is not a latency. Code is 0 if it
// succeeded.
func (c *Calls) End(took time.Duration, code int) {
	if ns := uint64(max(took, 0)); IsLatency(took, code) {
		c.buckets[BucketOf(ns)].Add(1, ns)
	} else {
		c.others.Add(1)
	}
	if code != 0 { // after the bucket, so that a reader of both never finds more failed calls than calls
		c.codes[counted(code)].Add(1)
	}
}

// AddTraffic adds what a call has sent and received in all its attempts.
func (c *Calls) AddTraffic(t introspect.Traffic, attempts int) {
	c.Bytes.Add(uint64(t.BytesIn), uint64(t.BytesOut))
	c.Messages.Add(uint64(t.Received), uint64(t.Sent))
	if extra := attempts - 1; extra > 0 {
		hedges := min(t.Forks, extra)
		c.Extra.Add(uint64(extra-hedges), uint64(hedges))
	}
}

// Failed returns how many calls have ended with a code, which is not 0 and less than Codes. A
// caller that compares it with Latency reads it first.
func (c *Calls) Failed(code int) uint64 { return c.codes[code].Load() }

// Others returns how many calls are in no bucket, because their duration is not a latency.
func (c *Calls) Others() uint64 { return c.others.Load() }

// Latency returns the buckets that contain calls, from the shortest to the longest. With each
// bucket it yields how long its calls took together.
func (c *Calls) Latency() iter.Seq2[introspect.Bucket, time.Duration] {
	return func(yield func(introspect.Bucket, time.Duration) bool) {
		for i := range c.buckets {
			calls, ns := c.buckets[i].Sums()
			if calls > 0 && !yield(introspect.Bucket{UpTo: BucketEnd(i), Calls: calls}, time.Duration(ns)) { //nolint:gosec // within 64 bits
				return
			}
		}
	}
}
