// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// SlowStart makes b give a new endpoint a growing share of its calls. The share grows from a tenth
// to all of them within the time over. A new endpoint has cold caches and code that is not compiled
// yet, and without load it would get the calls of all clients at once. SlowStart wraps any
// balancer. Calls beyond the share go where b would send them without the new endpoint.
//
// The age of an endpoint counts from the start of its server if the registry reports it
// (discovery.Instance.Started), and otherwise from when the client learned of it. Endpoints that a
// client begins with are not new. While all endpoints are new, nothing is held back.
//
// The growth is that of Envoy's slow start with aggression 1, and so is the least share.
func SlowStart(over time.Duration, b yodel.Balancer) yodel.Balancer {
	if b == nil {
		panic("balance: SlowStart with a nil Balancer")
	}
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		var before *starting
		switch last := last.(type) {
		case *starting:
			before = last
		case *startingLearner:
			before = last.starting
		}
		s := &starting{over: over, balance: b, endpoints: endpoints}
		var all, others yodel.Picker
		if before != nil {
			all = before.all
			others = before.stop()
		}
		s.all = b(endpoints, all)
		now := time.Now()
		for _, ep := range endpoints {
			known := now
			if before == nil {
				known = time.Time{}
			}
			ep.State(startKey{}, func() any { return known })
		}
		s.mu.Lock()
		s.divideLocked(others)
		s.mu.Unlock()
		if l, ok := s.all.(Learner); ok {
			return &startingLearner{starting: s, learner: l}
		}
		return s
	}
}

// leastShare is the share of a new endpoint at the beginning.
const leastShare = 0.1

type startKey struct{}

// startOf returns the beginning of the age of an endpoint. It ignores a server clock that is ahead
// of this one.
func startOf(ep *yodel.Endpoint, now time.Time) time.Time {
	known, _ := ep.State(startKey{}, func() any { return now }).(time.Time)
	if started := ep.Instance().Started; !started.IsZero() && started.Before(now) {
		return started
	}
	return known
}

type starting struct {
	over      time.Duration
	balance   yodel.Balancer
	endpoints []*yodel.Endpoint
	all       yodel.Picker
	stage     atomic.Pointer[startingStage] // nil when no endpoint is held back

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	others  yodel.Picker // the last picker of a stage for the old endpoints
}

// A startingStage is the state until the next endpoint has become old. It does not change.
type startingStage struct {
	since  map[*yodel.Endpoint]time.Time // the new endpoints
	others yodel.Picker                  // for the old endpoints
}

// divideLocked divides the endpoints into new and old ones. A timer calls it again when the next
// endpoint becomes old. last is the previous picker for old endpoints.
func (s *starting) divideLocked(last yodel.Picker) {
	now := time.Now()
	next := s.over
	stage := &startingStage{since: make(map[*yodel.Endpoint]time.Time)}
	var old []*yodel.Endpoint
	for _, ep := range s.endpoints {
		since := startOf(ep, now)
		if age := now.Sub(since); age < s.over {
			stage.since[ep] = since
			next = min(next, s.over-age)
		} else {
			old = append(old, ep)
		}
	}
	if len(stage.since) == 0 {
		s.stage.Store(nil)
		s.others = nil
		return
	}
	s.timer = time.AfterFunc(next, s.divide)
	if len(old) == 0 {
		s.stage.Store(nil)
		return
	}
	s.others = s.balance(old, last)
	stage.others = s.others
	s.stage.Store(stage)
}

func (s *starting) divide() {
	defer func() { // this runs on a timer, and the inner balancer may be user code
		if value := recover(); value != nil {
			slog.Error("yodel: the balancer in balance.SlowStart panicked; it is asked again when the instances change", "panic", value)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.divideLocked(s.others)
	}
}

// stop ends the use of s for a set, and returns the picker of its old endpoints.
func (s *starting) stop() yodel.Picker {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
	return s.others
}

func (s *starting) Pick(call *yodel.Call) *yodel.Endpoint {
	ep := s.all.Pick(call)
	stage := s.stage.Load()
	if stage == nil {
		return ep
	}
	since, isNew := stage.since[ep]
	if !isNew {
		return ep
	}
	share := max(float64(time.Since(since))/float64(s.over), leastShare)
	if rand.Float64() < share {
		return ep
	}
	if other := stage.others.Pick(call); other != nil {
		return other
	}
	return ep // the call avoids all other endpoints
}

type startingLearner struct {
	*starting
	learner Learner
}

func (s *startingLearner) Ended(ep *yodel.Endpoint, took time.Duration, err error) {
	s.learner.Ended(ep, took, err)
}
