// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// EWMA takes the one of two endpoints, drawn by chance, where a call should end sooner: the time
// that its replies take, times the calls of this client in flight there and one. The time is a mean
// that forgets within about 10 s, but follows a slow reply at once, so that an endpoint that
// becomes slow loses its share within a call and gets it back little by little. One that was not
// measured yet is taken first, and then, until its first reply has come, only where nothing else is
// left and once in 10 s: what it works on may be a stream, of which there is no reply.
//
// The algorithm is the "peak EWMA" of Twitter's Finagle
// (com.twitter.finagle.loadbalancer.PeakEwma). Here failures of a server count as ten times as slow
// as it was, for one that refuses everything would be the fastest of all.
func EWMA(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	p := &ewma{endpoints: endpoints}
	for _, ep := range endpoints {
		costOf(ep)
	}
	return p
}

const (
	ewmaDecay    = 10 * time.Second    // within this a measurement falls to 1/e of its weight
	ewmaPenalty  = math.MaxInt64 >> 16 // what a call costs where others are in flight and none has ended yet: Finagle's
	ewmaFailure  = 10                  // a failure is this much slower than the mean
	ewmaLongest  = 10 * time.Second    // but not longer than this
	ewmaShortest = time.Millisecond    // and not shorter
)

type ewma struct{ endpoints []*yodel.Endpoint }

func (p *ewma) Pick(call *yodel.Call) *yodel.Endpoint {
	a, b := drawTwo(p.endpoints, call)
	if b == nil {
		return a
	}
	now := sinceStart()
	cost := costOf(a)
	other := costOf(b)
	least, next := cost.of(a, now), other.of(b, now)
	if next < least || next == least && rand.Uint32()&1 == 0 {
		a, cost, least = b, other, next
	}
	if least == 0 {
		cost.try(now)
	}
	return a
}

// Ended implements yodel.Learner.
func (p *ewma) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	c := costOf(ep)
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.ResourceExhausted, yodel.Internal, yodel.DataLoss, yodel.Unimplemented:
		now := sinceStart()
		slow := ewmaFailure * max(took, time.Duration(c.mean(now)))
		c.observe(max(took, min(max(slow, ewmaShortest), ewmaLongest)), now)
	case yodel.Canceled: // it would have taken at least as long
		if now := sinceStart(); float64(took) > c.mean(now) {
			c.observe(took, now)
		}
	default:
		if took > 0 { // a stream says nothing
			c.observe(took, sinceStart())
		}
	}
}

type ewmaKey struct{}

// costOf returns what is known of an endpoint. It is kept there, so that it outlives this picker.
func costOf(ep *yodel.Endpoint) *cost { return ep.State(ewmaKey{}, newCost).(*cost) } //nolint:forcetypeassert // nobody else has the key

func newCost() any { return new(cost) }

// A cost is a mean time in nanoseconds, as a float32, and below it when that was, in milliseconds
// of 32 bits: both in one word, so that they change together without a lock. A mean of 0 is no
// measurement; then the time is when the endpoint was tried.
type cost struct {
	word atomic.Uint64
	_    [56]byte // each endpoint's has a cache line for itself
}

func packCost(mean float64, at uint32) uint64 {
	return uint64(math.Float32bits(float32(mean)))<<32 | uint64(at)
}

func unpackCost(word uint64) (mean float64, at uint32) {
	return float64(math.Float32frombits(uint32(word >> 32))), uint32(word) //nolint:gosec // the lower half
}

// costsBegan is where the times of costs count from. They go round after 49 days.
var costsBegan = time.Now()

func sinceStart() uint32 { return uint32(time.Since(costsBegan) / time.Millisecond) } //nolint:gosec // it goes round

// weightAfter is what is left of the weight of a measurement.
func weightAfter(ms uint32) float64 {
	return math.Exp(-float64(ms) / float64(ewmaDecay/time.Millisecond))
}

// mean returns the time that replies take. It falls while there are none, so that a slow endpoint
// is tried again.
func (c *cost) mean(now uint32) float64 {
	mean, at := unpackCost(c.word.Load())
	if mean == 0 || now == at {
		return mean
	}
	return mean * weightAfter(elapsed(at, now))
}

// elapsed is how long ago at was, which may be weeks. Another goroutine may have read the clock
// later than this one, by a minute at most.
func elapsed(at, now uint32) uint32 {
	if d := now - at; d < math.MaxUint32-uint32(time.Minute/time.Millisecond) {
		return d
	}
	return 0
}

// of is what a call to ep should cost; 0 when nothing is known and it is to be tried.
func (c *cost) of(ep *yodel.Endpoint, now uint32) float64 {
	inflight := float64(ep.Inflight())
	mean := c.mean(now)
	if mean == 0 && inflight > 0 {
		if _, at := unpackCost(c.word.Load()); elapsed(at, now) < uint32(ewmaDecay/time.Millisecond) {
			return ewmaPenalty + inflight
		}
	}
	return mean * (inflight + 1)
}

// try notes that an endpoint of which nothing is known gets a call.
func (c *cost) try(now uint32) {
	word := c.word.Load()
	// else it has just been measured, or tried
	if mean, at := unpackCost(word); mean*weightAfter(elapsed(at, now)) == 0 && at != now {
		c.word.CompareAndSwap(word, packCost(0, now))
	}
}

// observe takes note of a reply. Of those within a millisecond the first one counts, and the
// slowest.
func (c *cost) observe(took time.Duration, now uint32) {
	for {
		word := c.word.Load()
		mean, at := unpackCost(word)
		ms := elapsed(at, now)
		w := weightAfter(ms)
		switch {
		case float64(took) > mean*w:
			mean = float64(took)
		case ms == 0:
			return
		default:
			mean = max(mean*w+float64(took)*(1-w), 1)
		}
		if c.word.CompareAndSwap(word, packCost(mean, now)) {
			return
		}
	}
}
