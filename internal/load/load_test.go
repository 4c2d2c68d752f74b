// SPDX-License-Identifier: Apache-2.0

package load_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/load"
)

// An endpoint has ended when it has an error.
type endpoint struct{ ended atomic.Pointer[error] }

// Err implements the interface that Report asks.
func (e *endpoint) Err() error {
	if err := e.ended.Load(); err != nil {
		return *err
	}
	return nil
}

func (e *endpoint) end() { e.ended.Store(new(errors.New("it has left"))) }

func TestAReportFades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, ep := new(load.Report), new(endpoint)
		defer ep.end()
		want := func(when string, others int) {
			t.Helper()
			if got := r.Others(7); got != others {
				t.Errorf("%s: the others make %d calls, want %d", when, got, others)
			}
		}
		want("before the first report", 7)
		r.Set(43, 2, ep)
		want("of 43 calls, two and that of the reply are own", 40)
		time.Sleep(1900 * time.Millisecond)
		want("a while later", 40)
		r.Set(31, 0, ep)
		time.Sleep(1900 * time.Millisecond)
		want("a while after another report", 30)
		time.Sleep(2 * time.Second)
		want("two seconds after the last one", 15)
		time.Sleep(20 * time.Second)
		want("long after it", 0)
		r.Set(3, 0, ep)
		want("another one", 2)
		time.Sleep(10 * time.Second)
		want("long after that", 0)
		r.Set(1, 5, ep)
		want("fewer than the own calls", 0)
		r.Set(math.MaxUint64, 0, ep)
		want("a server may say anything", math.MaxInt32-1)
		ep.end()
		time.Sleep(time.Hour)
		want("the endpoint has left", math.MaxInt32/2)
	})
}

func TestARegistryMaySayAnything(t *testing.T) {
	r := new(load.Report)
	for known, want := range map[int]int{-1: 0, 0: 0, 9: 9, math.MaxInt64: math.MaxInt32} {
		if got := r.Others(known); got != want {
			t.Errorf("of %d: got %d, want %d", known, got, want)
		}
	}
}

func TestInflight(t *testing.T) {
	var n load.Inflight
	n.Begun.Add(3)
	n.Ended.Add(1)
	n.Waiting.Add(9)
	if got := n.Sent(); got != 2 {
		t.Errorf("%d calls were sent and have not ended, want 2", got)
	}
}

func TestARoundTripIsMeasuredAgainWhenItIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pings := new(load.RoundTrip), 0
		var fails error
		ping := func(context.Context) (time.Duration, error) {
			time.Sleep(3 * time.Millisecond)
			pings++
			return 3 * time.Millisecond, fails
		}
		begin := func(f func(context.Context)) bool { go f(t.Context()); return true }
		measure := func(wantPings int, want time.Duration) {
			t.Helper()
			due := r.Due()
			before := pings
			r.Measure(ping, begin)
			r.Measure(ping, begin) // a ping is under way
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if pings != wantPings || due != (pings > before) || r.Took() != want {
				t.Errorf("%d pings, due %v, it took %v; want %d pings and %v", pings, due, r.Took(), wantPings, want)
			}
		}
		fails = errors.New("the connection has ended")
		measure(1, 0)
		fails = nil
		measure(1, 0)
		time.Sleep(5 * time.Second)
		measure(2, 3*time.Millisecond)
		measure(2, 3*time.Millisecond)
		time.Sleep(5 * time.Second)
		measure(3, 3*time.Millisecond)
	})
}

func TestAServerCountsFromTimeToTime(t *testing.T) {
	var s load.Server
	for i, step := range []struct {
		now time.Duration
		due bool
	}{{-time.Second, true}, {-time.Second, false}, {-995 * time.Millisecond, false}, {-990 * time.Millisecond, true}, {-989 * time.Millisecond, false}} {
		if got := s.Due(step.now); got != step.due {
			t.Errorf("step %d: due %v, want %v", i, got, step.due)
		}
	}
}

func TestALoadIsToldWhenItHasChanged(t *testing.T) {
	var s load.Server
	var told load.Told
	now := time.Second
	for i, step := range []struct {
		after time.Duration
		calls int64
		due   bool
		want  uint64
	}{
		{0, 0, true, 1},
		{5 * time.Millisecond, 9, false, 0},
		{5 * time.Millisecond, 9, true, 9},
		{10 * time.Millisecond, 10, true, 0}, // by an eighth at most
		{10 * time.Millisecond, 11, true, 11},
		{490 * time.Millisecond, 11, true, 0},
		{10 * time.Millisecond, 11, true, 11}, // a busy server says it again
		{10 * time.Millisecond, 1, true, 1},
		{10 * time.Millisecond, 2, true, 0}, // by one
		{time.Hour, 1, true, 0},             // an idle one does not
	} {
		now += step.after
		s.Set(step.calls)
		if due := told.Due(now); due != step.due {
			t.Errorf("step %d: due %v, want %v", i, due, step.due)
		}
		if !step.due {
			continue
		}
		if got := told.Next(&s, now); got != step.want {
			t.Errorf("step %d: told %d, want %d", i, got, step.want)
		}
	}
}
