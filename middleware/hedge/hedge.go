// SPDX-License-Identifier: Apache-2.0

// Package hedge makes a second attempt of a call elsewhere when the first one is slow: the backup
// request of "The Tail at Scale" (Dean and Barroso, 2013). The first good answer wins.
//
//	hedge.After(20 * time.Millisecond)   after a fixed time
//	hedge.Percentile(99)                 when it takes longer than 99 % of the last calls of the method did
//
// It belongs on the client, below timeout and above retry: then each of the two attempts is
// repeated by itself. Above retry, a slow first attempt is hedged while it waits to be repeated. On
// a server it does nothing.
//
// Only calls are hedged that may be executed twice: those that are idempotent, or whose method is
// declared so, or whose idempotency key is remembered in a memory that another endpoint shares;
// they are hedged there. And of these no one-way, ordered or pinned calls, no streams, and none
// while no endpoint is ready. With a single endpoint it costs next to nothing, and learns nothing.
//
// A good answer is one without an error. When an attempt fails while the other one is under way,
// the call waits for that. When both fail, it has the error of the first. An attempt that fails
// before there is a second one ends the call: to try again is up to retry. Whoever loses is
// cancelled, which its server is told, and has ended when the call returns.
//
// The extra load is bounded, so that a service that is slow because it has too much to do does not
// get twice as much: a share of the client's attempts may be hedges, and a few more (see
// yodel.Client.Afford). A hedge also takes from the attempts of the call tree (yodel.Call.Again).
// The record of a call says that it was hedged, or why it was not although it was slow.
package hedge

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes how calls are hedged. The zero value is a good choice.
type Options struct {
	// After is how long the first attempt has alone. Default 0: as long as Percentile says.
	After time.Duration
	// Percentile is of how many of the last calls of the method, in percent, the first attempt may
	// take the time; more than 0 and less than 100. It is learned for each method, from its
	// hundredth call on. The less, the more calls are made twice: with the 95 of the paper one of
	// twenty, which helps more when a few calls of a hundred are slow everywhere. Default 99.
	Percentile float64
	// AtLeast is how long the first attempt has alone, whatever was learned. Default 1 ms.
	AtLeast time.Duration
	// Share is how many of the client's attempts may be hedges; 1 or more is no bound. Default
	// 0.05.
	Share float64
	// Reserve is how many hedges a client may make whatever its traffic is. One of them comes back
	// each second. Default 10.
	Reserve int
}

// After makes a second attempt when the first one has taken d. A d of zero or less hedges nothing.
func After(d time.Duration) yodel.Middleware {
	if d <= 0 {
		return func(next yodel.Handler) yodel.Handler { return next }
	}
	return With(&Options{After: d})
}

// Percentile makes a second attempt when the first one takes longer than p percent of the last
// calls did.
func Percentile(p float64) yodel.Middleware { return With(&Options{Percentile: p}) }

// With hedges calls as o says; nil is the default.
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
	if c := call.Client(); c == nil || !call.MayRepeat(nil) || !c.Several() {
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
	if err == nil || slow { // what fails fast says nothing
		l.add(time.Since(began), h.Percentile)
	}
	return err
}

// hedge carries out a call whose first attempt has delay alone. Slow says that it took longer.
func (h *hedger) hedge(ctx context.Context, call *yodel.Call, delay time.Duration) (slow bool, err error) {
	if !call.Forkable() {
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
