// SPDX-License-Identifier: Apache-2.0

// Package orphans keeps requests that go on although their connection was lost. A one-way request
// may, because its caller does not wait for it. The package bounds how long and how many.
package orphans

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
)

const (
	// Time is how long a request may go on when its connection was lost. Then it is canceled.
	Time = 30 * time.Second
	// SurplusTime applies in place of Time if there are already as many orphans as may be.
	// Requests that are short, or that were sent just before their client left, end by themselves
	// in that time.
	SurplusTime = 500 * time.Millisecond

	// atOnce is how many requests are canceled before others may use the processor. Each makes the
	// goroutine of a handler runnable, and what arrives meanwhile runs after all of these.
	atOnce = 64
)

// A Set has the orphans of a server or a client. Its methods may be called concurrently.
type Set[R comparable] struct {
	cancel func(R)

	mu    sync.Mutex // guards the fields below
	all   map[R]orphan
	kept  int         // how many have kept set
	timer *time.Timer // cancels those whose time is over; nil before the first one
	at    int64       // when timer fires, or never
}

type orphan struct {
	end  int64 // when it is canceled; never once it has been
	kept bool  // it may go on for Time, and not only for SurplusTime
}

// New returns a Set. Cancel is called without a lock for a request whose time is over.
func New[R comparable](cancel func(R)) *Set[R] {
	return &Set[R]{cancel: cancel, all: make(map[R]orphan), at: monotime.Never}
}

// Add takes a request whose connection has ended. The Set keeps as many for Time as the bound
// most says. Add reports whether r is one of them. It cancels the others after SurplusTime.
func (s *Set[R]) Add(r R, most int) (kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	life := SurplusTime
	if kept = s.kept < most; kept {
		s.kept++
		life = Time
	}
	o := orphan{end: int64(monotime.Now() + life), kept: kept}
	s.all[r] = o
	if o.end < s.at {
		s.at = o.end
		if s.timer == nil {
			s.timer = time.AfterFunc(life, s.cancelLate)
		} else {
			s.timer.Reset(life)
		}
	}
	return kept
}

func (s *Set[R]) cancelLate() {
	now := int64(monotime.Now())
	var late []R
	s.mu.Lock()
	s.at = monotime.Never
	for r, o := range s.all {
		if o.end <= now {
			late = append(late, r)
			o.end = monotime.Never
			s.all[r] = o
		}
		s.at = min(s.at, o.end)
	}
	if s.at != monotime.Never {
		s.timer.Reset(time.Duration(s.at - now))
	}
	s.mu.Unlock()
	for i, r := range late {
		s.cancel(r)
		if (i+1)%atOnce == 0 {
			runtime.Gosched()
		}
	}
}

// Remove removes a request that has ended. It returns what Add returned for it.
func (s *Set[R]) Remove(r R) (kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept = s.all[r].kept; kept {
		s.kept--
	}
	delete(s.all, r)
	return kept
}

// All returns the requests.
func (s *Set[R]) All() []R {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.all))
}
