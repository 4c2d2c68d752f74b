// SPDX-License-Identifier: Apache-2.0

package ordered

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file makes the attempts of ordered calls, and takes the answers to them.

// A Sender sends the request of a call.
type Sender[E, C any] interface {
	// Connect returns a connection to ep, for an attempt that begins an epoch.
	Connect(ctx context.Context, ep E) (C, error)
	// Send sends the request on conn, which leads to ep. It returns when the request is in the
	// output. To gets the outcome, unless Send returns an error.
	Send(ctx context.Context, ep E, conn C, epoch uint64, to mux.Completer) error
}

// An Owner is the call of a Turn. Its methods run without a lock.
type Owner interface {
	// Land ends an attempt with the answer, or with the error of the connection. It returns the
	// error of the attempt. It may run user code.
	Land(a *mux.Answer, err error) error
	// Resume continues an asynchronous call whose attempt by SendAtOnce has failed. It must not
	// block.
	Resume(err error)
	// Conclude reports the outcome of an asynchronous call to its caller.
	Conclude(err error)
	// Repeat sends a one-way call again that was refused after its caller had returned. It makes
	// one attempt, with Await and Attempt. Elsewhere says that the call should go to another
	// endpoint. If the attempt fails, again reports whether there may be a further one.
	Repeat(elsewhere bool) (again bool, err error)
	// Dropped says that a one-way call failed with err after its caller had returned.
	Dropped(err error)
}

// Attempt makes one attempt on ep, after Await has allowed it, and waits for its end. It does not
// wait for the end of a one-way call. If Attempt is called again without Await, it waits first.
func (t *Turn[E, C]) Attempt(ctx context.Context, s Sender[E, C], method string, deadline time.Time, ep E, oneWay bool) error {
	var noEndpoint E
	may, follows := t.allowed()
	if !may { // endpoint middleware sends it again
		at, err := t.Await(ctx, method, deadline, ep)
		if err != nil {
			return err
		}
		follows = at != noEndpoint
	}
	if !follows {
		conn, err := s.Connect(ctx, ep)
		if err != nil {
			t.Unsent()
			return err
		}
		t.board(ep, conn)
	}
	t.direct = false
	if err := t.send(ctx, s, ep, oneWay); err != nil || oneWay {
		return err
	}
	return t.result() //nolint:contextcheck // if the caller stops waiting, the connection ends the attempt
}

// SendAtOnce makes the first attempt of a call for which EnterAtOnce succeeded. It returns when the
// request is in the output.
func (t *Turn[E, C]) SendAtOnce(ctx context.Context, s Sender[E, C], oneWay bool) error {
	t.direct = true
	return t.send(ctx, s, t.Endpoint(), oneWay)
}

// send sends an attempt that may be sent. It returns when the request is in the output, so that the
// next call can follow.
func (t *Turn[E, C]) send(ctx context.Context, s Sender[E, C], ep E, oneWay bool) error {
	conn, epoch, attempt := t.route(oneWay)
	to := mux.Completer(t)
	if oneWay {
		to = (*leftover[E, C])(t)
	}
	if err := s.Send(ctx, ep, conn, epoch, to); err != nil {
		t.unsent(usable(ctx, err))
		return err
	}
	if t.wasSent(attempt) {
		go t.sendAgain() //nolint:contextcheck,nolintlint // the call outlives the caller's context
	}
	return nil
}

// usable reports whether the connection is still usable after an attempt that was not sent because
// of err.
func usable(ctx context.Context, err error) bool {
	_, ofConn := errors.AsType[*mux.CallError](err)
	return !ofConn || ctx.Err() != nil || errors.Is(err, mux.ErrDeadline) || errors.Is(err, mux.ErrWindow)
}

// allowed reports whether the attempt may be sent now, without waiting, and whether it follows the
// earlier calls.
func (t *Turn[E, C]) allowed() (may, follows bool) {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	return t.state == sending, t.follows
}

// board sets the endpoint and the connection of a new epoch.
func (t *Turn[E, C]) board(ep E, conn C) {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	t.queue.ep, t.queue.conn = ep, conn
}

// route returns the connection, the epoch and the number of an attempt that may be sent.
func (t *Turn[E, C]) route(oneWay bool) (conn C, epoch, attempt uint64) {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	t.oneWay = oneWay
	return t.queue.conn, t.queue.epoch, t.attempt
}

// Unsent says that an attempt that Await has allowed is not sent.
func (t *Turn[E, C]) Unsent() { t.unsent(true) }

// unsent says that an attempt was not sent. Usable says that the connection may still be used.
func (t *Turn[E, C]) unsent(usable bool) {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	if t.state == sending {
		t.restLocked(usable)
	}
}

// wasSent says that an attempt was sent, so that the next call may follow. It reports whether the
// call is one-way, was refused in the meantime, and must be sent again. If another attempt of the
// call has begun in the meantime, wasSent does nothing.
func (t *Turn[E, C]) wasSent(attempt uint64) (back bool) {
	q := t.queue
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	if attempt != t.attempt {
		return false
	}
	q.sent = max(q.sent, t.number)
	switch {
	case t.oneWay: // no caller waits for the call
		t.state, t.kept = resting, true
		if t.gone++; t.gone > 0 { // otherwise it has already ended
			t.back, t.over = false, true
		}
	case !t.landed && t.state == sending:
		t.state = flying
	}
	q.forward()
	q.step()
	return t.oneWay && t.back
}

