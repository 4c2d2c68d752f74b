// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/load"
	"github.com/yodel-rpc/yodel/internal/methods"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
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
	failed      atomic.Int64 // attempts
	held        atomic.Int64 // bytes that Reserve has counted
	// counters has the counters of live data, by the handles of bindings; countersMu guards changes
	counters   methods.List[measuredMethod]
	countersMu sync.Mutex
	report     load.Report
	trip       load.RoundTrip
	identity   atomic.Pointer[identity.Server] // of the last connection; nil before the first
	states     states
	core       endpoints.Endpoint[*Endpoint, *dialledConn]
}

func newEndpoint(c *Client, in discovery.Instance, w namedWire) *Endpoint {
	ep := &Endpoint{client: c, wire: w.Wire, protocol: w.name}
	ep.instance.Store(&in)
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
func (ep *Endpoint) ready(ctx context.Context) *dialledConn {
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
// own, or for any other call if own is nil. The handler's calls to its caller use this connection.
// It recognizes nested calls, and does not make them wait for the call that caused them.
func (ep *Endpoint) readyBeside(own *mux.Conn) *dialledConn {
	conns := ep.core.Conns()
	if own != nil {
		if i := slices.IndexFunc(conns, func(conn *dialledConn) bool { return conn.mux == own }); i >= 0 {
			return conns[i]
		}
	}
	o := &ep.client.opts
	conn, saturated := leastLoaded(conns, o.FixedConns)
	if (saturated || o.FixedConns) && len(conns) < o.ConnsPerEndpoint && ep.core.MayAdd() {
		return nil
	}
	return conn
}

// leastLoaded returns the connection with the fewest open calls, preferring connections that are
// not saturated and then the oldest, or a random one. It also reports whether all are saturated.
func leastLoaded(conns []*dialledConn, random bool) (least *dialledConn, saturated bool) {
	fewest, first := 0, 0
	if random && len(conns) > 1 {
		first = rand.IntN(len(conns))
	}
	for i := range conns {
		conn := conns[(first+i)%len(conns)]
		n, full := conn.load()
		if least == nil || !full && saturated || full == saturated && n < fewest {
			least, fewest, saturated = conn, n, full
		}
	}
	return least, saturated
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
// Load uses Instance.Inflight from the registry for the calls of other clients. Balancers compare
// endpoints by their Load.
func (ep *Endpoint) Load() int { return ep.report.Others(ep.instance.Load().Inflight) + ep.Inflight() }

// RTT returns the network round-trip time to the endpoint, as measured by the last ping. It is 0
// before the first ping has ended, and in other protocols than yodel's own. If the last ping is
// more than 5 s old and there is a connection, RTT starts another ping without waiting for it. So
// pings are sent only while a program calls RTT.
func (ep *Endpoint) RTT() time.Duration {
	if ep.wire == nil && ep.trip.Due() {
		if conns := ep.core.Conns(); len(conns) > 0 {
			ep.trip.Measure(conns[0].mux.Ping, ep.core.Go)
		}
	}
	return ep.trip.Took()
}
