// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// This file decides when a client connects to its endpoints.
//
// While an endpoint is connected, no call waits for one that is not. Calls avoid unconnected
// endpoints, and those that their balancer would have chosen are dialled in the background. A
// suspect is an endpoint that could not be connected to and never was. Balancers do not see a
// suspect until it answers.
//
// While no endpoint is connected, the first call starts a search: it dials several endpoints at the
// same time, and calls wait for the first one that answers.

const (
	// maxDials is how many attempts to connect a client makes at the same time in the background.
	maxDials = 64
	// maxDemands is how many endpoints a single pick may start to dial in the background.
	maxDemands = 2
	// suspectAfter is how long the first attempt to connect to an endpoint may take before the
	// endpoint is a suspect.
	suspectAfter = 250 * time.Millisecond
	// reshapeAfter is the delay after which balancers learn of a change among the suspects.
	reshapeAfter = 50 * time.Millisecond
	// urgentBackoff is the longest pause between attempts to connect to an endpoint that calls wait
	// for. The pause is random, at least half of that. Otherwise the clients of servers that
	// restart together would all reconnect at the same moment.
	urgentBackoff = 300 * time.Millisecond
	// readyAtOnce is how many endpoints a search dials at the same time. It dials as many more
	// after each widenAfter, up to maxDials.
	readyAtOnce = 8
	widenAfter  = 100 * time.Millisecond
	// settleLeast and settleMost are the shortest and the longest time that a search waits for its
	// other attempts after it has found an endpoint.
	settleLeast = 5 * time.Millisecond
	settleMost  = 50 * time.Millisecond
	// hastened is how many endpoints that failed recently a search dials.
	hastened = 16
	// lostSpacing is the shortest average time between the background dials of a client whose
	// endpoints cannot be reached. longestWait is the longest pause for one endpoint.
	lostSpacing = 20 * time.Millisecond
	longestWait = time.Minute
)

// shuns reports whether a call avoids an endpoint with this status, which is not 0, while there are
// better ones. It starts to dial an endpoint that is only unconnected.
func (c *Call) shuns(ep *Endpoint, status int32) bool {
	if status != offline {
		return true
	}
	if ep.client.cluster.connected.Load() == 0 {
		return false
	}
	ep.demand(c)
	return true
}

// demand dials the endpoint in the background, because the balancer of call would choose it.
func (ep *Endpoint) demand(call *Call) {
	if ep.busy.Load() || call.demands >= maxDemands || ep.client.cluster.dials.Load() >= maxDials {
		return
	}
	call.demands++
	ep.dialQuietly()
}

// dialQuietly starts to connect in the background, unless an attempt is running or scheduled.
func (ep *Endpoint) dialQuietly() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if !ep.closed && ep.restsLocked() {
		ep.dialLocked(false, 0)
	}
}

// urge returns the running attempt to connect, or starts one. It returns nil if none is needed.
func (ep *Endpoint) urge() *dialing {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	switch {
	case ep.closed || len(*ep.conns.Load()) > 0:
		return nil
	case ep.dialing != nil:
		return ep.dialing
	}
	return ep.hastenLocked()
}

// hastenLocked starts to connect without waiting for the retry timer, but after a shorter pause
// since the last failure.
func (ep *Endpoint) hastenLocked() *dialing {
	if ep.retry == nil {
		return ep.dialLocked(false, 0)
	}
	ep.retry.Stop()
	ep.retry = nil
	pause := min(firstBackoff<<min(ep.failures, 16), urgentBackoff)
	pause = pause/2 + rand.N(pause/2)
	return ep.dialLocked(false, max(0, time.Until(ep.failedAt.Add(pause))))
}

// hasten dials lost endpoints at once, because the client has lost its last connection.
func (cl *cluster) hasten() {
	set := cl.set.Load()
	if set == nil {
		return
	}
	left := hastened
	for _, ep := range set.endpoints {
		if left == 0 {
			return
		}
		if !ep.reached.Load() || !ep.offline() {
			continue
		}
		left--
		ep.mu.Lock()
		if !ep.closed && ep.retry != nil {
			ep.retry.Stop()
			ep.retry = nil
			ep.dialLocked(false, 0)
		}
		ep.mu.Unlock()
	}
}

