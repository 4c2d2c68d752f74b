// SPDX-License-Identifier: Apache-2.0

// Package rate limits how often calls are made: all calls together, or those of each method, each
// caller, or any other key.
//
//	rate.PerSecond(1000)                                              // all calls together
//	rate.With(&rate.Limit{PerSecond: 10, Burst: 20, By: rate.User})   // each user
//	rate.With(&rate.Limit{PerSecond: 10, Burst: 20, By: rate.Tenant}) // each tenant
//	rate.With(&rate.Limit{PerSecond: 50, Wait: time.Second})          // late rather than refused
//	rate.PerEndpoint(&rate.Limit{PerSecond: 100})                     // each server that a client calls
//
// On a server it protects what is behind it. Put it below authentication, so that strangers cannot
// use up the limit of others, and above everything that is expensive. Several limits can follow
// each other. Put the limit for each caller first, so that a call that it refuses does not count
// for the limit of all. On a client it respects a limit of the other side. Put it below retry if
// each attempt should count, and above retry if a call should count once. PerEndpoint limits the
// attempts on each server. A stream counts once, when it begins.
//
// A refused call fails with ResourceExhausted (YDL3301). It was certainly not executed, and its
// error says when to come back (RetryAfter). With Limit.Wait a call waits for its turn, in order of
// arrival, if the turn comes before its deadline. Otherwise it is refused at once. A caller that
// gives up while it waits does not use up the limit.
//
// The algorithm is the generic cell rate algorithm, a token bucket that needs a single number: the
// time at which the bucket would be full again (ITU-T I.371; "GCRA" also at
// brandur.org/rate-limiting). The number is one atomic word, so a call that passes takes no lock
// and allocates nothing.
//
// Callers choose keys, and a caller may invent them. A limit knows Limit.MaxKeys keys at a time, in
// memory that is allocated once. A new key replaces, among a few keys, the one whose bucket is full
// or will be full soonest. If that bucket was full, as after a pause, nothing is lost. Otherwise
// the replaced key starts with a full bucket next time. An invented key gets a full burst each
// time, so a limit by a key that callers choose also needs a limit for all.
//
// A limit for several servers together has a Store: see Limit.Store, and package middleware/redis.
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

// A Limit says how often calls may be made. One *Limit is a single limit, even if several clients
// and servers use it.
type Limit struct {
	// PerSecond is the sustained rate in calls per second. It may be less than one. Zero or less
	// means no limit.
	PerSecond float64
	// Burst is how many calls may be made at once after a pause. Default a tenth of PerSecond, at
	// least 1.
	Burst int
	// By returns the key that a call counts for. Default: one limit for all calls.
	By func(ctx context.Context, call *yodel.Call) Key
	// Wait is how long a call may wait for its turn. Default 0: it is refused at once.
	Wait time.Duration
	// Exempt are methods that do not count. Default: yodel.Health and yodel.Ping, so that a busy
	// server does not look dead.
	Exempt []string
	// MaxKeys is approximately how many keys are known at a time, at most 16,777,216. Each takes
	// about 100 bytes. Default 16,384.
	MaxKeys int
	// Name makes the counts survive when the chain of a client or server is built again, with a
	// limit of the same name, which may have another rate. Default: the new limit starts with full
	// buckets. A Store also identifies the limit by Name. Without a name it uses PerSecond and
	// Burst, so two limits of a store with equal values share their counts.
	Name string

	// Store holds the counts of a limit that several processes share. Default: this process has its
	// own counts.
	Store Store
	// Batch is how many calls one request to Store asks for. The following calls then need no
	// request. N processes together admit at most N times (Batch-1) calls more than the limit in
	// any time. Default a tenth of Burst, at least 1.
	Batch int
	// Timeout is how long Store may take to answer. Default 250 ms.
	Timeout time.Duration
	// Strict refuses calls with YDL3302 when Store does not answer. Default false: each process
	// then applies the rate by itself, logs that once, and asks Store again after a second.
	Strict bool
	// Logger logs when Store does not answer, and when it answers again. Default slog.Default().
	Logger *slog.Logger
}

