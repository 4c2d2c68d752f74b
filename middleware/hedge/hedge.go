// SPDX-License-Identifier: Apache-2.0

// Package hedge sends a second request for a slow call to another endpoint: the backup request of
// "The Tail at Scale" (Dean and Barroso, 2013). It reduces tail latency. The first good answer
// wins.
//
//	hedge.After(20 * time.Millisecond)   after a fixed time
//	hedge.Percentile(99)                 when it takes longer than 99 % of the last calls of the method did
//
// It belongs on the client, below timeout and above retry, so that each of the two attempts is
// retried by itself. A slow first attempt is then hedged even while it waits for a retry. On a
// server it does nothing.
//
// Only calls that may be executed twice are hedged: idempotent calls, calls of methods that are
// declared idempotent, and calls whose idempotency key is remembered in a store that another
// endpoint shares. The latter are hedged to such an endpoint. One-way, ordered and pinned calls,
// and streams, are never hedged. No call is hedged while no endpoint is ready. With a single
// endpoint the middleware costs almost nothing and learns nothing.
//
// A good answer is an answer without an error. If one attempt fails while the other is in flight,
// the call waits for the other. If both fail, the call fails with the error of the first. If the
// first attempt fails before the second begins, the call ends: retrying is the task of package
// retry. The losing attempt is canceled, and the client tells its server so. It has ended when the
// call returns.
//
// The extra load is bounded, so that an overloaded service does not get twice the load. Hedges may
// be a share of the client's attempts, and a few more (see yodel.Client.Afford). A hedge also uses
// the budget of the call tree (yodel.Attempts.Take). The record of a call says that it was hedged,
// or why a slow call was not.
package hedge

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes how calls are hedged. The zero value has sensible defaults.
type Options struct {
	// After is how long the first attempt runs alone. Default 0: Percentile decides.
	After time.Duration
	// Percentile is the percentile of the method's recent durations after which the second attempt
	// begins, more than 0 and less than 100. It is learned for each method, from its hundredth call
	// on. A lower percentile hedges more calls: 95, as in the paper, hedges one call in twenty.
	// That helps more if several percent of the calls are slow on all endpoints. Default 99.
	Percentile float64
	// AtLeast is the least time that the first attempt runs alone, even if the learned time is
	// shorter. Default 1 ms.
	AtLeast time.Duration
	// Share is the share of the client's attempts that may be hedges. 1 or more means no bound.
	// Default 0.05.
	Share float64
	// Reserve is how many hedges a client may make regardless of its traffic. One of them is
	// refilled each second. Default 10.
	Reserve int
}

// After makes a second attempt when the first one has taken d. If d is not positive, it hedges
// nothing.
func After(d time.Duration) yodel.Middleware {
	if d <= 0 {
		return func(next yodel.Handler) yodel.Handler { return next }
	}
	return With(&Options{After: d})
}

// Percentile makes a second attempt when the first one takes longer than p percent of the recent
// calls.
func Percentile(p float64) yodel.Middleware { return With(&Options{Percentile: p}) }

// With hedges calls as o says. Nil means the default Options.
func With(o *Options) yodel.Middleware {
	var opts Options
	if o != nil {
		opts = *o
	}
	if !(opts.Percentile > 0 && opts.Percentile < 100) { // nor NaN
		opts.Percentile = 99
	}
	if opts.AtLeast <= 0 {
		opts.AtLeast = time.Millisecond
	}
	if !(opts.Share > 0) {
		opts.Share = 0.05
	}
	if opts.Reserve <= 0 {
		opts.Reserve = 10
	}
	return func(next yodel.Handler) yodel.Handler {
		h := &hedger{Options: opts, next: next}
		h.races.New = func() any { return h.newRace() }
		return h.do
	}
}

type hedger struct {
	Options

	next  yodel.Handler
	races sync.Pool // of *race
	known methods
}

func (h *hedger) do(ctx context.Context, call *yodel.Call) error {
	if c := call.Client(); c == nil || call.Attempts().NoRepeat(nil) != "" || !c.Several() {
		return h.next(ctx, call)
	}
	if h.After > 0 {
		_, err := h.hedge(ctx, call, h.After)
		return err
	}
	l := h.known.of(call)
	delay := l.delay.Load()
	if !l.measures(delay) {
		_, err := h.hedge(ctx, call, max(delay, h.AtLeast))
		return err
	}
	began, slow := call.Now(), false
	var err error
	if delay == 0 {
		err = h.next(ctx, call)
	} else {
		slow, err = h.hedge(ctx, call, max(delay, h.AtLeast))
	}
	if err == nil || slow { // a call that failed fast says nothing about the usual duration
		l.add(time.Since(began), h.Percentile)
	}
	return err
}

// hedge makes a call whose first attempt runs alone for delay. slow reports whether the attempt
// took longer.
func (h *hedger) hedge(ctx context.Context, call *yodel.Call, delay time.Duration) (slow bool, err error) {
	if !call.Attempts().Forkable() {
		return false, h.next(ctx, call)
	}
	r := h.races.Get().(*race) //nolint:forcetypeassert // the pool holds nothing else
	defer r.end()              // also when it panics
	r.ctx, r.call = ctx, call
	r.first = r.leg()
	r.timer.Reset(delay)
	err = h.next(r.first, call) //nolint:contextcheck // it is around ctx
	r.over.Store(true)
	if r.timer.Stop() {
		r.joined = true
		return false, err
	}
	return true, r.settle(err)
}
