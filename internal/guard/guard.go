// SPDX-License-Identifier: Apache-2.0

// Package guard protects the framework from user code that panics or ends its goroutine: hooks,
// observers, codecs, learners, balancers, dials, callbacks, log handlers. On a goroutine of the
// framework, a panic of such code must not end the process, and runtime.Goexit must not leak a
// slot, a token or a goroutine. There are two ways:
//
//   - Rarely called code, such as hooks of connections, runs on a goroutine of its own, and the
//     framework waits for it: see Guard.Apart.
//   - Code that runs for each call runs on the goroutine of the call. Deferred functions release
//     everything the call holds and recover a panic.
//
// Code that runs on the goroutine of Client.Call, Do or Range may panic there, like the caller's
// own code. By then the call has released everything it held.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/panics"
	"github.com/yodel-rpc/yodel/internal/text"
)

// background is the context of code that runs outside of calls.
var background = context.Background()

// A Guard runs user code for a client or a server, and logs panics and exits. It may be used
// concurrently.
type Guard struct {
	log    *slog.Logger
	fail   func(message string) error
	panics atomic.Uint64 // counts panics and exits; errors and log lines name the count
}

// New returns a Guard that writes to log. Fail makes the error of code that panicked or ended its
// goroutine.
func New(log *slog.Logger, fail func(message string) error) *Guard {
	return &Guard{log: log, fail: fail}
}

// Panics returns how many panics and exits there were.
func (g *Guard) Panics() uint64 { return g.panics.Load() }

// ErrReleased is the error of Apart and Hooks.Run when they stop waiting for the function.
var ErrReleased = errors.New("it is not waited for any more")

// Apart calls f on a new goroutine and waits until it returns. It returns the error of f, or an
// error that says that f, or a method of its error, panicked or ended its goroutine. The parameter
// what describes f in that error. If release, which may be nil, is closed first, Apart returns
// ErrReleased.
func (g *Guard) Apart(what string, release <-chan struct{}, f func() error) error {
	ended, err := isolate.Until(release, func() error { return isolate.Tried(f()) }, userCode{g, what}.failed)
	if !ended {
		return ErrReleased
	}
	return err
}

// Here is Apart, except that it calls f on the goroutine of the caller. Here passes the error to
// done, and does not return if f ends the goroutine. If exits returns true, that is no error.
func (g *Guard) Here(what string, f func() error, exits func() bool, done func(err error)) {
	returned, err := false, error(nil)
	defer func() {
		if value := recover(); !returned && (value != nil || !exits()) {
			err = userCode{g, what}.failed(value)
		}
		done(err)
	}()
	err = isolate.Tried(f())
	returned = true
}

// A userCode is a function that Apart or Here calls.
type userCode struct {
	guard *Guard
	what  string
}

// failed returns the error of a function that panicked or ended its goroutine.
func (u userCode) failed(value any) error {
	return u.guard.fail(u.guard.note(background, u.what, value))
}

// Rescue recovers and logs a panic. Functions that call user code without a result defer it.
func (g *Guard) Rescue(what string) {
	if value := recover(); value != nil {
		g.note(background, what, value)
	}
}

// Tell calls the callback of an asynchronous call.
func (g *Guard) Tell(done interface{ Ended(err error) }, err error) {
	returned := false
	defer func() {
		if !returned { // recover takes time
			if value := recover(); value != nil {
				g.note(background, "the callback of a call", value)
			}
		}
	}()
	done.Ended(err)
	returned = true
}

// Run calls f, which makes a call of method, and passes its error to done. If f panics or ends the
// goroutine, done gets the error of Interrupted.
func (g *Guard) Run(ctx context.Context, method string, f func() error, done func(err error)) {
	returned, err := false, error(nil)
	defer func() {
		if !returned {
			err = g.Interrupted(ctx, method, recover())
		}
		done(err)
	}()
	err = f()
	returned = true
}

// Interrupted logs that user code interrupted a call by a panic with value, and returns the error
// of the call. If value is nil, user code ended the goroutine.
func (g *Guard) Interrupted(ctx context.Context, method string, value any) error {
	message := g.note(ctx, "code that a call passes", value, "method", method)
	return g.fail(text.Line(method) + ": " + message)
}

// Panicked counts a panic and logs it as msg. It returns the number under which the log has it. The
// function that has recovered the panic must call it.
func (g *Guard) Panicked(ctx context.Context, msg string, value any, attrs ...any) (n uint64) {
	n = g.panics.Add(1)
	said, frames := panics.Describe(value)
	attrs = append(attrs, "logID", n, "panic", said, "stack", frames)
	g.log.ErrorContext(ctx, msg, attrs...) // in one readable line
	if g.log.Enabled(ctx, slog.LevelDebug) {
		g.log.DebugContext(ctx, "yodel: the stack of a panic", "logID", n, "stack", string(debug.Stack()))
	}
	return n
}

// note logs a panic of user code with value, or the end of its goroutine if value is nil. It
// returns the message of the error for the goroutines that wait for that code. The parameter what
// describes the code.
func (g *Guard) note(ctx context.Context, what string, value any, attrs ...any) (message string) {
	if value == nil {
		n := g.panics.Add(1)
		g.log.ErrorContext(ctx, "yodel: "+what+" ended its goroutine", append(attrs, "logID", n)...)
		return fmt.Sprintf("%s ended its goroutine (runtime.Goexit); it has number %d in the log of this process", what, n)
	}
	n := g.Panicked(ctx, "yodel: "+what+" panicked", value, attrs...)
	return fmt.Sprintf("%s panicked; it has number %d in the log of this process", what, n)
}
