// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// A life has the contexts and goroutines of a session, and whether Connect has accepted its client.
type life struct {
	ctx       context.Context //nolint:containedctx // parent of the contexts of all calls; ends with the session
	cancel    context.CancelCauseFunc
	oneWay    context.Context //nolint:containedctx // parent of ctx and of running one-way calls; ends orphanTime later, or by Abort
	end       context.CancelCauseFunc
	running   sync.WaitGroup // the functions of Go
	greet     func() error   // calls Connect, once
	connected atomic.Bool    // Connect has accepted the client
	refused   atomic.Bool
}

// begin begins the life of c.
func (c *Conn) begin() {
	c.oneWay, c.end = context.WithCancelCause(context.Background())
	c.ctx, c.cancel = context.WithCancelCause(c.oneWay)
	c.greet = sync.OnceValue(func() error {
		err := c.Connect()
		c.connected.Store(err == nil)
		return err
	})
}

// Context returns the parent of the contexts of all calls. It ends when the client has disconnected
// and when the session ends.
func (c *Conn) Context() context.Context { return c.ctx }

// OneWay returns the parent of the contexts of one-way calls that run. It ends when Wait has waited
// for orphanTime, and by Abort.
func (c *Conn) OneWay() context.Context { return c.oneWay }

// Greet asks Connect, once, whether the client may call. It returns the error of Connect.
func (c *Conn) Greet() error {
	if c.Connect == nil {
		return nil
	}
	return c.greet()
}

// Connected reports whether Connect has accepted the client.
func (c *Conn) Connected() bool { return c.connected.Load() }

// Refuse notes that Connect refuses the client. The connection drains, so that the client makes
// another one, about which Connect decides anew.
func (c *Conn) Refuse() {
	c.refused.Store(true)
	go c.Drain(time.Time{})
}

// Refused reports whether Refuse was called.
func (c *Conn) Refused() bool { return c.refused.Load() }

// Go calls f on a goroutine for which Wait waits. A panic of f is logged.
func (c *Conn) Go(f func()) {
	c.running.Go(func() {
		defer c.o.Guard.Rescue("protocol code")
		f()
	})
}

// Wait ends the calls of a client that has gone, and waits for them. One-way calls may take
// orphanTime.
func (c *Conn) Wait() {
	c.gone()
	orphans := time.AfterFunc(orphanTime, func() { c.end(mux.ErrCallerGone) })
	c.running.Wait()
	orphans.Stop()
	c.releaseAll()
}

// gone ends all calls but one-way calls that run, because the client has disconnected.
func (c *Conn) gone() { c.cancel(mux.ErrCallerGone) }

// Abort ends all calls and closes the connection.
func (c *Conn) Abort() {
	c.end(mux.ErrClosed)
	if c.nc != nil {
		_ = c.nc.Close() // the server abandons the connection
	}
}

// Finish ends the session after its protocol has ended with err, which may be nil. It returns how
// the connection has ended, and with which error. Breach says that err is a breach of the protocol.
func (c *Conn) Finish(err error) (kind introspect.ConnEventKind, breach bool, why error) {
	aborted := context.Cause(c.ctx) == mux.ErrClosed //nolint:errorlint // it is set bare
	c.gone()
	_ = c.nc.Close() // there is nothing more to say
	c.Wait()
	return c.ending(err, aborted)
}
