// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"maps"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// These are the parameters of learning.
const (
	enough  = 100  // calls before a percentile is known
	renewal = 64   // calls until the percentile is computed again
	window  = 2048 // calls after which each bucket loses half of its count
	// One of this many calls is measured once a percentile is known. Reading the clock takes as
	// long as a middleware.
	rarity = 4
	most   = 256 // methods with their own latency
)

// A latency records the recent durations of the calls of a method. It is a histogram whose buckets
// are an eighth of a power of two wide. When the window is full, each bucket loses half of its
// count, so old durations are forgotten gradually.
type latency struct {
	delay   atomicDuration // the percentile; 0 when it is not known
	count   atomic.Int32   // calls in the buckets, approximately
	buckets [buckets]atomic.Int32

	mu sync.Mutex // held while the percentile is computed
}

type atomicDuration struct{ n atomic.Int64 }

func (d *atomicDuration) Load() time.Duration   { return time.Duration(d.n.Load()) }
func (d *atomicDuration) Store(v time.Duration) { d.n.Store(int64(v)) }

// Each power of two has eight buckets. Shorter durations count in the first bucket, and longer ones
// in the last.
const (
	eighths  = 3
	shortest = 10 // 2^10 ns is 1 µs
	longest  = 40 // 2^40 ns is 18 min
	buckets  = (longest - shortest) << eighths
)

// bucketOf returns the bucket for a duration.
func bucketOf(took time.Duration) int {
	n := uint64(max(took, 1<<shortest))
	power := bits.Len64(n) - 1
	if power >= longest {
		return buckets - 1
	}
	return (power-shortest)<<eighths + int(n>>(power-eighths))&(1<<eighths-1) //nolint:gosec // three bits
}

// endOf returns the upper bound of a bucket.
func endOf(bucket int) time.Duration {
	power := bucket>>eighths + shortest
	return time.Duration((bucket&(1<<eighths-1) + 1 + 1<<eighths)) << (power - eighths)
}

// measures reports whether the next call is measured. Delay is the known percentile.
func (l *latency) measures(delay time.Duration) bool { return delay == 0 || rand.Uint32()%rarity == 0 }

// add records the duration of a call.
func (l *latency) add(took time.Duration, percentile float64) {
	l.buckets[bucketOf(took)].Add(1)
	if n := l.count.Add(1); n >= enough && (n%renewal == 0 || l.delay.Load() == 0) {
		l.renew(percentile)
	}
}

// renew computes the percentile again.
func (l *latency) renew(percentile float64) {
	if !l.mu.TryLock() {
		return // another goroutine is computing it
	}
	defer l.mu.Unlock()
	var counts [buckets]int32
	total := int32(0)
	for i := range counts {
		counts[i] = l.buckets[i].Load()
		total += counts[i]
	}
	left := int32(float64(total) * (100 - percentile) / 100) // calls that may take longer
	i := buckets - 1
	for left -= counts[i]; left >= 0 && i > 0; left -= counts[i] {
		i--
	}
	l.delay.Store(endOf(i))
	if total < window {
		return
	}
	for i, n := range counts {
		l.buckets[i].Add(-n / 2)
		total -= n / 2
	}
	l.count.Store(total)
}

// methods holds the latencies of a client by method. They survive a new chain.
type methods struct {
	kept atomic.Pointer[learned] // the client's
}

type learned struct {
	all atomic.Pointer[map[string]*latency]

	mu   sync.Mutex
	rest latency // of the methods beyond most
}

type learnedKey struct{}

func newLearned() any {
	l := new(learned)
	l.all.Store(&map[string]*latency{})
	return l
}

// of returns the latency of a call's method.
func (m *methods) of(call *yodel.Call) *latency {
	l := m.kept.Load()
	if l == nil {
		l = call.State(learnedKey{}, newLearned).(*learned) //nolint:forcetypeassert // nobody else has such a key
		m.kept.Store(l)
	}
	all := *l.all.Load()
	if found := all[call.Method]; found != nil {
		return found
	}
	if len(all) >= most {
		return &l.rest
	}
	return l.add(call.Method)
}

// add begins to record a method.
func (l *learned) add(method string) *latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := *l.all.Load()
	if found := all[method]; found != nil {
		return found
	}
	if len(all) >= most {
		return &l.rest
	}
	all = maps.Clone(all)
	all[method] = new(latency)
	l.all.Store(&all)
	return all[method]
}
