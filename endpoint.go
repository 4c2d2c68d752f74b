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
	handler  Handler // endpoint middleware and the connection; without the former until wrapped
	wrapped  bool    // set, as handler is, before the endpoint is in a set
	inflight inflight
	report   loadReport
	trip     roundTrip
	conns    atomic.Pointer[[]*mux.Conn]    // never nil
	identity atomic.Pointer[serverIdentity] // of the server of the last connection; nil before there was one
	states   states
	// status is how many say that the endpoint is not ready, and offline while there is no
	// connection.
	status   atomic.Int32
	reached  atomic.Bool // there was a connection at some time
	suspect  atomic.Bool // an attempt to connect failed, or takes long, and there never was a connection
	busy     atomic.Bool // it is being dialled, or a timer will dial it
	unlisted atomic.Bool // the resolver does not name it any more, see leaving.go
	stranger atomic.Bool // another server than the one that was named listens at its address
	away     atomic.Bool // no connection could be made since the last one that was
	told     atomic.Bool // a call was told so
	// when the last connection was lost, in nanoseconds since 1970; 0 while there is nothing wrong
	lostAt atomic.Int64
	ctx    context.Context //nolint:containedctx // ends with the endpoint
	cancel context.CancelFunc

	joined time.Time // when the resolver named it first; does not change
	left   time.Time // when it became unlisted; guarded by cluster.mu

	mu       sync.Mutex
	by       map[string]bool // who says that it is not ready
	dialing  *dialing        // nil when nobody dials
	lastErr  *dialError      // why there is no connection
	failures int             // connections in a row that could not be made, or did not last
	failedAt time.Time       // of the last failure
	since    time.Time       // of the last connection
	retry    *time.Timer     // the next dial
	retryAt  time.Time
	closed   bool
	// enough is until when no connection beside the ones there are is wanted, in nanoseconds since
	// 1970: one is being made, or could not be made.
	enough atomic.Int64
}

// offline is the bit of Endpoint.status that says that there is no connection.
const offline = 1 << 16

// An inflight counts calls that are being worked on. Asynchronous calls begin on one processor and
// end on another: a counter that both of them wrote took each call 40 ns, most of it waiting for
// the other one's cache.
type inflight struct {
	_       [cacheLine]byte
	begun   atomic.Int64
	waiting atomic.Int64 // for a connection; seldom written
	_       [cacheLine]byte
	ended   atomic.Int64
	_       [cacheLine]byte
}

const cacheLine = 64

// sent is how many have been sent, or are about to be, and have not ended.
func (n *inflight) sent() int {
	ended := n.ended.Load() // first, so that the count is never negative
	return int(n.begun.Load() - ended)
}

// A dialing is an attempt to connect that several callers may wait for.
type dialing struct {
	done  chan struct{}
	began time.Duration // on the clock
	// accepted is set once the transport has connected. From then on the server is to answer.
	accepted atomic.Bool
	spare    bool          // the connection may be idle for spareTime
	delay    time.Duration // before the attempt begins
	conn     *mux.Conn
	err      error
}

// spareTime is how long a connection beside others may be idle, or one that no call needed, when
// there is no other limit.
const spareTime = 30 * time.Second

// Backoff between attempts to connect: doubling, with jitter of half of it.
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

// wrap puts the endpoint middleware around the connection, once. No lock may be held. If the
// constructor of one panics, calls to the endpoint fail.
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

// Instance returns what the resolver says of the endpoint now.
func (ep *Endpoint) Instance() Instance { return *ep.instance.Load() }

// Addr returns the address of the instance.
func (ep *Endpoint) Addr() string { return ep.instance.Load().Addr }

// Inflight returns how many calls of this client the endpoint is working on. Those that wait for a
// connection to it count too: otherwise one that lets nobody connect would look idle to balancers,
// and get all calls until that is certain.
func (ep *Endpoint) Inflight() int { return ep.inflight.sent() + int(ep.inflight.waiting.Load()) }

// begun and ended count calls in flight. A peer has no endpoint. Begun returns when that was if a
// Learner wants to know, and otherwise 0.
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

// unreachable reports whether there is no connection, and a call was told that the transport could
// make none since the last one.
func (ep *Endpoint) unreachable() bool { return ep.away.Load() && ep.told.Load() && !ep.Connected() }

