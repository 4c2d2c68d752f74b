// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/yodel-rpc/yodel/introspect"
)

// Latencies are counted in buckets of whole nanoseconds, four for each power of two, as
// yodel.Server.Stats has them. Counting takes a few instructions and no memory. A scrape makes two
// kinds of histogram of them. The classic one has a bucket for each power of two between 2^first
// and 2^last nanoseconds, which is exact. The native one has four buckets for each power of two of
// a second. The bounds of these differ from those of the counted buckets, so a native bucket may be
// wrong by one, which is a fifth.
const (
	perOctave = 4
	buckets   = 64 * perOctave
	first     = 14 // 16 µs
	last      = 36 // 69 s
	schema    = 2  // of native histograms: four buckets for each power of two
)

// A latency counts durations. The zero value has counted none.
type latency struct {
	buckets [buckets]atomic.Uint64
	took    atomic.Int64 // nanoseconds
}

func (l *latency) count(took time.Duration) {
	took = max(took, 0)
	l.buckets[bucketOf(uint64(took))].Add(1)
	l.took.Add(int64(took))
}

func (l *latency) sum() time.Duration { return time.Duration(l.took.Load()) }

// bucketOf returns the bucket of a duration in nanoseconds.
func bucketOf(ns uint64) int {
	if ns < perOctave {
		return int(ns)
	}
	octave := bits.Len64(ns) - 1
	return (octave-1)*perOctave + int(ns>>(octave-2))&(perOctave-1) //nolint:gosec // small
}

// bucketEnd returns the longest duration of a bucket.
func bucketEnd(i int) time.Duration {
	if i < perOctave {
		return time.Duration(i)
	}
	octave := i/perOctave + 1
	return time.Duration((uint64(perOctave+i%perOctave)+1)<<(octave-2) - 1) //nolint:gosec // within 64 bits
}

// counted returns the buckets that contain calls.
func (l *latency) counted() (out []introspect.Bucket) {
	for i := range l.buckets {
		if n := l.buckets[i].Load(); n > 0 {
			out = append(out, introspect.Bucket{UpTo: bucketEnd(i), Calls: n})
		}
	}
	return out
}

// classicOf returns the number of the classic bucket of a duration. The last number is for
// durations beyond all buckets.
func classicOf(d time.Duration) int {
	return min(max(bits.Len64(uint64(max(d, 0)))-first, 0), last-first+1)
}

// histogram adds a histogram in both forms. The buckets are in order.
func (s sink) histogram(f *family, counted []introspect.Bucket, took time.Duration, exemplars *exemplars, labels ...string) {
	labels = valid(labels)
	var (
		number  [last - first + 2]uint64
		total   uint64
		zero    uint64
		natives = make(map[int]int64, len(counted))
		from    time.Duration
	)
	for _, b := range counted {
		total += b.Calls
		number[classicOf(b.UpTo)] += b.Calls
		if b.UpTo <= 0 {
			zero += b.Calls
		} else {
			// the lowest duration of the bucket, which is a part of its power of two long
			from = max(b.UpTo-b.UpTo/(perOctave+1), 1)
			middle := math.Sqrt(from.Seconds() * b.UpTo.Seconds())
			natives[int(math.Ceil(math.Log2(middle)*(1<<schema)))] += int64(b.Calls) //nolint:gosec // a count
		}
	}
	cumulative, upTo := make(map[float64]uint64, len(number)), uint64(0)
	for i := range number[:len(number)-1] {
		upTo += number[i]
		cumulative[(time.Duration(1)<<(first+i) - 1).Seconds()] = upTo
	}
	s <- &histogram{
		Metric:    prometheus.MustNewConstNativeHistogram(f.desc, total, took.Seconds(), natives, nil, zero, schema, 1e-9, time.Time{}, labels...),
		classic:   prometheus.MustNewConstHistogram(f.desc, total, took.Seconds(), cumulative, labels...),
		exemplars: exemplars.read(),
	}
}

// A histogram is a native histogram that has the buckets of a classic one too.
type histogram struct {
	prometheus.Metric

	classic   prometheus.Metric
	exemplars []prometheus.Exemplar
}

// Write implements prometheus.Metric.
func (h *histogram) Write(out *dto.Metric) error {
	if err := h.Metric.Write(out); err != nil {
		return err
	}
	classic, with := h.classic, &dto.Metric{}
	if len(h.exemplars) > 0 {
		var err error
		if classic, err = prometheus.NewMetricWithExemplars(h.classic, h.exemplars...); err != nil {
			return err
		}
	}
	if err := classic.Write(with); err != nil {
		return err
	}
	to := out.GetHistogram()
	to.Bucket = with.GetHistogram().GetBucket()
	for _, b := range to.GetBucket() {
		if e := b.GetExemplar(); e != nil {
			to.Exemplars = append(to.Exemplars, e)
		}
	}
	return nil
}

// exemplars has the newest traced call for each classic bucket. The zero value has none. A nil
// exemplars has none either.
type exemplars [last - first + 2]exemplar

// An exemplar is a call whose trace was sampled.
type exemplar struct {
	mu    sync.Mutex
	trace [32]byte // the trace id in hexadecimal digits
	took  time.Duration
	at    time.Time
}

// note notes a call if its trace is sampled. Trace is as yodel.Call.Trace.
func (e *exemplars) note(trace string, took time.Duration) {
	// 00-TRACE_ID-PARENT_ID-FLAGS: 2, 32, 16 and 2 hexadecimal digits
	if len(trace) < 55 || trace[2] != '-' || trace[35] != '-' || trace[52] != '-' || !isOdd(trace[54]) {
		return
	}
	one := &e[classicOf(took)]
	if !one.mu.TryLock() { // another call is as good
		return
	}
	copy(one.trace[:], trace[3:35])
	one.took, one.at = took, time.Now()
	one.mu.Unlock()
}

// isOdd reports whether a hexadecimal digit is odd: the lowest bit of the flags of a trace means
// that it is sampled.
func isOdd(digit byte) bool {
	switch digit {
	case '1', '3', '5', '7', '9', 'b', 'd', 'f':
		return true
	}
	return false
}

// read returns the exemplars.
func (e *exemplars) read() (out []prometheus.Exemplar) {
	if e == nil {
		return nil
	}
	for i := range e {
		one := &e[i]
		one.mu.Lock()
		if !one.at.IsZero() {
			out = append(out, prometheus.Exemplar{
				Value: one.took.Seconds(), Timestamp: one.at,
				Labels: prometheus.Labels{"trace_id": valid([]string{string(one.trace[:])})[0]},
			})
		}
		one.mu.Unlock()
	}
	return out
}
