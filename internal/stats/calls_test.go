// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestPairsAddUp(t *testing.T) {
	for _, test := range []struct{ first, second, times uint64 }{
		{0, 0, 3}, {1, 0, 3}, {0, 1, 3}, {1<<20 - 1, 1<<20 - 1, 20_000}, {1 << 20, 1, 20}, {1, 1 << 40, 20}, {1 << 32, 1 << 32, 2},
	} {
		var p stats.Pair
		for range test.times {
			p.Add(test.first, test.second)
		}
		for range 2 { // reading does not change the sums
			if first, second := p.Sums(); first != test.first*test.times || second != test.second*test.times {
				t.Errorf("%+v: got %d and %d", test, first, second)
			}
		}
	}
}

// The sums never decrease, and lose nothing when several goroutines add and read.
func TestPairsAddUpConcurrently(t *testing.T) {
	var p stats.Pair
	const adders, times, first, second = 4, 50_000, 1<<20 - 1, 3
	var wg sync.WaitGroup
	for range adders {
		wg.Go(func() {
			for range times {
				p.Add(first, second)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	for a, b, open := uint64(0), uint64(0), true; open; {
		select {
		case <-ended:
			open = false
		default:
		}
		nowA, nowB := p.Sums()
		if nowA < a || nowB < b {
			t.Fatalf("%d and %d, after %d and %d", nowA, nowB, a, b)
		}
		a, b = nowA, nowB
	}
	if a, b := p.Sums(); a != adders*times*first || b != adders*times*second {
		t.Errorf("got %d and %d", a, b)
	}
}

func TestCallsHaveOutcomesAndDurations(t *testing.T) {
	var c stats.Calls
	for _, call := range []struct {
		took time.Duration
		code int
	}{{time.Millisecond, 0}, {time.Millisecond, 5}, {time.Hour, 0}, {-1, 200}} { // a code without a name counts as Unknown
		c.End(call.took, call.code)
	}
	var calls uint64
	var took, before time.Duration = 0, -1
	for bucket, sum := range c.Latency() {
		if bucket.UpTo <= before || sum > time.Duration(bucket.Calls)*bucket.UpTo {
			t.Errorf("%+v, which took %v, follows %v", bucket, sum, before)
		}
		before = bucket.UpTo
		calls += bucket.Calls
		took += sum
	}
	if calls != 4 || took != time.Hour+2*time.Millisecond || c.Failed(5) != 1 || c.Failed(2) != 1 {
		t.Errorf("got %d calls that took %v, failed %d and %d", calls, took, c.Failed(5), c.Failed(2))
	}
}

// A server that refuses most calls at once is not a fast one.
func TestWhatWasRefusedOrCanceledHasNoLatency(t *testing.T) {
	var client stats.Calls
	var server stats.Method
	refused := []int{int(catalogue.Canceled), int(catalogue.ResourceExhausted), int(catalogue.Disabled)}
	for _, code := range append(refused, int(catalogue.Aborted), 0) {
		client.End(time.Millisecond, code)
		server.Begin()
		server.End(time.Millisecond, code, false, true)
	}
	var called, executed uint64
	for bucket := range client.Latency() {
		called += bucket.Calls
	}
	for _, calls := range server.Latency() {
		executed += calls
	}
	if called != 2 || executed != 2 || client.Others() != 3 {
		t.Errorf("the latencies are of %d and %d calls, and %d have none, want 2, 2 and 3", called, executed, client.Others())
	}
	for _, code := range refused {
		if client.Failed(code) != 1 || server.Calls(code) != 1 {
			t.Errorf("code %d was counted %d and %d times, want once", code, client.Failed(code), server.Calls(code))
		}
	}
}

func TestTheTrafficOfACallCountsInAllItsAttempts(t *testing.T) {
	for _, test := range []struct {
		attempts, forks int
		want            [2]uint64 // retries and hedges
	}{
		{0, 0, [2]uint64{}}, {1, 0, [2]uint64{}}, {3, 0, [2]uint64{2, 0}}, {3, 1, [2]uint64{1, 1}}, {2, 5, [2]uint64{0, 1}},
	} {
		var c stats.Calls
		c.AddTraffic(introspect.Traffic{BytesIn: 1, BytesOut: 2, Received: 3, Sent: 4, Forks: test.forks}, test.attempts)
		sums := func(p *stats.Pair) [2]uint64 {
			first, second := p.Sums()
			return [2]uint64{first, second}
		}
		if sums(&c.Bytes) != [2]uint64{1, 2} || sums(&c.Messages) != [2]uint64{3, 4} || sums(&c.Extra) != test.want {
			t.Errorf("%+v: got %v, %v and %v", test, sums(&c.Bytes), sums(&c.Messages), sums(&c.Extra))
		}
	}
}
