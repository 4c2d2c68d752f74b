// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// An Endpoint is an instance as one client sees it: its connections, its load, and whether it is
// ready. Its methods may be called concurrently.
type Endpoint struct {
	instance atomic.Pointer[Instance]
	client   *Client
	handler  Handler // the attempt on a connection; with endpoint middleware once wrapped
	wrapped  bool    // set, like handler, before the endpoint is in a set
	inflight inflight
	report   loadReport
	trip     roundTrip
	conns    atomic.Pointer[[]*mux.Conn]    // never nil
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
	away     atomic.Bool // no connection could be made since the last one was lost
	told     atomic.Bool // a call has failed because of that
	// when the last connection was lost, in nanoseconds since 1970; 0 while all is well
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
	// enough is the time until which no additional connection is made, in nanoseconds since 1970:
	// one is being made, or an attempt has just failed.
	enough atomic.Int64
}

// offline is the bit of Endpoint.status that means that there is no connection.
const offline = 1 << 16

// An inflight counts calls in flight. It has two counters on separate cache lines, because
// asynchronous calls begin on one processor and end on another. One counter for both took 40 ns per
// call, mostly for moving the cache line.
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
	ended := n.ended.Load() // first, so that the count is never negative
	return int(n.begun.Load() - ended)
}

// A dialing is an attempt to connect. Several callers may wait for it.
type dialing struct {
	done  chan struct{}
	began time.Duration // on the clock
	// accepted is set when the transport has connected. From then on the attempt waits for the
	// server's settings.
	accepted atomic.Bool
	spare    bool          // an additional connection: closed when idle for spareTime
	delay    time.Duration // pause before the attempt
	conn     *mux.Conn
	err      error
}

// spareTime is how long an additional connection, or one that no call needed, may be idle if
// Limits.IdleTimeout is not set.
const spareTime = 30 * time.Second

// Back-off between attempts to connect. It doubles, with a jitter of half of it.
const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 1500 * time.Millisecond
)

func newEndpoint(c *Client, in Instance) *Endpoint {
	ep := &Endpoint{client: c, by: make(map[string]bool), joined: time.Now()}
	ep.status.Store(offline)
	ep.instance.Store(&in)
	ep.conns.Store(&[]*mux.Conn{})
	ep.ctx, ep.cancel = context.WithCancel(context.Background())
	ep.handler = ep.do()
	return ep
}

// wrap wraps the handler in the endpoint middleware, once. No lock may be held. If a constructor
// panics, calls to the endpoint fail.
func (ep *Endpoint) wrap() {
	if ep.wrapped {
		return
	}
	ep.wrapped = true
	h := ep.handler
	for _, m := range slices.Backward(ep.client.opts.EndpointMiddleware) {
		if err := ep.client.guard.apart("an EndpointMiddleware", nil, func() error {
			h = m(ep, h)
			return nil
		}); err != nil {
			h = func(context.Context, *Call) error { return err }
			break
		}
	}
	ep.handler = h
}

// Instance returns the instance as the resolver last reported it.
func (ep *Endpoint) Instance() Instance { return *ep.instance.Load() }

// Addr returns the address of the instance.
func (ep *Endpoint) Addr() string { return ep.instance.Load().Addr }

// Inflight returns how many calls of this client are in flight on the endpoint. Calls that wait for
// a connection count too. Otherwise an endpoint that accepts no connections would look idle to
// balancers and attract all calls until the dial timeout.
func (ep *Endpoint) Inflight() int { return ep.inflight.sent() + int(ep.inflight.waiting.Load()) }

// begun counts a call in flight and returns the clock if the picker is a Learner, and 0 otherwise.
// Ep is nil for a call to a peer.
func (ep *Endpoint) begun() (at time.Duration) {
	if ep == nil {
		return 0
	}
	ep.inflight.begun.Add(1)
	if !ep.learned() {
		return 0
	}
	return clock()
}

