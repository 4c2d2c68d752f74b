// SPDX-License-Identifier: Apache-2.0

package window_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/internal/window"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func newWindow(open, bytes int) *window.Window {
	w := new(window.Window)
	w.Set(open, bytes)
	return w
}

// woken reports whether a ticket has left the queue.
func woken(t *window.Ticket) bool {
	select {
	case <-t.Wake:
		return true
	default:
		return false
	}
}

// wantOpen checks what is in the window, and how many calls wait.
func wantOpen(t *testing.T, w *window.Window, calls, bytes, waiting int) {
	t.Helper()
	if w.Open() != calls || w.Bytes() != bytes || w.Waiting() != waiting {
		t.Errorf("%d calls of %d bytes are open and %d wait, want %d, %d and %d", w.Open(), w.Bytes(), w.Waiting(), calls, bytes, waiting)
	}
}

func TestCallsAreAdmittedInTheirOrder(t *testing.T) {
	w := newWindow(2, 100)
	w.Enter(60)
	if w.HasRoom(41) || !w.HasRoom(40) {
		t.Error("the window does not count bytes")
	}
	large, small := w.Wait(60), w.Wait(10)
	if w.Admit(); woken(large) || woken(small) {
		t.Error("a call was admitted without room, or before an earlier one")
	}
	if w.HasRoom(10) {
		t.Error("a new call passes those that wait")
	}
	w.Leave(60, false)
	if w.Admit(); !woken(large) || !large.Admitted() || !woken(small) || !small.Admitted() {
		t.Error("the calls were not admitted")
	}
	wantOpen(t, w, 2, 70, 0)
	if w.HasRoom(0) {
		t.Error("the window does not count calls")
	}
	alone := w.Wait(1000)
	w.Leave(60, false)
	if w.Admit(); woken(alone) {
		t.Error("a request that is larger than the window was sent beside another one")
	}
	w.Leave(10, false)
	if w.Admit(); !woken(alone) {
		t.Error("a request that is larger than the window is never sent")
	}
	wantOpen(t, w, 1, 1000, 0)
}

// A call that was admitted returns to its place when the window shrinks before it is sent.
func TestTheWindowShrinksUnderAnAdmittedCall(t *testing.T) {
	w := newWindow(1, 100)
	w.Enter(0)
	first, second := w.Wait(10), w.Wait(10)
	w.Set(3, 0)
	if w.Admit(); !first.Admitted() || !second.Admitted() {
		t.Fatal("a larger window admits nothing")
	}
	third := w.Wait(10)
	w.Set(2, 0)
	if w.Confirm(first) || first.Admitted() || w.Waiting() != 2 {
		t.Error("the window has three calls, and the peer accepts two")
	}
	if !w.Confirm(second) {
		t.Error("a call does not keep its place, although there is room")
	}
	<-first.Wake
	w.Leave(0, false)
	if w.Admit(); !woken(first) || woken(third) {
		t.Error("the call has lost its place in the queue")
	}
	if open, bytes := w.Limits(); open != 2 || bytes != 100 {
		t.Errorf("the limits are %d and %d", open, bytes)
	}
	w.Set(0, 5)
	if w.Leave(10, false); !w.Confirm(first) {
		t.Error("a request that is larger than the window is not sent, although no other one is open")
	}
}

func TestWaitingEnds(t *testing.T) {
	errGone := errors.New("gone")
	w := newWindow(1, 100)
	w.Dismiss(errGone) // none waits
	w.Enter(10)
	canceled, admitted, dismissed := w.Wait(10), w.Wait(10), w.Wait(10)
	if w.Cancel(canceled) {
		t.Error("a call that waits was in the window")
	}
	wantOpen(t, w, 1, 10, 2)
	w.Leave(10, false)
	if w.Admit(); !admitted.Admitted() || canceled.Admitted() {
		t.Error("the next call was not admitted")
	}
	w.Dismiss(errGone)
	if !woken(dismissed) || dismissed.Admitted() || !errors.Is(dismissed.Dismissed(), errGone) || admitted.Dismissed() != nil {
		t.Error("not the calls that wait were dismissed")
	}
	if !w.Cancel(admitted) || w.Cancel(dismissed) {
		t.Error("not the admitted call was in the window")
	}
	wantOpen(t, w, 0, 0, 0)
}

