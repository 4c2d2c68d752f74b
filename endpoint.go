// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/load"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// An Endpoint is an instance as one client sees it: its connections, its load, and whether it is
// ready. Its methods may be called concurrently.
type Endpoint struct {
	instance atomic.Pointer[discovery.Instance]
	client   *Client
	wire     Wire    // nil for yodel's own protocol; does not change
	protocol string  // its name; does not change
	direct   Handler // makes an attempt on a connection; does not change
	// chain is direct with endpoint middleware; nil while the middleware is being constructed
	chain    atomic.Pointer[Handler]
	inflight load.Inflight
	// unconnected counts the calls that found no connection
	unconnected atomic.Int64
	failed      atomic.Int64      // attempts
	held        memory.Share      // that Reserve has counted
	counters    diagnose.Counters // of live data
	report      load.Report
	trip        load.RoundTrip
	identity    atomic.Pointer[identity.Server] // of the last connection; nil before the first
	states      states
	core        endpoints.Endpoint[*Endpoint, *dialled.Conn]
}

func newEndpoint(c *Client, in discovery.Instance, protocol int) *Endpoint {
	ep := &Endpoint{client: c, wire: c.wires[protocol], protocol: c.speaks[protocol]}
	ep.instance.Store(&in)
	ep.held.Init(c.memory, c.limits.MaxMemory)
	ep.core.Init(&c.cluster.list, ep, in.Addr)
	ep.direct = ep.do()
	return ep
}

// wrap makes the chain, once. No lock may be held. If a constructor panics, calls to the endpoint
// fail.
func (ep *Endpoint) wrap() {
	if ep.chain.Load() != nil {
		return
	}
	h := ep.direct
	for _, m := range slices.Backward(ep.client.opts.EndpointMiddleware) {
		if err := ep.client.guard.Apart("an EndpointMiddleware", nil, func() error {
			h = m(ep, h)
			return nil
		}); err != nil {
			h = func(context.Context, *Call) error { return err }
			break
		}
	}
	ep.chain.Store(&h)
}

// handle makes an attempt through the chain. Only a call that names the endpoint can come before
// the chain is made, for example from the constructor of a middleware: it goes past the middleware.
func (ep *Endpoint) handle(ctx context.Context, call *Call) error {
	if h := ep.chain.Load(); h != nil {
		return (*h)(ctx, call)
	}
	return ep.direct(ctx, call)
}

// Instance returns the instance as the resolver last reported it.
func (ep *Endpoint) Instance() discovery.Instance { return *ep.instance.Load() }

// Addr returns the address of the instance.
func (ep *Endpoint) Addr() string { return ep.instance.Load().Addr }

// Inflight returns how many calls of this client are in flight on the endpoint. Calls that wait for
// a connection count too. Otherwise an endpoint that accepts no connections would look idle to
// balancers and attract all calls until the dial timeout.
func (ep *Endpoint) Inflight() int { return ep.inflight.Sent() + int(ep.inflight.Waiting.Load()) }

// begun counts a call in flight, and returns started. Ep is nil for a call to a peer.
func (ep *Endpoint) begun() (at time.Duration) {
	if n := ep.starts(); n != nil {
		n.Add(1)
	}
	return ep.started()
}

// started returns the reading of the clock if the picker is a Learner, and 0 otherwise.
func (ep *Endpoint) started() (at time.Duration) {
	if ep == nil || !ep.learned() {
		return 0
	}
	return clock()
}

// starts returns the counter of calls that have begun.
func (ep *Endpoint) starts() *atomic.Int64 {
	if ep == nil {
		return nil
	}
	return &ep.inflight.Begun
}

func (ep *Endpoint) ended() {
	if ep != nil {
		ep.inflight.Ended.Add(1)
	}
}

// Connected reports whether there is a connection.
func (ep *Endpoint) Connected() bool { return ep.core.Connected() }

