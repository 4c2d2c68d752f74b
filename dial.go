// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file connects endpoints to their servers, and replaces connections that end.

// A dialing is an attempt to connect. Several callers may wait for it.
type dialing struct {
	done  chan struct{}
	began time.Duration // on the clock
	// accepted is set when the transport has connected. From then on the attempt waits for the
	// server's settings.
	accepted atomic.Bool
	spare    bool          // an additional connection: closed when idle for spareTime
	delay    time.Duration // pause before the attempt
	conn     *dialledConn
	err      error
}

// spareTime is how long an additional connection, or a connection that no call has needed, may be
// idle if Limits.IdleTimeout is not set.
const spareTime = 30 * time.Second

// Back-off between attempts to connect. It doubles after each failure, with a jitter of half of its
// length.
const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 1500 * time.Millisecond
)

// connected returns a connection, and dials if there is no connection. Alone says that the caller
// has no other endpoint. Connected then dials at once, even if an attempt has just failed.
func (ep *Endpoint) connected(ctx context.Context, deadline time.Time, alone bool) (*dialledConn, error) {
	if conn := ep.ready(ctx); conn != nil {
		return conn, nil
	}
	searched := !alone && ep.client.cluster.connected.Load() == 0
	if searched {
		if conn, err := ep.client.cluster.awaitAny(ctx, deadline, ep); conn != nil || err != nil {
			return conn, err
		}
	}
	own := ep.connOf(ctx)
	ep.mu.Lock()
	if conn := ep.readyBeside(own); conn != nil {
		ep.mu.Unlock()
		return conn, nil
	}
	d := ep.dialing
	if d == nil {
		if ep.closed {
			ep.mu.Unlock()
			return nil, ep.goneError()
		}
		switch {
		case ep.retry == nil || len(*ep.conns.Load()) > 0:
			d = ep.dialLocked(len(*ep.conns.Load()) > 0, 0)
		case alone:
			d = ep.hastenLocked()
		default: // an attempt has just failed, and a timer will start the next one
			err := ep.failureLocked()
			ep.mu.Unlock()
			if searched { // the search dialled for this call
				err.next = 0
			}
			return nil, err
		}
	}
	ep.mu.Unlock()
	if conn, full := leastLoaded(*ep.conns.Load()); conn != nil { // an additional connection is being made
		if full && conn.link != nil { // the call would wait for others on this one
			if further, err := ep.await(ctx, d, deadline); err == nil {
				return further, nil
			}
		}
		return conn, nil
	}
	conn, err := ep.await(ctx, d, deadline)
	if _, failed := err.(*dialError); failed { //nolint:errorlint // it is not wrapped yet
		ep.mu.Lock()
		defer ep.mu.Unlock()
		if ep.retry != nil && alone {
			err = ep.failureLocked()
		}
		ep.told.Store(true)
	}
	return conn, err
}

// failureLocked returns the error of a call that finds no connection, including the time until the
// next attempt.
func (ep *Endpoint) failureLocked() *dialError {
	ep.told.Store(true)
	err := *ep.lastErr
	err.next = time.Until(ep.retryAt)
	return &err
}

// connectFor is connected for a call. It adds the time that it took to the call's record.
func (ep *Endpoint) connectFor(ctx context.Context, call *Call) (*dialledConn, error) {
	if conn := ep.ready(ctx); conn != nil {
		return conn, nil
	}
	began := clock()
	if cl := ep.client.cluster; call.picked == ep && call.stays && cl.connected.Load() == 0 {
		cl.join(ep) // the search may find another endpoint for later calls
	}
	ep.inflight.waiting.Add(1)
	defer ep.inflight.waiting.Add(-1) // also if ctx panics
	conn, err := ep.connected(ctx, call.Deadline, call.pinned() || call.hold != nil && call.heldToOne())
	call.out.useExtra().connecting += clock() - began
	if err != nil {
		ep.unconnected.Add(1)
	}
	return conn, err
}

// goneError returns the error of a call to a closed endpoint.
func (ep *Endpoint) goneError() error {
	select {
	case <-ep.client.closing:
		return &mux.CallError{Cause: mux.ErrClosed, NotProcessed: true}
	default: // the endpoint left the set
		return &mux.CallError{Cause: mux.ErrRetired, NotProcessed: true}
	}
}

func (ep *Endpoint) await(ctx context.Context, d *dialing, deadline time.Time) (*dialledConn, error) {
	var late <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, ep.notConnected(d, context.Cause(ctx))
	case <-late:
		return nil, ep.notConnected(d, mux.ErrDeadline)
	}
}