// suspected makes an endpoint a suspect if it was never connected.
func (ep *Endpoint) suspected() {
	if !ep.reached.Load() && !ep.suspect.Swap(true) {
		ep.client.cluster.reshape(false)
	}
}

// dialled handles the end of an attempt to connect.
func (cl *cluster) dialled(ep *Endpoint, ok bool) {
	if !ok {
		ep.suspected()
	} else if !ep.reached.Swap(true) && ep.suspect.Swap(false) {
		cl.reshape(cl.connected.Load() <= 1)
	}
	if cl.leaving.Load() > 0 {
		cl.settle()
	}
}

// reshape rebuilds the set after a change among the suspects: now, or together with others after
// reshapeAfter.
func (cl *cluster) reshape(now bool) {
	cl.mu.Lock()
	idle := cl.closed || !cl.known
	later := !idle && !now && !cl.reshaping
	if later {
		cl.reshaping = true
	} else if !idle && now {
		cl.stale = true
	}
	cl.mu.Unlock()
	switch {
	case idle:
	case now:
		cl.rebuildSoon()
	case later:
		time.AfterFunc(reshapeAfter, func() {
			cl.mu.Lock()
			cl.reshaping, cl.stale = false, true
			cl.mu.Unlock()
			cl.client.Background(func(context.Context) { cl.rebuild() })
		})
	}
}

// believable returns the endpoints that balancers see: all except suspects, or all if there are
// only suspects.
func believable(endpoints []*Endpoint) []*Endpoint {
	isSuspect := func(ep *Endpoint) bool { return ep.suspect.Load() && !ep.reached.Load() }
	if !slices.ContainsFunc(endpoints, isSuspect) {
		return endpoints
	}
	if left := slices.DeleteFunc(slices.Clone(endpoints), isSuspect); len(left) > 0 {
		return left
	}
	return endpoints
}

// longestBackoff returns the longest pause between attempts to connect to one endpoint. It grows
// with the number of unconnected endpoints.
func (cl *cluster) longestBackoff() time.Duration {
	set := cl.set.Load()
	if set == nil {
		return lastBackoff
	}
	lost := max(0, len(set.endpoints)-int(cl.connected.Load()))
	return min(max(lastBackoff, time.Duration(lost)*lostSpacing), longestWait)
}

// A search dials endpoints until one of them is connected.
type search struct {
	first *Endpoint
	conn  *dialledConn  // connection to first once done, may have ended; else nil
	done  chan struct{} // closed when the search has ended, successfully or not
}

// awaitAny waits until some endpoint is connected or the search has failed. If no search is
// running, it starts one with ep. It returns an error if ctx or deadline ends first, or if the call
// should go to another endpoint. It returns a connection to ep if the search made one that has
// ended since, because the caller's error then explains how the server refused the client.
func (cl *cluster) awaitAny(ctx context.Context, deadline time.Time, ep *Endpoint) (*dialledConn, error) {
	began := clock()
	s := cl.join(ep)
	var late <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return nil, ep.tooLate(context.Cause(ctx)) //nolint:contextcheck // it only makes an error
	case <-late:
		return nil, ep.tooLate(mux.ErrDeadline) //nolint:contextcheck // it only makes an error
	}
	if ep.offline() && cl.connected.Load() > 0 {
		waited := (clock() - began).Round(time.Millisecond)
		return nil, &dialError{err: refusal("YDL1103", "%s: no connection within %v, while another instance is connected", ep.Addr(), waited)}
	}
	if ep.offline() && s.first == ep {
		return s.conn, nil
	}
	return nil, nil //nolint:nilnil // the caller continues by itself
}

