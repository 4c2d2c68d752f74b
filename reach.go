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
// While at least one endpoint is connected, no call waits for an unconnected endpoint. Calls avoid
// unconnected endpoints. If the balancer would have chosen such an endpoint, the client dials it in
// the background. A suspect is an endpoint to which the client has never been connected, and to
// which it failed to connect in time. Balancers do not see a suspect until it answers.
//
// While no endpoint is connected, the first call starts a search: it dials several endpoints at the
// same time, and calls wait for the first one that answers.

const (
	// maxDials is how many attempts to connect a client makes at the same time in the background.
	maxDials = 64
	// maxDemands is how many endpoints the client starts to dial in the background because of a
	// single pick.
	maxDemands = 2
	// suspectAfter is how long the first attempt to connect to an endpoint may take before the
	// endpoint is a suspect.
	suspectAfter = 250 * time.Millisecond
	// reshapeAfter is the delay after which balancers learn of a change among the suspects.
	reshapeAfter = 50 * time.Millisecond
	// urgentBackoff is the longest pause between attempts to connect to an endpoint that calls wait
	// for. Each pause is random, and has at least half of its full length. Otherwise, after several
	// servers restart together, their clients would all reconnect at the same moment.
	urgentBackoff = 300 * time.Millisecond
	// readyAtOnce is how many endpoints a search dials at the same time. After each widenAfter it
	// dials the same number of further endpoints, up to maxDials.
	readyAtOnce = 8
	widenAfter  = 100 * time.Millisecond
	// settleLeast and settleMost are the shortest and the longest time that a search waits for its
	// other attempts to connect after the first one has succeeded.
	settleLeast = 5 * time.Millisecond
	settleMost  = 50 * time.Millisecond
	// hastened is how many of the endpoints that failed recently a search dials.
	hastened = 16
	// lostSpacing is the shortest average time between two background dials of a client that cannot
	// reach its endpoints. longestWait is the longest pause between two dials of one endpoint.
	lostSpacing = 20 * time.Millisecond
	longestWait = time.Minute
)

// shuns reports whether a call avoids an endpoint with this status, which is not 0, while there are
// better endpoints. If the endpoint is merely unconnected, shuns starts to dial it.
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

// urge returns the running attempt to connect, or starts one. It returns nil if no attempt is
// needed.
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

// hastenLocked starts to connect without waiting for the retry timer. It keeps a shorter pause
// after the last failure.
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
		if !ep.reached.Load() || ep.Connected() {
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

// reshape rebuilds the set after a change among the suspects: now, or after reshapeAfter together
// with further changes.
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
	conn  *dialledConn  // once done: the connection to first, which may have ended; nil if there was none
	done  chan struct{} // closed when the search has ended, successfully or not
}

// awaitAny waits until some endpoint is connected or the search has failed. If no search is
// running, it starts one with ep. It returns an error if ctx or deadline ends first, or if the call
// should go to another endpoint. If the search made a connection to ep and that connection has
// ended since, awaitAny returns it, because its error says how the server refused the client.
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
	if !ep.Connected() && cl.connected.Load() > 0 {
		waited := (clock() - began).Round(time.Millisecond)
		return nil, &dialError{err: refusal("YDL1103", "%s: no connection within %v, while another instance is connected", ep.Addr(), waited)}
	}
	if !ep.Connected() && s.first == ep {
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

// join returns the running search, or starts a search.
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
// of a new client are balanced from the start. If the attempt to the endpoint that the balancer
// picked is still running, it waits longer.
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
// were connected before, then endpoints that were never tried, then suspects. It includes only a
// few of the endpoints that failed recently.
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
// resolver reports the endpoint, the client accepts a restarted server, because the record in the
// registry may be older than the restart. But that server must have the service. When the resolver
// no longer reports the endpoint, the client accepts only the same incarnation of the server.
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
