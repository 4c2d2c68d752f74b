// SPDX-License-Identifier: Apache-2.0

// Package timeout ends calls that take too long, on the client and on the server.
//
// On a client, put it above retry to give all attempts together one timeout, or below retry to give
// each attempt its own. The time begins when the caller makes the call, and for further attempts
// when they begin: see Call.Now. The middleware only sets Call.Deadline. The connection enforces it
// and sends it to the server, without a timer or an allocation for each call.
//
// After concerns calls without a stream: a feed may be open for days, and the time for a reply says
// nothing about it. Streams is the same for calls with a stream.
//
// On a server it ends the context of the method, and sets Call.Deadline. Put it above everything
// that should count as part of the call. A method that ignores its context runs on, and its reply
// is sent. A method that never waits for its context costs one allocation and no timer.
//
// An earlier deadline of the caller or of the context stays in force.
package timeout

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// After ends calls without a stream after d. If d is not positive, it sets no deadline.
func After(d time.Duration) yodel.Middleware { return limit(d, false) }

// Streams ends calls with a stream after d, even if messages still arrive. If d is not positive, it
// sets no deadline.
func Streams(d time.Duration) yodel.Middleware { return limit(d, true) }

// limit ends either the calls with a stream or those without one.
func limit(d time.Duration, streams bool) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		if d <= 0 {
			return next
		}
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Streams() != streams {
				return next(ctx, call)
			}
			if call.Peer() != nil || !call.Deadline.IsZero() {
				return shorten(ctx, call, d, next)
			}
			call.Deadline = call.Now().Add(d)
			err := next(ctx, call)
			call.Deadline = time.Time{} // the caller may reuse the call
			return err
		}
	}
}

// shorten handles any call except a client call without a deadline.
func shorten(ctx context.Context, call *yodel.Call, d time.Duration, next yodel.Handler) error {
	deadline := call.Now().Add(d)
	if call.Peer() != nil {
		return serve(ctx, call, deadline, next)
	}
	before := call.Deadline
	if deadline.Before(before) {
		call.Deadline = deadline
	}
	err := next(ctx, call)
	call.Deadline = before
	return err
}

// serve calls next with a context that ends at the deadline.
func serve(ctx context.Context, call *yodel.Call, deadline time.Time, next yodel.Handler) error {
	if earlier, ok := ctx.Deadline(); ok && !deadline.Before(earlier) {
		return next(ctx, call)
	}
	call.Deadline = deadline
	b := &bounded{Context: ctx, deadline: deadline}
	defer b.release()
	return next(b, call)
}

// A bounded context is a call's context with a deadline. It creates a context of the standard
// library when a goroutine waits for it. That takes a timer. It also asks the call's own context
// for its Done channel, which moves the call off the reader goroutine, and a short call needs
// neither.
type bounded struct {
	context.Context //nolint:containedctx // it is one, around the call's

	deadline time.Time

	mu     sync.Mutex
	timed  context.Context //nolint:containedctx // the same with a timer; nil until a goroutine waits
	cancel context.CancelFunc
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }
func (b *bounded) Done() <-chan struct{}       { return b.started().Done() }

// AfterFunc lets contexts be derived from this one without a goroutine: see context.AfterFunc.
func (b *bounded) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(b.started(), f) }

func (b *bounded) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timed == nil {
		if err := b.Context.Err(); err != nil || time.Now().Before(b.deadline) {
			return err
		}
	}
	return b.startedLocked().Err()
}

func (b *bounded) started() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.startedLocked()
}

func (b *bounded) startedLocked() context.Context {
	if b.timed == nil {
		b.timed, b.cancel = context.WithDeadline(b.Context, b.deadline)
	}
	return b.timed
}

// release stops the timer when the method has returned.
func (b *bounded) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		b.cancel()
	}
}
