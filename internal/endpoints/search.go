// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
)

const (
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
)

// A search dials endpoints until one of them is connected.
type search[O any, C Conn] struct {
	first *Endpoint[O, C]
	conn  C             // once done: the connection to first, which may have ended; zero if there was none
	done  chan struct{} // closed when the search has ended, successfully or not
}

// awaitAny waits until some endpoint is connected or the search has failed. If no search is
// running, it starts one with ep. It returns an error if ctx or deadline ends first, or if the call
// should go to another endpoint. If the search made a connection to ep and that connection has
// ended since, awaitAny returns it, because its error says how the server refused the client. If it
// returns neither, the caller continues by itself.
func (l *List[O, C]) awaitAny(ctx context.Context, deadline time.Time, ep *Endpoint[O, C]) (conn C, err error) {
	began := time.Now()
	s := l.join(ep)
	late, stop := after(deadline)
	defer stop()
	select {
	case <-s.done:
	case <-ctx.Done():
		return conn, ep.tooLate(context.Cause(ctx))
	case <-late:
		return conn, ep.tooLate(mux.ErrDeadline)
	}
	if !ep.Connected() && l.connected.Load() > 0 {
		waited := time.Since(began).Round(time.Millisecond)
		return conn, &reason.DialError{Err: l.Elsewhere(ep.owner, waited)}
	}
	if !ep.Connected() && s.first == ep {
		return s.conn, nil
	}
	return conn, nil
}

// tooLate returns the error of a call that waited for a connection until cause ended it.
func (ep *Endpoint[O, C]) tooLate(cause error) error {
	ep.mu.Lock()
	d := ep.dialing
	ep.mu.Unlock()
	if d == nil {
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	return ep.notConnected(d, cause)
}

// Search starts to dial endpoints, first this one, until one of them is connected. It does nothing
// if an endpoint is connected, or if a search is running.
func (ep *Endpoint[O, C]) Search() {
	if ep.list.connected.Load() == 0 {
		ep.list.join(ep)
	}
}

// join returns the running search, or starts a search.
func (l *List[O, C]) join(first *Endpoint[O, C]) *search[O, C] {
	l.searchMu.Lock()
	defer l.searchMu.Unlock()
	if l.search != nil {
		return l.search
	}
	s := &search[O, C]{first: first, done: make(chan struct{})}
	began := l.Background(func(ctx context.Context) {
		l.find(ctx, s)
		l.searchMu.Lock()
		l.search = nil
		l.searchMu.Unlock()
		close(s.done)
	})
	if began {
		l.search = s
	} else { // the client is closed
		close(s.done)
	}
	return s
}

// find dials endpoints until one of them is connected, all have failed, or the time limit has
// passed.
func (l *List[O, C]) find(ctx context.Context, s *search[O, C]) {
	began := time.Now()
	candidates := l.candidates(s.first)
	limit := time.NewTimer(l.Timeout)
	defer limit.Stop()
	wider := time.NewTicker(widenAfter)
	defer wider.Stop()
	ended := make(chan *dialing[C], maxDials)
	var none C
	var ofFirst *dialing[C]
	open, width := 0, readyAtOnce
	for {
		for ; open < width && len(candidates) > 0; candidates = candidates[1:] {
			if d := candidates[0].urge(); d != nil {
				open++
				if candidates[0] == s.first {
					ofFirst = d
				}
				l.Go(func() {
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
			if d.conn != none {
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
		if l.connected.Load() > 0 {
			return
		}
	}
}

// awaitRest waits for the other attempts for about as long as the first one took, so that the calls
// of a new client are balanced from the start. If the attempt to the endpoint that the balancer
// picked is still running, it waits longer.
func awaitRest[C Conn](ended <-chan *dialing[C], open int, picked *dialing[C], took time.Duration) {
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
func (l *List[O, C]) candidates(first *Endpoint[O, C]) []*Endpoint[O, C] {
	var lost, untried, suspects []*Endpoint[O, C]
	recent := hastened
	all := l.published()
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
	return slices.Concat([]*Endpoint[O, C]{first}, lost, untried, suspects)
}

// hasten dials lost endpoints at once, because the client has lost its last connection.
func (l *List[O, C]) hasten() {
	left := hastened
	for _, ep := range l.published() {
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

// ConnectAny connects endpoints, a few at a time and in random order, until connect has succeeded
// for one of them, all have failed, or ctx ends. It returns the last error.
func ConnectAny[O any](ctx context.Context, endpoints []O, connect func(of O) error) (err error) {
	results := make(chan error, readyAtOnce)
	order := rand.Perm(len(endpoints))
	for begun, ended := 0, 0; ended < len(order) && (ended == 0 || ctx.Err() == nil); ended++ {
		for ; begun < min(ended+readyAtOnce, len(order)); begun++ {
			go func(of O) { results <- connect(of) }(endpoints[order[begun]])
		}
		if err = <-results; err == nil {
			return nil
		}
	}
	return err
}