// An outcome is how a request ended.
type outcome uint8

const (
	succeeded outcome = iota
	executed          // it was executed and failed
	refused           // it was certainly not executed
	lost              // it may have been executed
)

// outcomeOf returns the outcome of a request with an answer, or with the error of the connection.
func outcomeOf(a *mux.Answer, err error) outcome {
	if err != nil {
		failed, ok := errors.AsType[*mux.CallError](err)
		switch {
		case !ok: // the reply arrived but could not be decoded
			return executed
		case failed.NotProcessed:
			return refused
		}
		return lost
	}
	switch {
	case a.Flags&wire.NotProcessed != 0:
		return refused
	case a.Code != 0:
		return executed
	}
	return succeeded
}

// Complete implements mux.Completer.
func (t *Turn[E, C]) Complete(a *mux.Answer, err error) {
	how, known := outcomeOf(a, err), false
	defer func() {
		if value := recover(); !known { // user code has panicked, or ended the goroutine
			err = t.queue.of.Guard.Interrupted(context.Background(), t.method, value)
		}
		failedAtOnce := t.direct && err != nil
		if t.land(how, err); failedAtOnce {
			t.owner.Resume(err)
		}
	}()
	err = t.owner.Land(a, err)
	known = true
}

// land says how an attempt has ended. It continues the call, except for one that was sent at once
// and failed.
func (t *Turn[E, C]) land(how outcome, err error) {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	t.err = err
	if t.gaveUp.Swap(false) {
		t.abandonLocked()
	} else {
		t.landLocked(how)
	}
	switch {
	case !t.direct:
		t.sender.ring()
	case err == nil:
		t.ended = nil
		t.finishLocked(false)
	}
}

// landLocked stores how an attempt ended.
func (t *Turn[E, C]) landLocked(how outcome) {
	t.landed = true
	if t.known {
		t.goneLocked(how, false)
		return
	}
	q := t.queue
	q.flights--
	t.state = resting
	q.noteLocked(t, how)
	t.lost = how == lost || how == refused && t.lost
	if how == succeeded || how == executed && q.of.Final {
		t.over = true
		q.forward()
	} else {
		q.backTo(t)
	}
	q.step()
}

// abandonLocked records that the caller no longer waits for an attempt that is in flight.
func (t *Turn[E, C]) abandonLocked() {
	t.landed = true
	if t.known {
		return // knowLocked has counted it in t.gone
	}
	t.state = resting
	t.gone++
	t.queue.backTo(t)
}

// result waits for the end of an attempt that was sent, and returns its error.
func (t *Turn[E, C]) result() error {
	o := t.queue.of
	o.mu.Lock()
	defer o.mu.Unlock()
	for !t.landed {
		_, _ = o.waitLocked(context.Background(), &t.sender, nil, nil) // it rings when the attempt has landed
	}
	return t.err
}

// Abandoned implements mux.Follower.
func (t *Turn[E, C]) Abandoned() mux.Completer {
	t.gaveUp.Store(true)
	return (*leftover[E, C])(t)
}

// A leftover is a Turn whose request is in flight without a waiting caller.
type leftover[E, C comparable] Turn[E, C]

// unavailable is the code of the answer of a server that takes no requests at the moment.
const unavailable = 14

// Complete implements mux.Completer.
func (l *leftover[E, C]) Complete(a *mux.Answer, err error) {
	t := (*Turn[E, C])(l)
	how := outcomeOf(a, err)
	if how == refused {
		t.Hold.Load().Release()
	}
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	if t.goneLocked(how, err != nil || a.Code == unavailable) {
		go t.sendAgain()
	}
}

// goneLocked stores how a request without a waiting caller ended. Again says that the request
// should be sent again if it was refused. It reports whether the caller must send the request again
// now.
func (t *Turn[E, C]) goneLocked(how outcome, again bool) (back bool) {
	q := t.queue
	q.flights--
	t.gone--
	q.noteLocked(t, how)
	if how == lost {
		t.lost = true
		if t.known {
			q.sever(t)
		}
	}
	if t.oneWay {
		t.back = how == refused && again
		t.over = !t.back
		q.backTo(t)
		q.forward()
	}
	t.removeLocked()
	q.step()
	return t.back && t.state == resting
}

// sendAgain sends a one-way call again that was refused after its caller had returned. The call
// keeps its place among the calls of its key.
func (t *Turn[E, C]) sendAgain() {
	returned := false
	defer func() {
		value := recover()
		if value != nil || !returned { // user code has panicked, or ended the goroutine
			_ = t.queue.of.Guard.Interrupted(context.Background(), t.method, value) // the error is in the log, and no caller waits for it
		}
		if !returned {
			t.drop()
		}
	}()
	for {
		elsewhere := !t.Follows()
		if elsewhere {
			t.resends++
		}
		again, err := t.owner.Repeat(elsewhere)
		if err == nil {
			returned = true
			return
		}
		if !again || t.resends > t.queue.of.MaxResends {
			t.drop()
			returned = true
			t.owner.Dropped(err)
			return
		}
	}
}

// drop ends a one-way call that was refused and is not sent again.
func (t *Turn[E, C]) drop() {
	t.queue.of.mu.Lock()
	defer t.queue.of.mu.Unlock()
	if t.state == sending { // user code was interrupted before the request was sent
		t.restLocked(false)
	}
	t.back, t.over = false, true
	t.queue.forward()
	t.queue.step()
	t.removeLocked()
}
