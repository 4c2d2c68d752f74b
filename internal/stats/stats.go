// SPDX-License-Identifier: Apache-2.0

// Package stats counts the calls of a method: how many there were, how they ended and how long they
// took. From the durations it learns whether the method is short. The server uses that to decide on
// which goroutine its calls run.
package stats

import (
	"iter"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// Codes is how many outcomes are counted separately: success, which is 0, the codes of errors, and
// catalogue.Disabled.
const Codes = int(catalogue.Disabled) + 1

// Unmeasured is the duration of a call that counts, and whose duration says nothing about the speed
// of the method: it was a stream.
const Unmeasured = mux.Untimed - 1

// IsLatency reports whether the duration of a call is a latency. That of a call that was canceled,
// or refused by a limit or a rule, is not: a server that refuses most calls is not a fast one.
func IsLatency(took time.Duration, code int) bool {
	switch code {
	case int(catalogue.Canceled), int(catalogue.ResourceExhausted), int(catalogue.Disabled):
		return false
	}
	return took != Unmeasured
}

// counted returns under which code a call with a code is counted: Unknown for codes without a name.
func counted(code int) int {
	if code >= Codes {
		return int(catalogue.Unknown)
	}
	return code
}

// A Method counts the calls of a method, and learns whether they are short. The zero value has
// counted no calls. A Method may be used concurrently.
type Method struct {
	pulse    pulse
	Received atomic.Uint64 // messages on streams
	Sent     atomic.Uint64 // likewise
	Bytes    Pair          // received and sent, if the owner counts them
	codes    [Codes]atomic.Uint64
	buckets  [64 * perOctave]atomic.Uint64
	Took     atomic.Int64 // nanoseconds that the calls in the buckets took together
	mean     atomic.Int64 // nanoseconds
	measured atomic.Int64 // from how many calls mean was computed, up to learnCalls
	short    atomic.Bool
}

// A pulse counts calls in flight, and calls that have succeeded without being timed. Most short
// calls are not timed. Counting such a call takes two atomic instructions: Begin adds it to the
// calls in flight, and EndUntimed moves it to the untimed calls.
type pulse struct {
	n atomic.Uint64 // low bits: calls in flight; from untimedOne: untimed calls since the last Take
}

const (
	untimedOne = 1 << 32
	inflight32 = untimedOne - 1
)

// Begin counts a call that begins.
func (p *pulse) Begin() { p.n.Add(1) }

// End counts a call that has ended.
func (p *pulse) End() { p.n.Add(^uint64(0)) }

// EndUntimed counts a call that has succeeded and was not timed.
func (p *pulse) EndUntimed() { p.n.Add(untimedOne - 1) }

// Inflight returns how many calls have begun and not ended.
func (p *pulse) Inflight() int64 { return int64(p.n.Load() & inflight32) }

// Untimed returns the number of untimed calls since the last Take.
func (p *pulse) Untimed() uint64 { return p.n.Load() / untimedOne }

// Take removes the untimed calls, and returns how many they were.
func (p *pulse) Take() (calls uint64) {
	for {
		n := p.n.Load()
		if calls = n / untimedOne; calls == 0 {
			return 0
		}
		if p.n.CompareAndSwap(n, n&inflight32) {
			return calls
		}
	}
}

// These durations decide where a method runs. A method whose mean is below short runs on the
// goroutine that reads the connection. A method whose mean is above long gets its own goroutine for
// each call. Between the two, nothing changes.
const (
	learnCalls = 64
	short      = int64(20 * time.Microsecond)
	long       = int64(50 * time.Microsecond)
	// outlier is the longest duration with which a single call enters the mean, because a call that
	// is preempted looks like a long call.
	outlier = int64(640 * time.Microsecond)
	weight  = 64 // the weight of earlier calls in the mean

	// Reading the clock takes 30 to 50 ns, a tenth of a call of the shortest methods. So if the
	// mean is below quick, only one of timedEvery calls is timed.
	quick      = int64(5 * time.Microsecond)
	timedEvery = 16
)

// Begin counts a call that begins.
func (m *Method) Begin() { m.pulse.Begin() }

// Inflight returns how many calls have begun and not ended.
func (m *Method) Inflight() int64 { return m.pulse.Inflight() }

// Short reports whether the calls are so short that they may run on the goroutine that reads the
// connection.
func (m *Method) Short() bool { return m.short.Load() }

// TimeNext reports whether the next call is to be timed.
func (m *Method) TimeNext() bool {
	return m.pulse.Untimed() >= timedEvery-1 || m.mean.Load() >= quick
}

// perOctave is how many latency buckets there are between a duration and its double.
const perOctave = 4

// BucketOf returns the bucket of a duration in nanoseconds.
func BucketOf(ns uint64) int {
	if ns < perOctave {
		return int(ns)
	}
	octave := bits.Len64(ns) - 1
	return (octave-1)*perOctave + int(ns>>(octave-2))&(perOctave-1) //nolint:gosec // small
}

// BucketEnd returns the longest duration of a bucket.
func BucketEnd(i int) time.Duration {
	if i < perOctave {
		return time.Duration(i)
	}
	octave := i/perOctave + 1
	return time.Duration((uint64(perOctave+i%perOctave)+1)<<(octave-2) - 1) //nolint:gosec // within 64 bits
}

// End counts a call that has ended. Took is mux.Untimed if the call was not timed, and Unmeasured
// if its duration is not a latency. Code is 0 if it succeeded. HandedOver says that another
// goroutine took over the reading while the call ran. Executed says that the method was called.
//
// The duration of a timed call also counts for the untimed calls before it. Refused calls do not
// enter the mean, because refusing a call is fast. Otherwise an overloaded server would treat its
// slow methods as short.
func (m *Method) End(took time.Duration, code int, handedOver, executed bool) {
	if took == mux.Untimed && code == 0 {
		m.pulse.EndUntimed()
		return
	}
	m.pulse.End()
	m.codes[counted(code)].Add(1)
	latency := IsLatency(took, code)
	switch {
	case took >= 0 && latency:
		calls := m.pulse.Take()
		if calls > 0 {
			m.codes[0].Add(calls)
		}
		m.measure(took, calls+1)
	case latency:
		m.measure(time.Duration(m.mean.Load()), 1)
	}
	if took >= 0 {
		m.learn(took, code, handedOver, executed)
	}
}

// measure counts calls in the bucket of their duration.
func (m *Method) measure(took time.Duration, calls uint64) {
	m.buckets[BucketOf(uint64(took))].Add(calls) //nolint:gosec // not negative
	m.Took.Add(int64(took) * int64(calls))       //nolint:gosec // few
}

// learn learns from a timed call whether the method is short.
func (m *Method) learn(took time.Duration, code int, handedOver, executed bool) {
	if !executed && code != 0 && !handedOver {
		return
	}
	// Concurrent updates may overwrite each other. For a mean this does no harm.
	d := min(int64(took), outlier)
	if handedOver {
		d = outlier
	}
	mean := m.mean.Load()
	mean += (d - mean) / weight
	m.mean.Store(mean)
	n := m.measured.Load()
	if n < learnCalls {
		m.measured.Store(n + 1)
		return
	}
	switch isShort := m.short.Load(); {
	case isShort && mean > long:
		m.short.Store(false)
	case !isShort && mean < short:
		m.short.Store(true)
	}
}

// Calls returns how many calls have ended with a code, which is less than Codes.
func (m *Method) Calls(code int) uint64 {
	n := m.codes[code].Load()
	if code == 0 {
		n += m.pulse.Untimed()
	}
	return n
}

// Latency returns the buckets that contain calls, from the shortest to the longest. For each bucket
// it yields the longest duration that belongs to the bucket, and the number of calls in it.
func (m *Method) Latency() iter.Seq2[time.Duration, uint64] {
	return func(yield func(time.Duration, uint64) bool) {
		for i := range m.buckets {
			if n := m.buckets[i].Load(); n > 0 && !yield(BucketEnd(i), n) {
				return
			}
		}
	}
}
