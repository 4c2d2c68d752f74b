// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file provides measurements for balancers: the outcome of attempts, the load of a server, and
// its round-trip time. If the balancer does not use them, they cost a call one memory load and one
// comparison.

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

// A loadReport is the load that a server has reported on its replies.
type loadReport struct {
	others atomic.Int64 // calls of other clients, plus 1; 0 without a report
	at     atomic.Int64 // on the clock
	fading atomic.Bool  // a timer will reduce it
}

// fadeTime is how long a report is valid. After that the reported load is halved once per fadeTime.
// Without this, a client that sends nothing to a busy endpoint would never learn that the endpoint
// is idle again. A server reports an unchanged load again every renewLoad.
const fadeTime = 2 * time.Second

// Load returns how many calls the endpoint's server is executing: this client's calls in flight,
// plus the calls of other clients as the server last reported on a reply. Before the first report,
// Load uses Instance.Inflight from the registry for the calls of other clients. Balancers compare
// endpoints by their Load.
func (ep *Endpoint) Load() int {
	others := int(ep.report.others.Load() - 1)
	if others < 0 {
		others = min(max(ep.instance.Load().Inflight, 0), math.MaxInt32) // a registry may say anything
	}
	return others + ep.Inflight()
}

// reported stores a load that came with a reply. N includes the call of that reply, which is no
// longer in flight.
func (ep *Endpoint) reported(n uint64) {
	r := &ep.report
	others := max(int64(min(n, math.MaxInt32))-1-int64(ep.inflight.sent()), 0)
	r.others.Store(others + 1)
	r.at.Store(int64(clock()))
	if others > 0 && !r.fading.Swap(true) {
		time.AfterFunc(fadeTime, ep.fade)
	}
}

// fade halves an old report.
func (ep *Endpoint) fade() {
	r := &ep.report
	others := r.others.Load() - 1
	if int64(clock())-r.at.Load() >= int64(fadeTime) && r.others.CompareAndSwap(others+1, others/2+1) {
		others /= 2
	}
	if others == 0 {
		r.fading.Store(false)
		if r.others.Load() == 1 || r.fading.Swap(true) { // otherwise a new report has just arrived
			return
		}
	}
	if ep.ctx.Err() == nil {
		time.AfterFunc(fadeTime, ep.fade)
	}
}

// A roundTrip is the duration of the last ping, and the time from which the next one may be sent.
type roundTrip struct {
	took atomic.Int64
	due  atomic.Int64 // on the clock, which may be negative; 0 before the first ping
}

// rttAge is the age from which a round trip is measured again.
const rttAge = 5 * time.Second

// RTT returns the network round-trip time to the endpoint, as measured by the last ping. It is 0
// before the first ping has ended, and in other protocols than yodel's own. If the last ping is
// more than 5 s old and there is a connection, RTT starts another ping without waiting for it. So
// pings are sent only while a program calls RTT.
func (ep *Endpoint) RTT() time.Duration {
	if due := ep.trip.due.Load(); due == 0 || int64(clock()) >= due {
		ep.ping(due)
	}
	return time.Duration(ep.trip.took.Load())
}

// ping measures the round trip, unless a ping is already running.
func (ep *Endpoint) ping(due int64) {
	conns := *ep.conns.Load()
	if len(conns) == 0 || ep.wire != nil || !ep.trip.due.CompareAndSwap(due, math.MaxInt64) {
		return
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.closed {
		return
	}
	ep.client.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ep.ctx, rttAge)
		defer cancel()
		// else the connection has ended; the next RTT tries again
		if took, err := conns[0].mux.Ping(ctx); err == nil {
			ep.trip.took.Store(int64(max(took, 1)))
		}
		ep.trip.due.Store(int64(clock() + rttAge))
	})
}

// A serverLoad is the number of calls that a server is executing, counted from time to time.
type serverLoad struct {
	calls atomic.Int64
	due   atomic.Int64 // when to count next, on the clock
}

// A toldLoad is the load that was last reported to a peer.
type toldLoad struct {
	calls atomic.Int64 // 0 before the first report
	at    atomic.Int64 // on the clock
	due   atomic.Int64 // when to check again
}

// How often the load is counted and reported. A reply that has fields takes one more allocation and
// about ten more bytes.
const (
	countLoad = 10 * time.Millisecond // at most
	renewLoad = int64(fadeTime / 4)   // after this time, a busy server reports an unchanged load
	loadShare = 8                     // reported when it has changed by more than this fraction
)

// newLoad returns the load to report to the peer, or 0 if there is nothing to report. The load is
// the number of calls that the server is executing, including the one being replied to. Now is
// approximately the current time: the time at which the server began to work on the call.
func (sc *serverConn) newLoad(now time.Duration) uint64 {
	t, at := &sc.told, int64(now)
	if due := t.due.Load(); due != 0 && at < due {
		return 0
	}
	t.due.Store(at + int64(countLoad))
	calls, told := sc.server.working(now), t.calls.Load()
	changed := told == 0 || max(calls-told, told-calls) > max(told/loadShare, 1)
	if !changed && (calls == 1 || at-t.at.Load() < renewLoad) {
		return 0
	}
	t.calls.Store(calls)
	t.at.Store(at)
	return uint64(calls) //nolint:gosec // at least 1
}

// working returns how many calls the server was executing at the last count.
func (s *Server) working(now time.Duration) int64 {
	l := &s.busy
	due := l.due.Load()
	// TryLock is used because a reply must not wait for the registration of methods.
	if (due == 0 || int64(now) >= due) && l.due.CompareAndSwap(due, int64(now+countLoad)) && s.methodsMu.TryLock() {
		calls := int64(0)
		for name, m := range *s.methods.Load() {
			if name == m.names[0] { // count a method with aliases once
				calls += m.stats.Inflight()
			}
		}
		s.methodsMu.Unlock()
		l.calls.Store(calls)
	}
	return max(l.calls.Load(), 1)
}