func (ep *Endpoint) ended() {
	if ep != nil {
		ep.inflight.ended.Add(1)
	}
}

// Connected reports whether there is a connection.
func (ep *Endpoint) Connected() bool { return len(*ep.conns.Load()) > 0 }

// unreachable reports whether there is no connection, and a call has failed since the last one
// because the transport could not connect.
func (ep *Endpoint) unreachable() bool { return ep.away.Load() && ep.told.Load() && !ep.Connected() }

// Ready reports whether the endpoint should receive calls. It is true unless a SetReady says
// otherwise or its connection was lost. An endpoint to which the client has not connected yet is
// ready; calls go there when it is connected, or when no endpoint is.
func (ep *Endpoint) Ready() bool { return ep.status.Load()&^offline == 0 }

// offline reports whether there is no connection.
func (ep *Endpoint) offline() bool { return ep.status.Load()&offline != 0 }

// SetReady sets whether the endpoint should receive calls, for the reason by. The endpoint is ready
// while no reason says that it is not. If no endpoint is ready, calls go to endpoints that are not.
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
	}
	ep.status.Store(int32(len(ep.by)) | ep.status.Load()&offline) //nolint:gosec // few
}

// setConnsLocked replaces the connections. It reports whether this removed the client's last
// connection to any endpoint.
func (ep *Endpoint) setConnsLocked(conns []*mux.Conn) (last bool) {
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

// State returns the value stored under key on this endpoint, and creates it with create the first
// time. Middleware stores state there that must survive a new chain. State may be called
// concurrently; if two first calls race, create may run twice.
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
			defer ep.client.guard.rescue("a function in the background")
			f(ep.ctx)
		})
	}
}

// byConn is the reason, as in SetReady, of an endpoint that has lost its connection.
const byConn = "connection"

// do returns the handler that makes one attempt on this endpoint. It is a closure for the reason
// given at balance.
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

// ready returns a connection for the next call. It returns nil if there is none, or if another
// connection should be made.
func (ep *Endpoint) ready(ctx context.Context) *mux.Conn {
	conns := *ep.conns.Load()
	if len(conns) == 1 && ep.client.opts.ConnsPerEndpoint == 1 {
		return conns[0]
	}
	if ep.client.opts.Server != nil {
		// A handler that calls its caller uses the connection on which the call came. That
		// connection recognizes nested calls, and does not make them wait for the call that caused
		// them.
		if conn := mux.ConnOf(ctx); conn != nil && slices.Contains(conns, conn) {
			return conn
		}
	}
	conn, saturated := leastLoaded(conns)
	if saturated && len(conns) < ep.client.opts.ConnsPerEndpoint && time.Now().UnixNano() >= ep.enough.Load() {
		return nil
	}
	return conn
}

// leastLoaded returns the connection with the fewest open calls, preferring connections that are
// not saturated and then the oldest. It also reports whether all are saturated.
func leastLoaded(conns []*mux.Conn) (least *mux.Conn, saturated bool) {
	fewest := 0
	for _, conn := range conns {
		n, full := conn.Load()
		if least == nil || !full && saturated || full == saturated && n < fewest {
			least, fewest, saturated = conn, n, full
		}
	}
	return least, saturated
}

