// SPDX-License-Identifier: Apache-2.0

package ordered

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
)

// A Turn is the place of a call in its queue. Its variable fields are guarded by Queues.mu.
type Turn[E, C comparable] struct {
	// Hold is the hold of the last request, or nil. It is released if the server refuses the
	// request when no caller waits for it. The Sender sets it, perhaps while an earlier request of
	// the call ends, so it is not guarded by Queues.mu.
	Hold atomic.Pointer[keyscope.Hold]

	owner   Owner
	method  string      // of the last attempt
	direct  bool        // no goroutine waits for the end of the last attempt
	gaveUp  atomic.Bool // the caller does not wait for the last attempt any more
	resends int         // how often the call was sent to another endpoint after its caller had returned

	queue      *queue[E, C]
	prev, next *Turn[E, C]
	number     uint64
	stood      time.Duration // how long the call has waited to be sent; used by the sender only
	sender     bell          // wakes the goroutine that sends the call
	leaver     bell          // wakes the caller

	state   flightState
	attempt uint64 // how many times the call was allowed to be sent
	landed  bool   // the attempt has ended, perhaps before its sender knows that it was sent
	follows bool   // the attempt uses the connection of the calls before it
	pin     E      // the endpoint to which the call is pinned; nil for none
	oneWay  bool   // no caller waits for its end
	over    bool   // the call need not be sent any more
	lost    bool   // the outcome is unknown: the call may have been executed
	gone    int    // requests in flight that no caller waits for
	kept    bool   // the call is one-way and was sent, so Do may return before the call ends
	back    bool   // a kept call was refused and must be sent again
	known   bool   // its outcome is known
	left    bool   // its caller has the outcome, or is about to get it
	doubted bool   // queue.doubts counts it

	async    bool        // the owner gets the outcome by Conclude
	err      error       // of the last attempt
	ended    error       // of the call
	nextTell *Turn[E, C] // in queue.tell
}

// A flightState is the state of an attempt.
type flightState uint8

const (
	resting flightState = iota // there is no attempt
	waiting                    // it waits for the calls before it
	sending                    // it may be sent
	flying                     // it was sent
)

// A bell wakes a goroutine so that it checks its condition again. It is guarded by Queues.mu, and
// nil until a goroutine waits.
type bell chan struct{}

