// SPDX-License-Identifier: Apache-2.0

// Package retry sends a failed call again: failover, failtry, failback. It also has a balancer that
// always picks the first healthy endpoint.
//
//	retry.Times(3)        up to three attempts, each on an endpoint not tried yet while there is one
//	retry.Same(3)         up to three attempts on the same endpoint, reconnecting
//	retry.Later(nil)      answer the caller, and try again in the background
//	retry.UntilConnected  wait while no instance can be reached
//	retry.Any             a Balancer: always the first endpoint that is healthy
//
// It belongs on the client, above the balancer, so that each attempt can go to a new endpoint. Put
// it below timeout, so that the attempts share one deadline, and below middleware that should see a
// call once. On a server it does nothing, because only the client knows the remaining time and the
// other endpoints.
//
// A call is sent again only if that is safe: it was certainly not executed, its method is declared
// idempotent, or its idempotency key is remembered (see yodel.Attempts.NoRepeat). If only one
// process remembers the key, all further attempts go to that process. The error and the record of a
// call say why it was not sent again. A call is also sent again only if another attempt can have
// another outcome:
//
//	Unavailable        always
//	ResourceExhausted  when it was not executed: a limit. Not when the message itself is too large (YDL22…)
//	DeadlineExceeded   when only the attempt's time ran out, and the caller has some left
//	every other code   never. Aborted too: the caller has to begin the whole transaction again
//
// Between attempts it waits (back-off). Each wait is longer than the one before, and random, so
// that many clients do not return at once. It also waits as long as the server asks
// (yodel.Error.RetryAfter). It gives up if the wait would not end before the deadline, if the
// server asks for more than MaxBackoff, or if the caller's context ends. A one-way call has
// succeeded once it is queued for sending, and is not sent again.
//
// Two budgets keep retries from overloading a service that is in trouble. The retry budget of the
// client allows a share of its traffic, and a few more so that a quiet client can retry, as in
// Finagle (see yodel.Client.Afford). The budget of the call tree is Call.Budget. A call without one
// gets Times, and shares it with the calls that are made to carry it out. So three tiers with three
// attempts each do not make 27 attempts on the last tier. A call that is refused another attempt
// fails with its last error, and its record says so.
//
// The client itself sends a call elsewhere if a server is unavailable and has not begun to execute
// it. That does not count as an attempt here. The error has the record of all attempts (see
// introspect.CallReport).
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

// Options changes how calls are retried. The zero value has sensible defaults.
type Options struct {
	// Times is how many attempts a call gets in all. Default 3.
	Times int
	// Backoff is the longest wait before the second attempt. It doubles with each attempt. The wait
	// is a random part of it; with Same at least half of it, so that the endpoint can reconnect.
	// Default 50 ms, with Same 100 ms.
	Backoff time.Duration
	// MaxBackoff bounds every wait. Default 2 s.
	MaxBackoff time.Duration
	// Same sends all attempts to the endpoint of the first one. Default false: each attempt goes to
	// an endpoint that was not tried, while there is one.
	Same bool
	// Share is the share of the client's attempts that may be retries. 1 or more means no bound.
	// Default 0.1.
	Share float64
	// Reserve is how many retries a client may make regardless of its traffic. One of them is
	// refilled each second. Default 10.
	Reserve int
}

// Defaults of the client's retry budget.
const (
	share   = 0.1
	reserve = 10
)

// Times gives each call up to n attempts in all: failover. An attempt without a reply keeps the
// part of the call tree's budget that it was sent with, except one token, because servers further
// down may be using it. This concerns methods that make calls of their own. So such a call is not
// sent a third time if two of its attempts end without a reply.
func Times(n int) yodel.Middleware { return With(&Options{Times: max(n, 1)}) }

// Same gives each call up to n attempts on the endpoint that the balancer picked first: failtry.
// The endpoint reconnects between attempts if necessary. It is for servers that have data which no
// other server has.
func Same(n int) yodel.Middleware { return With(&Options{Times: max(n, 1), Same: true}) }

// With retries calls as o says. Nil means the default Options.
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
			call.Budget = 0 // the caller may reuse the call
			return err
		}
	}
}

type retrier struct {
	Options

	next yodel.Handler
}

// other handles any call except a client call that may go anywhere and has no budget yet.
func (o *retrier) other(ctx context.Context, call *yodel.Call) error {
	if call.Peer() != nil {
		return o.next(ctx, call)
	}
	if o.Same {
		call.Attempts().Pin()
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

// attempts makes the attempts for again. executed reports whether an attempt before the last one
// may have been executed.
func (o *retrier) attempts(ctx context.Context, call *yodel.Call, err error) (executed bool, last error) {
	longest := min(o.Backoff, o.MaxBackoff)
	for attempt := 1; attempt < o.Times && transient(err); attempt++ {
		if why := call.Attempts().NoRepeat(err); why != "" {
			return executed, declined(call, err, why)
		}
		if call.Endpoint != nil && !o.Same {
			call.Attempts().Avoid(call.Endpoint)
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
		if e, ok := err.(*yodel.Error); ok && e.NotRepeated() { //nolint:errorlint // a wrapped error belongs to the code that wrapped it
			return executed, declined(call, before, call.Attempts().NoRepeat(err))
		}
		longest = min(2*longest, o.MaxBackoff)
	}
	return executed, err
}

// declined returns the error of a call that is not sent again: err with the reason.
func declined(call *yodel.Call, err error, why string) error {
	call.Note("retry", "not sent again: "+why)
	e, ok := err.(*yodel.Error) //nolint:errorlint // a wrapped error belongs to the code that wrapped it
	if !ok {
		return err
	}
	own := *e
	own.Message, own.Cause = e.Message+"; "+call.Method+" not sent again: "+why, err
	return &own
}

// doubtful returns err without the statement that the call was not executed, because an earlier
// attempt may have been executed. A middleware between this one and the balancer, which does not
// know the earlier attempts, may have refused the last attempt. The balancer knows them.
func doubtful(err error) error {
	e, _ := errors.AsType[*yodel.Error](err) // there is one: it says that the call was not executed
	own := *e
	own.NotProcessed, own.Cause = false, err
	return &own
}

// allowed takes one attempt from the budgets. It asks the call tree first, so that a refusal there
// costs the client nothing.
func (o *retrier) allowed(call *yodel.Call, attempt int) bool {
	if !call.Attempts().Take() {
		call.Note("retry", fmt.Sprintf("no attempt %d: the attempts of the call tree are used up", attempt+1))
		return false
	}
	if c := call.Client(); c != nil && o.Share < 1 && !c.Afford(budget, o.Share, o.Reserve) {
		call.Note("retry", fmt.Sprintf("no attempt %d: the client's share for retries is used up", attempt+1))
		return false
	}
	return true
}

// budget is the name of the client's retry budget.
const budget = "retry"

// retryAfter returns how long the server asks not to be called.
func retryAfter(err error) time.Duration {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok {
		return 0
	}
	return e.RetryAfter
}

// worthwhile reports whether a call that failed with err may be sent again and can have another
// outcome then.
func worthwhile(call *yodel.Call, err error) bool {
	return transient(err) && call.Attempts().NoRepeat(err) == ""
}

// transient reports whether another attempt can have an outcome other than err.
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

// deadlineOf returns the deadline of the call or of ctx, whichever is earlier.
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

// abandoned returns err for a caller that did not wait for another attempt.
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
