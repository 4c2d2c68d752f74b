// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/methods"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// An Endpoint is an instance as one client sees it: its connections, its load, and whether it is
// ready. Its methods may be called concurrently.
type Endpoint struct {
	instance atomic.Pointer[Instance]
	client   *Client
	wire     Wire    // nil for yodel's own protocol; does not change
	protocol string  // its name; does not change
	direct   Handler // makes an attempt on a connection; does not change
	// chain is direct with endpoint middleware; nil while the middleware is being constructed
	chain    atomic.Pointer[Handler]
	inflight inflight
	// unconnected counts the calls that found no connection
	unconnected atomic.Int64
	failed      atomic.Int64 // attempts
	held        atomic.Int64 // bytes that Reserve has counted
	// counters has the counters of live data, by the handles of bindings; changes are guarded by mu
	counters methods.List[measuredMethod]
	shunned  map[string]uint64 // how often it became not ready, by reason; guarded by mu
	report   loadReport
	trip     roundTrip
	conns    atomic.Pointer[[]*dialledConn] // never nil
	identity atomic.Pointer[serverIdentity] // of the last connection; nil before the first
	states   states
	// status is the number of reasons why the endpoint is not ready, plus the bit offline while
	// there is no connection.
	status   atomic.Int32
	reached  atomic.Bool // there has been a connection
	suspect  atomic.Bool // never connected, and an attempt failed or is slow
	busy     atomic.Bool // it is being dialled, or a timer will dial it
	unlisted atomic.Bool // the resolver no longer reports it, see leaving.go
	stranger atomic.Bool // another server listens at its address
	away     atomic.Bool // the last connection was lost, and no attempt to connect has succeeded since
	told     atomic.Bool // a call has failed since, because the transport could not connect
	// when a connection was lost, in nanoseconds since 1970; 0 if none was lost since the endpoint
	// last connected
	lostAt atomic.Int64
	ctx    context.Context //nolint:containedctx // canceled when the endpoint is closed
	cancel context.CancelFunc

	joined time.Time // when the resolver first reported it; does not change
	left   time.Time // when it became unlisted; guarded by cluster.mu

	mu       sync.Mutex
	by       map[string]bool // the reasons why it is not ready: see SetReady
	dialing  *dialing        // nil while no attempt is in progress
	lastErr  *dialError      // why the last attempt or connection failed
	failures int             // failed attempts and short-lived connections in a row
	failedAt time.Time       // when the last failure happened
	since    time.Time       // when the last connection was made
	retry    *time.Timer     // the timer of the next dial
	retryAt  time.Time
	closed   bool
	// enough is the time until which no additional connection is made, in nanoseconds since 1970.
	// It is set while an additional connection is being made, and after an attempt has failed.
	enough atomic.Int64
}

// offline is the bit of Endpoint.status that means that there is no connection.
const offline = 1 << 16

// An inflight counts calls in flight. It has two counters on separate cache lines, because
// asynchronous calls begin on one processor and end on another. With a single counter, counting
// took 40 ns per call, mostly for moving the cache line.
type inflight struct {
	_       [cacheLine]byte
	begun   atomic.Int64
	waiting atomic.Int64 // calls that wait for a connection; rarely written
	_       [cacheLine]byte
	ended   atomic.Int64
	_       [cacheLine]byte
}

const cacheLine = 64

// sent returns how many calls were sent, or are about to be, and have not ended.
func (n *inflight) sent() int {
	ended := n.ended.Load() // read first, so that the result is never negative
	return int(n.begun.Load() - ended)
}

func newEndpoint(c *Client, in Instance, w namedWire) *Endpoint {
	ep := &Endpoint{client: c, wire: w.Wire, protocol: w.name, by: make(map[string]bool), joined: time.Now()}
	ep.status.Store(offline)
	ep.instance.Store(&in)
	ep.conns.Store(&[]*dialledConn{})
	ep.ctx, ep.cancel = context.WithCancel(context.Background())
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
func (ep *Endpoint) Instance() Instance { return *ep.instance.Load() }

// Addr returns the address of the instance.
func (ep *Endpoint) Addr() string { return ep.instance.Load().Addr }

// Inflight returns how many calls of this client are in flight on the endpoint. Calls that wait for
// a connection count too. Otherwise an endpoint that accepts no connections would look idle to
// balancers and attract all calls until the dial timeout.
func (ep *Endpoint) Inflight() int { return ep.inflight.sent() + int(ep.inflight.waiting.Load()) }

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
	return &ep.inflight.begun
}

