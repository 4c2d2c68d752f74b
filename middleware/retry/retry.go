// SPDX-License-Identifier: Apache-2.0

// Package retry sends a failed call again: failover, failtry, failback. And it has the balancer
// that balances nothing.
//
//	retry.Times(3)     up to three attempts, each on an endpoint not tried yet while there is one
//	retry.Same(3)      up to three attempts on the same endpoint, reconnecting
//	retry.Later(nil)   answer the caller, and try again in the background
//	retry.Any          a Balancer: always the first endpoint that is healthy
//
// It belongs on the client, above the balancer, so that each attempt can go to an endpoint that was
// not tried; below timeout, so that the attempts share one deadline; and below what should see a
// call once. On a server it does nothing: the client knows whether there is time left, and the
// other endpoints.
//
// A call is sent again only when that can do no harm: when it was certainly not executed, when its
// method is declared idempotent, or where its idempotency key is remembered (see
// yodel.Call.MayRepeat). With a key that only one process remembers, all further attempts go to
// that process. A call that is not sent again says why, in its error and in its record. And only
// when another attempt can have another outcome:
//
//	Unavailable        always
//	ResourceExhausted  when it was not executed: a limit. Not when the message itself is too large (YDL22…)
//	DeadlineExceeded   when only the attempt's time ran out, and the caller has some left
//	every other code   never. Aborted too: the caller has to begin the whole transaction again
//
// Between attempts it waits, longer each time, by a random share so that many clients do not come
// back at once, and not before the server wants it back (yodel.Error.RetryAfter). It gives up when
// the wait would not end before the deadline, when the server asks for more patience than
// MaxBackoff, and when the caller's context ends. A one-way call that was queued for sending has
// succeeded, and is not sent again.
//
// Two budgets keep retries from making a bad day worse. The client's: a share of its traffic may be
// retries, and a few more so that a quiet client can retry, as in Finagle's retry budget (see
// yodel.Client.Afford). And the call tree's: a call that has none gets Times as its Call.Budget,
// which the calls made to carry it out share, so that three tiers with three attempts each are not
// 27 of the last one. A call that is refused another attempt fails with the error of the last one;
// its record says so.
//
// What the client sends elsewhere by itself, because no server has begun with it, is no attempt
// here. The error has the record of all of them (see yodel.CallReport).
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
	// Backoff is the longest wait before the second attempt. It doubles with each one. The wait is
	// a random share of it; with Same half of it at least, for the endpoint to be connected to
	// again. Default 50 ms, with Same 100 ms.
	Backoff time.Duration
	// MaxBackoff is the longest wait of all. Default 2 s.
	MaxBackoff time.Duration
	// Same makes all attempts go to the endpoint of the first one. Default false: each goes to one
	// that was not tried, while there is one.
	Same bool
	// Share is how many of the client's attempts may be retries; 1 or more is no bound. Default
	// 0.1.
	Share float64
	// Reserve is how many retries a client may make whatever its traffic is. One of them comes back
	// each second. Default 10.
	Reserve int
}

// The defaults of a client's budget.
const (
	share   = 0.1
	reserve = 10
)

// Times gives each call up to n attempts in all: failover. Of a method that makes calls of its own,
// an attempt to which no reply comes takes with it what it was given of the call tree's attempts,
// all but one, because servers further down may be using them: such a call is not sent a third time
// when two of its attempts end without a word.
func Times(n int) yodel.Middleware { return With(&Options{Times: max(n, 1)}) }

// Same gives each call up to n attempts in all on the endpoint that the balancer picked for the
// first one, which connects again in between if it has to: failtry. It is for servers that have
// what no other one has.
func Same(n int) yodel.Middleware { return With(&Options{Times: max(n, 1), Same: true}) }

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
		if opts.Same {
			opts.Backoff *= 2
		}
	}
	if opts.MaxBackoff <= 0 {
		opts.MaxBackoff = 2 * time.Second
	}
	opts.MaxBackoff = min(opts.MaxBackoff, forever)
	if !(opts.Share > 0) { // nor NaN
		opts.Share = share
	}
	if opts.Reserve <= 0 {
		opts.Reserve = reserve
	}
	return func(next yodel.Handler) yodel.Handler {
		o := &retrier{opts, next}
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Budget != 0 || o.Same || call.Peer() != nil {
				return o.other(ctx, call)
			}
			call.Budget = o.Times
			err := o.next(ctx, call)
			if err != nil {
				err = o.again(ctx, call, err)
			}
			call.Budget = 0 // the call may be used for another one
			return err
		}
	}
}

type retrier struct {
	Options

	next yodel.Handler
}

