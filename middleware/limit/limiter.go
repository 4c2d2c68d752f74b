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
	"github.com/yodel-rpc/yodel/middleware/internal/patience"
)

// A limiter limits how many calls run at a time. While no call waits, a call costs one
// compare-and-swap at its beginning and one at its end. While a call waits, state has the bit
// crowded, and every change of state holds mu. So no call overtakes the waiting calls, and a call
// that ends passes its place to a waiting one.
type limiter struct {
	state atomic.Uint64 // see below
	limit atomic.Uint64

	what  string // what is limited, for people
	born  time.Time
	every atomic.Uint64 // of this many calls that begin, one is timed, while no call waits

	mu     sync.Mutex
	opts   Options
	queue  queue
	took   time.Duration // recent mean duration of a call; 0 while unknown
	least  time.Duration // recent shortest duration of a call
	counts Stats         // only its counters are used
	sample sample
	late   lateness
	learn  *learner // nil for a fixed limit
	usual  usualTimes
}

// These are the constants of the state of a limiter.
const (
	crowded  = 1 << 31     // a call waits, and state changes only with mu held
	running  = crowded - 1 // mask of the number of running calls
	begunOne = 1 << 32     // unit of the number of calls that have begun, which wraps around
)

// One of this many calls is timed, while no call waits.
const (
	timedFirst  = 1 // before the limiter knows how long a call takes
	timedEvery  = 8
	timedSeldom = 1 << 32 // when the limit is fixed
)

// worthNoting is the shortest wait that the record of a call mentions.
const worthNoting = time.Millisecond

// maxLimit is the highest limit.
const maxLimit = 1 << 24

func newLimiter(what string, o Options) *limiter {
	l := &limiter{what: what, born: time.Now()}
	l.configure(o)
	return l
}

// configure sets the options of the limiter. The limiter keeps what it has learned.
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

// paceLocked sets what share of the calls is timed.
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

// lock takes the mutex. It first tries several times without waiting. Once a goroutine has waited
// for a mutex for a millisecond, each Unlock passes the mutex to the next waiting goroutine, which
// has to be scheduled first. On a machine without an idle processor that takes longer than the work
// under the mutex.
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

// now returns the time since the limiter was created.
func (l *limiter) now() time.Duration { return time.Since(l.born) }

// do waits for a place and then executes the call.
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

// timed executes a call that has a place, and measures its duration.
func (l *limiter) timed(ctx context.Context, call *yodel.Call, next yodel.Handler, line *line, began time.Duration) (err error) {
	defer func() { l.leaveTimed(ctx, call, line, began, err) }()
	return next(ctx, call)
}

// enter takes a place if one is free and no call waits.
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

// leaveTimed gives back the place of a timed call.
func (l *limiter) leaveTimed(ctx context.Context, call *yodel.Call, line *line, began time.Duration, err error) {
	e := ended{at: l.now(), began: began}
	e.end = l.endOf(ctx, call, e.at)
	e.late = e.at >= e.end
	e.cut = err != nil && (e.late || ctx.Err() != nil || patience.AtDeadline(ctx, call, err))
	executed := err == nil || !yodel.NotProcessed(err)
	l.lock()
	defer l.mu.Unlock()
	if line != nil {
		l.queue.end(line)
	}
	if executed {
		if e.late || e.cut {
			e.impatient = min(e.took(), e.end-began) < l.usual.of(call.Method)
		} else if err == nil {
			l.usual.add(call.Method, e.at, e.took())
		}
		if !e.cut || !e.impatient {
			l.noteLocked(e.took())
		}
		l.learnLocked(&e)
		l.lateLocked(&e)
	}
	l.state.Add(^uint64(0))
	l.dispatchLocked(e.at)
}

// An ended call is a timed call that was executed.
type ended struct {
	began, at, end time.Duration // when it began and ended, and its deadline
	late           bool          // it ended after its deadline
	cut            bool          // its caller ended it, so that the method would have taken longer
	impatient      bool          // its caller gave it less time than the method usually takes
}

func (e *ended) took() time.Duration { return e.at - e.began }

// noteLocked updates the mean duration of a call and the recent shortest one. The latter grows a
// little with each call, so that old values are forgotten.
func (l *limiter) noteLocked(took time.Duration) {
	const weight, forget = 16, 128
	if l.took == 0 {
		l.took, l.least = took, took
		return
	}
	l.took += (took - l.took) / weight
	l.least = min(took, l.least+l.least/forget)
}