// Ready reports whether the endpoint should get calls: nobody has said otherwise with SetReady, and
// its connection was not lost. An endpoint that was not connected to yet is ready; calls go there
// when it is connected, or when no endpoint is.
func (ep *Endpoint) Ready() bool { return ep.status.Load()&^offline == 0 }

// offline reports whether there is no connection.
func (ep *Endpoint) offline() bool { return ep.status.Load()&offline != 0 }

// SetReady says, in the name of by, whether the endpoint should get calls. It gets calls while
// nobody says that it should not, and when no endpoint is ready.
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

// setConnsLocked replaces the connections. It reports whether the client has no connection to any
// endpoint now, and had one.
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

// restsLocked reports whether there is no connection, and nobody tries to make one.
func (ep *Endpoint) restsLocked() bool {
	return len(*ep.conns.Load()) == 0 && ep.dialing == nil && ep.retry == nil
}

// State returns the value kept under key on this endpoint, made with create the first time.
// Middleware keeps there what must survive a new chain.
func (ep *Endpoint) State(key any, create func() any) any {
	return ep.states.get(key, create)
}

// states are values that are kept under keys.
type states struct{ sync.Map }

func (s *states) get(key any, create func() any) any {
	if v, ok := s.Load(key); ok {
		return v
	}
	v, _ := s.LoadOrStore(key, create())
	return v
}

// Client returns the client whose endpoint it is.
func (ep *Endpoint) Client() *Client { return ep.client }

// Go runs f on a goroutine of the endpoint's: ctx ends when the endpoint is no longer one of the
// client's, or the client is closed, which waits for f to return. It does nothing once that has
// happened.
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

// byConn is who says that an endpoint is not ready because it is not connected.
const byConn = "connection"

// do returns the handler that makes one attempt on this endpoint; see balance for why it is no
// method.
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