// other is for what is less usual than a call of a client that may go anywhere and has no budget
// yet.
func (o *retrier) other(ctx context.Context, call *yodel.Call) error {
	if call.Peer() != nil {
		return o.next(ctx, call)
	}
	if o.Same {
		call.Stay()
	}
	before := call.Budget
	if before == 0 {
		call.Budget = o.Times
	}
	err := o.next(ctx, call)
	if err != nil {
		err = o.again(ctx, call, err)
	}
	call.Budget = before
	return err
}

// again makes the attempts after the first one, which failed with err.
func (o *retrier) again(ctx context.Context, call *yodel.Call, err error) error {
	executed, last := o.attempts(ctx, call, err)
	if executed && yodel.NotProcessed(last) {
		return doubtful(last)
	}
	return last
}

// attempts is again, and reports whether an attempt before the last one may have been executed.
func (o *retrier) attempts(ctx context.Context, call *yodel.Call, err error) (executed bool, last error) {
	longest := min(o.Backoff, o.MaxBackoff)
	for attempt := 1; attempt < o.Times && transient(err); attempt++ {
		if why := call.NoRepeat(err); why != "" {
			return executed, declined(call, err, why)
		}
		if call.Endpoint != nil && !o.Same {
			call.Avoid(call.Endpoint)
		}
		wait := rand.N(longest)
		if o.Same {
			wait = (longest + wait) / 2
		}
		if after := retryAfter(err); after > o.MaxBackoff {
			call.Note("retry", fmt.Sprintf("no attempt %d: the server asks for %v of patience", attempt+1, after))
			return executed, err
		} else if after > 0 {
			wait += after
		}
		if deadline, ok := deadlineOf(ctx, call); ok && time.Until(deadline) <= wait {
			call.Note("retry", fmt.Sprintf("no attempt %d: the deadline would have passed after a wait of %v", attempt+1, wait))
			return executed, err
		}
		if !o.allowed(call, attempt) {
			return executed, err
		}
		call.Note("retry", fmt.Sprintf("waited %v before attempt %d", wait, attempt+1))
		if pause(ctx, wait) != nil {
			return executed, abandoned(ctx, call, err)
		}
		executed = executed || !yodel.NotProcessed(err)
		before := err
		if err = o.next(ctx, call); err == nil {
			return executed, nil
		}
		if e, ok := err.(*yodel.Error); ok && e.NotRepeated() { //nolint:errorlint // one that is wrapped belongs to who wrapped it
			return executed, declined(call, before, call.NoRepeat(err))
		}
		longest = min(2*longest, o.MaxBackoff)
	}
	return executed, err
}

// declined is err, of a call that is not sent again, with the reason.
func declined(call *yodel.Call, err error, why string) error {
	call.Note("retry", "not sent again: "+why)
	e, ok := err.(*yodel.Error) //nolint:errorlint // one that is wrapped belongs to who wrapped it
	if !ok {
		return err
	}
	own := *e
	own.Message, own.Cause = e.Message+"; not sent again: "+why, err
	return &own
}

// doubtful is err, which says that it was not executed, of a call that was sent before: what is
// between here and the balancer may have refused the last attempt. The balancer knows of the others
// itself.
func doubtful(err error) error {
	e, _ := errors.AsType[*yodel.Error](err) // there is one, which says so
	own := *e
	own.NotProcessed, own.Cause = false, err
	return &own
}

// allowed takes leave for one more attempt, of the call tree first: what the client does not have
// it should not spend.
func (o *retrier) allowed(call *yodel.Call, attempt int) bool {
	if !call.Again() {
		call.Note("retry", fmt.Sprintf("no attempt %d: the attempts of the call tree are used up", attempt+1))
		return false
	}
	if c := call.Client(); c != nil && o.Share < 1 && !c.Afford(budget, o.Share, o.Reserve) {
		call.Note("retry", fmt.Sprintf("no attempt %d: the client's share for retries is used up", attempt+1))
		return false
	}
	return true
}

// budget is whose name a client's budget is kept under.
const budget = "retry"

// retryAfter returns how long the server does not want to be called again.
func retryAfter(err error) time.Duration {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok {
		return 0
	}
	return e.RetryAfter
}

// worthwhile reports whether a call that failed with err may be sent again, and another attempt can
// have another outcome.
func worthwhile(call *yodel.Call, err error) bool { return transient(err) && call.MayRepeat(err) }

// transient reports whether another attempt can have another outcome than err.
func transient(err error) bool {
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded:
		return true
	case yodel.ResourceExhausted:
		e, ok := errors.AsType[*yodel.Error](err)
		return ok && e.NotProcessed && !e.AboutMessage()
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
		if final.NotProcessed {
			final.ID = "YDL1005"
		}
	}
	final.Message = fmt.Sprintf("%s: the caller did not wait for another attempt; the last one: %s",
		call.Method, strings.TrimPrefix(final.Message, call.Method+": "))
	final.Cause = errors.Join(context.Cause(ctx), err)
	return &final
}