// Ready reports whether the endpoint should receive calls. It returns false if SetReady has said so
// for any reason, or if the connection was lost. An endpoint to which the client has not connected
// yet is ready. Calls go there when it is connected, or when no endpoint is connected.
func (ep *Endpoint) Ready() bool { return ep.core.Status()&^endpoints.Offline == 0 }

// SetReady sets whether the endpoint should receive calls, for the reason by. The endpoint is ready
// unless at least one reason says that it is not. If no endpoint is ready, calls go to endpoints
// that are not ready.
func (ep *Endpoint) SetReady(by string, ready bool) { ep.core.SetReady(by, ready) }

// State returns the value that is stored under key on this endpoint. The first time it creates the
// value with create. Middleware stores state there that it must keep when the chain is built again.
// State may be called concurrently. If two first calls of State run at the same time, create may
// run twice.
func (ep *Endpoint) State(key any, create func() any) any { return ep.states.get(key, create) }

// states stores values under keys.
type states struct{ sync.Map }

func (s *states) get(key any, create func() any) any {
	if v, ok := s.Load(key); ok {
		return v
	}
	v, _ := s.LoadOrStore(key, create())
	return v
}

// Client returns the client that the endpoint belongs to.
func (ep *Endpoint) Client() *Client { return ep.client }

// Go runs f on a new goroutine. F's ctx ends when the endpoint leaves the client's set or the
// client is closed. Client.Close waits at most 1.5 s for f to return. Once ctx has ended, Go does
// nothing.
func (ep *Endpoint) Go(f func(ctx context.Context)) {
	ep.core.Go(func(ctx context.Context) {
		defer ep.client.guard.Rescue("a function in the background")
		f(ctx)
	})
}

// do returns the handler that makes one attempt on this endpoint. It is a closure for the same
// reason as the handler of balance.
func (ep *Endpoint) do() Handler {
	c := ep.client
	return func(ctx context.Context, call *Call) error {
		if call.turn != nil {
			if err := (*orderedCall)(call).attempt(ctx, ep); err != nil {
				return c.explain(ctx, call, ep, err)
			}
			return nil
		}
		var err error
		conn := ep.ready(ctx)
		if conn == nil {
			if conn, err = ep.connectFor(ctx, call); err != nil {
				return c.explain(ctx, call, ep, err)
			}
		}
		if err = c.attempt(ctx, call, conn, ep); err != nil {
			return c.explain(ctx, call, ep, err)
		}
		return nil
	}
}

// ready returns a connection for the next call. It returns nil if there is no connection, or if an
// additional connection should be made.
func (ep *Endpoint) ready(ctx context.Context) *dialled.Conn {
	conns := ep.core.Conns()
	if len(conns) == 1 && ep.client.opts.ConnsPerEndpoint == 1 {
		return conns[0]
	}
	return ep.readyBeside(ep.connOf(ctx))
}

// connOf returns the connection on which the call came whose handler has ctx, or nil.
func (ep *Endpoint) connOf(ctx context.Context) *mux.Conn {
	if ep.client.opts.Server == nil {
		return nil
	}
	return mux.ConnOf(ctx)
}

// readyBeside is ready for a call that is made by the handler of a call that came on the connection
// own, or for any other call if own is nil.
func (ep *Endpoint) readyBeside(own *mux.Conn) *dialled.Conn {
	o := &ep.client.opts
	conn, more := dialled.Conns(ep.core.Conns()).Next(own, o.ConnsPerEndpoint, o.FixedConns)
	if more && ep.core.MayAdd() {
		return nil
	}
	return conn
}

// learned reports whether the picker is a Learner.
func (ep *Endpoint) learned() bool { return ep.client.cluster.learner.Load() != nil }