// notConnected returns the error of a call that waited for the attempt d until cause ended the
// call. The error says how far d has got, and how the previous attempt to connect ended.
func (ep *Endpoint) notConnected(d *dialing, cause error) error {
	took := clock() - d.began
	if took < time.Millisecond { // the call's time had passed before
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	before := ""
	ep.mu.Lock()
	last := ep.lastErr
	ep.mu.Unlock()
	if last != nil {
		before = "; the attempt before: " + ep.client.dialReason(ep.Addr(), last)
	}
	if d.accepted.Load() {
		return tooLate(cause, "YDL1102", " after %v of connecting: the server accepted the connection and said nothing%s", rounded(took), before)
	}
	return tooLate(cause, "YDL1103", " after %v of connecting: nothing has answered yet%s", rounded(took), before)
}

// dialLocked starts an attempt to connect, after a delay.
func (ep *Endpoint) dialLocked(spare bool, delay time.Duration) *dialing {
	d := &dialing{done: make(chan struct{}), spare: spare, delay: delay, began: clock()}
	ep.dialing = d
	ep.busy.Store(true)
	ep.enough.Store(time.Now().Add(ep.client.opts.DialTimeout).UnixNano())
	ep.client.cluster.dials.Add(1)
	ep.client.wg.Go(func() { ep.dial(d) })
	return d
}

func (ep *Endpoint) dial(d *dialing) {
	c := ep.client
	if d.delay > 0 {
		select {
		case <-time.After(d.delay):
		case <-ep.ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(ep.ctx, c.opts.DialTimeout)
	if !ep.reached.Load() {
		slow := time.AfterFunc(suspectAfter, ep.suspected)
		defer slow.Stop()
	}
	conn, err := ep.connect(ctx, d)
	cancel()

	ep.mu.Lock()
	ep.dialing = nil
	ep.busy.Store(false)
	ep.enough.Store(0)
	switch {
	case ep.closed:
		if err == nil {
			c.wg.Go(conn.close) // the endpoint no longer needs the connection
		}
		d.err = ep.goneError()
	case err != nil:
		d.err = err
		ep.failures++
		if len(*ep.conns.Load()) == 0 {
			ep.retryLocked(err)
		} else { // it was an additional connection
			ep.enough.Store(time.Now().Add(lastBackoff).UnixNano())
		}
	default:
		ep.lastErr, ep.since = nil, time.Now()
		ep.away.Store(false)
		ep.told.Store(false)
		ep.lostAt.Store(0)
		ep.identity.Store(conn.server)
		d.conn = conn
		ep.setConnsLocked(append(slices.Clone(*ep.conns.Load()), conn))
		ep.setReadyLocked(byConn, true)
	}
	ep.mu.Unlock()
	c.cluster.dials.Add(-1)
	if err == nil && !conn.usable() { // the connection ended before it was added to the list
		ep.remove(conn)
	}
	c.cluster.dialled(ep, err == nil)
	close(d.done)
}

// connect makes a connection and waits for the server's settings. Without this wait, a server that
// is shutting down could accept the connection and never read from it, and the outcome of calls on
// it would be unknown.
func (ep *Endpoint) connect(ctx context.Context, d *dialing) (*dialledConn, *dialError) {
	c := ep.client
	fail := func(err *dialError) (*dialledConn, *dialError) {
		c.event(ConnEvent{Kind: introspect.ConnectFailed, Addr: ep.Addr(), Err: err.err})
		return nil, err
	}
	var nc net.Conn
	if err := c.guard.Apart("the transport's Dial", nil, func() (err error) {
		nc, err = c.opts.Transport.Dial(ctx, ep.Addr())
		return err
	}); err != nil {
		return fail(&dialError{err: err})
	}
	d.accepted.Store(true)
	if ep.wire != nil {
		conn, err := ep.connectLink(ctx, nc)
		if err != nil {
			return fail(&dialError{err: err, connected: true})
		}
		return conn, nil
	}
	config := &c.config
	if d.spare && config.IdleTimeout == 0 {
		limited := c.config
		config, limited.IdleTimeout = &limited, spareTime
	}
	answered := make(chan struct{})
	dialled := &dialledConn{ep: ep, served: c.link(nc), answered: answered}
	_, dialled.secure = nc.(interface{ ConnectionState() tls.ConnectionState })
	conn := mux.NewOf(dialled, nc, nil, true, config)
	dialled.mux = conn
	select {
	case <-answered:
		if dialled.up.Load() {
			return ep.admitted(dialled)
		}
		err := conn.Err()
		if refusal, ok := errors.AsType[*mux.Refusal](err); ok && dialled.served != nil && dialled.served.refused.Load() {
			err = &Error{
				Code: Code(refusal.Code), ID: refusal.ID, NotProcessed: true,
				Message: fmt.Sprintf("the Connect hook of this client's Server refused %s: %s", ep.Addr(), refusal.Message),
			}
		}
		return fail(&dialError{err: err, connected: true})
	case <-ctx.Done():
		if dialled.up.Load() { // just now
			return ep.admitted(dialled)
		}
		err := mux.ErrHandshake
		if ep.ctx.Err() == nil {
			err = sayNewline(conn, nc, answered)
		}
		conn.Abort()
		return fail(&dialError{err: err, connected: true})
	}
}

// sayNewline sends two line ends to a silent server, and returns why the server is silent. An HTTP
// server that waits for a line then answers, and its answer identifies the protocol. A slow yodel
// server takes the four bytes for the beginning of a frame. This does no harm, because the
// connection ends before the rest of the frame could come.
func sayNewline(conn *mux.Conn, nc net.Conn, answered <-chan struct{}) error {
	const patience = 50 * time.Millisecond
	_ = nc.SetWriteDeadline(time.Now().Add(patience)) // nothing else will be written
	if _, err := nc.Write([]byte("\r\n\r\n")); err != nil {
		return mux.ErrHandshake
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-answered:
		if preface, ok := errors.AsType[*mux.PrefaceError](conn.Err()); ok {
			return preface
		}
	case <-timer.C:
	}
	return mux.ErrHandshake
}

// retryLocked schedules the next attempt to connect after a back-off. Until then calls go to other
// endpoints.
func (ep *Endpoint) retryLocked(err *dialError) {
	ep.lastErr, ep.failedAt = err, time.Now()
	ep.lostLocked()
	backoff := min(firstBackoff<<min(ep.failures, 16), ep.client.cluster.longestBackoff())
	backoff = backoff/2 + rand.N(backoff/2)
	if !err.connected { // the end of a connection says nothing about the next attempt
		ep.away.Store(true)
	}
	ep.waitLocked(backoff)
}

// lostLocked marks the endpoint as not ready because it has lost its connection.
func (ep *Endpoint) lostLocked() {
	ep.setReadyLocked(byConn, false)
	ep.lostAt.CompareAndSwap(0, time.Now().UnixNano())
}

// waitLocked schedules the next attempt to connect after backoff. If too many attempts are running
// by then, it waits again.
func (ep *Endpoint) waitLocked(backoff time.Duration) {
	ep.busy.Store(true)
	ep.retryAt = time.Now().Add(backoff)
	var timer *time.Timer
	timer = time.AfterFunc(backoff, func() {
		ep.mu.Lock()
		defer ep.mu.Unlock()
		if ep.retry != timer {
			return
		}
		ep.retry = nil
		switch {
		case ep.closed || !ep.restsLocked():
		case ep.client.cluster.dials.Load() >= maxDials:
			ep.waitLocked(backoff)
		default:
			ep.dialLocked(ep.unlisted.Load(), 0)
		}
	})
	ep.retry = timer
}

// prune removes connections that accept no more calls and are still in the list.
func (ep *Endpoint) prune() {
	for _, conn := range *ep.conns.Load() {
		if !conn.usable() {
			ep.remove(conn)
		}
	}
}

// remove removes a connection that accepts no more calls. If it was the last one, remove starts to
// connect again, unless the connection was only idle or old. In that case the next call connects.
func (ep *Endpoint) remove(conn *dialledConn) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	old := *ep.conns.Load()
	conns := make([]*dialledConn, 0, len(old))
	for _, other := range old {
		if other != conn {
			conns = append(conns, other)
		}
	}
	if len(conns) == len(old) {
		return
	}
	last := ep.setConnsLocked(conns)
	if len(conns) > 0 || ep.closed || ep.dialing != nil || ep.retry != nil || conn.aged() {
		return
	}
	err := conn.err()
	if err == nil {
		err = mux.ErrDrained
	}
	ep.failures++
	if conn.worked(err) || time.Since(ep.since) > lastBackoff { // false if the server ends connections at once
		ep.failures = 0
	}
	if ep.failures <= 1 && broke(err) { // the server or its successor may be up already
		if last {
			ep.client.Background(func(context.Context) { ep.client.cluster.hasten() })
		}
		ep.lostLocked()
		ep.dialLocked(false, 0)
		return
	}
	ep.retryLocked(&dialError{err: err, connected: true})
}

// broke reports whether a connection ended because of the network or because the server went away,
// and not because one side refused the other.
func broke(err error) bool {
	_, refused := errors.AsType[*mux.Refusal](err)
	_, foreign := errors.AsType[*mux.PrefaceError](err)
	_, mismatch := errors.AsType[*firstbytes.MismatchError](err)
	_, broken := errors.AsType[*mux.ProtocolError](err)
	return !refused && !foreign && !mismatch && !broken
}

// workedFrames is the number of received frames from which a connection counts as having worked. A
// connection that ends at once receives fewer frames.
const workedFrames = 8

// close closes the endpoint. If atOnce is set, it closes the connections now. Otherwise it closes
// each connection when the calls on it have ended.
func (ep *Endpoint) close(atOnce bool) {
	ep.mu.Lock()
	ep.closed = true
	if ep.retry != nil {
		ep.retry.Stop()
	}
	conns := *ep.conns.Load()
	ep.setConnsLocked(nil)
	ep.mu.Unlock()
	ep.cancel()
	var wg sync.WaitGroup
	for _, conn := range conns {
		if atOnce {
			wg.Go(conn.close)
		} else {
			conn.closeWhenIdle()
			ep.client.wg.Go(func() {
				select {
				case <-conn.ended():
				case <-ep.client.closing:
					conn.close()
				}
			})
		}
	}
	wg.Wait()
}

// A dialError says that a client could not connect to an endpoint.
type dialError struct {
	err  error
	next time.Duration // time until the next attempt to connect, if no attempt was made for this call
	// connected says that err is the reason why the last connection ended, not the reason why an
	// attempt failed.
	connected bool
}

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }
