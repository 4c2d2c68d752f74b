// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A limiter lets so many calls run at a time. While nobody waits, a call costs one compare-and-swap
// at its beginning and one at its end. While somebody waits, state has the mark crowded, and all
// goes by mu: so nobody overtakes those who wait, and a place goes from hand to hand.
type limiter struct {
	state atomic.Uint64 // see below
	limit atomic.Uint64

	what  string // is limited, for people
	born  time.Time
	every atomic.Uint64 // how many calls begin for each that is timed, while nobody waits

	mu     sync.Mutex
	opts   Options
	queue  queue
	took   time.Duration // a call, in the mean of late; 0 when it is not known
	least  time.Duration // a call takes, of late
	counts Stats         // what is counted of it
	sample sample
	late   lateness
	learn  *learner // nil for a fixed limit
}

// The state of a limiter.
const (
	crowded  = 1 << 31     // somebody waits, and then it is changed with mu held only
	running  = crowded - 1 // calls that run
	begunOne = 1 << 32     // calls that have begun, which wraps around
)

// How many calls begin for each that is timed, while nobody waits.
const (
	timedFirst  = 1 // before the limiter knows how long a call takes
	timedEvery  = 8
	timedSeldom = 1 << 32 // when the limit is fixed
)

// worthNoting is a wait that shows in how long a call took.
const worthNoting = time.Millisecond

// maxLimit bounds limits.
const maxLimit = 1 << 24

func newLimiter(what string, o Options) *limiter {
	l := &limiter{what: what, born: time.Now()}
	l.configure(o)
	return l
}

// configure makes o the limiter's options, and keeps what it has learned.
func (l *limiter) configure(o Options) {
	l.lock()
	defer l.mu.Unlock()
	l.opts = o
	switch {
	case o.Limit > 0:
		l.learn = nil
		l.limit.Store(uint64(o.Limit))
	case l.learn == nil:
		l.learn = newLearner(o)
		l.limit.Store(l.learn.whole())
	default:
		l.learn.bound(o)
		l.limit.Store(l.learn.whole())
	}
	l.paceLocked()
	l.dispatchLocked(l.now())
}

// paceLocked sets how many calls are timed.
func (l *limiter) paceLocked() {
	switch {
	case l.learn == nil:
		l.every.Store(timedSeldom)
	case l.learn.base == 0:
		l.every.Store(timedFirst)
	default:
		l.every.Store(timedEvery)
	}
}

// lock takes the mutex. It does not queue up for it while it need not: once somebody has queued for
// a millisecond, a mutex goes from hand to hand, each of which has to be scheduled first, and on a
// machine without a processor to spare that takes longer than all that is done here.
func (l *limiter) lock() {
	const turns = 16
	for range turns {
		if l.mu.TryLock() {
			return
		}
		runtime.Gosched()
	}
	l.mu.Lock()
}

// now is the time since the limiter was made.
func (l *limiter) now() time.Duration { return time.Since(l.born) }

// do carries out a call when it may run.
func (l *limiter) do(ctx context.Context, call *yodel.Call, next yodel.Handler) error {
	state, ok := l.enter()
	if ok {
		if state/begunOne%l.every.Load() != 0 {
			defer l.leave()
			return next(ctx, call)
		}
		return l.timed(ctx, call, next, nil, l.now())
	}
	line, began, err := l.wait(ctx, call)
	if err != nil {
		return err
	}
	return l.timed(ctx, call, next, line, began)
}

// timed carries out a call that has a place, and takes its time.
func (l *limiter) timed(ctx context.Context, call *yodel.Call, next yodel.Handler, line *line, began time.Duration) (err error) {
	defer func() { l.leaveTimed(ctx, call, line, began, err) }()
	return next(ctx, call)
}

// enter takes a place if there is one and nobody waits.
func (l *limiter) enter() (state uint64, ok bool) {
	for {
		s := l.state.Load()
		if s&crowded != 0 || s&running >= l.limit.Load() {
			return 0, false
		}
		if n := s + begunOne + 1; l.state.CompareAndSwap(s, n) {
			return n, true
		}
	}
}

