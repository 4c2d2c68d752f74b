// SPDX-License-Identifier: Apache-2.0

// Package retry sends a failed call again, to another endpoint while there is one.
//
// It belongs on the client, above the balancer, so that each attempt can go to an endpoint that was not
// tried; below timeout, so that the attempts share one deadline; and below what should see a call once. On a server
// it does nothing: the client knows whether there is time left, and the other endpoints.
//
// A call is sent again only when that can do no harm: when it was certainly not executed, or its method
// is declared idempotent (see yodel.Call.MayRepeat). And only when another attempt can have another outcome:
//
//	Unavailable        always
//	ResourceExhausted  when it was not executed: a limit. Not when the message itself is too large (YDL22…)
//	DeadlineExceeded   when only the attempt's time ran out, and the caller has some left
//	every other code   never. Aborted too: the caller has to begin the whole transaction again
//
// Between attempts it waits, longer each time, by a random share so that many clients do not
// come back at once. It gives up when the wait would not end before the deadline, and when the caller's context
// ends. A one-way call that was queued for sending has succeeded, and is not sent again.
//
// What the client sends elsewhere by itself, because no server has begun with it, is no attempt here. The
// error has the record of all of them (see yodel.CallReport).
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes how calls are sent again. The zero value is a good choice.
type Options struct {
	// Times is how many attempts a call gets in all. Default 3.
	Times int
	// Backoff is the longest wait before the second attempt. It doubles with each one. The wait is a random share
	// of it. Default 50 ms.
	Backoff time.Duration
	// MaxBackoff is the longest wait of all. Default 2 s.
	MaxBackoff time.Duration
}

// Times gives each call up to n attempts in all.
func Times(n int) yodel.Middleware { return With(&Options{Times: max(n, 1)}) }

// With gives each call several attempts as o says; nil is the default.
func With(o *Options) yodel.Middleware {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Times <= 0 {
		opts.Times = 3
	}
	if opts.Backoff <= 0 {
		opts.Backoff = 50 * time.Millisecond
	}
	if opts.MaxBackoff <= 0 {
		opts.MaxBackoff = 2 * time.Second
	}
	return func(next yodel.Handler) yodel.Handler {
		o := &retrier{opts, next}
		return func(ctx context.Context, call *yodel.Call) error {
			err := o.next(ctx, call)
			if err == nil || call.Peer() != nil {
				return err
			}
			return o.again(ctx, call, err)
		}
	}
}

type retrier struct {
	Options

	next yodel.Handler
}

// again makes the attempts after the first one, which failed with err.
func (o *retrier) again(ctx context.Context, call *yodel.Call, err error) error {
	longest := min(o.Backoff, o.MaxBackoff)
	for attempt := 1; attempt < o.Times && worthwhile(call, err); attempt++ {
		if call.Endpoint != nil {
			call.Avoid(call.Endpoint)
		}
		wait := rand.N(longest)
		if deadline, ok := deadlineOf(ctx, call); ok && time.Until(deadline) <= wait {
			return err
		}
		if pause(ctx, wait) != nil {
			return abandoned(ctx, call, err)
		}
		if err = o.next(ctx, call); err == nil {
			return nil
		}
		longest = min(2*longest, o.MaxBackoff)
	}
	return err
}

// worthwhile reports whether a call that failed with err may be sent again, and another attempt can have another
// outcome.
func worthwhile(call *yodel.Call, err error) bool {
	if !call.MayRepeat(err) {
		return false
	}
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded:
		return true
	case yodel.ResourceExhausted:
		e, ok := errors.AsType[*yodel.Error](err)
		return ok && e.NotProcessed && !strings.HasPrefix(e.ID, "YDL22") // which are about the message
	default:
		return false
	}
}

// deadlineOf returns when the call ends at the latest.
func deadlineOf(ctx context.Context, call *yodel.Call) (deadline time.Time, ok bool) {
	deadline, ok = ctx.Deadline()
	if !call.Deadline.IsZero() && (!ok || call.Deadline.Before(deadline)) {
		return call.Deadline, true
	}
	return deadline, ok
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandoned is err when the caller did not wait for another attempt.
func abandoned(ctx context.Context, call *yodel.Call, err error) error {
	final := yodel.Error{Message: err.Error()}
	if last, ok := errors.AsType[*yodel.Error](err); ok {
		final = *last
	}
	final.Code, final.ID = yodel.Canceled, "YDL1006"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		final.Code, final.ID = yodel.DeadlineExceeded, "YDL1004"
	}
	final.Message = fmt.Sprintf("%s: the caller did not wait for another attempt; the last one: %s",
		call.Method, strings.TrimPrefix(final.Message, call.Method+": "))
	final.Cause = errors.Join(context.Cause(ctx), err)
	return &final
}