// ready returns a connection for the next call, or nil if there is none yet, or one more is worth
// having.
func (ep *Endpoint) ready(ctx context.Context) *mux.Conn {
	conns := *ep.conns.Load()
	if len(conns) == 1 && ep.client.opts.ConnsPerEndpoint == 1 {
		return conns[0]
	}
	if ep.client.opts.Server != nil {
		// A handler calls its caller back on the same connection, which knows that this must not
		// wait for its own cause.
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

// leastLoaded returns the connection that has the fewest calls open, the oldest of several, and
// whether all are saturated. One that is not comes before one that is.
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

// connected returns a connection, after dialling if need be. With alone there is no other endpoint
// for who asks: it is dialled at once although an attempt just failed.
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
		default: // it failed just now, and will be tried again soon
			err := ep.failureLocked()
			ep.mu.Unlock()
			if searched { // it failed for this call
				err.next = 0
			}
			return nil, err
		}
	}
	ep.mu.Unlock()
	if conn, _ := leastLoaded(*ep.conns.Load()); conn != nil {
		return conn, nil // one more connection is on its way; this call does not wait for it
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

// failureLocked returns why there is no connection, for a call: with the time of the next attempt.
func (ep *Endpoint) failureLocked() *dialError {
	ep.told.Store(true)
	err := *ep.lastErr
	err.next = time.Until(ep.retryAt)
	return &err
}

// connectFor is connected for a call, whose record is to say how long that took.
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

// goneError is why an endpoint that was closed takes no call.
func (ep *Endpoint) goneError() error {
	select {
	case <-ep.client.closing:
		return &mux.CallError{Cause: mux.ErrClosed, NotProcessed: true}
	default: // the resolver took it away
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

// notConnected returns the error of a call that waited for d until cause ended it. It says how far
// d has come, and how the attempt before it ended.
func (ep *Endpoint) notConnected(d *dialing, cause error) error {
	took := clock() - d.began
	if took < time.Millisecond { // the call's time was over before
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

// dialLocked begins an attempt to connect, after a delay.
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
			c.wg.Go(conn.Close) // nobody wants it any more
		}
		d.err = ep.goneError()
	case err != nil:
		d.err = err
		ep.failures++
		if len(*ep.conns.Load()) == 0 {
			ep.retryLocked(err)
		} else { // it was to be one more
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
	if err == nil && !conn.Usable() { // it ended before it was in the list
		ep.remove(conn)
	}
	c.cluster.dialled(ep, err == nil)
	close(d.done)
}

// connect makes a connection and waits until the server has answered: one that is just being shut
// down may take a connection and never look at it, and then nobody could say whether calls on it
// were executed.
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

// sayNewline ends the line that a silent server may be waiting for, and returns why the server has
// said nothing. HTTP servers read a line before they answer, and what they answer tells what they
// are. A yodel server that is late takes the four bytes for the beginning of a frame, and the
// connection ends before the rest.
func sayNewline(conn *mux.Conn, nc net.Conn, answered <-chan struct{}) error {
	const patience = 50 * time.Millisecond
	_ = nc.SetWriteDeadline(time.Now().Add(patience)) // nothing else is written any more
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

// A dialledConn is what a connection is to the endpoint that dialled it.
type dialledConn struct {
	ep       *Endpoint
	served   *serverConn     // nil when the client has no Server
	heard    time.Duration   // when the server's settings came, on the clock; set before up
	server   *serverIdentity // what the server said of itself; set before up
	up       atomic.Bool
	once     sync.Once
	answered chan struct{} // closed, and nil, when the server has answered or the connection has ended
}

// whose returns what conn is to its endpoint.
func whose(conn *mux.Conn) *dialledConn { return conn.Owner().(*dialledConn) } //nolint:forcetypeassert // set by connect

// configure has the connections of a client, which share config, find their endpoints.
func (c *Client) configure(config *mux.Config) {
	config.Hello = func(conn *mux.Conn, l *wire.Limits) *mux.Refusal { return whose(conn).hello(conn, l) }
	config.Unusable = func(conn *mux.Conn) { whose(conn).ep.remove(conn) }
	config.Ended = func(conn *mux.Conn, err error) { whose(conn).ended(err) }
	if c.opts.Server != nil {
		config.Bind = func(conn *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) { return whose(conn).served.bind(conn, b) }
	}
}

// hello sees that the server has answered.
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

// ended takes note of the connection's end.
func (d *dialledConn) ended(err error) {
	if d.served != nil {
		d.served.unlink()
	}
	if d.up.Load() {
		d.ep.client.event(ending(d.ep.Addr(), err))
	}
	d.answer()
}

// retryLocked makes the next attempt to connect happen after a while. Until then calls go
// elsewhere.
func (ep *Endpoint) retryLocked(err *dialError) {
	ep.lastErr, ep.failedAt = err, time.Now()
	ep.lostLocked()
	backoff := min(firstBackoff<<min(ep.failures, 16), ep.client.cluster.longestBackoff())
	backoff = backoff/2 + rand.N(backoff/2)
	if !err.connected { // a connection that has ended says nothing of the next one
		ep.away.Store(true)
	}
	ep.waitLocked(backoff)
}

// lostLocked takes note that there is no connection although there should be one.
func (ep *Endpoint) lostLocked() {
	ep.setReadyLocked(byConn, false)
	ep.lostAt.CompareAndSwap(0, time.Now().UnixNano())
}

// waitLocked makes the next attempt to connect happen after a while, or later if there are too many
// at that time.
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

// prune removes the connections that accept no more calls and that nobody has removed yet.
func (ep *Endpoint) prune() {
	for _, conn := range *ep.conns.Load() {
		if !conn.Usable() {
			ep.remove(conn)
		}
	}
}

// remove takes out a connection that accepts no more calls, and begins to connect again if it was
// the last, unless it was only idle or old: then the next call connects.
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
	if worked || time.Since(ep.since) > lastBackoff { // not one that lets us in and then turns us away
		ep.failures = 0
	}
	if ep.failures <= 1 && broke(err) { // the server, or its successor, may be there already
		if last {
			ep.client.Background(func(context.Context) { ep.client.cluster.hasten() })
		}
		ep.lostLocked()
		ep.dialLocked(false, 0)
		return
	}
	ep.retryLocked(&dialError{err: err, connected: true})
}

// broke reports whether a connection ended with err because of the network or a server that goes,
// not because one side refuses the other.
func broke(err error) bool {
	_, refused := errors.AsType[*mux.Refusal](err)
	_, foreign := errors.AsType[*mux.PrefaceError](err)
	_, broken := errors.AsType[*mux.ProtocolError](err)
	return !refused && !foreign && !broken
}

// workedFrames is how many frames come on a connection on which calls were answered, and not on one
// that ends at once.
const workedFrames = 8

// close ends the endpoint. At once closes its connections now, and otherwise when the calls on them
// have ended.
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

// A dialError says that an endpoint could not be connected to.
type dialError struct {
	err  error
	next time.Duration // until the next attempt, when this one was not made
	// connected says that err is how the last connection ended, not why it could not be made.
	connected bool
}

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }
