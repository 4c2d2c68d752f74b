// SPDX-License-Identifier: Apache-2.0

package orphans_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/orphans"
)

// Requests of lost connections go on for a while: as many as may be for long, and the others for
// a moment.
func TestOrphansAreCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards canceled
		var canceled []string
		s := orphans.New(func(r string) {
			mu.Lock()
			defer mu.Unlock()
			canceled = append(canceled, r)
		})
		want := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(canceled, want) {
				t.Errorf("canceled are %q, want %q", canceled, want)
			}
		}
		if !s.Add("first", 2) {
			t.Error("the first one is not kept")
		}
		time.Sleep(time.Second)
		if !s.Add("second", 2) || s.Add("surplus", 2) || s.Add("quick", 2) {
			t.Error("the Set keeps not two of them")
		}
		if s.Remove("quick") || s.Remove("unknown") {
			t.Error("a request was kept that is beyond the bound")
		}
		want(orphans.SurplusTime - 1)
		want(1, "surplus")
		want(orphans.Time-time.Second-orphans.SurplusTime-1, "surplus")
		want(1, "surplus", "first")
		if s.Add("third", 2) {
			t.Error("a canceled request that has not ended does not count")
		}
		if !s.Remove("first") || !s.Add("fourth", 2) {
			t.Error("a request that has ended counts on")
		}
		all := s.All()
		if slices.Sort(all); !slices.Equal(all, []string{"fourth", "second", "surplus", "third"}) {
			t.Errorf("the requests are %q", all)
		}
		for _, r := range all {
			s.Remove(r)
		}
		want(2*orphans.Time, "surplus", "first")
		if left := s.All(); len(left) > 0 || !s.Add("again", 1) {
			t.Errorf("left are %q", left)
		}
		want(orphans.Time, "surplus", "first", "again")
	})
}

// Each request that is canceled makes a goroutine runnable. What waits for the processor does not
// wait for all of them.
func TestManyThatAreCanceledAtOnceLeaveTheProcessorToOthers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const all = 1000
		var canceled atomic.Int32
		first := make(chan struct{})
		s := orphans.New(func(int) {
			if canceled.Add(1) == 1 {
				close(first)
			}
		})
		for r := range all {
			s.Add(r, 0)
		}
		<-first
		if n := canceled.Load(); n > all/2 {
			t.Errorf("%d of %d were canceled before another goroutine ran", n, all)
		}
		synctest.Wait()
		if n := canceled.Load(); n != all {
			t.Errorf("%d of %d were canceled", n, all)
		}
	})
}
