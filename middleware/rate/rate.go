// SPDX-License-Identifier: Apache-2.0

// Package rate limits how often calls are made: in all, of each method, of each caller, or by
// whatever a call can be told apart by.
//
//	rate.PerSecond(1000)                                              // all calls together
//	rate.With(&rate.Limit{PerSecond: 10, Burst: 20, By: rate.Tenant}) // each tenant
//	rate.With(&rate.Limit{PerSecond: 50, Wait: time.Second})          // late rather than refused
//	rate.PerEndpoint(&rate.Limit{PerSecond: 100})                     // each server that a client calls
//
// On a server it protects what is behind it. It belongs below authentication, so that strangers
// cannot use up the limit of others, and above what costs anything. Several limits stand one below
// the other: the one for each caller first, so that a call which that refuses does not count for
// all. On a client it keeps to a limit that the other side has, and belongs below retry if each
// attempt shall count, above it if the attempts of a call shall count once. What each single server
// is to be spared is a limit on the endpoint (PerEndpoint). A stream counts once, when it begins.
//
// A refused call fails with ResourceExhausted (YDL3301), was certainly not executed, and says when
// to come back (RetryAfter). With Limit.Wait a call waits for its turn instead, first come, first
// served, if that comes before its deadline; if not, it is refused at once. A caller who gives up
// while it waits uses nothing up.
//
// The algorithm is the generic cell rate algorithm, the token bucket that needs one number (ITU-T
// I.371; "GCRA" also at brandur.org/rate-limiting): the time at which the bucket would be full
// again. It is one atomic word, so that a call that passes takes no lock and no memory.
//
// Keys are what callers say, and somebody may invent them. Limit.MaxKeys of them are known at a
// time, in memory that is allocated once. Which one makes room for a new one: the one whose bucket
// is full, or will be soonest, of a few; when its bucket was full, as it is after a pause, nothing
// is lost, and otherwise it begins afresh. Whoever invents keys gets a burst for each, so a limit
// by something that callers choose needs one for all beside it.
//
// A limit for all servers together has a Store: see Limit.Store, and package middleware/redis.
package rate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Limit is how often calls may be made. One limit is one, however many clients and servers it is
// given to.
type Limit struct {
	// PerSecond is how many calls may be made in a second, for long. It may be less than one. Zero
	// or less is no limit.
	PerSecond float64
	// Burst is how many may be made at once after a pause. Default a tenth of PerSecond, at least
	// 1.
	Burst int
	// By says whose limit a call counts against. Default: there is one for all calls.
	By func(call *yodel.Call) Key
	// Wait is how long a call may wait for its turn. Default 0: it is refused at once.
	Wait time.Duration
	// Exempt are methods that do not count. Default: yodel.Health and yodel.Ping, without which a
	// busy server would look dead.
	Exempt []string
	// MaxKeys is about how many keys are known at a time, up to 16,777,216. Each takes some 100
	// bytes. Default 16,384.
	MaxKeys int
	// Name keeps the counts of a client or server when its chain is built anew, with a limit of the
	// same name, which may have another rate. Default: a new limit begins afresh. It is also what a
	// Store knows the limit by: without a name that is PerSecond and Burst, and two limits of one
	// store that are alike in these are one.
	Name string

	// Store holds the counts of a limit that several processes have together. Default: this process
	// has its own.
	Store Store
	// Batch is how many calls are asked for at once from Store, for the next calls to need no
	// answer from it. Of N processes all together then admit at most N times Batch-1 calls more
	// than the limit in any time. Default a tenth of Burst, at least 1.
	Batch int
	// Timeout is how long Store may take to answer. Default 250 ms.
	Timeout time.Duration
	// Strict refuses calls when Store does not answer, with YDL3302. Default false: each process
	// then has a limit of its own, of the same rate, and logs it once; it asks again after a
	// second.
	Strict bool
	// Logger is told when Store does not answer, and when it does again. Default slog.Default().
	Logger *slog.Logger
}

// PerSecond allows n calls in a second, of all callers and methods together, and refuses more.
func PerSecond(n float64) yodel.Middleware { return With(&Limit{PerSecond: n}) }