// tooLate returns the error of a call that waited for a connection until cause ended it.
func (ep *Endpoint) tooLate(cause error) error {
	ep.mu.Lock()
	d := ep.dialing
	ep.mu.Unlock()
	if d == nil {
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	return ep.notConnected(d, cause)
}

// join returns the running search, or starts one.
func (cl *cluster) join(first *Endpoint) *search {
	cl.searchMu.Lock()
	defer cl.searchMu.Unlock()
	if cl.search != nil {
		return cl.search
	}
	s := &search{first: first, done: make(chan struct{})}
	began := cl.client.Background(func(ctx context.Context) {
		cl.find(ctx, s)
		cl.searchMu.Lock()
		cl.search = nil
		cl.searchMu.Unlock()
		close(s.done)
	})
	if began {
		cl.search = s
	} else { // the client is closed
		close(s.done)
	}
	return s
}

// find dials endpoints until one of them is connected, all have failed, or DialTimeout has passed.
func (cl *cluster) find(ctx context.Context, s *search) {
	began := time.Now()
	candidates := cl.candidates(s.first)
	limit := time.NewTimer(cl.client.opts.DialTimeout)
	defer limit.Stop()
	wider := time.NewTicker(widenAfter)
	defer wider.Stop()
	ended := make(chan *dialing, maxDials)
	var ofFirst *dialing
	open, width := 0, readyAtOnce
	for {
		for ; open < width && len(candidates) > 0; candidates = candidates[1:] {
			if d := candidates[0].urge(); d != nil {
				open++
				if candidates[0] == s.first {
					ofFirst = d
				}
				cl.client.wg.Go(func() {
					<-d.done
					ended <- d
				})
			}
		}
		if open == 0 {
			return
		}
		select {
		case d := <-ended:
			open--
			if d.conn != nil {
				if d == ofFirst {
					s.conn = d.conn
				}
				awaitRest(ended, open, ofFirst, time.Since(began))
				return
			}
		case <-wider.C:
			width = min(width+readyAtOnce, maxDials)
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
		if cl.connected.Load() > 0 {
			return
		}
	}
}

// awaitRest waits for the other attempts for about as long as the first one took, so that the calls
// of a new client are balanced from the start. It waits longer for the endpoint that the balancer
// picked.
func awaitRest(ended <-chan *dialing, open int, picked *dialing, took time.Duration) {
	timer := time.NewTimer(min(max(took, settleLeast), settleMost))
	defer timer.Stop()
	for ; open > 0; open-- {
		select {
		case <-ended:
			continue
		case <-timer.C:
		}
		if picked != nil {
			timer.Reset(suspectAfter)
			select {
			case <-picked.done:
			case <-timer.C:
			}
		}
		return
	}
}

// candidates returns the endpoints that a search dials, in this order: first, then endpoints that
// were connected before, then endpoints that were never tried, then suspects. Of the endpoints that
// failed recently it returns only a few.
func (cl *cluster) candidates(first *Endpoint) []*Endpoint {
	var lost, untried, suspects []*Endpoint
	recent := hastened
	all := cl.set.Load().endpoints
	for _, i := range rand.Perm(len(all)) {
		ep := all[i]
		if ep == first {
			continue
		}
		if failing := ep.busy.Load() && ep.lostAt.Load() != 0; failing {
			if recent == 0 {
				continue
			}
			recent--
		}
		switch {
		case ep.reached.Load():
			lost = append(lost, ep)
		case ep.suspect.Load():
			suspects = append(suspects, ep)
		default:
			untried = append(untried, ep)
		}
	}
	return slices.Concat([]*Endpoint{first}, lost, untried, suspects)
}

// errStranger is the error of a connection to an address where another server listens now.
var errStranger = refusal("YDL1109", "another server listens at the address of the instance")

// admitted returns conn if it leads to the endpoint's server, and closes it otherwise.
func (ep *Endpoint) admitted(conn *dialledConn) (*dialledConn, *dialError) {
	if ep.is(conn.server) {
		return conn, nil
	}
	ep.stranger.Store(true)
	conn.close()
	e := *errStranger
	e.Message = ep.Addr() + ": " + e.Message
	return nil, &dialError{err: &e}
}

// is reports whether a server with identity id may be the server of the endpoint. While the
// resolver reports the endpoint, a restarted server is accepted, because the record may be older;
// but the server must have the service. When the resolver no longer reports the endpoint, only the
// same incarnation is accepted.
func (ep *Endpoint) is(id *serverIdentity) bool {
	if ep.unlisted.Load() {
		last := ep.identity.Load()
		return last == nil || last.incarnation == id.incarnation
	}
	named := ep.instance.Load().Incarnation
	if named == "" || id.incarnation == "" || named == id.name() {
		return true
	}
	service := ep.client.cluster.service
	return service == "" || id.serves(service)
}