// PerSecond allows n calls per second, of all callers and methods together, and refuses more.
func PerSecond(n float64) yodel.Middleware { return With(&Limit{PerSecond: n}) }

// With limits calls as l says. Nil means no limit.
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

// PerEndpoint limits the attempts on each endpoint of a client as l says. Nil means no limit. Retry
// sends an attempt that is refused on one endpoint to another, because the error says when to come
// back only if there is no other. The counts belong to the endpoint. They survive when the chain is
// built again with the same PerEndpoint, or with the same Limit.Name. Each endpoint knows 1024
// keys, unless Limit.MaxKeys is set. With a Store, all processes share the limit of an endpoint.
// The store identifies it by the name of the limit and the endpoint's address.
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

// A limiter is a Limit with computed values.
type limiter struct {
	Limit

	interval int64 // between two calls, in nanoseconds
	burst    int64 // of intervals, in nanoseconds
	counts   *counts
	stored   string          // the name of the limit in the store
	endpoint *yodel.Endpoint // the endpoint of the limit; nil if there is none
}

// counts are the counts of a limit.
type counts struct {
	all  *bucket      // for a limit without keys
	keys *table       // nil for a limit without keys
	away atomic.Int64 // when the store is asked again; 0 while it answers
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
	if l.Exempt == nil {
		l.Exempt = []string{"yodel.Health", "yodel.Ping"}
	}
	return l
}

// longest is a year: sums with it do not overflow.
const longest = time.Duration(1 << 55)

// emission converts a rate to the nanoseconds between two calls, and a burst to nanoseconds and
// calls. It corrects values that are out of range.
func emission(perSecond float64, burst int) (interval, whole int64, calls int) {
	interval = max(int64(min(float64(time.Second)/perSecond, float64(longest))), 1)
	if burst <= 0 {
		burst = int(min(perSecond/10, math.MaxInt32))
	}
	burst = int(min(max(int64(burst), 1), math.MaxInt64/4/interval))
	return interval, int64(burst) * interval, burst
}

func newCounts(l *limiter) *counts {
	// also needed for the next limit of this name, which may have no keys
	c := &counts{all: newBucket(0)}
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
		key = l.By(ctx, call)
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

// late handles a call that may not pass at once.
func (l *limiter) late(ctx context.Context, call *yodel.Call, b *bucket, key *Key) error {
	if l.Wait > 0 {
		return l.queue(ctx, call, b, key)
	}
	now := since(time.Now())
	if b.take(now, l.interval, l.burst) { // it may pass meanwhile
		return nil
	}
	return l.refused(call, key, time.Duration(b.wait(now, l.interval, l.burst, 0)))
}

// bucket returns the bucket of a key. The counts may come from a limit with the same name and
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

// until returns how long a call may wait, at most until its deadline.
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

// refused returns the error of a call that exceeds the limit. The error shows only the method,
// tenant and address of the key.
func (l *limiter) refused(call *yodel.Call, key *Key, after time.Duration) error {
	after = max(after, time.Microsecond)
	e := &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3301", NotProcessed: true, RetryAfter: after}
	where := ""
	if ep := l.endpoint; ep != nil {
		where = " at " + ep.Addr()
		if ep.Client().Several() {
			e.RetryAfter = 0 // another endpoint may have room
		}
	}
	call.Note("rate", "refused: the limit"+where+" is used up")
	e.Message = fmt.Sprintf("%s: the limit of %.4g calls a second%s%s is used up; come back in %v",
		call.Method, l.PerSecond, key.whose(), where, after.Round(time.Microsecond))
	return e
}

// left returns the error of a call that stopped waiting for its turn.
func (l *limiter) left(ctx context.Context, call *yodel.Call, key *Key) error {
	if ctx.Err() != nil {
		return ended(ctx, call)
	}
	return l.refused(call, key, time.Duration(l.interval))
}

// ended returns the error of a call whose caller stopped waiting.
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