// With limits calls as l says; nil is no limit.
func With(l *Limit) yodel.Middleware {
	if l == nil || !(l.PerSecond > 0) { // nor NaN
		return func(next yodel.Handler) yodel.Handler { return next }
	}
	one := newLimiter(l)
	if one.Name == "" {
		one.counts = newCounts(one)
		return one.middleware
	}
	return func(next yodel.Handler) yodel.Handler { // of one client or server
		var mine atomic.Pointer[limiter]
		return func(ctx context.Context, call *yodel.Call) error {
			named := mine.Load()
			if named == nil {
				its := *one
				its.counts = call.State(stateKey{one.Name}, func() any { return newCounts(one) }).(*counts) //nolint:forcetypeassert // it made it
				named = &its
				mine.Store(named)
			}
			return named.do(ctx, call, next)
		}
	}
}

type stateKey struct{ name string }

// PerEndpoint gives each endpoint of a client a limit as l says, for the attempts on it; nil is no
// limit. What is refused on one endpoint retry sends to another one: the error says when to come
// back only if there is none. The counts belong to the endpoint: they stay while a chain is built
// anew with the same PerEndpoint, or one of the same Limit.Name. Of Limit.MaxKeys each endpoint
// knows 1024, if nothing else is said. With a Store, the limit of an endpoint is that of all
// processes together, by what the store knows the limit by and the endpoint's address.
func PerEndpoint(l *Limit) yodel.EndpointMiddleware {
	if l == nil || !(l.PerSecond > 0) { // nor NaN
		return func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler { return next }
	}
	common := *l
	if common.MaxKeys <= 0 {
		common.MaxKeys = 1 << 10
	}
	one := newLimiter(&common)
	key := any(one)
	if l.Name != "" {
		key = stateKey{l.Name}
	}
	return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		its := *one
		its.endpoint = ep
		its.Name += " at " + ep.Addr()
		its.stored += " at " + ep.Addr()
		its.counts = ep.State(key, func() any { return newCounts(one) }).(*counts) //nolint:forcetypeassert // it made it
		return its.middleware(next)
	}
}

// A limiter is a Limit whose numbers can be worked with.
type limiter struct {
	Limit

	interval int64 // between two calls, in nanoseconds
	burst    int64 // of intervals, in nanoseconds
	counts   *counts
	stored   string          // what the store knows it by
	endpoint *yodel.Endpoint // whose limit it is; nil for no endpoint's
}

// Counts are what a limit has counted.
type counts struct {
	all  *bucket      // without keys
	keys *table       // nil for a limit without
	away atomic.Int64 // until when the store is not asked; 0 when it answers
}

func newLimiter(limit *Limit) *limiter {
	l := &limiter{Limit: *limit}
	l.interval, l.burst, l.Burst = emission(l.PerSecond, l.Burst)
	if l.Batch <= 0 {
		l.Batch = l.Burst / 10
	}
	l.Batch = min(max(l.Batch, 1), l.Burst)
	if l.stored = l.Name; l.Name == "" {
		l.stored = fmt.Sprintf("%g/%d", l.PerSecond, l.Burst)
	}
	if l.MaxKeys <= 0 {
		l.MaxKeys = 16 << 10
	}
	if l.Timeout <= 0 {
		l.Timeout = 250 * time.Millisecond
	}
	l.Timeout = min(l.Timeout, longest)
	if l.Logger == nil {
		l.Logger = slog.Default()
	}
	if l.Exempt == nil {
		l.Exempt = []string{"yodel.Health", "yodel.Ping"}
	}
	return l
}

// longest is a year: what is reckoned with it does not overflow.
const longest = time.Duration(1 << 55)

// emission makes a rate the nanoseconds between two calls, and those of a burst, which is corrected
// to what can be had.
func emission(perSecond float64, burst int) (interval, whole int64, calls int) {
	interval = max(int64(min(float64(time.Second)/perSecond, float64(longest))), 1)
	if burst <= 0 {
		burst = int(min(perSecond/10, math.MaxInt32))
	}
	burst = int(min(max(int64(burst), 1), math.MaxInt64/4/interval))
	return interval, int64(burst) * interval, burst
}

func newCounts(l *limiter) *counts {
	c := &counts{all: newBucket(0)} // also for the next limit of this name, which may have no keys
	if l.By != nil {
		c.keys = newTable(l.MaxKeys)
	}
	return c
}

func (l *limiter) middleware(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error { return l.do(ctx, call, next) }
}

