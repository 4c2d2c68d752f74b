// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/admission"
)

// A wait is a call that waits for room.
type wait struct {
	name  string
	bytes int
	lone  bool
}

func TestCallsEnterInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &admission.Room{Calls: 16, Bytes: 160, Reserve: 16}
		if only, ok := r.Enter(t.Context(), 1000, false, false); !only || !ok {
			t.Error("a single call may have any number of bytes")
		}
		if _, ok := r.Enter(t.Context(), 1, true, false); ok {
			t.Error("a call has entered beyond the limit of bytes")
		}
		entered := make(chan wait, 4)
		for _, w := range []wait{{"a", 100, false}, {"b", 40, false}, {"lone", 20, true}, {"c", 10, false}} {
			go func() {
				if _, ok := r.Enter(t.Context(), w.bytes, w.lone, true); ok {
					entered <- w
				}
			}()
			synctest.Wait()
		}
		var got []string
		drain := func() {
			synctest.Wait()
			for len(entered) > 0 {
				got = append(got, (<-entered).name)
			}
		}
		r.Leave(1000)
		drain()
		slices.Sort(got)
		if want := []string{"a", "c", "lone"}; !slices.Equal(got, want) {
			t.Errorf("%q have entered, want %q: b has no room, and c passes it", got, want)
		}
		r.Leave(100)
		if drain(); len(got) != 4 {
			t.Errorf("%q have entered, want all", got)
		}
	})
}

func TestAPartOfTheRoomIsForLoneCalls(t *testing.T) {
	r := &admission.Room{Calls: 16, Bytes: 1600, Reserve: 16}
	for i := range 15 {
		if only, ok := r.Enter(t.Context(), 10, false, false); !ok || only != (i == 0) {
			t.Fatalf("call %d: entered %v, alone %v", i, ok, only)
		}
	}
	if _, ok := r.Enter(t.Context(), 10, false, false); ok {
		t.Error("a call has taken what is reserved")
	}
	if _, ok := r.Enter(t.Context(), 10, true, false); !ok {
		t.Error("a lone call has not entered")
	}
}

func TestACallGivesUpItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &admission.Room{Calls: 3, Bytes: 100}
		r.Enter(t.Context(), 60, false, false)
		wantPassed := func(want int) {
			t.Helper()
			passed := 0
			for range 200 {
				if _, ok := r.Enter(t.Context(), 40, false, false); ok {
					passed++
					r.Leave(40)
				}
			}
			if passed != want {
				t.Errorf("%d calls have passed the first one that waits, want %d", passed, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		outcomes := make(chan bool, 2)
		for _, w := range []struct {
			ctx   context.Context
			bytes int
		}{{ctx, 50}, {t.Context(), 40}} {
			go func() {
				_, ok := r.Enter(w.ctx, w.bytes, false, true)
				outcomes <- ok
			}()
			synctest.Wait()
			if w.bytes == 50 {
				wantPassed(100)
			}
		}
		wantPassed(0)
		cancel()
		if <-outcomes {
			t.Error("a call has entered whose context has ended")
		}
		if !<-outcomes {
			t.Error("the call behind it has not entered")
		}
	})
}

// A large call gets its room, however many small ones there are.
func TestALargeCallIsNotPassedForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &admission.Room{Calls: 1000, Bytes: 100}
		for range 10 {
			r.Enter(t.Context(), 10, false, false)
		}
		entered := make(chan bool)
		go func() {
			_, ok := r.Enter(t.Context(), 90, false, true)
			entered <- ok
		}()
		synctest.Wait()
		var small atomic.Int64
		for range 1000 { // each call that ends is followed by another that waits
			go func() {
				if _, ok := r.Enter(t.Context(), 10, false, true); ok {
					small.Add(1)
				}
			}()
			synctest.Wait()
			r.Leave(10)
			synctest.Wait()
			select {
			case ok := <-entered:
				if !ok || small.Load() != 100 {
					t.Errorf("the large call has entered: %v, after %d small ones, want 100", ok, small.Load())
				}
				r.Leave(90)
				for range 1000 {
					r.Leave(0)
				}
				return
			default:
			}
		}
		t.Error("the large call has not entered")
	})
}

func TestFirstCallsAreBoundedUntilASizeIsKnown(t *testing.T) {
	for _, known := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var f admission.FirstCalls
			for range 16 {
				if !f.Begin(t.Context()) {
					t.Fatal("a first call was not counted")
				}
			}
			began := time.Now()
			begun := make(chan bool)
			go func() { begun <- f.Begin(t.Context()) }()
			synctest.Wait()
			if known {
				f.Known()
				f.End()
			}
			if <-begun {
				t.Error("a call was counted after the size was known")
			}
			if took := time.Since(began); !known && took != 50*time.Millisecond || known && took != 0 {
				t.Errorf("known %v: the call has waited for %v", known, took)
			}
			f.End()
			if f.Begin(t.Context()) {
				t.Error("the size is not known any more")
			}
		})
	}
}

func TestACallTakesThePlaceOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f admission.FirstCalls
		for range 16 {
			f.Begin(t.Context())
		}
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan bool)
		go func() { begun <- f.Begin(t.Context()) }()
		synctest.Wait()
		f.End()
		if !<-begun {
			t.Error("the call was not counted")
		}
		go func() { begun <- f.Begin(ctx) }()
		synctest.Wait()
		cancel()
		if <-begun {
			t.Error("a call was counted whose context has ended")
		}
	})
}
