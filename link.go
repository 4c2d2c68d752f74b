// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file sends calls through a Wire to servers that speak another protocol than yodel's.

// native is the name of yodel's own protocol in Instance.Protocols.
const native = "yodel"

// A link is the client's state of a Link.
type link struct {
	Link
	guard   *guard.Guard
	conn    *firstbytes.Recorder
	closing <-chan struct{}
	done    <-chan struct{}
	full    func() bool            // of the Link; nil if it has none
	codec   func(call *Call) Codec // returns the codec that decodes the reply
	open    atomic.Int64           // calls in flight
	replied atomic.Bool            // a call was answered
	shutOff atomic.Bool            // the client has closed it

	mu  sync.Mutex
	err error // why it accepts no more calls
}

// connectLink makes a connection through the endpoint's Wire. It takes ownership of nc, even if it
// fails.
func (ep *Endpoint) connectLink(ctx context.Context, nc net.Conn) (*dialledConn, error) {
	nc = ep.client.guard.Conn(nc)
	conn, forWire := firstbytes.Record(nc)
	l := &link{guard: ep.client.guard, conn: conn, codec: (*Call).Encoding}
	err := l.guard.Apart("the Wire's Connect", nil, func() (err error) {
		if l.Link, err = ep.wire.Connect(ctx, forWire, ep); err == nil {
			l.closing, l.done = l.Closing(), l.Done()
			if limited, ok := l.Link.(interface{ Full() bool }); ok {
				l.full = limited.Full
			}
			if own, ok := l.Link.(interface{ Codec(call *Call) Codec }); ok {
				l.codec = own.Codec
			}
		}
		return err
	})
	if err != nil {
		_ = nc.Close() // err has the reason
		if _, said := errors.AsType[*Error](err); !said {
			if ctx.Err() != nil {
				err = mux.ErrHandshake
			}
			err = cmp.Or(conn.Mismatch(ep.protocol), err)
		}
		return nil, err
	}
	d := &dialledConn{link: l, ep: ep, server: new(identity.Server), heard: clock()}
	d.up.Store(true)
	_, d.secure = nc.(interface{ ConnectionState() tls.ConnectionState })
	ep.client.event(introspect.ConnEvent{Kind: introspect.Connected, Addr: ep.Addr()})
	ep.client.wg.Go(d.watch)
	return d, nil
}

func (l *link) isClosing() bool {
	select {
	case <-l.closing:
	case <-l.done:
	default:
		return false
	}
	return true
}

// why returns why the link accepts no more calls. It returns nil before watch has asked the Link.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// shut closes the link. A second call with whenIdle false cuts off the calls in flight.
func (l *link) shut(whenIdle bool) {
	l.shutOff.Store(true)
	_ = l.guard.Apart("the Link's Close", nil, func() error { // a failure is in the log
		l.Close(whenIdle)
		return nil
	})
}

// watch removes the connection from its endpoint when it accepts no more calls. It returns when the
// connection has ended.
func (d *dialledConn) watch() {
	l, c := d.link, d.ep.client
	select {
	case <-l.closing:
	case <-l.done:
	}
	err := l.guard.Apart("the Link's Err", nil, l.Err)
	if err != nil {
		err = cmp.Or(l.conn.Mismatch(d.ep.protocol), err)
	}
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	d.ep.core.Remove(d)
	<-l.done
	e := introspect.ConnEvent{Kind: introspect.Disconnected, Addr: d.ep.Addr()}
	switch {
	case l.shutOff.Load():
		e.Kind = introspect.Closed
	case err != nil && !errors.Is(err, io.EOF):
		e.Kind, e.Err = introspect.ReadFailed, err
	}
	c.event(e)
}

// Reserve counts n bytes that a Link to the endpoint is about to allocate for a reply, for example
// for the next part of it. If it returns false, Limits.MaxMemory or ClientOptions.MaxMemory has no
// room, and the Link must not allocate them: it discards the reply and fails its call with YDL3007.
// Release must uncount the bytes, also if the connection ends. Limits.MaxMemory applies to all
// Links of the endpoint together.
func (ep *Endpoint) Reserve(n int) bool {
	held := ep.held.Add(int64(n))
	if c := ep.client; held <= int64(c.limits.MaxMemory) && c.memory.TakeFor(n, int(held)) {
		return true
	}
	ep.held.Add(-int64(n))
	return false
}

// Release uncounts bytes that Reserve counted.
func (ep *Endpoint) Release(n int) {
	ep.held.Add(-int64(n))
	ep.client.memory.Give(n)
}

// unordered returns the error of an ordered call to an endpoint that speaks another protocol.
func unordered(call *Call, ep *Endpoint) *Error {
	return refusal("YDL2009", "%s: %s speaks %s, which keeps no order of calls", call.Method, ep.Addr(), ep.protocol)
}

// unsentByLink converts the error of a link to an error of a connection, if it says that the
// request was not sent. The client then adds the method, the address and the ID.
func unsentByLink(err error) error {
	e, ok := err.(*Error) //nolint:errorlint // as Link.Do returns it
	if ok && e.Code == Unavailable && e.NotProcessed && e.ID == "" && e.Cause != nil {
		return &mux.CallError{Cause: e.Cause, NotProcessed: true}
	}
	return err
}

// failure returns the error of a call that failed with err on a link to ep. If the server speaks
// another protocol, that is the reason, and the call was not executed.
func (l *link) failure(ctx context.Context, ep *Endpoint, err error) error {
	if e, ok := err.(*Error); err == nil || ctx.Err() != nil || ok && e.NotProcessed { //nolint:errorlint // as Link.Do returns it
		return err
	}
	if foreign := l.conn.Mismatch(ep.protocol); foreign != nil {
		return &mux.CallError{Cause: foreign, NotProcessed: true}
	}
	return err
}

// A namedWire is a Wire and its name. The client calls Name of the Wire only once, so that this
// code of a plug-in does not run under a lock.
type namedWire struct {
	Wire // nil for yodel's own protocol
	name string
}

// wireFor returns the Wire for an instance that speaks the given protocols. It reports false if the
// client speaks none of them.
func (c *Client) wireFor(protocols []string) (w namedWire, ok bool) {
	if len(protocols) == 0 || slices.Contains(protocols, native) {
		return namedWire{name: native}, true
	}
	for _, w := range c.wires {
		if slices.Contains(protocols, w.name) {
			return w, true
		}
	}
	return namedWire{}, false
}
