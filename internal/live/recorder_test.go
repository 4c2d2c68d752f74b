// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// start is a full hour.
var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// read returns the calls of each series in each point.
func read(r *live.Recorder, now time.Time, span time.Duration) (calls map[live.Key][]uint64, left int) {
	calls = make(map[live.Key][]uint64)
	points := 0
	left = r.Read(now, &live.Reader{
		Span:  span,
		Begin: func(_ time.Duration, n int) { points = n },
		Point: func(k live.Key, i int, s *live.Step) {
			if calls[k] == nil {
				calls[k] = make([]uint64, points)
			}
			calls[k][i] = s.Calls()
		},
	})
	return calls, left
}

// count counts calls.
func count(c *live.Counter, calls int, took time.Duration) {
	for range calls {
		c.End(took, 0)
	}
}

func TestStepsHoldTheCallsOfTheirTime(t *testing.T) {
	r := live.New(start)
	k := live.Key{Side: "server", Method: "m", Peer: "p"}
	c := r.Counter(k)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for second := range 2 * 3600 { // one call a second
		r.Tick(at(second))
		count(c, 1, time.Millisecond)
	}
	now := at(2*3600 - 1)
	for _, want := range []struct {
		span  time.Duration
		calls []uint64
	}{
		{3 * time.Second, []uint64{1, 1, 1}},
		{time.Minute, slices.Repeat([]uint64{1}, 60)},
		{time.Hour, slices.Repeat([]uint64{60}, 60)},
		{24 * time.Hour, append(make([]uint64, 22), 3600, 3600)},
	} {
		if got, left := read(r, now, want.span); !slices.Equal(got[k], want.calls) || left != 0 {
			t.Errorf("%v: got %v and %d left out, want %v", want.span, got, left, want.calls)
		}
	}
	if got, _ := read(r, at(2*3600), time.Hour); got[k][59] != 0 || got[k][58] != 60 {
		t.Errorf("in the first second of a minute: got %v", got)
	}
}

func TestQuantilesAndCodes(t *testing.T) {
	r := live.New(start)
	c := r.Counter(live.Key{Method: "m"})
	count(c, 90, time.Millisecond)
	count(c, 9, 100*time.Millisecond)
	for _, code := range []int{5, 5, 200} {
		c.End(mux.Untimed, code)
	}
	c.End(math.MaxInt64, 0)
	r.Read(start, &live.Reader{
		Begin: func(time.Duration, int) {},
		Point: func(_ live.Key, _ int, s *live.Step) {
			if s.Calls() != 103 || s.Failed(5) != 2 || s.Failed(2) != 1 {
				t.Errorf("got %d calls, %d and %d that failed", s.Calls(), s.Failed(5), s.Failed(2))
			}
			if q := s.Quantile(0.5); q < time.Millisecond || q > time.Millisecond*5/4 {
				t.Errorf("the median is %v", q)
			}
			if q := s.Quantile(0.95); q < 100*time.Millisecond || q > 125*time.Millisecond {
				t.Errorf("the 95th percentile is %v", q)
			}
			if q := s.Quantile(1); q < 15*time.Minute || q > 20*time.Minute {
				t.Errorf("the longest is %v, want the end of the last bucket", q)
			}
			sum, last := uint64(0), time.Duration(-1)
			for upTo, calls := range s.Latency() {
				if upTo <= last {
					t.Errorf("%v follows %v", upTo, last)
				}
				sum, last = sum+calls, upTo
			}
			if sum != s.Calls() {
				t.Errorf("the buckets hold %d calls", sum)
			}
		},
	})
}

func TestUntimedCallsCountInTheBucketOfTheTimedOne(t *testing.T) {
	r := live.New(start)
	c := r.Counter(live.Key{Method: "m"})
	count(c, 15, mux.Untimed)
	count(c, 1, time.Second)
	count(c, 3, mux.Untimed)
	r.Read(start, &live.Reader{
		Begin: func(time.Duration, int) {},
		Point: func(_ live.Key, _ int, s *live.Step) {
			if s.Calls() != 19 || s.Quantile(0.01) < time.Second {
				t.Errorf("got %d calls, the shortest %v", s.Calls(), s.Quantile(0.01))
			}
		},
	})
}

// However many methods and callers there are, and however busy they are, the memory is bounded, and
// what does not fit is counted.
func TestMemoryIsBounded(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	r := live.New(start)
	const methods, callers = 200, 50 // 10,000 series
	var counters []*live.Counter
	for m := range methods {
		for c := range callers {
			k := live.Key{Side: "server", Method: fmt.Sprintf("a.service.with.a.name.Method%d", m), Peer: fmt.Sprint("caller", c)}
			if counter := r.Counter(k); counter != nil {
				counters = append(counters, counter)
			}
		}
	}
	if n := len(counters); n < 2000 || n >= methods*callers {
		t.Errorf("%d series fit", n)
	}
	now := start
	for round := range 70 + 60 + 24 { // fills the seconds of the last minute last
		step := time.Hour
		if round >= 24 {
			step = time.Minute
		}
		if round >= 24+60 {
			step = time.Second
		}
		for i, c := range counters {
			count(c, 1, time.Duration(1+i%7)*time.Duration(1+round%9)*time.Millisecond)
			c.End(time.Duration(i+1)*time.Microsecond, 1+i%16)
		}
		now = now.Add(step)
		r.Tick(now)
	}
	if got := heap() - before; got > 8<<20 {
		t.Errorf("the live data takes %d bytes, want at most 8 MiB", got)
	}
	calls, left := read(r, now, time.Minute)
	if n := len(calls); n == 0 || n+left < methods*callers*9/10 || left < methods*callers-len(counters)*3/2 {
		t.Errorf("%d series are there and %d are left out, of %d", n, left, methods*callers)
	}
	runtime.KeepAlive(counters)
	runtime.KeepAlive(r)
}

func TestFurtherPeersOfAMethodCountTogether(t *testing.T) {
	r := live.New(start)
	var counters []*live.Counter
	for i := range 100 {
		c := r.Counter(live.Key{Method: "m", Peer: fmt.Sprint(i)})
		count(c, 1, time.Millisecond)
		counters = append(counters, c)
	}
	if r.Counter(live.Key{Method: "m", Peer: "5"}) != counters[5] || r.Counter(live.Key{Method: "m", Peer: "99"}) != counters[98] {
		t.Error("a series has two counters")
	}
	calls, left := read(r, start, time.Minute)
	if other := calls[live.Key{Method: "m", Peer: live.Other}]; len(calls) != 65 || other[59] != 36 || left != 0 {
		t.Errorf("got %d series and %v of others", len(calls), other)
	}
	runtime.KeepAlive(counters)
}

// A caller that has gone makes room for another one. Its calls remain until they are a day old.
func TestCallersThatHaveGoneMakeRoom(t *testing.T) {
	r := live.New(start)
	names := func(now time.Time, span time.Duration) []string {
		calls, _ := read(r, now, span)
		var names []string
		for k := range calls {
			names = append(names, k.Peer)
		}
		return slices.Sorted(slices.Values(names))
	}
	now := start
	for i := range 200 {
		count(r.Counter(live.Key{Method: "m", Peer: fmt.Sprint(i)}), 1, time.Millisecond)
		runtime.GC() // nothing has the counter any more
		now = now.Add(time.Minute)
		r.Tick(now)
	}
	if got := names(now, 24*time.Hour); len(got) != 200 || slices.Contains(got, live.Other) {
		t.Errorf("got %q, want 200 callers", got)
	}
	now = now.Add(30 * time.Hour)
	if got := names(now, 24*time.Hour); len(got) != 0 {
		t.Errorf("after a day: got %q", got)
	}
	count(r.Counter(live.Key{Method: "m", Peer: "new"}), 2, time.Millisecond)
	if got := names(now, time.Minute); !slices.Equal(got, []string{"new"}) {
		t.Errorf("got %q, want only the new one", got)
	}
}

func TestClockThatIsSetDoesNoHarm(t *testing.T) {
	r := live.New(start)
	k := live.Key{Method: "m"}
	c := r.Counter(k)
	now := start
	for _, jump := range []time.Duration{time.Second, -time.Hour, time.Second, 10 * time.Second, 1000 * 24 * time.Hour, time.Second} {
		count(c, 1, time.Millisecond)
		now = now.Add(jump)
		r.Tick(now)
	}
	calls, _ := read(r, now, time.Minute)
	if n := calls[k]; n[58] != 1 || n[57] != 0 {
		t.Errorf("got %v, want one call in the last second that has ended", n)
	}
	began := time.Now()
	r.Tick(now.Add(10_000 * 24 * time.Hour))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a jump took %v", took)
	}
}

// No call is lost or counted twice while counters are read.
func TestCountsAreExact(t *testing.T) {
	r := live.New(start)
	c := r.Counter(live.Key{Method: "m"})
	const goroutines, calls = 4, 5000
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for n := range calls {
				took := mux.Untimed
				if n%3 == 0 {
					took = time.Duration(n+i) * time.Microsecond
				}
				count(c, 1, took)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	now := start
	for running := true; running; {
		select {
		case <-ended:
			running = false
		default:
		}
		if now.Sub(start) < 20*time.Hour { // so that no call leaves the rings
			now = now.Add(time.Second)
		}
		r.Tick(now)
	}
	got, _ := read(r, now, 24*time.Hour)
	n := uint64(0)
	for _, calls := range slices.Collect(maps.Values(got)) {
		for _, more := range calls {
			n += more
		}
	}
	if n != goroutines*calls {
		t.Errorf("%d calls were counted, want %d", n, goroutines*calls)
	}
}

func TestARingKeepsTheLastValues(t *testing.T) {
	var r live.Ring[int]
	for i := range 1000 {
		r.Add(i)
	}
	if got := r.All(); len(got) != 256 || got[0] != 1000-256 || !slices.IsSorted(got) {
		t.Errorf("got %d values from %d on", len(got), got[0])
	}
}

func BenchmarkCount(b *testing.B) {
	c := live.New(start).Counter(live.Key{Method: "m"})
	for _, took := range []time.Duration{mux.Untimed, 50 * time.Microsecond} {
		b.Run(fmt.Sprint("timed=", took != mux.Untimed), func(b *testing.B) {
			for b.Loop() {
				c.End(took, 0)
			}
		})
	}
}

// BenchmarkTick is the work of a second with 1000 busy series.
func BenchmarkTick(b *testing.B) {
	r := live.New(start)
	var counters []*live.Counter
	for i := range 1000 {
		counters = append(counters, r.Counter(live.Key{Method: fmt.Sprint(i)}))
	}
	now := start
	b.ReportAllocs()
	for b.Loop() {
		for i, c := range counters {
			for n := range 10 {
				count(c, 1, time.Duration(i*n)*time.Microsecond)
			}
		}
		now = now.Add(time.Second)
		r.Tick(now)
	}
}
