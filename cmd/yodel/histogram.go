// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"
)

// A histogram counts durations in buckets that are at most 1/32 wide, from 1 ns to 292 years. One
// goroutine at a time may use it. The zero value is empty.
type histogram struct {
	counts   [64 * perOctave]uint64
	n        uint64
	sum      time.Duration
	min, max time.Duration
}

const perOctave = 32

func bucketOf(d time.Duration) int {
	n := uint64(max(d, 1))
	octave := bits.Len64(n) - 1
	if octave < 5 {
		return int(n) //nolint:gosec // less than 32
	}
	return octave*perOctave + int(n>>(octave-5))&(perOctave-1) //nolint:gosec // less than 64
}

// upTo returns the largest duration in a bucket.
func upTo(bucket int) time.Duration {
	if bucket < perOctave {
		return time.Duration(bucket)
	}
	octave, part := bucket/perOctave, bucket%perOctave
	return time.Duration((perOctave+part+1)<<(octave-5) - 1)
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.n++
	h.sum += d
	if h.n == 1 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
}

func (h *histogram) merge(other *histogram) {
	if other.n == 0 {
		return
	}
	if h.n == 0 || other.min < h.min {
		h.min = other.min
	}
	h.max = max(h.max, other.max)
	h.n += other.n
	h.sum += other.sum
	for i, n := range other.counts {
		h.counts[i] += n
	}
}

// quantile returns the duration that a share q did not exceed, at most 1/32 too high.
func (h *histogram) quantile(q float64) time.Duration {
	want, seen := uint64(math.Ceil(q*float64(h.n))), uint64(0)
	for i, n := range h.counts {
		if seen += n; n > 0 && seen >= max(want, 1) {
			return min(upTo(i), h.max)
		}
	}
	return 0
}

// A bar is the share of the calls between half of UpTo and UpTo.
type bar struct {
	UpTo  time.Duration `json:"upTo"`
	Calls uint64        `json:"calls"`
}

// barEnd returns the least duration of 125 µs × 2^n, with a whole n from -17 on, that is not below
// d.
func barEnd(d time.Duration) time.Duration {
	end := 125e3 / float64(1<<17)
	for end < float64(d) {
		end *= 2
	}
	return time.Duration(end)
}

// bars returns the counts in buckets whose ends barEnd gives: …, 125 µs, 250 µs, 500 µs, 1 ms.
func (h *histogram) bars() []bar {
	var list []bar
	for i, n := range h.counts {
		if n == 0 {
			continue
		}
		end := barEnd(upTo(i))
		if len(list) == 0 || list[len(list)-1].UpTo != end {
			list = append(list, bar{UpTo: end})
		}
		list[len(list)-1].Calls += n
	}
	return list
}

const barWidth = 24

// eighths are the parts of a block.
var eighths = []rune(" ▏▎▍▌▋▊▉█")

// blocks returns a bar of a length from 0 to 1. A bar is never empty.
func blocks(length float64, width int) string {
	n := max(int(math.Round(length*float64(width)*8)), 1)
	s := strings.Repeat("█", n/8)
	if rest := n % 8; rest > 0 {
		s += string(eighths[rest])
	}
	return s
}

// String returns a line for each bar.
func (h *histogram) String() string {
	list := h.bars()
	most := uint64(1)
	for _, b := range list {
		most = max(most, b.Calls)
	}
	var out strings.Builder
	for _, b := range list {
		fmt.Fprintf(&out, "   %6s %s %s\n", "≤"+shortTime(b.UpTo), blocks(float64(b.Calls)/float64(most), barWidth), shareOf(b.Calls, h.n))
	}
	return out.String()
}

// shortTime returns the end of a bar.
func shortTime(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d)
	case d < time.Millisecond:
		return fmt.Sprintf("%.0fµs", d.Seconds()*1e6)
	case d < time.Second:
		return fmt.Sprintf("%.0fms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

func shareOf(n, of uint64) string {
	share := 100 * float64(n) / float64(max(of, 1))
	if share < 1 {
		return fmt.Sprintf("%.2g%%", share)
	}
	return fmt.Sprintf("%.0f%%", share)
}