func (l *limiter) do(ctx context.Context, call *yodel.Call, next yodel.Handler) error {
	if slices.Contains(l.Exempt, call.Method) {
		return next(ctx, call)
	}
	now := since(call.Now())
	var key Key
	b := l.counts.all
	if l.By != nil {
		key = l.By(call)
		b = l.counts.bucket(&key)
	}
	if l.Store != nil {
		if !b.spend(now) {
			if err := l.ask(ctx, call, b, &key); err != nil {
				return err
			}
		}
	} else if b.waiting.Load() > 0 || !b.take(now, l.interval, l.burst) {
		if err := l.late(ctx, call, b, &key); err != nil {
			return err
		}
	}
	return next(ctx, call)
}

// late decides about a call that could not pass at once.
func (l *limiter) late(ctx context.Context, call *yodel.Call, b *bucket, key *Key) error {
	if l.Wait > 0 {
		return l.queue(ctx, call, b, key)
	}
	now := since(time.Now())
	if b.take(now, l.interval, l.burst) { // it has become possible meanwhile
		return nil
	}
	return l.refused(call, key, time.Duration(b.wait(now, l.interval, l.burst, 0)))
}

// bucket returns the bucket of a key. Counts that were kept under a name may be those of a limit
// without keys.
func (c *counts) bucket(key *Key) *bucket {
	if c.keys == nil {
		return c.all
	}
	return c.keys.get(key)
}

// queue waits for the turn of a call, or refuses it.
func (l *limiter) queue(ctx context.Context, call *yodel.Call, b *bucket, key *Key) error {
	began := time.Now()
	ahead := int64(b.waiting.Add(1)) - 1
	defer b.waiting.Add(-1)
	until := l.until(ctx, call, began)
	if wait := b.wait(since(began), l.interval, l.burst, ahead); since(began)+wait > since(until) {
		return l.refused(call, key, time.Duration(wait))
	}
	if !b.enter(ctx, until) {
		return l.left(ctx, call, key)
	}
	defer b.leave()
	for {
		now := time.Now()
		if b.take(since(now), l.interval, l.burst) {
			if waited := now.Sub(began); waited > 0 {
				call.Note("rate", fmt.Sprintf("waited %v", waited.Round(time.Microsecond)))
			}
			return nil
		}
		wait := b.wait(since(now), l.interval, l.burst, 0)
		if since(now)+wait > since(until) {
			return l.refused(call, key, time.Duration(wait))
		}
		if err := pause(ctx, call, time.Duration(wait)); err != nil {
			return err
		}
	}
}

// until is how long a call may wait: until its deadline at the latest.
func (l *limiter) until(ctx context.Context, call *yodel.Call, now time.Time) time.Time {
	until := now.Add(max(l.Wait, 0))
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	if !call.Deadline.IsZero() && call.Deadline.Before(until) {
		until = call.Deadline
	}
	return until
}

// refused is the error of a call that comes too soon. What keys callers have is nobody's business
// but for the method, the tenant and the address.
func (l *limiter) refused(call *yodel.Call, key *Key, after time.Duration) error {
	after = max(after, time.Microsecond)
	e := &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3301", NotProcessed: true, RetryAfter: after}
	where := ""
	if ep := l.endpoint; ep != nil {
		where = " at " + ep.Addr()
		if ep.Client().Several() {
			e.RetryAfter = 0 // another one may have room
		}
	}
	call.Note("rate", "refused: the limit"+where+" is used up")
	e.Message = fmt.Sprintf("%s: the limit of %.4g calls a second%s%s is used up; come back in %v",
		call.Method, l.PerSecond, key.whose(), where, after.Round(time.Microsecond))
	return e
}

// left is the error of a call that waited in vain.
func (l *limiter) left(ctx context.Context, call *yodel.Call, key *Key) error {
	if ctx.Err() != nil {
		return ended(ctx, call)
	}
	return l.refused(call, key, time.Duration(l.interval))
}

// ended is the error of a call whose caller did not wait any longer.
func ended(ctx context.Context, call *yodel.Call) error {
	e := &yodel.Error{Code: yodel.Canceled, ID: "YDL1006", NotProcessed: true, Cause: context.Cause(ctx)}
	e.Message = call.Method + ": the caller canceled it while it waited for its turn (rate limit)"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.Code, e.ID = yodel.DeadlineExceeded, "YDL1005"
		e.Message = call.Method + ": the deadline passed while it waited for its turn (rate limit)"
	}
	return e
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, call *yodel.Call, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx, call)
	}
}
