// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
)

// A dialing is an attempt to connect. Several callers may wait for it.
type dialing[C Conn] struct {
	done  chan struct{}
	began time.Time
	// accepted is set when the transport has connected. From then on the attempt waits for the
	// server's settings.
	accepted atomic.Bool
	spare    bool          // an additional connection
	delay    time.Duration // pause before the attempt
	conn     C
	err      error
}

// Back-off between attempts to connect. It doubles after each failure, with a jitter of half of its
// length.
const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 1500 * time.Millisecond
)

const (
	// maxDials is how many attempts to connect a client makes at the same time in the background.
	maxDials = 64
	// suspectAfter is how long the first attempt to connect to an endpoint may take before the
	// endpoint is a suspect.
	suspectAfter = 250 * time.Millisecond
	// urgentBackoff is the longest pause between attempts to connect to an endpoint that calls wait
	// for. Each pause is random, and has at least half of its full length. Otherwise, after several
	// servers restart together, their clients would all reconnect at the same moment.
	urgentBackoff = 300 * time.Millisecond
	// lostSpacing is the shortest average time between two background dials of a client that cannot
	// reach its endpoints. longestWait is the longest pause between two dials of one endpoint.
	lostSpacing = 20 * time.Millisecond
	longestWait = time.Minute
)

// jittered returns the pause after a number of failures in a row. The longest pause is most.
func jittered(failures int, most time.Duration) time.Duration {
	pause := min(firstBackoff<<min(failures, 16), most)
	return pause/2 + rand.N(pause/2)
}

// Connect returns a connection, and dials if there is none. Alone says that the caller has no other
// endpoint. Connect then dials at once, even if an attempt has just failed. Own is as for
// List.Ready.
func (ep *Endpoint[O, C]) Connect(ctx context.Context, deadline time.Time, alone bool, own *mux.Conn) (C, error) {
	var none C
	l := ep.list
	searched := !alone && l.connected.Load() == 0
	if searched {
		if conn, err := l.awaitAny(ctx, deadline, ep); conn != none || err != nil {
			return conn, err
		}
	}
	conn, d, err := ep.join(alone, searched, own)
	if conn != none || err != nil {
		return conn, err
	}
	if conn, wait := l.Beside(ep.owner); conn != none { // an additional connection is being made
		if wait { // the call would wait for others on this one
			if further, err := ep.await(ctx, d, deadline); err == nil {
				return further, nil
			}
		}
		return conn, nil
	}
	conn, err = ep.await(ctx, d, deadline)
	if _, failed := err.(*reason.DialError); failed { //nolint:errorlint // it is not wrapped yet
		ep.mu.Lock()
		defer ep.mu.Unlock()
		if ep.retry != nil && alone {
			err = ep.failureLocked()
		}
		ep.told.Store(true)
	}
	return conn, err
}

// join returns the attempt to connect for which a call waits. It returns a connection or an error
// if the call need not wait. Searched says that a search has dialled for this call.
func (ep *Endpoint[O, C]) join(alone, searched bool, own *mux.Conn) (conn C, d *dialing[C], err error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	var none C
	if conn = ep.list.Ready(ep.owner, own); conn != none {
		return conn, nil, nil
	}
	has := len(ep.Conns()) > 0
	switch {
	case ep.dialing != nil:
		return none, ep.dialing, nil
	case ep.closed:
		return none, nil, ep.goneError()
	case ep.retry == nil || has:
		return none, ep.dialLocked(has, 0), nil
	case alone:
		return none, ep.hastenLocked(), nil
	}
	// an attempt has just failed, and a timer will start the next one
	failure := ep.failureLocked()
	if searched {
		failure.Next = 0
	}
	return none, nil, failure
}

// failureLocked returns the error of a call that finds no connection, including the time until the
// next attempt.
func (ep *Endpoint[O, C]) failureLocked() *reason.DialError {
	ep.told.Store(true)
	err := *ep.lastErr
	err.Next = time.Until(ep.retryAt)
	return &err
}

// goneError returns the error of a call to a closed endpoint.
func (ep *Endpoint[O, C]) goneError() error {
	select {
	case <-ep.list.Closing:
		return &mux.CallError{Cause: mux.ErrClosed, NotProcessed: true}
	default: // the endpoint left the set
		return &mux.CallError{Cause: mux.ErrRetired, NotProcessed: true}
	}
}

func (ep *Endpoint[O, C]) await(ctx context.Context, d *dialing[C], deadline time.Time) (conn C, err error) {
	late, stop := after(deadline)
	defer stop()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return conn, ep.notConnected(d, context.Cause(ctx))
	case <-late:
		return conn, ep.notConnected(d, mux.ErrDeadline)
	}
}

