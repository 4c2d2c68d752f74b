// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"sync"
	"time"
)

// A Watch checks the readers that run user code. If a reader is in the same call for two ticks, it
// counts as blocked, and another reader takes over. The timer of a Watch stops when no user code
// runs. Each server and each client has one Watch.
type Watch struct {
	mu sync.Mutex // guards conns and timer; taken before Conn.mu
	// the connections to check, each with the reader state that was last seen
	conns map[*Conn]uint64
	timer *time.Timer
}

// tick is short enough that a blocked handler delays other calls by about 1 ms. It is long enough
// that the checks cost nothing measurable.
const tick = 750 * time.Microsecond

// NewWatch returns a Watch. It uses a timer only while there are connections to check.
func NewWatch() *Watch { return &Watch{conns: make(map[*Conn]uint64)} }

// joinWatch adds the connection to its Watch, unless it is there.
func (re *reading) joinWatch() {
	c := re.c
	if re.watched.Load() || !re.watched.CompareAndSwap(false, true) {
		return
	}
	w := c.cfg.Watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = 0
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
	for c, seen := range w.conns {
		rd := c.reading.reader.Load()
		state := rd.state.Load()
		switch {
		case state == seen && state&running == 0:
			// No user code ran for a tick. The next call puts the connection back.
			delete(w.conns, c)
			c.reading.watched.Store(false)
			if rd.state.Load() == state || !c.reading.watched.CompareAndSwap(false, true) {
				continue
			}
			// A call has just begun. It relies on this Watch, so the connection must remain in
			// conns.
		case state == seen:
			c.reading.handOver(rd, state)
		}
		w.conns[c] = state
	}
	if len(w.conns) > 0 {
		w.timer.Reset(tick)
	}
}
