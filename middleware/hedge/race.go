// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A race is the two attempts of a call. The first runs on the goroutine of the caller, the second
// on another goroutine. A race is reused, but its contexts are not, because other code may keep
// them.
type race struct {
	*hedger

	timer *time.Timer   // runs fire
	done  chan struct{} // capacity 1: fire has returned
	legs  []leg         // not used yet

	ctx    context.Context //nolint:containedctx // the call's
	call   *yodel.Call
	fork   *yodel.Call // nil before fire
	first  *leg
	second atomic.Pointer[leg] // nil before fire
	winner atomic.Uint32
	over   atomic.Bool // whether the first attempt has ended
	joined bool        // whether fire has returned

	err      error // of the second attempt
	made     bool  // whether there was one
	panicked any
}

// These constants say which attempt was the first with a good answer.
const (
	nobody uint32 = iota
	original
	hedged
)

func (h *hedger) newRace() *race {
	r := &race{hedger: h, done: make(chan struct{}, 1)}
	r.timer = time.AfterFunc(time.Hour, r.fire)
	r.timer.Stop()
	return r
}

// fire makes the second attempt.
func (r *race) fire() {
	defer func() {
		if r.panicked = recover(); r.panicked != nil {
			r.first.cancel()
		}
		r.done <- struct{}{} // deferred, because a middleware may end the goroutine
	}()
	second := &leg{Context: r.ctx}
	r.second.Store(second) // before over is read
	if r.over.Load() {
		return
	}
	if r.fork = r.call.Attempts().Fork(); !r.allowed() {
		return
	}
	r.fork.Note("hedge", "a second attempt, because the first is slow")
	r.made, r.err = true, yodel.Internal // in case next does not return
	r.err = r.next(second, r.fork)
	if r.err == nil && r.winner.CompareAndSwap(nobody, hedged) {
		r.first.cancel()
	}
}

// allowed reports whether the client may make the second attempt, and takes it from the budgets.
func (r *race) allowed() bool {
	c := r.call.Client()
	var why string
	switch {
	case !c.Several(): // the other endpoints may have gone
		why = "slow, but no second attempt: there is no other endpoint"
	// If no endpoint is ready, the first attempt waits for one too.
	case !slices.ContainsFunc(c.Endpoints(), (*yodel.Endpoint).Ready):
		why = "slow, but no second attempt: no endpoint is ready"
	case r.fork.Attempts().NoRepeat(nil) != "":
		why = "slow, but no second attempt: " + r.fork.Attempts().NoRepeat(nil)
	case !r.fork.Attempts().Take():
		why = "slow, but no second attempt: those of the call tree are used up"
	case r.Share < 1 && !c.Afford("hedge", r.Share, r.Reserve):
		why = "slow, but no second attempt: the client's share for hedges is used up"
	default:
		return true
	}
	r.fork.Note("hedge", why)
	return false
}

// settle waits for the second attempt after the first one has ended with err. It returns the error
// of the call.
func (r *race) settle(err error) error {
	if second := r.second.Load(); err == nil && r.winner.CompareAndSwap(nobody, original) && second != nil {
		second.cancel()
	}
	<-r.done
	r.joined = true
	switch {
	case r.panicked != nil:
		panic(r.panicked) // on the goroutine of the caller, which may recover
	case r.winner.Load() == hedged:
		return nil
	case r.made && yodel.NotProcessed(err) && !yodel.NotProcessed(r.err):
		return r.err // both failed, and the second attempt may have been executed
	}
	return err
}

// end ends the race after the call, and prepares it for another call.
func (r *race) end() {
	second := r.second.Load()
	if !r.joined { // the first attempt panicked
		r.over.Store(true)
		if second != nil {
			second.cancel()
		}
		if !r.timer.Stop() {
			<-r.done
			second = r.second.Load()
		}
	}
	r.first.end()
	if second != nil {
		second.end()
		r.second.Store(nil)
	}
	cmp.Or(r.fork, r.call).Attempts().Join(r.winner.Load() == hedged)
	r.ctx, r.call, r.fork, r.first = nil, nil, nil, nil
	if r.joined && second == nil { // as in nearly all races
		r.over.Store(false)
		r.joined = false
		r.races.Put(r)
	}
}

// leg returns a context for the first attempt.
func (r *race) leg() *leg {
	if len(r.legs) == 0 {
		r.legs = make([]leg, 16) // a leg is used once; a separate allocation for each would cost more
	}
	l := &r.legs[0]
	r.legs = r.legs[1:]
	l.Context = r.ctx
	return l
}
