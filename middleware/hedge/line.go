// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A line is where first attempts of a method stand in the order in which they began, all with about the same delay. One timer is set to when the one that
// stands longest is due, and left alone when that has ended before: nearly all do. A timer for each call would cost it four times as much, and wake up an idle
// processor each time that it is the soonest of all.
type line struct {
	next atomic.Int64 // when the timer fires, on the clock; 0 when it does not

	mu    sync.Mutex
	timer *time.Timer

	stretches [stretches]stretch
}

const stretches = 8

// A stretch is the part of a line where races stand that were made on about the same processor.
type stretch struct {
	mu          sync.Mutex
	first, last *race
	legs        []leg    // not used yet
	_           [16]byte // nobody else's cache line
}

// epoch is when the clock began.
var epoch = time.Now()

// clock is the time that it takes half of time.Now to read.
func clock() int64 { return int64(time.Since(epoch)) }

// join gives r the context of its first attempt, and has it fired when it is due, unless it leaves before.
func (l *line) join(r *race, due int64) {
	s := &l.stretches[r.place]
	s.mu.Lock()
	r.first = s.legLocked(r.ctx)
	r.due, r.standing, r.before = due, true, s.last
	if s.last == nil {
		s.first = r
	} else {
		s.last.after = r
	}
	s.last = r
	s.mu.Unlock()
	if next := l.next.Load(); next == 0 || due < next { // asked when it is in line: see look
		l.lookAt(due)
	}
}

// legLocked returns a context for a first attempt. They are never used again, and one allocation for each would cost more.
func (s *stretch) legLocked(ctx context.Context) *leg {
	if len(s.legs) == 0 {
		s.legs = make([]leg, 64)
	}
	l := &s.legs[0]
	s.legs = s.legs[1:]
	l.Context = ctx
	return l
}

// leave reports whether r has left the line in time. Otherwise it is fired.
func (l *line) leave(r *race) bool {
	s := &l.stretches[r.place]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.standing {
		return false
	}
	s.removeLocked(r)
	return true
}

func (s *stretch) removeLocked(r *race) {
	if r.before == nil {
		s.first = r.after
	} else {
		r.before.after = r.after
	}
	if r.after == nil {
		s.last = r.before
	} else {
		r.after.before = r.before
	}
	r.before, r.after, r.standing = nil, nil, false
}

// lookAt makes the timer fire at t, if it would later.
func (l *line) lookAt(t int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if next := l.next.Load(); next != 0 && next <= t {
		return
	}
	l.next.Store(t)
	if in := time.Duration(t - clock()); l.timer == nil {
		l.timer = time.AfterFunc(in, l.look)
	} else {
		l.timer.Reset(in)
	}
}

// look fires the races that are due. It may run more than once at a time.
func (l *line) look() {
	l.next.Store(0) // first, so that whoever joins where it has looked already sets the timer
	next, now := int64(math.MaxInt64), clock()
	for i := range l.stretches {
		s := &l.stretches[i]
		s.mu.Lock()
		for s.first != nil && s.first.due <= now {
			r := s.first
			s.removeLocked(r)
			go r.fire() // the call waits for it
		}
		if s.first != nil {
			next = min(next, s.first.due)
		}
		s.mu.Unlock()
	}
	if next != math.MaxInt64 {
		l.lookAt(next)
	}
}