func (b bell) ring() {
	if b == nil {
		return
	}
	select {
	case b <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// waitLocked waits for b, the end of ctx, late or closing. It reports whether b has woken it, and
// returns the cause of ctx if ctx has. It unlocks o.mu while it waits and calls methods of ctx,
// which may be user code.
func (o *Queues[E, C]) waitLocked(ctx context.Context, b *bell, late <-chan time.Time, closing <-chan struct{}) (rang bool, ended error) {
	if *b == nil {
		*b = make(bell, 1)
	}
	heard := *b
	o.mu.Unlock()
	defer o.mu.Lock()
	select {
	case <-heard:
		return true, nil
	case <-ctx.Done():
	case <-late:
	case <-closing:
	}
	return false, context.Cause(ctx)
}

// Await waits until an attempt may be sent. If the attempt must go to the same endpoint as the
// earlier calls of the queue, Await returns that endpoint. Otherwise it returns no endpoint, and
// the attempt may go to any endpoint. The errors name method.
func (t *Turn[E, C]) Await(ctx context.Context, method string, deadline time.Time, pin E) (E, error) {
	var noEndpoint E
	q := t.queue
	o := q.of
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		if t.state == waiting { // also if ctx panics
			t.stopLocked()
		}
	}()
	if t.state == sending { // endpoint middleware did not send the previous attempt
		t.restLocked(false)
	}
	if t.state != resting {
		return noEndpoint, t.fault(method, inFlight)
	}
	t.method, t.state, t.pin = method, waiting, pin
	if !t.known { // middleware may repeat even a successful call
		t.over = false
		q.backTo(t)
	}
	q.step()
	var late <-chan time.Time
	for t.state == waiting {
		if why := q.barred(t); why != "" {
			return noEndpoint, t.fault(method, why)
		}
		if late == nil && !deadline.IsZero() {
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			late = timer.C
		}
		began := time.Now()
		rang, ended := o.waitLocked(ctx, &t.sender, late, o.Closing)
		if t.stood += time.Since(began); rang || t.state != waiting {
			continue
		}
		switch {
		case ended != nil:
			return noEndpoint, tooLate(ended, t.stood, q.key)
		case !deadline.IsZero() && !time.Now().Before(deadline):
			return noEndpoint, tooLate(mux.ErrDeadline, t.stood, q.key)
		default:
			return noEndpoint, &mux.CallError{Cause: mux.ErrClosed, NotProcessed: true}
		}
	}
	if t.follows {
		return q.ep, nil
	}
	return noEndpoint, nil // the attempt may go to any endpoint
}

// inFlight is the text of the fault of a call that would be sent twice at once.
const inFlight = "it is in flight, and ordered calls are not sent twice at once (key %.60q)"

// fault returns the fault of a call that is not sent. The format has the key.
func (t *Turn[E, C]) fault(method, format string) error {
	return fault.Of(catalogue.OrderInterrupted, method, format, t.queue.key).NotProcessed()
}

// tooLate returns the error of a call that stood in the queue of its key until cause ended it.
func tooLate(cause error, stood time.Duration, key string) error {
	if stood < time.Millisecond { // the call's time was over before it waited
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	return reason.TooLate(cause, catalogue.TurnTooLate, " after %v of waiting for the calls before it with the key %.40q", reason.Rounded(stood), key)
}

// Stood returns how long the call has waited to be sent. Only the goroutine that sends the call may
// call Stood.
func (t *Turn[E, C]) Stood() time.Duration { return t.stood }

// Follows reports whether the attempt uses the connection of the earlier calls of the queue.
func (t *Turn[E, C]) Follows() bool {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	return t.follows
}

// Endpoint returns the endpoint of the epoch. The endpoint does not change while the call may be
// sent.
func (t *Turn[E, C]) Endpoint() E {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	return t.queue.ep
}

// MayRepeat reports whether a failed call may be sent again, so that no later call has been
// executed before it.
func (t *Turn[E, C]) MayRepeat(notProcessed bool) bool {
	q := t.queue
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	overtaken := !notProcessed && q.flights > 0 && q.sent > t.number // later calls were probably executed
	return !overtaken && q.barred(t) == ""
}

// stopLocked ends the wait for an attempt that will not be sent.
func (t *Turn[E, C]) stopLocked() {
	t.state = resting
	t.removeLocked()
}

func (t *Turn[E, C]) restLocked(usable bool) {
	t.state = resting
	t.queue.flights--
	if !usable {
		t.queue.open = false
	}
}

// knowLocked records that the outcome of a call is known, so that the call is not sent any more.
func (t *Turn[E, C]) knowLocked() {
	q := t.queue
	if !t.kept {
		t.over = true
		switch t.state {
		case resting:
		case sending:
			t.restLocked(false)
		case flying: // middleware no longer waits for the attempt
			t.state = resting
			t.gone++
		case waiting:
			t.sender.ring()
		}
	}
	t.known = true
	if t.lost {
		q.sever(t)
	}
	q.forward()
	q.step()
	for q.unknown != nil && q.unknown.known {
		other := q.unknown
		q.unknown = other.next
		switch {
		case other.left:
		case other.async:
			q.tellLocked(other)
		default:
			other.leaver.ring()
		}
	}
}

// Leave ends a synchronous call. It waits until all calls before it have outcomes, unless its
// caller cannot wait any longer. It does not wait for callbacks, because a callback may wait for
// this call.
func (t *Turn[E, C]) Leave(ctx context.Context, deadline time.Time, gaveUp bool) {
	q := t.queue
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	t.knowLocked()
	defer func() { // also if ctx panics
		t.tellLocked()
		if q.tell != nil && !q.telling {
			go q.deliver()
		}
		t.removeLocked()
	}()
	var late <-chan time.Time
	for !gaveUp && q.unknown != nil && q.unknown.number < t.number {
		if late == nil && !deadline.IsZero() {
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			late = timer.C
		}
		if rang, _ := q.of.waitLocked(ctx, &t.leaver, late, nil); !rang {
			break
		}
	}
}

// Finish ends an asynchronous call with err. Its Conclude runs after those of the earlier calls. If
// the caller has stopped waiting, Conclude runs at once.
func (t *Turn[E, C]) Finish(err error, gaveUp bool) {
	q := t.queue
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	t.ended = err
	t.finishLocked(gaveUp)
}

func (t *Turn[E, C]) finishLocked(gaveUp bool) {
	t.left = gaveUp
	t.knowLocked()
	if gaveUp {
		t.removeLocked()
		t.concludeUnlocked()
	}
	t.queue.deliverLocked()
}

// tellLocked records that the caller is about to get the outcome.
func (t *Turn[E, C]) tellLocked() {
	t.left = true
	if t.doubted {
		t.doubted = false
		t.queue.doubts--
	}
}

// removeLocked removes a call from its queue if it has ended completely.
func (t *Turn[E, C]) removeLocked() {
	if !t.left || t.gone > 0 || t.back || t.state != resting {
		return
	}
	q := t.queue
	if t.prev == nil {
		q.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		q.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	q.closeLocked()
}

// concludeUnlocked unlocks Queues.mu while it calls Conclude for t.
func (t *Turn[E, C]) concludeUnlocked() {
	o := t.queue.of
	o.mu.Unlock()
	defer o.mu.Lock()
	t.owner.Conclude(t.ended)
}
