// SPDX-License-Identifier: Apache-2.0

// Package admission decides when a call in another protocol than yodel's may begin: its request and
// its expected reply take part of two limits, and the size of replies is unknown at first.
package admission

import (
	"context"
	"slices"
	"sync"
)

// A Room limits how many calls are open, and how many bytes their requests and expected replies
// have. Its exported fields must be set before use. It may be used concurrently.
type Room struct {
	Calls, Bytes int // the limits
	// Reserve is the part of the limits that only lone calls may use: those that are the only one
	// of their client. 16 reserves a sixteenth, 0 nothing.
	Reserve int

	mu    sync.Mutex
	open  int
	held  int       // bytes of the open calls
	lone  []*waiter // lone calls that wait, in the order of their arrival
	other []*waiter // the other ones
}

// A waiter is a call that waits for room.
type waiter struct {
	bytes  int
	passed int           // how many calls behind it have got room while it was the first
	ready  chan struct{} // closed when the call is in the room
}

const (
	// mostPassed is how many calls for which there is room may pass the first one in a queue. A
	// large request then neither keeps small ones out nor waits without end.
	mostPassed = 100
	// searched is how many calls of a queue are looked at when room becomes free.
	searched = 64
)

// Enter takes room for a call of n bytes. If there is no room and wait is set, Enter waits for room
// until ctx ends. If wait is not set, it returns false at once. A single call may have any number
// of bytes. Calls that wait get room in the order of their arrival, except that up to 100 calls for
// which there is room pass one for which there is none. Only reports whether no other call was in
// the room.
func (r *Room) Enter(ctx context.Context, n int, lone, wait bool) (only, ok bool) {
	r.mu.Lock()
	queue := r.queueLocked(lone)
	only = r.open == 0
	if ok = r.fitsLocked(n, lone) && r.passesLocked(lone); ok {
		r.open++
		r.held += n
	}
	if ok || !wait {
		r.mu.Unlock()
		return only, ok
	}
	w := &waiter{bytes: n, ready: make(chan struct{})}
	*queue = append(*queue, w)
	r.mu.Unlock()
	select {
	case <-w.ready:
		return false, true
	case <-ctx.Done():
		return false, r.giveUp(w, lone)
	}
}

// giveUp ends the wait of w. It reports whether w is in the room, because it has got room
// meanwhile.
func (r *Room) giveUp(w *waiter, lone bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue := r.queueLocked(lone)
	at := slices.Index(*queue, w)
	if at < 0 {
		return true
	}
	*queue = slices.Delete(*queue, at, at+1)
	r.admitLocked() // w may have been in the way of others
	return false
}

// Leave gives back the room of a call of n bytes.
func (r *Room) Leave(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.held -= n
	r.admitLocked()
}

// admitLocked lets those calls in for which there is room now.
func (r *Room) admitLocked() {
	for _, lone := range [...]bool{true, false} {
		queue := r.queueLocked(lone)
		for i := 0; i < min(len(*queue), searched); {
			w := (*queue)[i]
			if !r.fitsLocked(w.bytes, lone) {
				i++
				continue
			}
			if i > 0 && !r.passesLocked(lone) {
				break
			}
			*queue = slices.Delete(*queue, i, i+1)
			r.open++
			r.held += w.bytes
			close(w.ready)
		}
		if len(*queue) == 0 {
			*queue = nil // gives the memory back
		}
	}
}

// passesLocked reports whether a call may have room before the first one that waits, and counts it.
func (r *Room) passesLocked(lone bool) bool {
	queue := *r.queueLocked(lone)
	if len(queue) == 0 {
		return true
	}
	queue[0].passed++
	return queue[0].passed <= mostPassed
}

func (r *Room) queueLocked(lone bool) *[]*waiter {
	if lone {
		return &r.lone
	}
	return &r.other
}

// fitsLocked reports whether there is room for a call of n bytes.
func (r *Room) fitsLocked(n int, lone bool) bool {
	calls, bytes := r.Calls, r.Bytes
	if !lone && r.Reserve > 0 {
		calls, bytes = calls-calls/r.Reserve, bytes-bytes/r.Reserve
	}
	return r.open < calls && (r.open == 0 || r.held+n <= bytes)
}