// learn reports an attempt to the Learner. At is the reading of the clock when the attempt began,
// or 0 if its duration does not count. It is not inlined, so that its stack frame is gone while the
// call runs: see balance.
//
//go:noinline
func (ep *Endpoint) learn(ctx context.Context, call *Call, at time.Duration, a *mux.Answer, err error) {
	l := ep.client.cluster.learner.Load()
	if l == nil { // the picker has just changed
		return
	}
	took := time.Duration(0)
	if at != 0 {
		took = max(clock()-at, 1)
	}
	switch {
	case err != nil:
		err = ep.client.explain(ctx, call, ep, err)
	case a != nil && a.Code != 0:
		err = &Error{Code: Code(a.Code), NotProcessed: a.Flags&wire.NotProcessed != 0}
	}
	defer ep.client.guard.Rescue("the Learner")
	(*l).Ended(ep, took, err)
}

// Load returns how many calls the endpoint's server is executing: this client's calls in flight,
// plus the calls of other clients as the server last reported on a reply. Before the first report,
// Load uses discovery.Instance.Inflight from the registry for the calls of other clients. Balancers
// compare endpoints by their Load.
func (ep *Endpoint) Load() int { return ep.report.Others(ep.instance.Load().Inflight) + ep.Inflight() }

// RTT returns the network round-trip time to the endpoint, as measured by the last ping. It is 0
// before the first ping has ended, and in other protocols than yodel's own. If the last ping is
// more than 5 s old and there is a connection, RTT starts another ping without waiting for it. So
// pings are sent only while a program calls RTT.
func (ep *Endpoint) RTT() time.Duration {
	if ep.wire == nil && ep.trip.Due() {
		if conns := ep.core.Conns(); len(conns) > 0 {
			ep.trip.Measure(conns[0].Mux.Ping, ep.core.Go)
		}
	}
	return ep.trip.Took()
}

// spareTime is how long an additional connection, or a connection that no call has needed, may be
// idle if Limits.IdleTimeout is not set.
const spareTime = 30 * time.Second

// connected returns a connection, and dials if there is no connection. Alone says that the caller
// has no other endpoint. Connected then dials at once, even if an attempt has just failed.
func (ep *Endpoint) connected(ctx context.Context, deadline time.Time, alone bool) (*dialled.Conn, error) {
	if conn := ep.ready(ctx); conn != nil {
		return conn, nil
	}
	return ep.core.Connect(ctx, deadline, alone, ep.connOf(ctx))
}

