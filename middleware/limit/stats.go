// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Stats describes the state of a limiter and what it has done.
type Stats struct {
	What    string `json:"what"`              // what is limited
	Learned bool   `json:"learned,omitempty"` // whether the limit is learned
	Limit   int    `json:"limit"`             // how many calls may run at a time
	Running int    `json:"running"`           // running calls
	Waiting int    `json:"waiting"`           // waiting calls
	// Overload is true if calls of some class have been waiting for longer than Options.Interval.
	Overload bool `json:"overload,omitempty"`
	// Took is the recent mean duration of a call; 0 while unknown.
	Took time.Duration `json:"took"`
	// Base is the duration of a call that does not wait, for a learned limit.
	Base      time.Duration `json:"base,omitempty"`
	Rate      float64       `json:"rate,omitempty"`      // for a learned limit: the highest recent throughput, in calls per second
	Waited    uint64        `json:"waited,omitempty"`    // calls that had to wait
	Full      uint64        `json:"full,omitempty"`      // calls refused because the queue was full
	Displaced uint64        `json:"displaced,omitempty"` // calls refused because another call displaced them
	Stale     uint64        `json:"stale,omitempty"`     // calls refused because they had waited too long
	Late      uint64        `json:"late,omitempty"`      // calls refused because of their deadline
	Canceled  uint64        `json:"canceled,omitempty"`  // calls canceled while they waited
}

// String returns s as one readable line.
func (s *Stats) String() string {
	text := fmt.Sprintf("%s: %d of %d calls run, %d wait", s.What, s.Running, s.Limit, s.Waiting)
	if s.Took > 0 {
		text += fmt.Sprintf("; a call takes %v", round(s.Took))
	}
	if s.Learned {
		text += fmt.Sprintf(", learned: at least %v, and %.0f in a second", round(s.Base), s.Rate)
	}
	if s.Overload {
		text += "; overloaded"
	}
	return text + fmt.Sprintf("; %d have waited, refused: %d full, %d displaced, %d stale, %d late", s.Waited, s.Full, s.Displaced, s.Stale, s.Late)
}

func (l *limiter) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.counts
	s.What, s.Limit, s.Running = l.what, int(l.limit.Load()), int(l.state.Load()&running) //nolint:gosec // at most maxLimit
	s.Waiting, s.Took = l.queue.n, l.took
	for now, i := l.now(), 0; i < len(l.queue.classes); i++ {
		s.Overload = s.Overload || l.standingLocked(l.queue.classes[i], now)
	}
	if l.learn != nil {
		s.Learned, s.Base, s.Rate = true, l.learn.base, l.learn.best
	}
	return s
}

// Of returns the Stats of the limiters that apply to call, ordered by name. In a handler these are
// the limiters of the server. In a middleware or an observer of a client they are those of the
// client. Limiters of endpoints are not included, see OfEndpoint.
func Of(call *yodel.Call) []Stats {
	if call == nil {
		return nil
	}
	return groupsIn(call.State).stats()
}

// OfEndpoint returns the Stats of the limiters of an endpoint.
func OfEndpoint(ep *yodel.Endpoint) []Stats { return groupsIn(ep.State).stats() }

// Report is a handler that returns the Stats to an operator:
//
//	server.Handle("Limits.Report", limit.Report)
func Report(ctx context.Context, _ *struct{}) (*[]Stats, error) {
	stats := Of(yodel.CallFrom(ctx))
	return &stats, nil
}

func (g *groups) stats() []Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []Stats
	for _, group := range g.byName {
		for _, l := range group.limiters() {
			all = append(all, l.stats())
		}
	}
	slices.SortFunc(all, func(a, b Stats) int { return cmp.Compare(a.What, b.What) })
	return all
}
