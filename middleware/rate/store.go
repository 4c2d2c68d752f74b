// SPDX-License-Identifier: Apache-2.0

package rate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Store counts the calls of several processes. It must be safe for concurrent use. Package
// ratetest has its tests.
type Store interface {
	// Take takes up to n calls out of the bucket of key, which holds burst calls and is filled with
	// perSecond calls a second. It returns how many calls it took. If it took none, it also returns
	// when the next call is available. Take ends with ctx, which has a deadline.
	Take(ctx context.Context, key string, n int, perSecond float64, burst int) (got int, after time.Duration, err error)
}

// A Memory is a Store in this process. It is for tests, and for limiters that share their counts.
type Memory struct{ keys *table }

// NewMemory returns a store for this many keys at a time. Default 16,384.
func NewMemory(keys int) *Memory {
	if keys <= 0 {
		keys = 16 << 10
	}
	return &Memory{newTable(keys)}
}

// Take implements Store.
func (m *Memory) Take(ctx context.Context, key string, n int, perSecond float64, burst int) (got int, after time.Duration, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	interval, whole, _ := emission(perSecond, burst)
	b, now := m.keys.get(&Key{Name: key}), since(time.Now())
	if got := b.takeSome(now, interval, whole, int64(n)); got > 0 {
		return int(got), 0, nil
	}
	return 0, max(time.Duration(b.wait(now, interval, whole, 0)), 1), nil
}

// spend uses a call that the store has admitted before, unless other calls wait for one.
func (b *bucket) spend(now int64) bool { return b.waiting.Load() == 0 && b.spendTurn(now) }

func (b *bucket) spendTurn(now int64) bool {
	for {
		n := b.spare.Load()
		if n <= 0 {
			return false
		}
		if b.spare.CompareAndSwap(n, n-1) {
			b.touch(now)
			return true
		}
	}
}

// touch marks a bucket as recently used.
func (b *bucket) touch(now int64) {
	if full := b.full.Load(); full < now {
		b.full.CompareAndSwap(full, now)
	}
}

// ask asks the store whether a call may pass. For each key, one call at a time asks the store for
// several calls, and the other calls wait for the answer.
func (l *limiter) ask(ctx context.Context, call *yodel.Call, b *bucket, key *Key) error {
	now := time.Now()
	if !l.counts.isAway(now) {
		ahead := int64(b.waiting.Add(1)) - 1
		answered, err := l.line(ctx, call, b, key, now, ahead)
		b.waiting.Add(-1)
		if answered || err != nil {
			return err
		}
	}
	return l.alone(ctx, call, b, key)
}

// line waits for the call's turn and then asks the store. It reports whether the store answered.
func (l *limiter) line(ctx context.Context, call *yodel.Call, b *bucket, key *Key, began time.Time, ahead int64) (answered bool, err error) {
	until := l.until(ctx, call, began)
	if wait := b.empty.Load() - since(began); wait > 0 && since(began)+wait+ahead*l.interval > since(until) {
		return true, l.refused(call, key, time.Duration(wait+ahead*l.interval))
	}
	patience := until.Add(2 * l.Timeout) // time for the call that is asking the store now, and for this one
	if !call.Deadline.IsZero() && call.Deadline.Before(patience) {
		patience = call.Deadline
	}
	if !b.enter(ctx, patience) {
		return true, l.left(ctx, call, key)
	}
	defer b.leave()
	for {
		now := time.Now()
		if b.spendTurn(since(now)) {
			return true, nil
		}
		if l.counts.isAway(now) {
			return false, nil
		}
		if wait := b.empty.Load() - since(now); wait > 0 {
			if since(now)+wait > since(until) {
				return true, l.refused(call, key, time.Duration(wait))
			}
			if err := pause(ctx, call, time.Duration(wait)); err != nil {
				return true, err
			}
			call.Note("rate", fmt.Sprintf("waited %v", time.Duration(wait).Round(time.Microsecond)))
		}
		if err := l.fetch(ctx, b, key); err != nil {
			if ctx.Err() != nil {
				return true, ended(ctx, call)
			}
			return false, nil
		}
	}
}

// isAway reports whether the store has failed recently.
func (c *counts) isAway(now time.Time) bool {
	until := c.away.Load()
	return until != 0 && since(now) < until
}

// fetch sends one request to the store.
func (l *limiter) fetch(ctx context.Context, b *bucket, key *Key) error {
	asking, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	got, after, err := l.Store.Take(asking, l.stored+"|"+key.String(), l.Batch, l.PerSecond, l.Burst)
	now := since(time.Now())
	if err != nil {
		if ctx.Err() != nil { // the caller gave up
			return err
		}
		if l.counts.away.Swap(now+int64(time.Second)) == 0 {
			cmp.Or(l.Logger, slog.Default()).WarnContext(ctx, "the store of a rate limit does not answer", "limit", l.Name, "perSecond", l.PerSecond, "strict", l.Strict, "err", err)
		}
		return err
	}
	if l.counts.away.Swap(0) != 0 {
		cmp.Or(l.Logger, slog.Default()).InfoContext(ctx, "the store of a rate limit answers again", "limit", l.Name)
	}
	b.touch(now)
	if got > 0 {
		b.spare.Add(int64(got))
	} else {
		b.empty.Store(now + max(int64(after), 1))
	}
	return nil
}

// alone decides without the store whether a call may pass.
func (l *limiter) alone(ctx context.Context, call *yodel.Call, b *bucket, key *Key) error {
	if l.Strict {
		call.Note("rate", "refused: the store of the limit does not answer")
		return &yodel.Error{
			Code: yodel.Unavailable, ID: "YDL3302", NotProcessed: true, RetryAfter: time.Second,
			Message: call.Method + ": the store of the rate limit does not answer",
		}
	}
	call.Note("rate", "the store of the limit does not answer; counted by this process alone")
	if b.waiting.Load() == 0 && b.take(since(time.Now()), l.interval, l.burst) {
		return nil
	}
	return l.late(ctx, call, b, key)
}