func (ep *Endpoint) ended() {
	if ep != nil {
		ep.inflight.ended.Add(1)
	}
}

// Connected reports whether there is a connection.
func (ep *Endpoint) Connected() bool { return ep.status.Load()&offline == 0 }

// unreachable reports whether there is no connection, and a call has failed since the last
// connection because the transport could not connect.
func (ep *Endpoint) unreachable() bool { return ep.away.Load() && ep.told.Load() && !ep.Connected() }

// Ready reports whether the endpoint should receive calls. It returns false if SetReady has said so
// for any reason, or if the connection was lost. An endpoint to which the client has not connected
// yet is ready. Calls go there when it is connected, or when no endpoint is connected.
func (ep *Endpoint) Ready() bool { return ep.status.Load()&^offline == 0 }

// SetReady sets whether the endpoint should receive calls, for the reason by. The endpoint is ready
// unless at least one reason says that it is not. If no endpoint is ready, calls go to endpoints
// that are not ready.
func (ep *Endpoint) SetReady(by string, ready bool) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.setReadyLocked(by, ready)
}

func (ep *Endpoint) setReadyLocked(by string, ready bool) {
	if ready == !ep.by[by] {
		return
	}
	if ready {
		delete(ep.by, by)
	} else {
		ep.by[by] = true
		if ep.shunned == nil {
			ep.shunned = make(map[string]uint64)
		}
		if n, known := ep.shunned[by]; known || len(ep.shunned) < maxReasonsOf {
			ep.shunned[by] = n + 1
		}
	}
	ep.status.Store(int32(len(ep.by)) | ep.status.Load()&offline) //nolint:gosec // few
	ep.noteReady(by, ready)
}

// setConnsLocked replaces the connections. It reports whether this removed the client's last
// connection to any endpoint.
func (ep *Endpoint) setConnsLocked(conns []*dialledConn) (last bool) {
	before := len(*ep.conns.Load())
	ep.conns.Store(&conns)
	connected := &ep.client.cluster.connected
	switch {
	case before == 0 && len(conns) > 0:
		ep.status.Store(ep.status.Load() &^ offline)
		connected.Add(1)
	case before > 0 && len(conns) == 0:
		ep.status.Store(ep.status.Load() | offline)
		return connected.Add(-1) == 0
	}
	return false
}

// restsLocked reports whether there is no connection and no attempt to make one.
func (ep *Endpoint) restsLocked() bool {
	return len(*ep.conns.Load()) == 0 && ep.dialing == nil && ep.retry == nil
}

// State returns the value that is stored under key on this endpoint. The first time it creates the
// value with create. Middleware stores state there that it must keep when the chain is built again.
// State may be called concurrently. If two first calls of State run at the same time, create may
// run twice.
func (ep *Endpoint) State(key any, create func() any) any {
	return ep.states.get(key, create)
}

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
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if !ep.closed {
		ep.client.wg.Go(func() {
			defer ep.client.guard.Rescue("a function in the background")
			f(ep.ctx)
		})
	}
}

// maxReasonsOf limits how many different reasons for not being ready an endpoint counts.
const maxReasonsOf = 32

// byConn is the reason, as in SetReady, of an endpoint that has lost its connection.
const byConn = "connection"

// do returns the handler that makes one attempt on this endpoint. It is a closure for the same
// reason as the handler of balance.
func (ep *Endpoint) do() Handler {
	c := ep.client
	return func(ctx context.Context, call *Call) error {
		if call.turn != nil {
			if err := c.doInTurn(ctx, ep, call); err != nil {
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
	conns := *ep.conns.Load()
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
	conns := *ep.conns.Load()
	if own != nil {
		if i := slices.IndexFunc(conns, func(conn *dialledConn) bool { return conn.mux == own }); i >= 0 {
			return conns[i]
		}
	}
	conn, saturated := leastLoaded(conns)
	if saturated && len(conns) < ep.client.opts.ConnsPerEndpoint && time.Now().UnixNano() >= ep.enough.Load() {
		return nil
	}
	return conn
}

// leastLoaded returns the connection with the fewest open calls, preferring connections that are
// not saturated and then the oldest. It also reports whether all connections are saturated.
func leastLoaded(conns []*dialledConn) (least *dialledConn, saturated bool) {
	fewest := 0
	for _, conn := range conns {
		n, full := conn.load()
		if least == nil || !full && saturated || full == saturated && n < fewest {
			least, fewest, saturated = conn, n, full
		}
	}
	return least, saturated
}
