// SPDX-License-Identifier: Apache-2.0

// Package late has the reply of a call whose handler has returned without it.
package late

import (
	"context"
	"sync/atomic"
)

// A Reply is a reply, or an error in place of it, that is known later. Its methods may be called
// concurrently.
type Reply struct {
	set   atomic.Bool
	ready chan struct{} // closed when reply and err are set
	reply any
	err   error
}

// New returns a Reply that is not known yet.
func New() *Reply { return &Reply{ready: make(chan struct{})} }

// Set makes the reply known. It calls outcome to get it. It reports false, and does nothing, if the
// reply is known already.
func (r *Reply) Set(outcome func() (reply any, err error)) bool {
	if r.set.Swap(true) {
		return false
	}
	r.reply, r.err = outcome()
	close(r.ready)
	return true
}

// Get returns the reply. The caller knows that Set has returned.
func (r *Reply) Get() (reply any, err error) { return r.reply, r.err }

// Wait waits until the reply is known. It returns the cause of ctx if ctx ends first.
func (r *Reply) Wait(ctx context.Context) (reply any, err error) {
	select {
	case <-r.ready:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
