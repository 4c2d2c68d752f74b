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

// This file is what balancers are told: how attempts end, how much a server has to do, how far away
// it is. A call for which nobody asks pays a load and a comparison for all of it.

// learned reports whether there is a Learner.
func (ep *Endpoint) learned() bool { return ep.client.cluster.learner.Load() != nil }

// learn tells the Learner of an attempt that began at a reading of the clock, 0 for none that
// counts. It must not stand under a whole call on the stack: see balance.
//
//go:noinline
func (ep *Endpoint) learn(ctx context.Context, call *Call, at time.Duration, a *mux.Answer, err error) {
	l := ep.client.cluster.learner.Load()
	if l == nil { // it has just gone
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
		err = &Error{Code: Code(min(a.Code, 255)), NotProcessed: a.Flags&wire.NotProcessed != 0}
	}
	defer ep.client.guard.rescue("the Learner")
	(*l).Ended(ep, took, err)
}

// A loadReport is what a server has said on its replies of how much it has to do.
type loadReport struct {
	others atomic.Int64 // calls of other clients, and 1; 0 when nothing was said
	at     atomic.Int64 // on the clock
	fading atomic.Bool  // a timer looks after it
}

// fadeTime is how long a report holds. Afterwards half of it holds for as long, and so on: a client
// that sends an endpoint nothing because it was busy once would never hear that it is not any more.
// A server says again what has not changed (renewLoad).
const fadeTime = 2 * time.Second

// Load returns how many calls the endpoint's server is working on: of this client now, and of
// others as the server said last on a reply. Before it has, that is what the registry says
// (Instance.Inflight).
func (ep *Endpoint) Load() int {
	others := int(ep.report.others.Load() - 1)
	if others < 0 {
		others = min(max(ep.instance.Load().Inflight, 0), math.MaxInt32) // a registry may say anything
	}
	return others + ep.Inflight()
}

// reported takes note of what came with the reply to a call that is not in flight any more: n
// includes it.
func (ep *Endpoint) reported(n uint64) {
	r := &ep.report
	others := max(int64(min(n, math.MaxInt32))-1-int64(ep.inflight.sent()), 0)
	r.others.Store(others + 1)
	r.at.Store(int64(clock()))
	if others > 0 && !r.fading.Swap(true) {
		time.AfterFunc(fadeTime, ep.fade)
	}
}

// fade makes less of a report that is old.
func (ep *Endpoint) fade() {
	r := &ep.report
	others := r.others.Load() - 1
	if int64(clock())-r.at.Load() >= int64(fadeTime) && r.others.CompareAndSwap(others+1, others/2+1) {
		others /= 2
	}
	if others == 0 {
		r.fading.Store(false)
		if r.others.Load() == 1 || r.fading.Swap(true) { // else there has just been another report
			return
		}
	}
	if ep.ctx.Err() == nil {
		time.AfterFunc(fadeTime, ep.fade)
	}
}

// A roundTrip is the time that a ping took, and when there may be another.
type roundTrip struct {
	took atomic.Int64
	due  atomic.Int64 // on the clock, which may be negative; 0 before the first one
}

// rttAge is how old a round trip may be.
const rttAge = 5 * time.Second

// RTT returns how long the network takes to the endpoint and back, as the last ping on a connection
// found it; 0 before there was one. If that is more than 5 s ago and there is a connection, it
// sends a ping, and does not wait for it. So nobody pays for pings who does not ask.
func (ep *Endpoint) RTT() time.Duration {
	if due := ep.trip.due.Load(); due == 0 || int64(clock()) >= due {
		ep.ping(due)
	}
	return time.Duration(ep.trip.took.Load())
}

// ping measures the round trip, unless somebody does.
func (ep *Endpoint) ping(due int64) {
	conns := *ep.conns.Load()
	if len(conns) == 0 || !ep.trip.due.CompareAndSwap(due, math.MaxInt64) {
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
		// else the connection has ended, or nothing is known: asked again, it is tried again
		if took, err := conns[0].Ping(ctx); err == nil {
			ep.trip.took.Store(int64(max(took, 1)))
		}
		ep.trip.due.Store(int64(clock() + rttAge))
	})
}

// A serverLoad is how many calls a server is working on, counted every now and then.
type serverLoad struct {
	calls atomic.Int64
	due   atomic.Int64 // the next count, on the clock
}

// A toldLoad is what a peer was told of it.
type toldLoad struct {
	calls atomic.Int64 // 0 for nothing yet
	at    atomic.Int64 // on the clock
	due   atomic.Int64 // when it is looked at again
}

// How often the load is counted, and told. A reply with fields takes an allocation and some ten
// bytes more.
const (
	countLoad = 10 * time.Millisecond // at most
	renewLoad = int64(fadeTime / 4)   // when there is any, though it has not changed
	loadShare = 8                     // it is told when it has changed by more than this part
)

// newLoad returns how many calls the server is working on, the one that is being replied to
// included, if the peer is to be told, and otherwise 0. Now is about now: when the call was taken
// up.
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

// working returns how many calls the server is working on, as of the last count.
func (s *Server) working(now time.Duration) int64 {
	l := &s.busy
	due := l.due.Load()
	// A reply does not wait for somebody who registers methods.
	if (due == 0 || int64(now) >= due) && l.due.CompareAndSwap(due, int64(now+countLoad)) && s.methodsMu.TryLock() {
		calls := int64(0)
		for name, m := range *s.methods.Load() {
			if name == m.names[0] { // it may have others
				calls += m.stats.Inflight()
			}
		}
		s.methodsMu.Unlock()
		l.calls.Store(calls)
	}
	return max(l.calls.Load(), 1)
}
