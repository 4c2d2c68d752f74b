// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file connects endpoints to their servers, and replaces connections that end.

// spareTime is how long an additional connection, or a connection that no call has needed, may be
// idle if Limits.IdleTimeout is not set.
const spareTime = 30 * time.Second

// connected returns a connection, and dials if there is no connection. Alone says that the caller
// has no other endpoint. Connected then dials at once, even if an attempt has just failed.
func (ep *Endpoint) connected(ctx context.Context, deadline time.Time, alone bool) (*dialledConn, error) {
	if conn := ep.ready(ctx); conn != nil {
		return conn, nil
	}
	return ep.core.Connect(ctx, deadline, alone, ep.connOf(ctx))
}

// beside returns the connection for a call while an additional one is being made. Wait says that
// the call would wait for others on it.
func (ep *Endpoint) beside() (conn *dialledConn, wait bool) {
	conn, full := leastLoaded(ep.core.Conns(), false)
	return conn, full && conn != nil && conn.link != nil
}

// connectFor is connected for a call. It adds the time that it took to the call's record.
func (ep *Endpoint) connectFor(ctx context.Context, call *Call) (*dialledConn, error) {
	if conn := ep.ready(ctx); conn != nil {
		return conn, nil
	}
	began := clock()
	if call.picked == ep && call.stays {
		ep.core.Search() // it may find another endpoint for later calls
	}
	ep.inflight.Waiting.Add(1)
	defer ep.inflight.Waiting.Add(-1) // also if ctx panics
	conn, err := ep.connected(ctx, call.Deadline, call.pinned() || call.hold != nil && heldToOne(call))
	call.waited(0, clock()-began)
	if err != nil {
		ep.unconnected.Add(1)
	}
	return conn, err
}

// connect makes a connection and waits for the server's settings. Without this wait, a server that
// is shutting down could accept the connection and never read from it, and the outcome of calls on
// it would be unknown.
func (ep *Endpoint) connect(ctx context.Context, spare bool, accepted func()) (*dialledConn, *reason.DialError) {
	c := ep.client
	fail := func(err *reason.DialError) (*dialledConn, *reason.DialError) {
		c.event(introspect.ConnEvent{Kind: introspect.ConnectFailed, Addr: ep.Addr(), Err: err.Err})
		return nil, err
	}
	var nc net.Conn
	if err := c.guard.Apart("the transport's Dial", nil, func() (err error) {
		nc, err = c.opts.Transport.Dial(ctx, ep.Addr())
		return err
	}); err != nil {
		return fail(&reason.DialError{Err: err})
	}
	accepted()
	if ep.wire != nil {
		conn, err := ep.connectLink(ctx, nc)
		if err != nil {
			return fail(&reason.DialError{Err: err, Connected: true})
		}
		return conn, nil
	}
	config := &c.config
	if spare && config.IdleTimeout == 0 && !c.opts.FixedConns {
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
		return fail(&reason.DialError{Err: err, Connected: true})
	case <-ctx.Done():
		if dialled.up.Load() { // just now
			return ep.admitted(dialled)
		}
		err := mux.ErrHandshake
		if ep.core.Err() == nil {
			err = endpoints.Silence(nc, answered, conn.Err)
		}
		conn.Abort()
		return fail(&reason.DialError{Err: err, Connected: true})
	}
}

// errStranger is the error of a connection to an address where another server listens now.
var errStranger = refusal("YDL1109", "another server listens at the address of the instance")

// admitted returns conn if it leads to the endpoint's server, and closes it otherwise.
func (ep *Endpoint) admitted(conn *dialledConn) (*dialledConn, *reason.DialError) {
	conn.tellConnected()
	if ep.is(conn.server) {
		return conn, nil
	}
	ep.core.SetStranger()
	conn.Close()
	e := *errStranger
	e.Message = ep.Addr() + ": " + e.Message
	return nil, &reason.DialError{Err: &e}
}