// connected returns a connection, and dials if there is none. Alone says that the caller has no
// other endpoint: then it dials at once, even if an attempt has just failed.
func (ep *Endpoint) connected(ctx context.Context, deadline time.Time, alone bool) (*mux.Conn, error) {
	if conn := ep.ready(ctx); conn != nil {
		return conn, nil
	}
	searched := !alone && ep.client.cluster.connected.Load() == 0
	if searched {
		if conn, err := ep.client.cluster.awaitAny(ctx, deadline, ep); conn != nil || err != nil {
			return conn, err
		}
	}
	ep.mu.Lock()
	if conn := ep.ready(ctx); conn != nil {
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
		default: // it has just failed, and a timer will try again
			err := ep.failureLocked()
			ep.mu.Unlock()
			if searched { // the search dialled for this call
				err.next = 0
			}
			return nil, err
		}
	}
	ep.mu.Unlock()
	if conn, _ := leastLoaded(*ep.conns.Load()); conn != nil {
		return conn, nil // an additional connection is being made; this call does not wait for it
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
func (ep *Endpoint) connectFor(ctx context.Context, call *Call) (*mux.Conn, error) {
	if conn := ep.ready(ctx); conn != nil {
		return conn, nil
	}
	began := clock()
	if cl := ep.client.cluster; call.picked == ep && call.stays && cl.connected.Load() == 0 {
		cl.join(ep) // later calls may go elsewhere
	}
	ep.inflight.waiting.Add(1)
	conn, err := ep.connected(ctx, call.Deadline, call.pinned() || call.hold != nil && call.heldToOne())
	ep.inflight.waiting.Add(-1)
	call.out.connecting += clock() - began
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

func (ep *Endpoint) await(ctx context.Context, d *dialing, deadline time.Time) (*mux.Conn, error) {
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

// notConnected returns the error of a call that waited for d until cause ended it. The error says
// how far d has come, and how the previous attempt ended.
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
			c.wg.Go(conn.Close) // the endpoint no longer needs it
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
		ep.identity.Store(whose(conn).server)
		d.conn = conn
		ep.setConnsLocked(append(slices.Clone(*ep.conns.Load()), conn))
		ep.setReadyLocked(byConn, true)
	}
	ep.mu.Unlock()
	c.cluster.dials.Add(-1)
	if err == nil && !conn.Usable() { // it ended before it was added to the list
		ep.remove(conn)
	}
	c.cluster.dialled(ep, err == nil)
	close(d.done)
}

// connect makes a connection and waits for the server's settings. Without this wait, a server that
// is shutting down could accept the connection and never read from it, and the outcome of calls on
// it would be unknown.
func (ep *Endpoint) connect(ctx context.Context, d *dialing) (*mux.Conn, *dialError) {
	c := ep.client
	fail := func(err *dialError) (*mux.Conn, *dialError) {
		c.event(ConnEvent{Kind: introspect.ConnectFailed, Addr: ep.Addr(), Err: err.err})
		return nil, err
	}
	var nc net.Conn
	if err := c.guard.apart("the transport's Dial", nil, func() (err error) {
		nc, err = c.opts.Transport.Dial(ctx, ep.Addr())
		return err
	}); err != nil {
		return fail(&dialError{err: err})
	}
	d.accepted.Store(true)
	config := &c.config
	if d.spare && config.IdleTimeout == 0 {
		limited := c.config
		config, limited.IdleTimeout = &limited, spareTime
	}
	answered := make(chan struct{})
	dialled := &dialledConn{ep: ep, served: c.link(nc), answered: answered}
	conn := mux.NewOf(dialled, nc, nil, true, config)
	select {
	case <-answered:
		if dialled.up.Load() {
			return ep.admitted(dialled, conn)
		}
		err := conn.Err()
		if refusal, ok := errors.AsType[*mux.Refusal](err); ok && dialled.served != nil && dialled.served.refused.Load() {
			err = &Error{
				Code: Code(refusal.Code), ID: refusal.ID, NotProcessed: true, //nolint:gosec // set from a Code
				Message: fmt.Sprintf("the Connect hook of this client's Server refused %s: %s", ep.Addr(), refusal.Message),
			}
		}
		return fail(&dialError{err: err, connected: true})
	case <-ctx.Done():
		if dialled.up.Load() { // just now
			return ep.admitted(dialled, conn)
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
// server takes the four bytes for the beginning of a frame, and the connection ends before the rest
// comes.
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

// A dialledConn is the endpoint's state of a connection that it has dialled.
type dialledConn struct {
	ep       *Endpoint
	served   *serverConn     // nil if the client has no Server
	heard    time.Duration   // when the server's settings arrived, on the clock; set before up
	server   *serverIdentity // from the server's settings; set before up
	up       atomic.Bool
	once     sync.Once
	answered chan struct{} // closed when the server has answered or the connection has ended
}

// whose returns the dialledConn of conn.
func whose(conn *mux.Conn) *dialledConn { return conn.Owner().(*dialledConn) } //nolint:forcetypeassert // set by connect

// configure sets the callbacks of config, which all connections of the client share. The callbacks
// find the endpoint by the connection.
func (c *Client) configure(config *mux.Config) {
	config.Hello = func(conn *mux.Conn, l *wire.Limits) *mux.Refusal { return whose(conn).hello(conn, l) }
	config.Unusable = func(conn *mux.Conn) { whose(conn).ep.remove(conn) }
	config.Ended = func(conn *mux.Conn, err error) { whose(conn).ended(err) }
	if c.opts.Server != nil {
		config.Bind = func(conn *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) { return whose(conn).served.bind(conn, b) }
	}
}

// hello handles the server's settings.
func (d *dialledConn) hello(conn *mux.Conn, l *wire.Limits) *mux.Refusal {
	if d.served != nil {
		if refusal := d.served.hello(conn, l); refusal != nil {
			return refusal
		}
	}
	d.heard = clock()
	d.server = identityOf(l, d.ep.identity.Load())
	d.up.Store(true)
	c := d.ep.client
	c.event(ConnEvent{Kind: introspect.Connected, Addr: d.ep.Addr()})
	d.answer()
	return nil
}

func (d *dialledConn) answer() {
	d.once.Do(func() {
		close(d.answered)
		d.answered = nil
	})
}

// ended handles the end of the connection.
func (d *dialledConn) ended(err error) {
	if d.served != nil {
		d.served.unlink()
	}
	if d.up.Load() {
		d.ep.client.event(ending(d.ep.Addr(), err))
	}
	d.answer()
}

// retryLocked schedules the next attempt to connect after a back-off. Until then calls go
// elsewhere.
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
		if !conn.Usable() {
			ep.remove(conn)
		}
	}
}

// remove removes a connection that accepts no more calls. If it was the last one, remove starts to
// connect again, unless the connection was only idle or old. In that case the next call connects.
func (ep *Endpoint) remove(conn *mux.Conn) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	old := *ep.conns.Load()
	conns := make([]*mux.Conn, 0, len(old))
	for _, other := range old {
		if other != conn {
			conns = append(conns, other)
		}
	}
	if len(conns) == len(old) {
		return
	}
	last := ep.setConnsLocked(conns)
	if len(conns) > 0 || ep.closed || ep.dialing != nil || ep.retry != nil || conn.Aged() {
		return
	}
	err := conn.Err()
	if err == nil {
		err = mux.ErrDrained
	}
	ep.failures++
	worked := conn.Counters().FramesIn >= workedFrames || errors.Is(err, mux.ErrDrained) && conn.Accepted() > 0
	if worked || time.Since(ep.since) > lastBackoff { // not if the server ends connections at once
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
	_, broken := errors.AsType[*mux.ProtocolError](err)
	return !refused && !foreign && !broken
}

// workedFrames is the number of received frames from which a connection counts as having worked. A
// connection that ends at once receives fewer.
const workedFrames = 8

// close closes the endpoint. With atOnce it closes the connections now, and otherwise when their
// calls have ended.
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
			wg.Go(conn.Close)
		} else {
			conn.CloseWhenIdle()
			ep.client.wg.Go(func() {
				select {
				case <-conn.Ended():
				case <-ep.client.closing:
					conn.Close()
				}
			})
		}
	}
	wg.Wait()
}

// A dialError says that a client could not connect to an endpoint.
type dialError struct {
	err  error
	next time.Duration // time until the next attempt, if no attempt was made for this call
	// connected says that err is the reason why the last connection ended, not the reason why an
	// attempt failed.
	connected bool
}

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }
