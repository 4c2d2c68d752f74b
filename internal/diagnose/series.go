// SPDX-License-Identifier: Apache-2.0

// Package diagnose makes the answers of a server's diagnostic methods from what the process has
// counted. It reads counters only, so that a call takes no part in it. Only taps are shown the
// calls themselves, when they have ended.
package diagnose

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// maxNumbers is how many numbers the series of an answer may have, so that it fits in a
// message.
const maxNumbers = 400_000

// A reading is an answer that is being made.
type reading struct {
	q      *introspect.LiveQuery
	points int
	series map[live.Key]*introspect.Series
}

// addSeries adds the series of r that a query selects to an answer.
func addSeries(r *live.Recorder, q *introspect.LiveQuery, out *introspect.Live) {
	x := &reading{q: q, series: make(map[live.Key]*introspect.Series)}
	out.Left = r.Read(out.Now, &live.Reader{
		Span:  q.Span,
		Begin: func(length time.Duration, points int) { out.Step, x.points = length, points },
		Point: x.point,
	})
	x.finish(out)
}

func (x *reading) selects(k live.Key) bool {
	q := x.q
	return (q.Side == "" || q.Side == k.Side) && (q.Method == "" || q.Method == k.Method) && (q.Peer == "" || q.Peer == k.Peer)
}

// of returns a series of the answer.
func (x *reading) of(k live.Key) *introspect.Series {
	s := x.series[k]
	if s == nil {
		s = &introspect.Series{
			Side: k.Side, Method: k.Method, Peer: k.Peer, Calls: make([]uint64, x.points),
			P50: make([]time.Duration, x.points), P90: make([]time.Duration, x.points), P99: make([]time.Duration, x.points),
		}
		if x.q.Histograms {
			s.Latency = make([][]introspect.Bucket, x.points)
		}
		x.series[k] = s
	}
	return s
}

// point adds a point of a series.
func (x *reading) point(k live.Key, i int, step *live.Step) {
	if !x.selects(k) {
		return
	}
	s := x.of(k)
	s.Calls[i] = step.Calls()
	s.P50[i], s.P90[i], s.P99[i] = step.Quantile(0.5), step.Quantile(0.9), step.Quantile(0.99)
	for code := 1; code < stats.Codes; code++ {
		n := step.Failed(code)
		if n == 0 {
			continue
		}
		name := nameOf(code)
		if s.Errors == nil {
			s.Errors = make(map[string][]uint64)
		}
		if s.Errors[name] == nil {
			s.Errors[name] = make([]uint64, x.points)
		}
		s.Errors[name][i] = n
	}
	if !x.q.Histograms {
		return
	}
	for upTo, calls := range step.Latency() {
		s.Latency[i] = append(s.Latency[i], introspect.Bucket{UpTo: upTo, Calls: calls})
	}
}

// finish adds the series to the answer, sorted. If they have too many numbers, it leaves out the
// series with the fewest calls.
func (x *reading) finish(out *introspect.Live) {
	list := make([]*introspect.Series, 0, len(x.series))
	for _, s := range x.series {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *introspect.Series) int {
		return cmp.Or(cmp.Compare(sum(b.Calls), sum(a.Calls)), orderSeries(a, b))
	})
	numbers := 0
	for i, s := range list {
		numbers += (4 + len(s.Errors)) * x.points
		for _, histogram := range s.Latency {
			numbers += 3 * len(histogram)
		}
		if numbers > maxNumbers {
			out.Left += len(list) - i
			list = list[:i]
			break
		}
	}
	slices.SortFunc(list, orderSeries)
	for _, s := range list {
		out.Series = append(out.Series, *s)
	}
}

func orderSeries(a, b *introspect.Series) int {
	return cmp.Or(strings.Compare(a.Side, b.Side), strings.Compare(a.Method, b.Method), strings.Compare(a.Peer, b.Peer))
}

func sum(numbers []uint64) (n uint64) {
	for _, more := range numbers {
		n += more
	}
	return n
}

// Program returns the name of the program, for clients without a name.
func Program() string {
	if len(os.Args) == 0 {
		return ""
	}
	return text.Product(filepath.Base(os.Args[0]), wire.MaxCaller)
}

// Process returns the state of the process. It does not stop other goroutines.
func Process(started time.Time) introspect.Process {
	p := introspect.Process{PID: os.Getpid(), Go: runtime.Version(), Started: started.Round(0).UTC(), CPU: live.ProcessorTime()}
	p.Host, _ = os.Hostname() // an unknown name stays empty
	if info, ok := debug.ReadBuildInfo(); ok {
		p.Version = info.Main.Version
	}
	samples := []metrics.Sample{
		{Name: "/sched/goroutines:goroutines"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	var numbers [3]uint64
	for i := range samples {
		if samples[i].Value.Kind() == metrics.KindUint64 {
			numbers[i] = samples[i].Value.Uint64()
		}
	}
	p.Goroutines, p.Heap, p.GCs = int(numbers[0]), numbers[1], uint32(numbers[2]) //nolint:gosec // small
	return p
}
