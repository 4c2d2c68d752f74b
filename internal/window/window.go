// SPDX-License-Identifier: Apache-2.0

// Package window admits the calls of one side of a connection. The window of the peer bounds how
// many calls are open at once, and how many bytes their requests have. A call that does not fit
// waits in a queue. The window admits the calls of the queue in the order of their arrival.
package window

import (
	"math"
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// Initial is how many calls may be open before the peer has said how many it accepts.
const Initial = 1024

// Extra returns how many calls that serve calls of the receiver may be open beyond a window of open
// calls and of bytes, and how many bytes they may have. If each call in two full windows makes a
// call back, and each of these makes another, there are two such calls for each place in the
// window.
func Extra(open, bytes int) (extraOpen, extraBytes int) {
	return max(2*min(open, wire.MaxSlots), Initial), max(2*min(bytes, math.MaxInt/4), 1<<20)
}

// Slots returns how many slots a window of open calls and the calls beyond it take.
func Slots(open int) int {
	extra, _ := Extra(open, 0)
	return min(min(open, wire.MaxSlots)+extra, wire.MaxSlots)
}

// A Window is the window of a connection, and the calls in it. A lock of the owner guards it and
// the tickets.
type Window struct {
	open   int32 // calls that are open
	nested int32 // the part of open that is beyond the window
	most   int32 // how many calls the peer accepts now
	ever   int32 // an upper bound of most for all times
	bytes  int   // of the calls that are open

	mostBytes, everBytes int // as most and ever

	*rare // nil before the first use
}

// rare is what most connections do not need.
type rare struct {
	nestedBytes int // the part of bytes for nested
	queue       []*Ticket
	tickets     uint64 // ever made
}

// A Ticket is a place in the queue.
type Ticket struct {
	Wake     chan struct{} // receives a value when the ticket leaves the queue
	nth      uint64        // the ticket's number among all tickets
	bytes    int
	admitted bool // the call is in the window
	why      error
}

// Set sets the newest limits of the peer. A value of 0 leaves a limit unchanged.
func (w *Window) Set(open, bytes int) {
	if open > 0 {
		w.most = int32(min(open, wire.MaxSlots))
	}
	if bytes > 0 {
		w.mostBytes = bytes
	}
}

// SetUpperBounds sets the upper bounds of the limits that the peer will ever grant. A value of 0
// leaves a bound unchanged.
func (w *Window) SetUpperBounds(open, bytes uint64) {
	if open > 0 {
		w.ever = int32(min(open, wire.MaxSlots))
	}
	if bytes > 0 {
		w.everBytes = int(min(bytes, math.MaxInt/4))
	}
}

// Open returns how many calls are open.
func (w *Window) Open() int { return int(w.open) }

// Bytes returns how many bytes the requests of the open calls have.
func (w *Window) Bytes() int { return w.bytes }

// Limits returns how many calls the peer accepts, and their bytes.
func (w *Window) Limits() (calls, bytes int) { return int(w.most), w.mostBytes }

// Waiting returns how many calls wait in the queue.
func (w *Window) Waiting() int {
	if w.rare == nil {
		return 0
	}
	return len(w.queue)
}

// rarely returns the rare part for writing to it.
func (w *Window) rarely() *rare {
	if w.rare == nil {
		w.rare = new(rare)
	}
	return w.rare
}

// inWindow returns the open calls, and their bytes, that are not beyond the window.
func (w *Window) inWindow() (open int32, bytes int) {
	if w.nested == 0 {
		return w.open, w.bytes
	}
	return w.open - w.nested, w.bytes - w.nestedBytes
}

// HasRoom reports whether a call with a request of size bytes may be sent now. It may not while
// other calls wait. A request that is larger than the whole window may be sent when no other
// request has bytes in the window.
func (w *Window) HasRoom(size int) bool { return w.Waiting() == 0 && w.fits(size) }

func (w *Window) fits(size int) bool {
	open, bytes := w.inWindow()
	return open < w.most && int(w.open) < Slots(int(w.ever)) && (bytes+size <= w.mostBytes || bytes == 0)
}

// Enter counts a call that is opened.
func (w *Window) Enter(size int) {
	w.open++
	w.bytes += size
}

// EnterBeyond counts a call that is opened beyond the window, because it serves a call of the peer.
// It returns false if there is no room beyond the window either.
func (w *Window) EnterBeyond(size int) bool {
	r := w.rarely()
	calls, bytes := Extra(int(w.ever), w.everBytes)
	if int(w.nested) >= calls || int(w.open) >= Slots(int(w.ever)) || w.nested > 0 && r.nestedBytes+size > bytes {
		return false
	}
	w.nested++
	r.nestedBytes += size
	w.Enter(size)
	return true
}

// Leave uncounts a call. The owner then calls Admit if calls wait. Beyond says that the call was
// beyond the window.
func (w *Window) Leave(size int, beyond bool) {
	w.open--
	w.bytes -= size
	if beyond {
		w.nested--
		w.nestedBytes -= size
	}
}

// Wait puts a call at the end of the queue.
func (w *Window) Wait(size int) *Ticket {
	r := w.rarely()
	r.tickets++
	t := &Ticket{nth: r.tickets, Wake: make(chan struct{}, 1), bytes: size}
	r.queue = append(r.queue, t)
	return t
}

// Admit admits the first calls of the queue while the window has room for them.
func (w *Window) Admit() {
	for w.Waiting() > 0 && w.fits(w.queue[0].bytes) {
		t := w.queue[0]
		w.Enter(t.bytes)
		t.admitted = true
		w.queue = w.queue[1:]
		t.Wake <- struct{}{}
	}
}

// Dismiss removes all calls from the queue. Why is what Dismissed returns for them.
func (w *Window) Dismiss(why error) {
	if w.Waiting() == 0 {
		return
	}
	for _, t := range w.queue {
		t.why = why
		t.Wake <- struct{}{}
	}
	w.queue = nil
}

// Admitted reports whether the call is in the window.
func (t *Ticket) Admitted() bool { return t.admitted }

// Dismissed returns why the call was dismissed, or nil.
func (t *Ticket) Dismissed() error { return t.why }

// Confirm reports whether an admitted call is still within the limits of the peer, which may have
// become lower. Otherwise Confirm puts the call back in its place in the queue.
func (w *Window) Confirm(t *Ticket) bool {
	if open, bytes := w.inWindow(); open <= w.most && (bytes <= w.mostBytes || bytes == t.bytes) {
		return true
	}
	t.admitted = false
	w.Leave(t.bytes, false)
	i := 0
	for i < w.Waiting() && w.queue[i].nth < t.nth {
		i++
	}
	w.queue = slices.Insert(w.queue, i, t)
	w.Admit()
	return false
}

// Cancel takes a call out of the window or out of the queue. Left reports whether it was in the
// window.
func (w *Window) Cancel(t *Ticket) (left bool) {
	if t.admitted {
		w.Leave(t.bytes, false)
		return true
	}
	if i := slices.Index(w.queue, t); i >= 0 {
		w.queue = slices.Delete(w.queue, i, i+1)
	}
	return false
}