// is reports whether a server with identity id may be the server of the endpoint. While the
// resolver reports the endpoint, the client accepts a restarted server, because the record in the
// registry may be older than the restart. But that server must have the service. When the resolver
// no longer reports the endpoint, the client accepts only the same incarnation of the server.
func (ep *Endpoint) is(id *identity.Server) bool {
	if ep.core.Unlisted() {
		return id.Same(ep.identity.Load())
	}
	return id.MayBe(ep.instance.Load().Incarnation, ep.client.cluster.service)
}

// A dialledConn is a connection that an endpoint has dialled. It has either a mux.Conn, which
// speaks yodel's own protocol, or a link, which speaks the protocol of a Wire.
type dialledConn struct {
	mux  *mux.Conn
	link *link
	ep   *Endpoint

	served   *serverConn      // nil if the client has no Server
	heard    time.Duration    // when the server's settings arrived, on the clock; set before up
	server   *identity.Server // from the server's settings; set before up
	agent    string           // of the server; set before up
	secure   bool             // it uses TLS
	up       atomic.Bool
	once     sync.Once
	told     sync.Once     // of tellConnected
	answered chan struct{} // closed when the server has answered or the connection has ended
}

// whose returns the dialledConn that owns conn.
func whose(conn *mux.Conn) *dialledConn { return conn.Owner().(*dialledConn) } //nolint:forcetypeassert // set by connect

// hello handles the server's settings.
func (d *dialledConn) hello(conn *mux.Conn, l *wire.Limits) *mux.Refusal {
	if d.served != nil {
		if refusal := d.served.hello(conn, l); refusal != nil {
			return refusal
		}
	}
	d.heard, d.agent = clock(), agentOf(l)
	d.server = identity.Of(l, d.ep.identity.Load())
	d.up.Store(true)
	d.answer()
	return nil
}

// tellConnected passes the event that there is the connection to the OnConn hook, once. The
// goroutine that dials calls it, so that no reader goroutine waits for the hook of a new
// connection. HasEnded calls it too, so that the hook learns of the connection before its end.
func (d *dialledConn) tellConnected() {
	d.told.Do(func() { d.ep.client.event(introspect.ConnEvent{Kind: introspect.Connected, Addr: d.ep.Addr()}) })
}

func (d *dialledConn) answer() {
	d.once.Do(func() {
		close(d.answered)
		d.answered = nil
	})
}

// hasEnded handles the end of the connection.
func (d *dialledConn) hasEnded(err error) {
	if d.served != nil {
		d.served.unlink()
	}
	if d.up.Load() {
		d.tellConnected()
		d.ep.client.event(ending(d.ep.Addr(), err))
	}
	d.answer()
}

// load returns the number of open calls, and whether another call would wait.
func (d *dialledConn) load() (open int, full bool) {
	if d.link != nil {
		return int(d.link.open.Load()), d.link.full != nil && d.link.full()
	}
	return d.mux.Load()
}

// Usable reports whether the connection accepts further calls.
func (d *dialledConn) Usable() bool {
	if d.link != nil {
		return !d.link.isClosing()
	}
	return d.mux.Usable()
}

// End says why the connection accepts no more calls.
func (d *dialledConn) End() endpoints.End {
	if d.link != nil {
		return endpoints.End{Err: d.link.why(), Worked: d.link.replied.Load()}.Complete()
	}
	return endpoints.EndOf(d.mux)
}

// Ended returns a channel that is closed when the connection has ended.
func (d *dialledConn) Ended() <-chan struct{} {
	if d.link != nil {
		return d.link.done
	}
	return d.mux.Ended()
}

// Close ends the connection now. CloseWhenIdle ends it when its calls have ended.
func (d *dialledConn) Close() {
	if d.link != nil {
		d.link.shut(false)
		return
	}
	d.mux.Close()
}

func (d *dialledConn) CloseWhenIdle() {
	if d.link != nil {
		d.link.shut(true)
		return
	}
	d.mux.CloseWhenIdle()
}

func (d *dialledConn) stats() introspect.Conn {
	open, full := d.load()
	if d.link != nil {
		return introspect.Conn{Open: open, Full: full}
	}
	return diagnose.Conn(d.mux)
}
