// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"math"
	"time"
)

// A learner finds how many calls at a time are worth having. It looks at one window after the
// other, and at two figures of each: how many calls ended in a second, and how long they took.
//
// By Little's law, what is served at a time is the rate times the time a call takes. What is served
// without a wait inside, for a processor, a lock, a pool or a disk, is the highest rate times the
// shortest time: more calls at a time wait somewhere behind the limiter, and no more of them are
// served. That is brpc's automatic limiter (docs/en/auto_concurrency_limiter.md there), and BBR's
// model of a network. From there the limit follows the gradient, shortest time to time of late, as
// Netflix's Gradient2 (concurrency-limits) does.
//
// The shortest time is what both are easily wrong about: a server that is overloaded from its first
// call has never seen it, and one that has become slower will not see the old one again. So from
// time to time, when calls take twice as long, and in the beginning, the learner goes down in steps
// until fewer calls are served: below that nobody waits inside, and the time is the shortest.
type learner struct {
	least, most float64
	limit       float64
	base        time.Duration // what a call takes when it waits for nobody; 0 when it is not known
	best        float64       // calls in a second
	descending  bool
	before      float64       // calls in a second, before the descent
	next        time.Duration // when the next descent begins
	slow        int           // windows in a row in which calls took twice as long
}

// What a learner goes by.
const (
	tolerance = 1.05 // calls may take that much longer than the shortest time, for the limit not to shrink
	headroom  = 0.05 // of the limit, and at least a half: what it grows by in a window
	ascent    = 1.25 // what it grows by while more and more calls are served
	step      = 0.75 // of a descent
	fewer     = 0.9  // of the calls are served: the descent has come to where nobody waits
	lookEvery = 15 * time.Second
)

func newLearner(o Options) *learner {
	a := &learner{limit: float64(o.Initial)}
	a.bound(o)
	return a
}

// bound makes the bounds those of o.
func (a *learner) bound(o Options) {
	a.least, a.most = float64(o.Min), float64(o.Max)
	a.limit = min(max(a.limit, a.least), a.most)
}

// whole returns the limit.
func (a *learner) whole() uint64 { return uint64(math.Round(a.limit)) }

// window takes in what has happened in a window: how long calls took in the mean, how many ended in
// a second, and whether any had to wait. It returns why the limit is what it is, when there is
// something to say.
func (a *learner) window(now, took time.Duration, rate float64, crowded bool) {
	switch {
	case !crowded:
		a.idle(took, rate)
	case a.descending:
		a.descend(now, took, rate)
	case a.base == 0 || now >= a.next || a.slow >= 2:
		a.descending, a.before, a.best, a.slow = true, rate, rate, 0
		a.limit *= step
	default:
		a.follow(took, rate)
	}
	a.limit = min(max(a.limit, a.least), a.most)
}

// idle is for a window in which the limit was not reached. Calls that are few by themselves take
// the shortest time, whatever it was before.
func (a *learner) idle(took time.Duration, rate float64) {
	a.descending, a.slow = false, 0
	few := rate*took.Seconds() < a.limit/2
	switch {
	case took < a.base || a.base == 0 && few:
		a.base = took
	case few:
		a.base += (took - a.base) / 8
	}
	a.best = max(a.best, rate)
}

// descend is for a window of a descent.
func (a *learner) descend(now, took time.Duration, rate float64) {
	if rate >= fewer*a.before && a.limit > a.least {
		a.best = max(a.best, rate)
		a.limit *= step
		return
	}
	a.descending = false
	a.base, a.next = took, now+lookEvery
	a.limit = tolerance * a.best * took.Seconds()
}

// follow is for a window at the limit.
func (a *learner) follow(took time.Duration, rate float64) {
	more := rate > 1.05*a.best
	a.best = max(rate, a.best*0.98)
	switch {
	case took < a.base*4/5: // that is not luck
		a.base = took
	case took < a.base:
		a.base = (a.base + took) / 2
	}
	if took > 2*a.base {
		a.slow++
	} else {
		a.slow = 0
	}
	gradient := min(max(tolerance*float64(a.base)/float64(took), 0.5), 1)
	if gradient == 1 && more {
		a.limit *= ascent
		return
	}
	wanted := gradient*a.limit + max(0.5, headroom*a.limit)
	if wanted < a.limit {
		wanted = (a.limit + wanted) / 2
	}
	// Fewer than that can serve less, however long calls seem to take: the machine may have other
	// work.
	a.limit = max(wanted, min(a.limit, a.best*a.base.Seconds()))
}

// brake lowers the limit when most calls end too late to be of use. As many calls are enough as can
// be served, at this rate, within half of the time that calls are allowed. The limit does not fall
// below half of the calls that run now, because the rate is that of a short time.
func (a *learner) brake(running uint64, rate float64, allowed time.Duration) {
	enough := rate * allowed.Seconds() / 2
	a.limit = min(a.limit, max(min(a.limit, float64(running))/2, enough))
	a.limit = min(max(a.limit, a.least), a.most)
	a.descending = false
}

// A lateness is what a limiter has seen of deadlines since a time. It does not wait for calls that
// began after the limit changed: in an overload these would take seconds, and tell that it is one
// when nobody waits any more.
type lateness struct {
	since   time.Duration
	ended   uint32        // calls, by then
	calls   int           // that were timed
	served  int           // of these: whose methods returned something else than that their time was up
	late    int           // of these: that ended after their deadlines
	allowed time.Duration // how long these were allowed to take, together
}

// A sample is what a limiter has seen in a window.
type sample struct {
	since   time.Duration // the beginning of the window
	ended   uint32        // calls, by then
	calls   int
	sum     time.Duration
	crowded bool
}

// A window is at least that long, at least four calls one after the other, and at least leastCalls
// of those that are timed: calls that were under way when the limit changed are no part of it.
const (
	leastWindow = 100 * time.Millisecond
	leastCalls  = 10
)

// learnLocked takes in a call that began at a time and ends now.
func (l *limiter) learnLocked(now, began time.Duration) {
	if l.learn == nil || began < l.sample.since {
		return
	}
	s := &l.sample
	s.calls++
	s.sum += now - began
	length := now - s.since
	if s.calls < leastCalls || length < max(leastWindow, 4*s.sum/time.Duration(s.calls)) {
		return
	}
	ended := l.endedLocked()
	rate := float64(ended-s.ended) / length.Seconds()
	l.learn.window(now, max(s.sum/time.Duration(s.calls), 1), rate, s.crowded)
	l.limit.Store(l.learn.whole())
	l.paceLocked()
	l.sample = sample{since: now, ended: ended, crowded: l.queue.n > 0}
}

// endedLocked returns how many calls have ended, which wraps around.
func (l *limiter) endedLocked() uint32 {
	state := l.state.Load()
	return uint32(state/begunOne - state&running) //nolint:gosec // it wraps around
}

// lateLocked takes in how a timed call ended that was allowed to take until end, and lowers the
// limit when most calls are late.
func (l *limiter) lateLocked(now, began, end time.Duration, err error) {
	if l.learn == nil {
		return
	}
	s := &l.late
	s.calls++
	late := now >= end
	if late {
		s.late++
		s.allowed += end - began
	}
	if !late || err == nil {
		s.served++
	}
	length := now - s.since
	if s.calls < leastCalls || length < leastWindow {
		return
	}
	ended := l.endedLocked()
	if 2*s.late > s.calls {
		rate := float64(ended-s.ended) / length.Seconds() * float64(s.served) / float64(s.calls)
		l.learn.brake(l.state.Load()&running, rate, s.allowed/time.Duration(s.late))
		l.limit.Store(l.learn.whole())
		l.sample = sample{since: now, ended: ended, crowded: l.queue.n > 0}
	}
	l.late = lateness{since: now, ended: ended}
}
