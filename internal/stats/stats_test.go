// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"math"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/stats"
)

// succeed counts calls that succeed and take so long each, one after the other.
func succeed(m *stats.Method, calls int, took time.Duration) {
	for range calls {
		m.Begin()
		m.End(took, 0, false, true)
	}
}

func TestABucketIsAtMostAQuarterLongerThanItsCalls(t *testing.T) {
	for _, took := range []time.Duration{0, 1, 3, 4, 5, 7, 8, 1023, 1024, time.Millisecond, time.Hour, math.MaxInt64} {
		var m stats.Method
		succeed(&m, 1, took)
		for upTo, calls := range m.Latency() {
			if calls != 1 || upTo < took || upTo-took > took/4 {
				t.Errorf("%v: got %d calls of at most %v", took, calls, upTo)
			}
		}
	}
}

func TestBucketsAreInOrderAndHoldAllCalls(t *testing.T) {
	var m stats.Method
	const calls = 1000
	for i := range calls {
		succeed(&m, 1, time.Duration(i)*time.Microsecond)
	}
	before, counted := time.Duration(-1), uint64(0)
	for upTo, calls := range m.Latency() {
		if upTo <= before || calls == 0 {
			t.Errorf("%d calls of at most %v follow those of at most %v", calls, upTo, before)
		}
		before = upTo
		counted += calls
	}
	if counted != calls || m.Calls(0) != calls {
		t.Errorf("the buckets hold %d calls, and %d succeeded, want %d", counted, m.Calls(0), calls)
	}
}

func TestOneCallIsTimedForThoseBeforeIt(t *testing.T) {
	var m stats.Method
	for i := range 15 {
		if m.TimeNext() {
			t.Fatalf("the next call is to be timed after %d that were not", i)
		}
		succeed(&m, 1, mux.Untimed)
	}
	if !m.TimeNext() || m.Calls(0) != 15 {
		t.Errorf("after %d calls that were not timed, want 15, the next one is to be timed: %t", m.Calls(0), m.TimeNext())
	}
	succeed(&m, 1, time.Microsecond)
	for upTo, calls := range m.Latency() {
		if calls != 16 || upTo < time.Microsecond {
			t.Errorf("got %d calls of at most %v, want all 16 to count as the one that was timed", calls, upTo)
		}
	}
	if m.TimeNext() || m.Calls(0) != 16 || m.Inflight() != 0 {
		t.Errorf("got %d calls and %d in flight, the next to be timed: %t", m.Calls(0), m.Inflight(), m.TimeNext())
	}
	succeed(&m, 1000, time.Millisecond)
	if !m.TimeNext() {
		t.Error("long calls are not timed")
	}
}

func TestOutcomesAreCounted(t *testing.T) {
	var m stats.Method
	for _, code := range []int{5, 0, 5, 200, stats.Codes} { // a handler may return any code
		m.Begin()
		m.Begin()
		m.End(time.Millisecond, code, false, true)
	}
	if m.Calls(0) != 1 || m.Calls(5) != 2 || m.Calls(2) != 2 || m.Inflight() != 5 {
		t.Errorf("got %d, %d and %d calls, %d in flight", m.Calls(0), m.Calls(5), m.Calls(2), m.Inflight())
	}
}

func TestShortMethodsAreLearned(t *testing.T) {
	var m stats.Method
	succeed(&m, 64, time.Microsecond)
	if m.Short() {
		t.Error("the method is short before enough calls are known")
	}
	succeed(&m, 1, time.Microsecond)
	if !m.Short() {
		t.Error("a method of a microsecond is not short")
	}
	succeed(&m, 1, time.Hour) // one may have been pre-empted
	if !m.Short() {
		t.Error("one long call makes the method long")
	}
	for range 1000 { // of an overloaded server
		m.Begin()
		m.End(time.Hour, 8, false, false)
	}
	if !m.Short() {
		t.Error("refused calls make the method long")
	}
	for range 10 {
		m.Begin()
		m.End(time.Microsecond, 0, true, true)
	}
	if m.Short() {
		t.Error("a method that waits is short")
	}
}

func TestTookIsTheSumOfTheBuckets(t *testing.T) {
	var m stats.Method
	succeed(&m, 3, time.Millisecond)
	m.Begin()
	m.End(mux.Untimed, 0, false, true) // takes as long as the next timed call
	succeed(&m, 1, 4*time.Millisecond)
	if got, want := time.Duration(m.Took.Load()), 11*time.Millisecond; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
