// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"math"
	"time"
)

// A learner finds the best concurrency limit. For each window it looks at two figures: how many
// calls ended per second (throughput), and how long they took (latency).
//
// By Little's law, the number of calls in service is the throughput times the latency. The number
// that is served without an internal queue (for a processor, a lock, a pool or a disk) is the
// highest throughput times the lowest latency. With more calls, the excess waits behind the limiter
// and throughput does not rise. brpc's automatic limiter uses this
// (docs/en/auto_concurrency_limiter.md there), as does BBR for networks. From there the limit
// follows the gradient, the lowest latency divided by the recent one, as Netflix's Gradient2
// (concurrency-limits) does.
//
// Both methods can be wrong about the lowest latency. A server that is overloaded from its first
// call has never seen it, and a server that has become slower will not see the old one again. So
// the learner lowers the limit in steps until throughput falls. It does so in the beginning, from
// time to time, and when calls take twice as long. Below that point no call waits inside, and the
// latency is the lowest.
type learner struct {
	least, most float64
	limit       float64
	base        time.Duration // the duration of a call that does not wait; 0 when it is not known
	best        float64       // calls per second
	descending  bool
	before      float64       // calls per second before the descent
	next        time.Duration // when the next descent begins
	slow        int           // windows in a row in which calls took twice as long
}

// Parameters of a learner.
const (
	// The latency may exceed the lowest by this factor before the limit shrinks.
	tolerance = 1.05
	headroom  = 0.05 // growth per window, as a part of the limit; at least 0.5
	ascent    = 1.25 // growth factor while throughput rises
	step      = 0.75 // factor of each step of a descent
	// A descent ends when throughput falls below this part: then no call waits inside.
	fewer     = 0.9
	lookEvery = 15 * time.Second
)

func newLearner(o Options) *learner {
	a := &learner{limit: float64(o.Initial)}
	a.bound(o)
	return a
}

// bound sets the bounds of the limit from o.
func (a *learner) bound(o Options) {
	a.least, a.most = float64(o.Min), float64(o.Max)
	a.limit = min(max(a.limit, a.least), a.most)
}

// whole returns the limit as a number of calls.
func (a *learner) whole() uint64 { return uint64(math.Round(a.limit)) }

// window processes a window: the mean duration of calls, the calls that ended per second, and
// whether any call had to wait.
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

// idle processes a window in which the limit was not reached. Its calls did not wait, so their
// duration is the lowest.
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

// descend processes a window of a descent.
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

// follow processes a window at the limit.
func (a *learner) follow(took time.Duration, rate float64) {
	more := rate > 1.05*a.best
	a.best = max(rate, a.best*0.98)
	switch {
	case took < a.base*4/5: // too much for chance
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
	// A lower limit would reduce throughput, however long calls seem to take: the machine may have
	// other work.
	a.limit = max(wanted, min(a.limit, a.best*a.base.Seconds()))
}

// brake lowers the limit when most calls end too late to be useful. The new limit is what the
// current throughput can serve within half of the time that calls are allowed. It does not fall
// below half of the running calls, because the throughput was measured over a short time only.
func (a *learner) brake(running uint64, rate float64, allowed time.Duration) {
	enough := rate * allowed.Seconds() / 2
	a.limit = min(a.limit, max(min(a.limit, float64(running))/2, enough))
	a.limit = min(max(a.limit, a.least), a.most)
	a.descending = false
}

// A lateness counts deadlines that were met and missed. It includes calls that began before the
// limit changed. In an overload, calls that begin after the change take seconds, so they alone
// would reveal the overload too late.
type lateness struct {
	since time.Duration
	ended uint32 // the count of ended calls at that time
	calls int    // timed calls whose callers were not impatient
	// Timed calls of impatient callers. They do not count as late: no limit would have made them
	// end in time.
	impatient int
	// timed calls whose methods returned something other than an expired deadline
	served  int
	late    int           // timed calls that ended after their deadlines
	allowed time.Duration // the sum of the times that these calls were allowed
}

// A sample is what a limiter has measured in a window.
type sample struct {
	since   time.Duration // the beginning of the window
	ended   uint32        // the count of ended calls at that time
	calls   int
	sum     time.Duration
	cut     int // calls of impatient callers, which do not tell how long a call takes
	crowded bool
}

// A window lasts at least this long, and at least four times the duration of a call. It has at
// least leastCalls timed calls. Calls that were in flight when the limit changed do not count.
const (
	leastWindow = 100 * time.Millisecond
	leastCalls  = 10
)

// learnLocked processes the duration of a call.
func (l *limiter) learnLocked(e *ended) {
	if l.learn == nil || e.began < l.sample.since {
		return
	}
	s, now := &l.sample, e.at
	if e.cut && e.impatient {
		s.cut++
	} else {
		s.calls++
		s.sum += e.took()
	}
	length := now - s.since
	if s.calls < leastCalls || length < max(leastWindow, 4*s.sum/time.Duration(s.calls)) {
		return
	}
	ended := l.endedLocked()
	rate := float64(ended-s.ended) / length.Seconds() * float64(s.calls) / float64(s.calls+s.cut)
	l.learn.window(now, max(s.sum/time.Duration(s.calls), 1), rate, s.crowded)
	l.limit.Store(l.learn.whole())
	l.paceLocked()
	l.sample = sample{since: now, ended: ended, crowded: l.queue.n > 0}
}

// endedLocked returns how many calls have ended. The count wraps around.
func (l *limiter) endedLocked() uint32 {
	state := l.state.Load()
	return uint32(state/begunOne - state&running) //nolint:gosec // it wraps around
}

// lateLocked processes whether a call ended before its deadline. It lowers the limit when most
// calls are late.
func (l *limiter) lateLocked(e *ended) {
	if l.learn == nil {
		return
	}
	s, now := &l.late, e.at
	switch {
	case e.impatient:
		s.impatient++
	case e.late:
		s.late++
		s.allowed += e.end - e.began
		fallthrough
	default:
		s.calls++
	}
	if !e.late || !e.cut {
		s.served++
	}
	length := now - s.since
	if s.calls < leastCalls || length < leastWindow {
		return
	}
	ended := l.endedLocked()
	if 2*s.late > s.calls {
		rate := float64(ended-s.ended) / length.Seconds() * float64(s.served) / float64(s.calls+s.impatient)
		l.learn.brake(l.state.Load()&running, rate, s.allowed/time.Duration(s.late))
		l.limit.Store(l.learn.whole())
		l.sample = sample{since: now, ended: ended, crowded: l.queue.n > 0}
	}
	l.late = lateness{since: now, ended: ended}
}
