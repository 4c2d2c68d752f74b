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

// Stats is what a limiter does at the moment, and what it has done.
type Stats struct {
	What    string `json:"what"`              // is limited
	Learned bool   `json:"learned,omitempty"` // the limit is learned
	Limit   int    `json:"limit"`             // how many calls may run at a time
	Running int    `json:"running"`           // calls that do
	Waiting int    `json:"waiting"`           // calls that wait
	// of some class somebody has been waiting for longer than a burst lasts
	Overload bool `json:"overload,omitempty"`
	// a call that was timed, in the mean of late; 0 when it is not known
	Took time.Duration `json:"took"`
	// of a limit that is learned: what a call takes that waits for nobody
	Base      time.Duration `json:"base,omitempty"`
	Rate      float64       `json:"rate,omitempty"`      // likewise: the most calls in a second of late
	Waited    uint64        `json:"waited,omitempty"`    // calls that had to wait
	Full      uint64        `json:"full,omitempty"`      // calls refused because enough others waited
	Displaced uint64        `json:"displaced,omitempty"` // calls refused because another one came first
	Stale     uint64        `json:"stale,omitempty"`     // calls refused because they had waited for too long
	Late      uint64        `json:"late,omitempty"`      // calls refused because of their deadline
	Canceled  uint64        `json:"canceled,omitempty"`  // calls that were canceled while they waited
}

// String returns s in a line for people.
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

// Of returns what the limiters do of the server or the client that carries call out, in the order
// of their names: in a handler those of the server, and in a middleware or an observer of a client
// those of the client. Those of endpoints are left out: see OfEndpoint.
func Of(call *yodel.Call) []Stats {
	if call == nil {
		return nil
	}
	return groupsIn(call.State).stats()
}

// OfEndpoint returns what the limiters of an endpoint do.
func OfEndpoint(ep *yodel.Endpoint) []Stats { return groupsIn(ep.State).stats() }

// Report is a method for people who look at a server:
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