// dispatchLocked gives the free places to waiting calls.
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
		w.line = line // for the goroutine of the call; w is no longer in the queue
		l.state.Add(begunOne + 1)
		w.outcome <- granted
	}
	l.calmLocked()
}

// calmLocked clears the bit crowded if no call waits.
func (l *limiter) calmLocked() {
	if l.queue.n == 0 {
		l.state.And(^uint64(crowded))
	}
}

// targetLocked returns how long calls may wait in an overload.
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

// intervalLocked returns how long a burst may last, and how long a call may wait in a burst.
func (l *limiter) intervalLocked() time.Duration {
	return max(l.opts.Interval, 10*l.targetLocked())
}

// standingLocked reports an overload: calls of the class, or of a higher one, have been waiting for
// an interval. A short moment in which no call waits does not end the overload, and neither does a
// short wait of the admitted calls. The overload ends when all calls have had room for an interval.
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

// emptiedLocked notes an overload if the last waiting call of a class has left the queue after an
// interval or more.
func (l *limiter) emptiedLocked(c *class, now time.Duration) {
	if c.n == 0 && now-c.since >= l.intervalLocked() {
		c.over = now
	}
}

// latestLocked returns the time by which a waiting call must begin to run. That time is earlier if
// an overload of the class has begun since the call started to wait.
func (l *limiter) latestLocked(w *waiter, now time.Duration) time.Duration {
	if l.standingLocked(w.line.class, now) {
		return min(w.latest, w.since+2*l.targetLocked())
	}
	return w.latest
}

// roomLocked returns how many calls of one tenant and one class may wait in an overload: as many as
// can begin within the target time. A later call would wait in vain. The number is not divided
// among tenants: otherwise too few calls would wait when several places become free at once. Calls
// that wait for too long are refused then.
func (l *limiter) roomLocked() int {
	if l.took == 0 {
		return math.MaxInt
	}
	target, took := int64(l.targetLocked()), int64(l.took)
	return int((int64(l.limit.Load())*target + took - 1) / took) //nolint:gosec // at most maxLimit
}

// mostLocked returns how many calls of all classes may wait.
func (l *limiter) mostLocked() int {
	if l.opts.Queue == 0 {
		return max(int(l.limit.Load()), leastQueue) //nolint:gosec // at most maxLimit
	}
	return max(l.opts.Queue, 0)
}

// wait waits for a place. It returns the line in which the call has waited, or nil if the call did
// not wait. It also returns the time at which the call begins.
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

// endOf returns the deadline of the call or of ctx, whichever is earlier.
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

// levelOf returns the class of a call, bounded so that there are at most 256 classes.
func levelOf(call *yodel.Call) int { return min(max(call.Criticality, math.MinInt8), math.MaxInt8) }

// queueUp takes a place, adds the call to the queue, or refuses the call. If it takes a place, it
// returns neither a waiter nor an error.
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

// makeRoomLocked reports whether one more call of key may wait. If necessary, it displaces another
// call.
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

// takeLocked takes a place if one is free and no call waits. Otherwise it sets the bit crowded.
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

// await waits for an outcome, for the end of ctx, or until the wait has taken too long. ended is
// the error of ctx.
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
	case o = <-w.outcome: // the outcome came at the same time
	default:
		o = stale
		c := w.line.class
		l.queue.remove(w)
		l.emptiedLocked(c, l.now())
		l.calmLocked()
	}
	return o, ended
}

// settle returns the result of a wait to the call, and releases the waiter for another call.
func (l *limiter) settle(ctx context.Context, call *yodel.Call, w *waiter, line *line, o outcome, ended error, end time.Duration) (*line, time.Duration, error) {
	l.lock()
	defer l.mu.Unlock()
	defer l.queue.release(w)
	now := l.now()
	if o == granted && ended == nil {
		ended = ctx.Err() // if both have happened, select chooses one at random
	}
	if ended == nil && now >= end {
		ended = context.DeadlineExceeded // the call's deadline may be earlier than that of ctx
	}
	if o == granted && ended == nil {
		if now-w.since >= worthNoting && call.Peer() == nil {
			call.Note("limit", fmt.Sprintf("waited %v for %s", round(now-w.since), l.what))
		}
		return line, now, nil
	}
	waited, c := round(now-w.since), l.queue.class(levelOf(call))
	if o == granted { // the call cannot use the place any more
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

// refusedLocked returns the error of a call for which there was no room. RetryAfter is the time
// that the waiting calls need, or the interval in an overload. It is not set if another endpoint
// may have room.
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

// round rounds a duration for people.
func round(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
