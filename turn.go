// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/keyed"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// This file connects ordered calls with package keyed, which decides when they may be sent and when
// their outcomes are reported. order.go sends them.

// orders holds the ordered calls of a client, by key.
type orders struct {
	lines keyed.Lines[*Endpoint, *mux.Conn]
}

// A turn is an ordered call: its place in the queue of its key, and its trip.
type turn struct {
	keyed.Turn[*Endpoint, *mux.Conn]

	trip trip
}

// A landing is how a request ended.
type landing = keyed.Landing

// newTurn implements the New of keyed.Lines.
func newTurn() *keyed.Turn[*Endpoint, *mux.Conn] {
	t := new(turn)
	t.Owner = t
	return &t.Turn
}

// turnOf returns the turn that contains a keyed.Turn of newTurn. It returns nil for nil.
func turnOf(t *keyed.Turn[*Endpoint, *mux.Conn]) *turn {
	if t == nil {
		return nil
	}
	return t.Owner.(*turn) //nolint:forcetypeassert // newTurn made it
}

// Conclude implements keyed.Owner.
func (t *turn) Conclude() { t.trip.conclude() }

// enter adds a call to the end of the queue of its key.
func (o *orders) enter(ctx context.Context, key string, goes bool) (*turn, error) {
	t, err := o.lines.Enter(ctx, key, goes)
	if err != nil {
		return nil, interruptedTurn(err, 0, "")
	}
	return turnOf(t), nil
}

// embark is enter and await for an asynchronous call that can be sent at once: see
// keyed.Lines.Embark.
func (o *orders) embark(key string, pin, ep *Endpoint, conn *mux.Conn) (t *turn, needsConn bool) {
	embarked, needsConn := o.lines.Embark(key, pin, ep, conn)
	return turnOf(embarked), needsConn
}

// await waits until an attempt may be sent. If the attempt must go to the same endpoint as the
// earlier calls of its key, await returns that endpoint. It returns nil if the attempt may go to
// any endpoint.
func (t *turn) await(ctx context.Context, deadline time.Time, closing <-chan struct{}, pin *Endpoint) (*Endpoint, error) {
	ep, err := t.Await(ctx, deadline, closing, pin)
	if err != nil {
		return nil, interruptedTurn(err, t.Stood(), t.Key())
	}
	return ep, nil
}

// result waits for the end of an attempt that was sent, and returns its error.
func (t *turn) result() error {
	t.Result()
	return t.trip.err
}

// interruptedTurn converts a keyed.Interrupted to the error of a call that has waited in the queue
// of its key. It returns other errors unchanged.
func interruptedTurn(err error, stood time.Duration, key string) error {
	interrupted, ok := errors.AsType[*keyed.Interrupted](err)
	if !ok {
		return err
	}
	cause := interrupted.Cause
	switch {
	case errors.Is(cause, keyed.ErrClosed):
		return &mux.CallError{Cause: mux.ErrClosed, NotProcessed: true}
	case errors.Is(cause, keyed.ErrDeadline):
		cause = mux.ErrDeadline
	}
	if stood < time.Millisecond { // the call's time was over before it waited
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	return tooLate(cause, "YDL3203", " after %v of waiting for the calls before it with the key %.40q", rounded(stood), key)
}
