// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"slices"
	"sync"
)

// A room limits how many calls in other protocols than yodel's are open, and how many bytes their
// requests and expected replies have. The zero value must be set up before use.
type room struct {
	calls, bytes int // the limits
	// reserve is the part of the limits that only lone calls may use: those that are the only one
	// of their client. 16 reserves a sixteenth, 0 nothing.
	reserve int

	mu    sync.Mutex
	open  int
	held  int        // bytes of the open calls
	lone  []*visitor // lone calls that wait, in the order of their arrival
	other []*visitor // the other ones
}

// A visitor is a call that waits for room.
type visitor struct {
	bytes int
	ready chan struct{} // closed when the call is in the room
}

// enter takes room for a call of n bytes. If there is no room and wait is set, enter waits for room
// until ctx ends. If wait is not set, it returns false at once. A single call may have any number
// of bytes. Only reports whether no other call was in the room.
func (r *room) enter(ctx context.Context, n int, lone, wait bool) (only, ok bool) {
	r.mu.Lock()
	queue := r.queueLocked(lone)
	only = r.open == 0
	if ok = len(*queue) == 0 && r.fitsLocked(n, lone); ok {
		r.open++
		r.held += n
	}
	if ok || !wait {
		r.mu.Unlock()
		return only, ok
	}
	v := &visitor{n, make(chan struct{})}
	*queue = append(*queue, v)
	r.mu.Unlock()
	select {
	case <-v.ready:
		return false, true
	case <-ctx.Done():
		return false, r.giveUp(v, lone)
	}
}

// giveUp ends the wait of v. It reports whether v is in the room, because it has got room
// meanwhile.
func (r *room) giveUp(v *visitor, lone bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue := r.queueLocked(lone)
	at := slices.Index(*queue, v)
	if at < 0 {
		return true
	}
	*queue = slices.Delete(*queue, at, at+1)
	r.admitLocked() // v may have been in the way of others
	return false
}

// leave gives back the room of a call of n bytes.
func (r *room) leave(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.held -= n
	r.admitLocked()
}

// admitLocked lets those calls in for which there is room now.
func (r *room) admitLocked() {
	for _, lone := range [...]bool{true, false} {
		queue := r.queueLocked(lone)
		for len(*queue) > 0 && r.fitsLocked((*queue)[0].bytes, lone) {
			v := (*queue)[0]
			(*queue)[0] = nil
			*queue = (*queue)[1:]
			r.open++
			r.held += v.bytes
			close(v.ready)
		}
		if len(*queue) == 0 {
			*queue = nil // gives the memory back
		}
	}
}

func (r *room) queueLocked(lone bool) *[]*visitor {
	if lone {
		return &r.lone
	}
	return &r.other
}

// fitsLocked reports whether there is room for a call of n bytes.
func (r *room) fitsLocked(n int, lone bool) bool {
	calls, bytes := r.calls, r.bytes
	if !lone && r.reserve > 0 {
		calls, bytes = calls-calls/r.reserve, bytes-bytes/r.reserve
	}
	return r.open < calls && (r.open == 0 || r.held+n <= bytes)
}
