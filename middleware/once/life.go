// SPDX-License-Identifier: Apache-2.0

package once

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/middleware/internal/aside"
)

// This file handles which call with a key is executed, and how long it may take.

// Flights are the keys of the calls that this server is handling.
type flights [64]struct {
	mu    sync.Mutex
	byKey map[string]*flight
}

// A flight is a call with a key that is being handled, and all calls with the same key that wait
// for it.
type flight struct {
	landed chan struct{} // closed when the call has ended
	record []byte        // the outcome then, or nil if the other calls cannot use it
}

// board returns the flight of a key, and whether it is new. The caller must land a new flight.
func (f *flights) board(key string) (one *flight, first bool) {
	part := &f[int(key[0])%len(f)]
	part.mu.Lock()
	defer part.mu.Unlock()
	if one = part.byKey[key]; one != nil {
		return one, false
	}
	if part.byKey == nil {
		part.byKey = make(map[string]*flight)
	}
	one = &flight{landed: make(chan struct{})}
	part.byKey[key] = one
	return one, true
}

func (f *flights) land(key string, one *flight) {
	part := &f[int(key[0])%len(f)]
	part.mu.Lock()
	delete(part.byKey, key)
	part.mu.Unlock()
	close(one.landed)
}

// outlive returns a context for the method. It lasts for up to Options.Outlive after the context of
// the caller has been canceled. The caller of outlive calls ended when the method has returned.
func (in *intent) outlive(ctx context.Context) (going context.Context, ended func()) {
	detached := context.WithoutCancel(ctx)
	var cancel context.CancelFunc
	if deadline, ok := ctx.Deadline(); ok {
		going, cancel = context.WithDeadline(detached, deadline)
	} else {
		going, cancel = context.WithCancel(detached)
	}
	draining := in.call.Draining()
	var wg sync.WaitGroup
	wg.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer wg.Done()
		timer := time.NewTimer(in.Outlive)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-draining:
		case <-going.Done():
		}
		cancel()
	})
	return going, func() {
		cancel()
		if stop() {
			wg.Done()
		}
		wg.Wait()
	}
}

// A heart renews the lease of a call during its execution.
type heart struct {
	mu      sync.Mutex
	timer   *time.Timer
	cancel  context.CancelFunc
	stopped bool
}

// beat starts a heart. It returns nil if the store is local, because no other process needs the
// lease.
func (in *intent) beat(ctx context.Context) *heart {
	if in.local() {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &heart{cancel: cancel}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(in.Lease/3, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.stopped {
			return
		}
		asking, cancel := context.WithTimeout(ctx, in.Timeout)
		defer cancel()
		// An error has no effect here. Renew is called again before the lease ends. If that fails
		// too, other servers regard the outcome as unknown until it is put.
		_ = aside.Do("the Store's Renew", nil, func() { _ = in.Store.Renew(asking, in.key, in.owner, in.Lease) })
		h.timer.Reset(in.Lease / 3)
	})
	return h
}

// stop stops the heart, and waits for a running Renew. It may be called again.
func (h *heart) stop() {
	if h == nil {
		return
	}
	h.cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.timer.Stop()
}