// connectFor is connected for a call. It adds the time that it took to the call's record.
func (ep *Endpoint) connectFor(ctx context.Context, call *Call) (*dialled.Conn, error) {
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

// connect makes a connection and waits until calls can be sent on it.
func (ep *Endpoint) connect(ctx context.Context, spare bool, accepted func()) (*dialled.Conn, *reason.DialError) {
	c := ep.client
	fail := func(err *reason.DialError) (*dialled.Conn, *reason.DialError) {
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
	owner := &dialler{ep: ep, served: c.link(nc)}
	conn := &dialled.Conn{Owner: owner}
	err := conn.Dial(ctx, nc, config)
	if err == nil {
		return ep.admitted(conn)
	}
	if refusal, ok := errors.AsType[*mux.Refusal](err); ok && owner.served != nil && owner.served.refused.Load() {
		err = &Error{
			Code: Code(refusal.Code), ID: refusal.ID, NotProcessed: true,
			Message: fmt.Sprintf("the Connect hook of this client's Server refused %s: %s", ep.Addr(), refusal.Message),
		}
	}
	return fail(&reason.DialError{Err: err, Connected: true})
}

// errStranger is the error of a connection to an address where another server listens now.
var errStranger = refusal("YDL1109", "another server listens at the address of the instance")

// admitted returns conn if it leads to the endpoint's server, and closes it otherwise.
func (ep *Endpoint) admitted(conn *dialled.Conn) (*dialled.Conn, *reason.DialError) {
	conn.ReportConnected()
	if ep.is(conn.Server) {
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

// A dialler is the owner of a connection that an endpoint has dialled.
type dialler struct {
	ep     *Endpoint
	served *serverConn // nil if the client has no Server

	// of a Link
	link  Link
	codec func(call *Call) Codec // returns the codec that decodes the reply
}

// whose returns the dialled.Conn that owns conn.
func whose(conn *mux.Conn) *dialled.Conn { return conn.Owner().(*dialled.Conn) } //nolint:forcetypeassert // set by connect

// ownerOf returns the owner of a connection.
func ownerOf(conn *dialled.Conn) *dialler { return conn.Owner.(*dialler) } //nolint:forcetypeassert // set by connect

// hello handles the server's settings.
func (d *dialler) hello(conn *mux.Conn, l *wire.Limits) *mux.Refusal {
	if d.served != nil {
		if refusal := d.served.hello(conn, l); refusal != nil {
			return refusal
		}
	}
	whose(conn).Answered(identity.Of(l, d.ep.identity.Load()), identity.Agent(l, agent))
	return nil
}

// over handles the end of a connection in yodel's own protocol.
func (d *dialler) over(conn *mux.Conn, err error) {
	if d.served != nil {
		d.served.unlink()
	}
	whose(conn).Over(err)
}

// Connected implements dialled.Owner.
func (d *dialler) Connected() {
	d.ep.client.event(introspect.ConnEvent{Kind: introspect.Connected, Addr: d.ep.Addr()})
}

// Unusable implements dialled.Owner.
func (d *dialler) Unusable(conn *dialled.Conn) { d.ep.core.Remove(conn) }

// Ended implements dialled.Owner.
func (d *dialler) Ended(err error) { d.ep.client.event(ending(d.ep.Addr(), err)) }

// native is the name of yodel's own protocol in discovery.Instance.Protocols.
const native = "yodel"

// connectLink makes a connection through the endpoint's Wire. It takes ownership of nc, even if it
// fails.
func (ep *Endpoint) connectLink(ctx context.Context, nc net.Conn) (*dialled.Conn, error) {
	d := &dialler{ep: ep, codec: (*Call).Encoding}
	conn := &dialled.Conn{Owner: d}
	err := conn.Join(ctx, nc, ep.client.guard, ep.protocol, func(nc net.Conn) (_ dialled.Link, err error) {
		d.link, err = ep.wire.Connect(ctx, nc, ep)
		if own, ok := d.link.(interface{ Codec(call *Call) Codec }); ok {
			d.codec = own.Codec
		}
		return d.link, err
	}, isError)
	if err != nil {
		return nil, err
	}
	ep.client.wg.Go(conn.Watch)
	return conn, nil
}

func isError(err error) bool {
	_, is := errors.AsType[*Error](err)
	return is
}

// Reserve counts n bytes that a Link to the endpoint is about to allocate for a reply, for example
// for the next part of it. If it returns false, Limits.MaxMemory or ClientOptions.MaxMemory has no
// room, and the Link must not allocate them: it discards the reply and fails its call with YDL3007.
// Release must uncount the bytes, also if the connection ends. Limits.MaxMemory applies to all
// Links of the endpoint together.
func (ep *Endpoint) Reserve(n int) bool { return ep.held.Take(n) }

// Release uncounts bytes that Reserve counted.
func (ep *Endpoint) Release(n int) { ep.held.Give(n) }

// unsentByLink converts the error of a link to an error of a connection, if it says that the
// request was not sent. The client then adds the method, the address and the ID.
func unsentByLink(err error) error {
	e, ok := err.(*Error) //nolint:errorlint // as Link.Do returns it
	if ok && e.Code == Unavailable && e.NotProcessed && e.ID == "" && e.Cause != nil {
		return &mux.CallError{Cause: e.Cause, NotProcessed: true}
	}
	return err
}

// failure returns the error of a call that failed with err on conn. If the server speaks another
// protocol, that is the reason, and the call was not executed.
func (d *dialler) failure(ctx context.Context, conn *dialled.Conn, err error) error {
	if e, ok := err.(*Error); err == nil || ctx.Err() != nil || ok && e.NotProcessed { //nolint:errorlint // as Link.Do returns it
		return err
	}
	return conn.Foreign.Unserved(err)
}
