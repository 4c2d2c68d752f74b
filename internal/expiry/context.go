// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"sync/atomic"
	"time"
)

// A Context is the context of a call. It behaves as one that context.WithCancelCause and
// context.WithDeadline make. But it makes that one, with its channel and its timer, only when code
// asks for it, and most handlers return before. Init must be called first. All other methods except
// Limit may be called concurrently.
type Context struct {
	parent   context.Context //nolint:containedctx // it is one
	deadline time.Time       // zero for none
	made     atomic.Pointer[made]
}

// A made is the context that a Context stands for.
type made struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
}

// over is the context of calls that have returned before code asked for their contexts.
var over = func() *made {
	m := newMade(context.Background())
	m.cancel(nil)
	return m
}()

func newMade(parent context.Context) *made {
	ctx, cancel := context.WithCancelCause(parent)
	return &made{ctx, cancel}
}

// limited returns m with a deadline, unless that is zero.
func (m *made) limited(deadline time.Time) *made {
	if deadline.IsZero() {
		return m
	}
	ctx, stop := context.WithDeadline(m.Context, deadline)
	return &made{ctx, func(cause error) {
		m.cancel(cause)
		stop()
	}}
}

// Init makes c a context that ends with parent. No method of parent may run user code.
func (c *Context) Init(parent context.Context) { c.parent = parent }

// Limit sets the deadline. It is called once at most, before the handler gets the context. Only
// Cancel may be called concurrently.
func (c *Context) Limit(at time.Time) {
	c.deadline = at
	if m := c.made.Load(); m != nil {
		c.made.Store(m.limited(at))
	}
}

// make returns the context that c stands for.
func (c *Context) make() *made {
	m := c.made.Load()
	if m != nil {
		return m
	}
	m = newMade(c.parent).limited(c.deadline)
	if !c.made.CompareAndSwap(nil, m) {
		m.cancel(nil)
		m = c.made.Load()
	}
	return m
}

// Cancel ends the context with a cause.
func (c *Context) Cancel(cause error) {
	m := c.made.Load()
	if m == nil { // made without its deadline, which Limit may set at this moment
		m = newMade(c.parent)
		m.cancel(cause)
		if c.made.CompareAndSwap(nil, m) {
			return
		}
		m = c.made.Load()
	}
	m.cancel(cause)
}

// Return ends the context because its call has returned.
func (c *Context) Return() {
	m := c.made.Load()
	if m == over || m == nil && !c.due() && c.made.CompareAndSwap(nil, over) {
		return
	}
	c.make().cancel(nil)
}

// due reports whether the parent has ended or the deadline has passed.
func (c *Context) due() bool {
	return c.parent.Err() != nil || !c.deadline.IsZero() && time.Until(c.deadline) <= 0
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} { return c.make().Done() }

// Err implements context.Context.
func (c *Context) Err() error {
	if c.made.Load() == nil && !c.due() {
		return nil
	}
	return c.make().Err()
}

// Value implements context.Context. Package context looks for its own contexts with a key of type
// *int. Both context.Cause and a context derived from this one then need the context that c stands
// for.
func (c *Context) Value(key any) any {
	if _, ok := key.(*int); ok {
		return c.make().Value(key)
	}
	return c.parent.Value(key)
}

// Trusted says that no method runs user code, see isolate.Context.
func (c *Context) Trusted() {}
