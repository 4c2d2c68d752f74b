// SPDX-License-Identifier: Apache-2.0

package reuse_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel/internal/reuse"
)

func TestLargeBuffersAreNotKept(t *testing.T) {
	small, large := make([]byte, 10, 64<<10), make([]byte, 10, 64<<10+1)
	if !reuse.Small(small) || !reuse.Small(nil) || reuse.Small(large) {
		t.Error("not the buffers over 64 KiB are large")
	}
	if got := reuse.Keep(small); got == nil || len(got) != 0 || cap(got) != cap(small) {
		t.Errorf("got %d bytes of %d", len(got), cap(got))
	}
	if reuse.Keep(large) != nil {
		t.Error("a large buffer is kept")
	}
}

func TestBuffersComeBackEmpty(t *testing.T) {
	var p reuse.Pool
	for range 100 {
		b := p.Get()
		if len(*b) != 0 {
			t.Fatalf("the buffer has %q", *b)
		}
		*b = append(*b, "hello"...)
		was := *b
		p.Put(b)
		if reuse.Poison && string(was) == "hello" {
			t.Fatal("the buffer still has what it had")
		}
	}
	large := make([]byte, 1, 1<<20)
	p.Put(&large)
	if got := p.Get(); cap(*got) >= 1<<20 {
		t.Error("a large buffer came back")
	}
}

type reference struct{ n int }

func TestTheOwnerServesAnotherCall(t *testing.T) {
	var o reuse.Owner[reference]
	var held atomic.Bool
	first, second := &reference{1}, &reference{2}
	o.Begin(first)
	if o.Next(second, &held) == reuse.Poison {
		t.Fatalf("another call: %v", !reuse.Poison)
	}
	if reuse.Poison {
		return
	}
	if o.Hold(first, &held) || held.Load() {
		t.Error("a reference to a call that has ended holds the present one")
	}
	if !o.Hold(second, &held) || !held.Load() {
		t.Fatal("the present call cannot be held")
	}
	if o.Next(&reference{3}, &held) || o.Drop(&held) || !o.Hold(second, &held) {
		t.Error("a call that user code has got is not left alone")
	}
}

func TestADroppedCallCannotBeHeld(t *testing.T) {
	var o reuse.Owner[reference]
	var held atomic.Bool
	first := &reference{1}
	o.Begin(first)
	if !o.Drop(&held) || o.Hold(first, &held) {
		t.Error("a call can be held after its memory was dropped")
	}
	o.Begin(first)
	held.Store(true)
	if o.Drop(&held) || !o.Hold(first, &held) {
		t.Error("a held call was dropped")
	}
}

// Either user code gets the call, or the call is reused, but not both.
func TestACallIsHeldOrReused(t *testing.T) {
	for range 2000 {
		var o reuse.Owner[reference]
		var flag, held atomic.Bool
		first := &reference{1}
		o.Begin(first)
		var wg sync.WaitGroup
		wg.Go(func() { held.Store(o.Hold(first, &flag)) })
		runtime.Gosched()
		dropped := o.Drop(&flag)
		wg.Wait()
		if held.Load() && dropped {
			t.Fatal("the call was held and dropped")
		}
	}
}
