// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"sync"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded by thousands of goroutines in a few histograms, each with a mutex that is
// hardly ever taken: a histogram for each goroutine would be a gigabyte.
type latencies []shard

type shard struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram
	_         [64]byte
}

const (
	shards   = 8
	finest   = 10                // nanoseconds
	longest  = 1_000_000_000_000 // nanoseconds; longer ones count as this
	accuracy = 3                 // digits
)

func newLatencies() latencies {
	l := make(latencies, shards)
	for i := range l {
		l[i].histogram = hdrhistogram.New(finest, longest, accuracy)
	}
	return l
}

func (l latencies) shard(i int) *shard { return &l[i%len(l)] }

func (s *shard) record(nanoseconds int64) {
	s.mu.Lock()
	s.histogram.RecordValue(min(nanoseconds, longest)) //nolint:errcheck // it is in the range
	s.mu.Unlock()
}

// A summary is in microseconds.
type summary struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func (l latencies) summary() summary {
	all := hdrhistogram.New(finest, longest, accuracy)
	for i := range l {
		all.Merge(l[i].histogram)
	}
	if all.TotalCount() == 0 {
		return summary{}
	}
	at := func(percentile float64) float64 { return float64(all.ValueAtPercentile(percentile)) / 1000 }
	return summary{
		float64(all.Min()) / 1000, all.Mean() / 1000, at(50), at(90), at(99), at(99.9), float64(all.Max()) / 1000,
	}
}
