// SPDX-License-Identifier: Apache-2.0

// Package async runs the asynchronous calls that cannot be made on the goroutine of their caller,
// on a bounded number of goroutines.
package async

import (
	"context"

	"github.com/yodel-rpc/yodel/internal/guard"
)

// Tokens bound how many goroutines of asynchronous calls run at the same time. Each goroutine holds
// one token. They may be used concurrently. The zero value must not be used.
type Tokens struct {
	guard  *guard.Guard
	taken  chan struct{}
	nested func(ctx context.Context) bool
}

// New returns n tokens. G runs the calls. Nested reports whether ctx belongs to a handler.
func New(n int, g *guard.Guard, nested func(ctx context.Context) bool) Tokens {
	return Tokens{g, make(chan struct{}, n), nested}
}

// Take waits until an asynchronous call may start a goroutine, and takes a token for it. It returns
// false if the call must run on the caller's goroutine. This is so when ctx has ended. It is also
// so in a handler when no token is free, because the calls that hold the tokens may be waiting for
// this very handler.
func (t *Tokens) Take(ctx context.Context) bool {
	select {
	case t.taken <- struct{}{}:
		return true
	default:
	}
	if t.nested(ctx) {
		return false
	}
	select {
	case t.taken <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// Give returns a token if token is set.
func (t *Tokens) Give(token bool) {
	if token {
		<-t.taken
	}
}

// Run makes a call of method: it calls do, and then end with the call's outcome. It does so on
// another goroutine if token, the result of Take, is set. That goroutine returns the token before
// it calls end, because end may begin another call.
func (t *Tokens) Run(ctx context.Context, method string, token bool, do func() error, end func(err error)) {
	if !token {
		t.guard.Run(ctx, method, do, end)
		return
	}
	go t.guard.Run(ctx, method, do, func(err error) {
		t.Give(true)
		end(err)
	})
}
