// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// times has how long good answers of an endpoint take, by method. One call in a few is measured,
// and each of them while calls run into the deadlines of their callers.
type times struct {
	calls atomic.Uint64
	all   atomic.Bool // each call is measured

	mu    sync.Mutex
	usual map[string]time.Duration
	late  time.Duration // when a call last ran into its caller's deadline, on the clock
}

const (
	measureEvery = 16
	// weight divides what a new answer changes of the usual time: an eighth of the difference, and
	// upwards at most an eighth of the usual time. So a few answers that take long, such as those
	// of large requests, do not make a method slow.
	weight     = 8
	maxMethods = 256
	// patience is the usual time of a method before its first good answer.
	patience = 100 * time.Millisecond
	// measureFor is how long each call is measured after one that was late.
	measureFor = 10 * time.Second
	// unmeasured is the beginning of a call that is not measured.
	unmeasured time.Duration = -1
)

// begin returns when a call begins, or unmeasured.
func (t *times) begin(c *circuit) time.Duration {
	if t.all.Load() || t.calls.Add(1)%measureEvery == 1 {
		return c.clock()
	}
	return unmeasured
}

// succeeded records a good answer to a call that began at the given time.
func (t *times) succeeded(c *circuit, method string, began time.Duration) {
	now := c.clock()
	took := now - began
	t.mu.Lock()
	defer t.mu.Unlock()
	if now-t.late > measureFor {
		t.all.Store(false)
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

// ranLate records that a call ran into its caller's deadline, and returns how long good answers of
// its method usually take.
func (t *times) ranLate(method string, now time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = now
	t.all.Store(true)
	if usual, known := t.usual[method]; known {
		return usual
	}
	return patience
}

// impatient reports whether a call failed because its caller gave the server less time than the
// method usually takes. Such a call says nothing about the server. A call that was not measured
// counts as such a call: those after it are measured.
func (c *circuit) impatient(ctx context.Context, call *yodel.Call, began time.Duration, err error) bool {
	if !errors.Is(err, context.DeadlineExceeded) && yodel.CodeOf(err) != yodel.DeadlineExceeded {
		return false
	}
	deadline, limited := ctx.Deadline()
	if own := call.Deadline; !own.IsZero() && (!limited || own.Before(deadline)) {
		deadline, limited = own, true
	}
	const early = time.Millisecond // the server may have noticed it first
	if !limited || time.Until(deadline) > early {
		return false
	}
	now := c.clock()
	usual := c.times.ranLate(call.Method, now)
	return began == unmeasured || now-began < usual
}
