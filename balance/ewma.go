// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// EWMA draws two endpoints and picks the one where a call should end sooner. It estimates the
// duration as the mean reply time, multiplied by the number of calls of this client in flight there
// plus one. The mean decays within about 10 s, but follows a slow reply at once. So an endpoint
// that becomes slow loses its share within one call and regains it gradually. An endpoint without a
// measurement is picked first. Until its first reply it is then picked only if no other endpoint is
// left, and once in 10 s, because its call may be a stream, which has no reply.
//
// The algorithm is the "peak EWMA" of Twitter's Finagle
// (com.twitter.finagle.loadbalancer.PeakEwma). In addition, a failure counts as a reply that is ten
// times slower than the mean. Otherwise an endpoint that refuses everything would look fastest.
func EWMA(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	p := &ewma{endpoints: endpoints}
	for _, ep := range endpoints {
		costOf(ep)
	}
	return p
}

const (
	ewmaDecay = 10 * time.Second // in this time a measurement falls to 1/e of its weight
	// The cost of a call where others are in flight and none has ended yet, as in Finagle.
	ewmaPenalty  = math.MaxInt64 >> 16
	ewmaFailure  = 10               // a failure counts as this many times the mean
	ewmaLongest  = 10 * time.Second // at most
	ewmaShortest = time.Millisecond // at least
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

// Ended implements balance.Learner.
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
		if took > 0 { // a stream has no reply time
			c.observe(took, sinceStart())
		}
	}
}

type ewmaKey struct{}

// costOf returns the cost of an endpoint. It is kept on the endpoint, so that it survives this
// picker.
func costOf(ep *yodel.Endpoint) *cost { return ep.State(ewmaKey{}, newCost).(*cost) } //nolint:forcetypeassert // nobody else has the key

func newCost() any { return new(cost) }

// A cost is a mean reply time in nanoseconds, as a float32, and below it the time of the
// measurement in milliseconds, in 32 bits. Both are in one word, so that they change together
// without a lock. If the mean is 0 there is no measurement, and the time is when the endpoint was
// tried.
type cost struct {
	word atomic.Uint64
	_    [56]byte // gives each cost its own cache line
}

func packCost(mean float64, at uint32) uint64 {
	return uint64(math.Float32bits(float32(mean)))<<32 | uint64(at)
}

func unpackCost(word uint64) (mean float64, at uint32) {
	return float64(math.Float32frombits(uint32(word >> 32))), uint32(word) //nolint:gosec // the lower half
}

// costsBegan is the zero of the times in costs. They wrap around after 49 days.
var costsBegan = time.Now()

func sinceStart() uint32 { return uint32(time.Since(costsBegan) / time.Millisecond) } //nolint:gosec // it wraps around

// weightAfter returns the remaining weight of a measurement after ms milliseconds.
func weightAfter(ms uint32) float64 {
	return math.Exp(-float64(ms) / float64(ewmaDecay/time.Millisecond))
}

// mean returns the mean reply time. It decays without replies, so that a slow endpoint is tried
// again.
func (c *cost) mean(now uint32) float64 {
	mean, at := unpackCost(c.word.Load())
	if mean == 0 || now == at {
		return mean
	}
	return mean * weightAfter(elapsed(at, now))
}

// elapsed returns the time since at, which may be weeks. Another goroutine may have read the clock
// up to a minute later than this one.
func elapsed(at, now uint32) uint32 {
	if d := now - at; d < math.MaxUint32-uint32(time.Minute/time.Millisecond) {
		return d
	}
	return 0
}

// of returns the expected cost of a call to ep. It is 0 if ep has no measurement and should be
// tried.
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

// try records that an endpoint without a measurement gets a call.
func (c *cost) try(now uint32) {
	word := c.word.Load()
	// otherwise it has just been measured or tried
	if mean, at := unpackCost(word); mean*weightAfter(elapsed(at, now)) == 0 && at != now {
		c.word.CompareAndSwap(word, packCost(0, now))
	}
}

// observe records a reply time. Of the replies within a millisecond, the first and the slowest
// count.
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