// Calls that serve the peer have room of their own, which is bounded, too.
func TestCallsBeyondTheWindow(t *testing.T) {
	w := newWindow(1, 100)
	w.SetUpperBounds(1, 100)
	w.Enter(100)
	calls, bytes := window.Extra(1, 100)
	for i := range calls {
		if !w.EnterBeyond(0) {
			t.Fatalf("call %d beyond the window is refused, want %d", i, calls)
		}
	}
	if w.EnterBeyond(0) {
		t.Error("there is no bound of calls beyond the window")
	}
	w.Leave(100, false)
	if !w.HasRoom(100) {
		t.Error("calls beyond the window take its room")
	}
	for range calls {
		w.Leave(0, true)
	}
	if !w.EnterBeyond(2*bytes) || w.EnterBeyond(1) {
		t.Error("want one call of any size, and none beside it")
	}
	w.Leave(2*bytes, true)
	wantOpen(t, w, 0, 0, 0)
}

// Peers can name any limits.
func TestTheSlotsAreBounded(t *testing.T) {
	w := newWindow(math.MaxInt, math.MaxInt)
	w.SetUpperBounds(math.MaxUint64, math.MaxUint64)
	if window.Slots(math.MaxInt) != wire.MaxSlots || window.Slots(10) != 10+window.Initial {
		t.Errorf("got %d and %d slots", window.Slots(math.MaxInt), window.Slots(10))
	}
	n := 0
	for ; w.HasRoom(0); n++ {
		w.Enter(0)
	}
	if n != wire.MaxSlots || w.EnterBeyond(0) {
		t.Errorf("%d calls are open, want %d", n, wire.MaxSlots)
	}
	if _, extra := window.Extra(0, math.MaxInt); extra < 0 {
		t.Errorf("there are %d bytes beyond the window", extra)
	}
}

// Whatever happens, calls are admitted in the order in which they have begun to wait, and the
// window is empty when all have ended.
func TestTheOrderHoldsWhateverHappens(t *testing.T) {
	t.Attr("rerun", "never")
	r := rand.New(rand.NewPCG(1, 2))
	w := newWindow(3, 100)
	var waiting, open []*window.Ticket
	for range 10_000 {
		switch r.IntN(4) {
		case 0:
			waiting = append(waiting, w.Wait(r.IntN(80)))
			w.Admit()
		case 1:
			w.Set(1+r.IntN(6), 50+r.IntN(100))
			w.Admit()
		case 2:
			if len(waiting) > 0 {
				i := r.IntN(len(waiting))
				w.Cancel(waiting[i])
				waiting = slices.Delete(waiting, i, i+1)
				w.Admit()
			}
		case 3:
			if len(open) > 0 {
				w.Cancel(open[0])
				open = open[1:]
				w.Admit()
			}
		}
		for len(waiting) > 0 && waiting[0].Admitted() {
			open, waiting = append(open, waiting[0]), waiting[1:]
		}
		if i := slices.IndexFunc(waiting, (*window.Ticket).Admitted); i >= 0 {
			t.Fatalf("call %d of those that wait was admitted before the first one", i)
		}
		if w.Open() != len(open) || w.Waiting() != len(waiting) {
			t.Fatalf("%d calls are open and %d wait, want %d and %d", w.Open(), w.Waiting(), len(open), len(waiting))
		}
	}
	for _, ticket := range slices.Concat(open, waiting) {
		w.Cancel(ticket)
	}
	wantOpen(t, w, 0, 0, 0)
}