// leave gives a place back.
func (l *limiter) leave() {
	for {
		s := l.state.Load()
		if s&crowded != 0 {
			break
		}
		if l.state.CompareAndSwap(s, s-1) {
			return
		}
	}
	l.lock()
	defer l.mu.Unlock()
	l.state.Add(^uint64(0))
	l.dispatchLocked(l.now())
}

// leaveTimed gives back the place of a call that was timed.
func (l *limiter) leaveTimed(ctx context.Context, call *yodel.Call, line *line, began time.Duration, err error) {
	now := l.now()
	end := l.endOf(ctx, call, now)
	executed := err == nil || !yodel.NotProcessed(err)
	l.lock()
	defer l.mu.Unlock()
	if line != nil {
		l.queue.end(line)
	}
	if executed {
		l.noteLocked(now - began)
		l.learnLocked(now, began)
		l.lateLocked(now, began, end, err)
	}
	l.state.Add(^uint64(0))
	l.dispatchLocked(now)
}

// noteLocked takes note of how long a call took: the mean, and about the least of late, which every
// call brings nearer.
func (l *limiter) noteLocked(took time.Duration) {
	const weight, forget = 16, 128
	if l.took == 0 {
		l.took, l.least = took, took
		return
	}
	l.took += (took - l.took) / weight
	l.least = min(took, l.least+l.least/forget)
}

// dispatchLocked gives the places that are free to those who wait.
func (l *limiter) dispatchLocked(now time.Duration) {
	if l.queue.n == 0 {
		return
	}
	for l.queue.n > 0 && l.state.Load()&running < l.limit.Load() {
		w := l.queue.next()
		c := w.line.class
		if now > l.latestLocked(w, now) {
			l.queue.remove(w)
			l.emptiedLocked(c, now)
			w.outcome <- stale
			continue
		}
		line := l.queue.begin(w)
		l.emptiedLocked(c, now)
		w.line = line // for the one who waits; it is not in the queue
		l.state.Add(begunOne + 1)
		w.outcome <- granted
	}
	l.calmLocked()
}

// calmLocked takes the mark away when nobody waits.
func (l *limiter) calmLocked() {
	if l.queue.n == 0 {
		l.state.And(^uint64(crowded))
	}
}

// targetLocked is how long calls may wait while there are always some that do.
func (l *limiter) targetLocked() time.Duration {
	if l.opts.Target > 0 {
		return l.opts.Target
	}
	took := l.took
	if l.learn != nil && l.learn.base > 0 {
		took = min(took, l.learn.base)
	}
	return max(took/4, leastTarget)
}

// intervalLocked is how long a burst may last, and how long a call may wait in it.
func (l *limiter) intervalLocked() time.Duration {
	return max(l.opts.Interval, 10*l.targetLocked())
}

// standingLocked reports whether calls of the class, or of one above it, have been waiting for so
// long that this is no burst. A moment in which none does, soon after that, does not end it, nor
// that those who are let in wait for a short time only: it ends when there was room for all of them
// for an interval.
func (l *limiter) standingLocked(own *class, now time.Duration) bool {
	interval := l.intervalLocked()
	for _, c := range l.queue.classes {
		switch {
		case c.level < own.level:
			return false
		case c.over > 0 && now-c.over < interval, c.n > 0 && now-c.since >= interval:
			return true
		}
	}
	return false
}

// emptiedLocked takes note of how a class was when nobody of it waits any more.
func (l *limiter) emptiedLocked(c *class, now time.Duration) {
	if c.n == 0 && now-c.since >= l.intervalLocked() {
		c.over = now
	}
}

// latestLocked is when a call must have begun to run. Its class may have come to stand while it
// waited.
func (l *limiter) latestLocked(w *waiter, now time.Duration) time.Duration {
	if l.standingLocked(w.line.class, now) {
		return min(w.latest, w.since+2*l.targetLocked())
	}
	return w.latest
}

// roomLocked is how many calls of one tenant of a class may wait in an overload: as many as can be
// begun within the target. Whoever came after them would wait in vain. It is not divided among
// tenants, because then there would be nobody to choose from when several places become free at a
// time; those of them who wait for too long are refused then.
func (l *limiter) roomLocked() int {
	if l.took == 0 {
		return math.MaxInt
	}
	target, took := int64(l.targetLocked()), int64(l.took)
	return int((int64(l.limit.Load())*target + took - 1) / took) //nolint:gosec // at most maxLimit
}

