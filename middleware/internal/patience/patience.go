// SPDX-License-Identifier: Apache-2.0

// Package patience says whether a call failed because its caller gave the server less time than
// good answers of the method usually take. Such a call says nothing about the server.
package patience

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Times has how long good answers usually take, by method. The zero value is ready for use. Its
// methods are called concurrently. The now of its methods is the time on any one clock.
type Times struct {
	rare atomic.Bool // few calls are measured

	mu    sync.Mutex
	goods int // good answers since late
	usual map[string]time.Duration
	late  time.Duration // when a call last ran into its caller's deadline
}

const (
	measureEvery = 256
	// weight divides what a new answer changes of the usual time: an eighth of the difference, and
	// upwards at most an eighth of the usual time. So a few answers that take long, such as those
	// of large requests, do not make a method slow.
	weight     = 8
	maxMethods = 256
	// patience is the usual time of a method before its first good answer.
	patience = 100 * time.Millisecond
	// measureFor is how long each call is measured after one that was late.
	measureFor = 10 * time.Second
	// enough is how many good answers are measured before few calls are.
	enough = 64
)

// Measure reports whether the next call is to be measured: each in the beginning and after a call
// that ran into its caller's deadline, and otherwise one in 256.
func (t *Times) Measure() bool { return !t.rare.Load() || rand.Uint32()%measureEvery == 0 }

// Succeeded records a good answer.
func (t *Times) Succeeded(method string, now, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.goods++; t.goods >= enough && (t.late == 0 || now-t.late > measureFor) && !t.rare.Load() {
		t.rare.Store(true)
	}
	usual, known := t.usual[method]
	switch {
	case known:
		t.usual[method] = usual + min(took-usual, max(usual, time.Millisecond))/weight
	case len(t.usual) < maxMethods:
		if t.usual == nil {
			t.usual = make(map[string]time.Duration)
		}
		t.usual[method] = took
	}
}

// Impatient reports whether a call that took so long ended before good answers of its method
// usually come. A call that was not measured, whose time is negative, counts as such a call: those
// after it are measured.
func (t *Times) Impatient(method string, now, took time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late, t.goods = max(now, 1), 0
	t.rare.Store(false)
	usual, known := t.usual[method]
	if !known {
		usual = patience
	}
	return took < usual
}

// AtDeadline reports whether a call ended with err at the deadline of its caller.
func AtDeadline(ctx context.Context, call *yodel.Call, err error) bool {
	if !errors.Is(err, context.DeadlineExceeded) && yodel.CodeOf(err) != yodel.DeadlineExceeded {
		return false
	}
	deadline, limited := ctx.Deadline()
	if own := call.Deadline; !own.IsZero() && (!limited || own.Before(deadline)) {
		deadline, limited = own, true
	}
	const early = time.Millisecond // the server may have noticed it first
	return limited && time.Until(deadline) <= early
}