// after returns a channel that receives when the deadline passes. A zero deadline never passes.
func after(deadline time.Time) (late <-chan time.Time, stop func() bool) {
	if deadline.IsZero() {
		return nil, func() bool { return false }
	}
	timer := time.NewTimer(time.Until(deadline))
	return timer.C, timer.Stop
}

// briefWait is a time in which a healthy server may fail to answer the handshake.
const briefWait = 20 * time.Millisecond

// notConnected returns the error of a call that waited for the attempt d until cause ended the
// call. The error says how far d has got, and how the previous attempt to connect ended.
func (ep *Endpoint[O, C]) notConnected(d *dialing[C], cause error) error {
	took := time.Since(d.began)
	if took < time.Millisecond { // the call's time had passed before
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	before := ""
	ep.mu.Lock()
	last := ep.lastErr
	ep.mu.Unlock()
	if last != nil {
		before = "; the attempt before: " + ep.list.Why(ep.owner, last)
	}
	next, said := catalogue.Unreachable, "nothing has answered yet"
	if d.accepted.Load() {
		next, said = catalogue.NoHandshake, "the server accepted the connection and said nothing"
	}
	if took < briefWait { // then more time is what helps
		next = catalogue.DeadlinePassed
	}
	return reason.TooLate(cause, next, " after %v of connecting: %s%s", reason.Rounded(took), said, before)
}

// Demand dials the endpoint in the background, because a balancer would choose it. It returns false
// if an attempt is in progress or scheduled, or if the client makes too many.
func (ep *Endpoint[O, C]) Demand() bool {
	if ep.busy.Load() || ep.list.dials.Load() >= maxDials {
		return false
	}
	ep.dialQuietly()
	return true
}

// dialQuietly starts to connect in the background, unless an attempt is running or scheduled.
func (ep *Endpoint[O, C]) dialQuietly() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if !ep.closed && ep.restsLocked() {
		ep.dialLocked(false, 0)
	}
}

// restsLocked reports whether there is no connection and no attempt to make one.
func (ep *Endpoint[O, C]) restsLocked() bool {
	return len(ep.Conns()) == 0 && ep.dialing == nil && ep.retry == nil
}

// urge returns the running attempt to connect, or starts one. It returns nil if no attempt is
// needed.
func (ep *Endpoint[O, C]) urge() *dialing[C] {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	switch {
	case ep.closed || len(ep.Conns()) > 0:
		return nil
	case ep.dialing != nil:
		return ep.dialing
	}
	return ep.hastenLocked()
}

// hastenLocked starts to connect without waiting for the retry timer. It keeps a shorter pause
// after the last failure.
func (ep *Endpoint[O, C]) hastenLocked() *dialing[C] {
	if ep.retry == nil {
		return ep.dialLocked(false, 0)
	}
	ep.retry.Stop()
	ep.retry = nil
	pause := jittered(ep.failures, urgentBackoff)
	return ep.dialLocked(false, max(0, time.Until(ep.failedAt.Add(pause))))
}

// dialLocked starts an attempt to connect, after a delay.
func (ep *Endpoint[O, C]) dialLocked(spare bool, delay time.Duration) *dialing[C] {
	d := &dialing[C]{done: make(chan struct{}), spare: spare, delay: delay, began: time.Now()}
	ep.dialing = d
	ep.busy.Store(true)
	ep.enough.Store(time.Now().Add(ep.list.Timeout).UnixNano())
	ep.list.dials.Add(1)
	ep.list.Go(func() { ep.dial(d) })
	return d
}

func (ep *Endpoint[O, C]) dial(d *dialing[C]) {
	l := ep.list
	if d.delay > 0 {
		select {
		case <-time.After(d.delay):
		case <-ep.ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(ep.ctx, l.Timeout)
	if !ep.reached.Load() {
		slow := time.AfterFunc(suspectAfter, ep.suspected)
		defer slow.Stop()
	}
	conn, err := l.Connect(ctx, ep.owner, d.spare, func() { d.accepted.Store(true) })
	cancel()

	ep.mu.Lock()
	ep.dialing = nil
	ep.busy.Store(false)
	ep.enough.Store(0)
	switch {
	case ep.closed:
		if err == nil {
			l.Go(conn.Close) // the endpoint no longer needs the connection
		}
		d.err = ep.goneError()
	case err != nil:
		d.err = err
		ep.failures++
		if len(ep.Conns()) == 0 {
			ep.retryLocked(err)
		} else { // it was an additional connection
			ep.enough.Store(time.Now().Add(lastBackoff).UnixNano())
		}
	default:
		ep.lastErr, ep.since = nil, time.Now()
		ep.away.Store(false)
		ep.told.Store(false)
		ep.lostAt.Store(0)
		d.conn = conn
		ep.setConnsLocked(append(slices.Clone(ep.Conns()), conn))
		ep.setReadyLocked(byConn, true)
	}
	ep.mu.Unlock()
	l.dials.Add(-1)
	if err == nil && !conn.Usable() { // the connection ended before it was added to the list
		ep.Remove(conn)
	}
	ep.dialled(err == nil)
	close(d.done)
}

// suspected makes an endpoint a suspect if it was never connected.
func (ep *Endpoint[O, C]) suspected() {
	if !ep.reached.Load() && !ep.suspect.Swap(true) {
		ep.list.reshape(false)
	}
}

// dialled handles the end of an attempt to connect.
func (ep *Endpoint[O, C]) dialled(ok bool) {
	l := ep.list
	if !ok {
		ep.suspected()
	} else if !ep.reached.Swap(true) && ep.suspect.Swap(false) {
		l.reshape(l.connected.Load() <= 1)
	}
	l.settle()
}

// retryLocked schedules the next attempt to connect after a back-off. Until then calls go to other
// endpoints.
func (ep *Endpoint[O, C]) retryLocked(err *reason.DialError) {
	ep.lastErr, ep.failedAt = err, time.Now()
	ep.lostLocked()
	if !err.Connected { // the end of a connection says nothing about the next attempt
		ep.away.Store(true)
	}
	ep.waitLocked(jittered(ep.failures, ep.list.longestBackoff()))
}

// longestBackoff returns the longest pause between attempts to connect to one endpoint. It grows
// with the number of unconnected endpoints.
func (l *List[O, C]) longestBackoff() time.Duration {
	lost := max(0, len(l.published())-int(l.connected.Load()))
	return min(max(lastBackoff, time.Duration(lost)*lostSpacing), longestWait)
}

// lostLocked marks the endpoint as not ready because it has lost its connection.
func (ep *Endpoint[O, C]) lostLocked() {
	ep.setReadyLocked(byConn, false)
	ep.lostAt.CompareAndSwap(0, time.Now().UnixNano())
}

// waitLocked schedules the next attempt to connect after backoff. If too many attempts are running
// by then, it waits again.
func (ep *Endpoint[O, C]) waitLocked(backoff time.Duration) {
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
		case ep.list.dials.Load() >= maxDials:
			ep.waitLocked(backoff)
		default:
			ep.dialLocked(ep.unlisted.Load(), 0)
		}
	})
	ep.retry = timer
}

// Prune removes connections that accept no more calls.
func (ep *Endpoint[O, C]) Prune() {
	for _, conn := range ep.Conns() {
		if !conn.Usable() {
			ep.Remove(conn)
		}
	}
}

// Remove removes a connection that accepts no more calls. If it was the last one, Remove starts to
// connect again, unless the connection was only idle or old. In that case the next call connects.
func (ep *Endpoint[O, C]) Remove(conn C) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	old := ep.Conns()
	i := slices.Index(old, conn)
	if i < 0 {
		return
	}
	last := ep.setConnsLocked(slices.Concat(old[:i], old[i+1:]))
	if len(old) > 1 || ep.closed || ep.dialing != nil || ep.retry != nil {
		return
	}
	end := conn.End()
	if end.Aged {
		return
	}
	ep.failures++
	if end.Worked || time.Since(ep.since) > lastBackoff { // false if the server ends connections at once
		ep.failures = 0
	}
	if ep.failures <= 1 && end.Broke { // the server or its successor may be up already
		if last {
			ep.list.Background(func(context.Context) { ep.list.hasten() })
		}
		ep.lostLocked()
		ep.dialLocked(false, 0)
		return
	}
	ep.retryLocked(&reason.DialError{Err: end.Err, Connected: true})
}

// close closes the endpoint. If atOnce is set, it closes the connections now. Otherwise it closes
// each connection when the calls on it have ended.
func (ep *Endpoint[O, C]) close(atOnce bool) {
	ep.mu.Lock()
	ep.closed = true
	if ep.retry != nil {
		ep.retry.Stop()
	}
	conns := ep.Conns()
	ep.setConnsLocked(nil)
	ep.mu.Unlock()
	ep.cancel()
	var wg sync.WaitGroup
	for _, conn := range conns {
		if atOnce {
			wg.Go(conn.Close)
			continue
		}
		conn.CloseWhenIdle()
		ep.list.Go(func() {
			select {
			case <-conn.Ended():
			case <-ep.list.Closing:
				conn.Close()
			}
		})
	}
	wg.Wait()
}