// mostLocked is how many calls of all classes may wait.
func (l *limiter) mostLocked() int {
	if l.opts.Queue == 0 {
		return max(int(l.limit.Load()), leastQueue) //nolint:gosec // at most maxLimit
	}
	return max(l.opts.Queue, 0)
}

// wait waits for a place. It returns the line that the call has come from, nil when it did not have
// to wait after all, and when it began.
//
//go:noinline
func (l *limiter) wait(ctx context.Context, call *yodel.Call) (*line, time.Duration, error) {
	now := l.now()
	end := l.endOf(ctx, call, now)
	w, err := l.queueUp(call, now, end)
	if w == nil {
		return nil, now, err
	}
	o, ended := l.await(ctx, w)
	line := w.line
	w.line = nil
	return l.settle(ctx, call, w, line, o, ended, end)
}

// endOf returns when the call ends at the latest.
func (l *limiter) endOf(ctx context.Context, call *yodel.Call, now time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !call.Deadline.IsZero() && (!ok || call.Deadline.Before(deadline)) {
		deadline, ok = call.Deadline, true
	}
	if !ok {
		return math.MaxInt64
	}
	return now + min(time.Until(deadline), forever)
}

// levelOf bounds how many classes there are.
func levelOf(call *yodel.Call) int { return min(max(call.Criticality, math.MinInt8), math.MaxInt8) }

// queueUp takes a place, for which it returns neither a waiter nor an error, or puts the call into
// the queue, or refuses it.
func (l *limiter) queueUp(call *yodel.Call, now, end time.Duration) (*waiter, error) {
	key := lineKey{levelOf(call), call.Tenant}
	l.lock()
	defer l.mu.Unlock()
	if l.takeLocked() {
		return nil, nil //nolint:nilnil // neither waits nor failed
	}
	defer l.calmLocked()
	l.sample.crowded = true
	c := l.queue.class(key.level)
	standing := l.standingLocked(c, now)
	latest := now + l.intervalLocked()
	if standing {
		latest = now + 2*l.targetLocked()
	}
	if end != math.MaxInt64 {
		expected := time.Duration(int64(l.queue.ahead(c, key)+1) * int64(l.took) / int64(l.limit.Load())) //nolint:gosec // at most maxLimit
		if latest = min(latest, end-l.least); now+expected > end-l.least {
			l.counts.Late++
			return nil, l.refusedLocked(call, "YDL3202", c, now, fmt.Sprintf("its deadline in %v is too near to wait for its turn", round(end-now)))
		}
	}
	if !l.makeRoomLocked(c, key, now, standing) {
		l.counts.Full++
		return nil, l.refusedLocked(call, "YDL3201", c, now, "no more may wait")
	}
	if c.n == 0 {
		c.since = now
	}
	w := l.queue.waiter()
	w.since, w.latest = now, latest
	l.queue.add(w, c, key)
	l.counts.Waited++
	if w.timer == nil {
		w.timer = time.NewTimer(latest - now)
	} else {
		w.timer.Reset(latest - now)
	}
	return w, nil
}

// makeRoomLocked sees that one more call of key may wait, and reports whether it may.
func (l *limiter) makeRoomLocked(c *class, key lineKey, now time.Duration, standing bool) bool {
	most := l.mostLocked()
	var v *waiter
	switch {
	case standing && l.queue.own(key) >= l.roomLocked():
		c.over = now
	case l.queue.upTo(c) >= most:
		if v = l.queue.beside(c, key); standing {
			c.over = now
		}
	case l.queue.n >= most:
		v = l.queue.below(c)
	default:
		return true
	}
	if v == nil {
		return false
	}
	of := v.line.class
	l.queue.remove(v)
	l.emptiedLocked(of, now)
	v.outcome <- displaced
	return true
}

// takeLocked takes a place if there is one and nobody waits, and otherwise marks the state as
// crowded.
func (l *limiter) takeLocked() bool {
	for {
		s := l.state.Load()
		if s&crowded != 0 {
			return false
		}
		n, free := s|crowded, s&running < l.limit.Load()
		if free {
			n = s + begunOne + 1
		}
		if l.state.CompareAndSwap(s, n) {
			return free
		}
	}
}

// await waits until the wait ends: with an outcome, or because the context has, or the time that it
// is worth waiting.
func (l *limiter) await(ctx context.Context, w *waiter) (o outcome, ended error) {
	defer w.timer.Stop()
	select {
	case o = <-w.outcome:
		return o, nil
	case <-ctx.Done():
		ended = ctx.Err()
	case <-w.timer.C:
	}
	l.lock()
	defer l.mu.Unlock()
	select {
	case o = <-w.outcome: // at the same time
	default:
		o = stale
		c := w.line.class
		l.queue.remove(w)
		l.emptiedLocked(c, l.now())
		l.calmLocked()
	}
	return o, ended
}

// settle makes of the end of a wait what the call has to know, and keeps the waiter for another
// one.
func (l *limiter) settle(ctx context.Context, call *yodel.Call, w *waiter, line *line, o outcome, ended error, end time.Duration) (*line, time.Duration, error) {
	l.lock()
	defer l.mu.Unlock()
	defer l.queue.release(w)
	now := l.now()
	if o == granted && ended == nil {
		ended = ctx.Err() // of the two, either may be seen first
	}
	if ended == nil && now >= end {
		ended = context.DeadlineExceeded // which not every context knows of
	}
	if o == granted && ended == nil {
		if now-w.since >= worthNoting && call.Peer() == nil {
			call.Note("limit", fmt.Sprintf("waited %v for %s", round(now-w.since), l.what))
		}
		return line, now, nil
	}
	waited, c := round(now-w.since), l.queue.class(levelOf(call))
	if o == granted { // too late
		l.queue.end(line)
		l.state.Add(^uint64(0))
		l.dispatchLocked(now)
	}
	switch {
	case errors.Is(ended, context.DeadlineExceeded):
		l.counts.Late++
		return nil, 0, l.failedLocked(call, yodel.DeadlineExceeded, "YDL3203", fmt.Sprintf("the deadline passed after %v in the queue", waited), nil)
	case ended != nil:
		l.counts.Canceled++
		return nil, 0, l.failedLocked(call, yodel.Canceled, "YDL1006", fmt.Sprintf("the caller canceled it after %v in the queue", waited), context.Cause(ctx))
	case o == displaced:
		l.counts.Displaced++
		return nil, 0, l.refusedLocked(call, "YDL3201", c, now, fmt.Sprintf("after %v in the queue it made room for one that comes first", waited))
	default:
		l.counts.Stale++
		return nil, 0, l.refusedLocked(call, "YDL3202", c, now, fmt.Sprintf("its turn did not come within %v", waited))
	}
}

// refusedLocked is the error of a call for which there was no room. It asks to stay away for as
// long as those who wait need, and in an overload that lasts for as long as it took to know that.
// Where another endpoint may have room it asks for nothing.
func (l *limiter) refusedLocked(call *yodel.Call, id string, c *class, now time.Duration, why string) *yodel.Error {
	e := l.failedLocked(call, yodel.ResourceExhausted, id, why, nil)
	if ep := l.opts.endpoint; ep != nil && ep.Client().Several() {
		return e
	}
	if l.standingLocked(c, now) {
		e.RetryAfter = l.intervalLocked()
	} else {
		e.RetryAfter = time.Duration(int64(l.queue.n+1) * int64(l.took) / int64(l.limit.Load())) //nolint:gosec // at most maxLimit
	}
	return e
}

func (l *limiter) failedLocked(call *yodel.Call, code yodel.Code, id, why string, cause error) *yodel.Error {
	e := &yodel.Error{Code: code, ID: id, NotProcessed: true, Cause: cause}
	e.Message = fmt.Sprintf("%s: %s: %s has a limit of %d calls at a time, and %d wait",
		call.Method, why, l.what, l.limit.Load(), l.queue.n)
	if call.Peer() == nil {
		call.Note("limit", why)
	}
	return e
}

// round makes a duration short to read.
func round(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
