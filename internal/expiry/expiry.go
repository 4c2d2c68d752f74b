// SPDX-License-Identifier: Apache-2.0

// Package expiry says when and why the context of a call ends, and has contexts of calls that cost
// little.
package expiry

import (
	"context"
	"errors"
	"time"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// Earliest returns the earlier of the deadline of ctx and another one. Zero means no deadline.
func Earliest(ctx context.Context, deadline time.Time) time.Time {
	if d, ok := ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
		return d
	}
	return deadline
}

// WithCause returns err with the cause with which ctx ended, unless err has it: see Cause.
func WithCause(ctx context.Context, err error) error {
	if cause := Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return errors.Join(err, cause)
	}
	return err
}

// Cause returns the cause with which ctx ended. It is nil if ctx has not ended, or if its cause is
// that of all contexts: that the deadline has passed, or that it was canceled. If the deadline of
// ctx passes about now, Cause waits until ctx ends, for a second at most.
func Cause(ctx context.Context) error {
	const early, late = time.Millisecond, time.Second
	ctx = isolate.Context(ctx)
	if at, ok := ctx.Deadline(); ok && ctx.Err() == nil && time.Until(at) < early {
		timer := time.NewTimer(late) // a context of the program may not end at its deadline
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	if ended, cause := ctx.Err(), context.Cause(ctx); cause != ended { //nolint:errorlint // they are the same if there is no cause
		return cause
	}
	return nil
}
