// SPDX-License-Identifier: Apache-2.0

package inline

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Watch checks the readers that run user code. If a reader is in the same run for two ticks, it
// counts as blocked, and another reader takes over. The timer of a Watch stops when no user code
// runs. Each server and each client has one Watch.
type Watch struct {
	mu    sync.Mutex // guards conns and timer; taken before the locks of connections
	conns map[Reading]watched
	timer *time.Timer
}

// watched is what a Watch knows of a connection.
type watched struct {
	seen uint64 // the State that was last seen
	in   *Watched
}

// Reading is the reading of a connection. It must be comparable. A Watch calls its methods with a
// lock held.
type Reading interface {
	// State returns the State of the newest reader.
	State() *State
	// HandOver makes another goroutine read if the reader with this State is still in this run.
	HandOver(of *State, run uint64)
}

// Watched says whether a Watch checks a connection. Each connection has one.
type Watched struct{ on atomic.Bool }

// tick is short enough that a blocked handler delays other calls by about 1 ms. It is long enough
// that the checks cost nothing measurable.
const tick = 750 * time.Microsecond

// NewWatch returns a Watch. It uses a timer only while there are connections to check.
func NewWatch() *Watch { return &Watch{conns: make(map[Reading]watched)} }

// Join makes w check the connection, unless it does. The reader calls it when a run has begun. A
// connection must use the same Watch each time.
func (in *Watched) Join(w *Watch, of Reading) {
	if !in.on.Load() && in.on.CompareAndSwap(false, true) {
		w.add(of, in)
	}
}

func (w *Watch) add(of Reading, in *Watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[of] = watched{in: in}
	switch {
	case w.timer == nil:
		w.timer = time.AfterFunc(tick, w.check)
	case len(w.conns) == 1:
		w.timer.Reset(tick)
	}
}

// check is one tick: it checks every connection in conns.
func (w *Watch) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for of, last := range w.conns {
		s := of.State()
		state := s.Load()
		switch {
		case state == last.seen && state&running == 0:
			// No user code ran for a tick. The next run puts the connection back.
			delete(w.conns, of)
			last.in.on.Store(false)
			if s.Load() == state || !last.in.on.CompareAndSwap(false, true) {
				continue
			}
			// A run has just begun. It relies on this Watch, so the connection must remain in
			// conns.
		case state == last.seen:
			of.HandOver(s, state)
		}
		w.conns[of] = watched{state, last.in}
	}
	if len(w.conns) > 0 {
		w.timer.Reset(tick)
	}
}
