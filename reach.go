// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// This file decides when endpoints are connected to.
//
// While an endpoint is connected, no call waits for one that is not: calls avoid those, and have
// the ones that their balancer would have chosen dialled in the background. An endpoint that could
// not be connected to, and never was, is a suspect: balancers do not see it until it answers.
//
// While none is connected, the first call starts a search: several endpoints are dialled at the
// same time, and calls wait for the first one that answers.

const (
	// maxDials bounds the attempts to connect that a client makes at the same time in the
	// background.
	maxDials = 64
	// maxDemands is how many endpoints a pick has dialled in the background.
	maxDemands = 2
	// suspectAfter is how long the first attempt to connect to an endpoint may take until it is a
	// suspect.
	suspectAfter = 250 * time.Millisecond
	// reshapeAfter is how long balancers do not learn that more endpoints are suspects, or are not
	// any more.
	reshapeAfter = 50 * time.Millisecond
	// urgentBackoff bounds the pause between attempts to connect to an endpoint that calls wait
	// for. It is random, from a half of this up, or else the clients of servers that end and return
	// together would all come back at the same moment.
	urgentBackoff = 300 * time.Millisecond
	// readyAtOnce is how many endpoints a search dials at the same time. It dials as many more each
	// widenAfter, up to maxDials.
	readyAtOnce = 8
	widenAfter  = 100 * time.Millisecond
	// settleLeast and settleMost bound how long a search that found an endpoint waits for the
	// others that it has dialled.
	settleLeast = 5 * time.Millisecond
	settleMost  = 50 * time.Millisecond
	// hastened is how many endpoints that have failed lately a search dials.
	hastened = 16
	// lostSpacing bounds how often a client whose endpoints cannot be reached dials in the
	// background, and longestWait how rarely.
	lostSpacing = 20 * time.Millisecond
	longestWait = time.Minute
)

// shuns reports whether a call avoids an endpoint that has this status, which is not 0, while there
// are better ones. It has an endpoint that is not connected dialled.
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

// demand has the endpoint dialled in the background because the balancer of call would choose it.
func (ep *Endpoint) demand(call *Call) {
	if ep.busy.Load() || call.demands >= maxDemands || ep.client.cluster.dials.Load() >= maxDials {
		return
	}
	call.demands++
	ep.dialQuietly()
}

// dialQuietly begins to connect in the background, unless that is under way.
func (ep *Endpoint) dialQuietly() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if !ep.closed && ep.restsLocked() {
		ep.dialLocked(false, 0)
	}
}

// urge returns the attempt to connect that is under way, or begins one. It returns nil if none is
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

// hastenLocked begins to connect without waiting for the timer, but not as soon as it failed.
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

// hasten has endpoints that were lost dialled at once, because the last connection has just been
// lost.
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

// suspected makes an endpoint a suspect if it was never connected to.
func (ep *Endpoint) suspected() {
	if !ep.reached.Load() && !ep.suspect.Swap(true) {
		ep.client.cluster.reshape(false)
	}
}

// dialled takes note of the end of an attempt to connect.
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

// reshape has the balancer told which endpoints are suspects: now, or soon together with others.
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

// believable returns the endpoints that balancers see: those that are no suspects, or all if there
// are only suspects.
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

// longestBackoff is how long an endpoint that cannot be connected to is left alone: longer when
// there are many of them.
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
	conn  *mux.Conn     // to first, once done; it may have ended. nil if there is none
	done  chan struct{} // closed when the search has ended, with or without success
}

// awaitAny waits until some endpoint is connected, in a search that begins with ep if none is under
// way, or the search has ended in vain. It returns an error if there is no time left, or if the
// call should go to another endpoint than ep. It returns a connection to ep that was made and
// ended, if there was one: how a server turned a client away is worth telling.
func (cl *cluster) awaitAny(ctx context.Context, deadline time.Time, ep *Endpoint) (*mux.Conn, error) {
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
	return nil, nil //nolint:nilnil // the caller looks for itself
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

// join returns the search that is under way, or begins one.
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
// of a new client are balanced from the beginning, and longer for the one to the endpoint that the
// balancer picked.
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

// candidates returns the endpoints that a search dials, in their order: first, those that were
// connected once, those that were never tried, suspects. Of those that failed a moment ago it
// returns a few.
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

// errStranger says that the server at the address of an instance is another one.
var errStranger = refusal("YDL1109", "another server listens at the address of the instance")

// admitted returns a new connection if the server at its other end is the one that the endpoint
// stands for.
func (ep *Endpoint) admitted(d *dialledConn, conn *mux.Conn) (*mux.Conn, *dialError) {
	if ep.is(d.server) {
		return conn, nil
	}
	ep.stranger.Store(true)
	conn.Close()
	e := *errStranger
	e.Message = ep.Addr() + ": " + e.Message
	return nil, &dialError{err: &e}
}

// is reports whether a server that says id of itself may be the one that the endpoint stands for.
// While the resolver names the endpoint, a server that was started again is: its record may be
// older, unless it does not even have the service. When the resolver does not name it any more,
// only the same server as before is.
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
