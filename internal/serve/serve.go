// SPDX-License-Identifier: Apache-2.0

// Package serve keeps the connections of a server. It accepts them, bounds how many are open, and
// drains them when the server shuts down. It knows neither protocols nor calls: the server says how
// a connection is served, drained and aborted.
package serve

import (
	"container/list"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Options are what a server tells its Conns. All fields must be set, except those that say
// otherwise.
type Options[C comparable] struct {
	// Max is how many connections may be open or about to open.
	Max int
	// Patience is how long a silent connection may keep its place while Max are open and another
	// one arrives.
	Patience time.Duration
	// Closed is the error of a connection or a listener that comes after the server was shut down.
	Closed error
	// Full makes the error of a connection beyond Max.
	Full func() error
	// Drain closes a connection when its calls have ended. The server will cut it off at end, if
	// that is not zero.
	Drain func(c C, end time.Time)
	// Abort closes a connection at once.
	Abort func(c C)
	// Displace closes a silent connection whose place another one gets.
	Displace func(c C)
	// Failed reports that l does not accept. Conns tries again after a pause, unless again is 0.
	Failed func(l net.Listener, err error, again time.Duration)
}

// Conns are the listeners and the connections of a server. Its methods may be called concurrently.
// None calls a function of the Options with a lock held.
type Conns[C comparable] struct {
	o        Options[C]
	refusals chan struct{} // holds a token for each connection that is being refused
	stopped  chan struct{} // closed by Stop
	empty    chan struct{} // closed when Stop was called and no connection is left

	mu        sync.Mutex
	listeners []net.Listener
	open      map[C]place
	silent    list.List // of C, the one that is silent for the longest time first
	displaced int       // connections in open whose places others have got
	admitted  int       // admitted connections that are not in open yet
	arriving  int       // accept loops, and connections of them that are not in open yet
	accepting int       // accept loops
	stopping  bool      // Stop was called
	end       time.Time // of Stop
	cut       bool      // CutOff was called
}

// A place is what Conns knows of an open connection.
type place struct {
	uses      int // how often it was entered and not yet forgotten
	displaced bool
	since     time.Time     // when it became silent
	silent    *list.Element // its element of Conns.silent; nil if it is not silent
}

// New returns the Conns of a server.
func New[C comparable](o *Options[C]) *Conns[C] {
	return &Conns[C]{
		o: *o, refusals: make(chan struct{}, maxRefusals), stopped: make(chan struct{}), empty: make(chan struct{}), open: make(map[C]place),
	}
}

// Addr returns the address of the first listener, or nil.
func (s *Conns[C]) Addr() net.Addr {
	s.mu.Lock()
	listeners := s.listeners
	s.mu.Unlock()
	if len(listeners) == 0 {
		return nil
	}
	return listeners[0].Addr()
}

// Listening reports whether a listener was ever added.
func (s *Conns[C]) Listening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listeners) > 0
}

// Admit takes a place for a connection that is about to open. It fails if there is none. The caller
// then calls Enter or Leave.
func (s *Conns[C]) Admit() error {
	s.mu.Lock()
	if s.cut {
		s.mu.Unlock()
		return s.o.Closed
	}
	oldest, found := *new(C), false
	full := len(s.open)-s.displaced+s.admitted >= s.o.Max
	if full {
		oldest, found = s.displaceLocked()
	}
	if !full || found {
		s.admitted++
	}
	s.mu.Unlock()
	switch {
	case found:
		s.o.Displace(oldest)
	case full:
		return s.o.Full()
	}
	return nil
}

// displaceLocked takes the place of the connection that is silent for the longest time, if it has
// been silent for longer than Patience.
func (s *Conns[C]) displaceLocked() (c C, found bool) {
	e := s.silent.Front()
	if e == nil {
		return c, false
	}
	c = e.Value.(C) //nolint:forcetypeassert // Silent put it there
	p := s.open[c]
	if time.Since(p.since) < s.o.Patience {
		return c, false
	}
	s.silent.Remove(p.silent)
	p.silent, p.displaced = nil, true
	s.open[c] = p
	s.displaced++
	return c, true
}

// Leave gives back the place of a connection that was admitted and then refused.
func (s *Conns[C]) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admitted--
}

// Check returns an error if no connection may enter any more.
func (s *Conns[C]) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return s.o.Closed
	}
	return nil
}

// Enter opens an admitted connection. It calls begin, which may be nil, before any other goroutine
// sees c, with a lock held. If the server shuts down, c is told to drain, and Enter reports it.
func (s *Conns[C]) Enter(c C, begin func()) (draining bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admitted--
	return s.enterLocked(c, begin)
}

// Replace is Enter for a connection that takes the place of old, which is open.
func (s *Conns[C]) Replace(old, c C, begin func()) (draining bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(old)
	return s.enterLocked(c, begin)
}

func (s *Conns[C]) enterLocked(c C, begin func()) (draining bool, err error) {
	if s.cut {
		return true, s.o.Closed
	}
	s.open[c] = place{uses: 1}
	if begin != nil {
		begin()
	}
	if s.stopping {
		go s.o.Drain(c, s.end)
	}
	return s.stopping, nil
}

// Use opens c without an admission, or keeps it open if it is open already. Each Use needs a
// Forget. It reports false, and does nothing, if the server shuts down.
func (s *Conns[C]) Use(c C) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	p := s.open[c]
	p.uses++
	s.open[c] = p
	return true
}

// Forget removes a connection that has ended. It does nothing if c is not open.
func (s *Conns[C]) Forget(c C) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(c)
	s.emptyLocked()
}

func (s *Conns[C]) forgetLocked(c C) {
	p, found := s.open[c]
	if !found {
		return
	}
	if p.uses--; p.uses > 0 {
		s.open[c] = p
		return
	}
	if p.silent != nil {
		s.silent.Remove(p.silent)
	}
	if p.displaced {
		s.displaced--
	}
	delete(s.open, c)
}

// Silent says that an open connection has not sent anything yet. When it has been silent for
// longer than Patience, another connection may get its place.
func (s *Conns[C]) Silent(c C) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, found := s.open[c]; found && p.silent == nil && !p.displaced {
		p.since, p.silent = time.Now(), s.silent.PushBack(c)
		s.open[c] = p
	}
}

// Spoke says that a silent connection has sent something. It does nothing if c is not silent.
func (s *Conns[C]) Spoke(c C) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.open[c]; p.silent != nil {
		s.silent.Remove(p.silent)
		p.silent = nil
		s.open[c] = p
	}
}

// All returns the open connections in no particular order.
func (s *Conns[C]) All() []C {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.open))
}

// Len returns the number of open connections.
func (s *Conns[C]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Stopped returns a channel that is closed by Stop.
func (s *Conns[C]) Stopped() <-chan struct{} { return s.stopped }

// Stopping reports whether Stop was called.
func (s *Conns[C]) Stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// Stop closes the listeners and drains the connections, those too that enter later. It reports
// whether it was not called before. The end of the first call counts.
func (s *Conns[C]) Stop(end time.Time) (first bool) {
	s.mu.Lock()
	if first = !s.stopping; first {
		s.stopping, s.end = true, end
		close(s.stopped)
	}
	s.emptyLocked()
	end = s.end
	listeners, open := s.listeners, slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close() // no goroutine will accept from it
	}
	for _, c := range open {
		go s.o.Drain(c, end) // its client may connect again at once, and must not be reset then
	}
	return first
}

// emptyLocked closes s.empty if the server is stopping and no connection is left.
func (s *Conns[C]) emptyLocked() {
	if !s.stopping || s.arriving > 0 || len(s.open) > 0 {
		return
	}
	select {
	case <-s.empty:
	default:
		close(s.empty)
	}
}

// Empty returns a channel that is closed when Stop was called and no connection is left.
func (s *Conns[C]) Empty() <-chan struct{} { return s.empty }

// CutOff aborts the connections that are left, and lets none enter any more. It returns how many
// were left, including those that were about to enter.
func (s *Conns[C]) CutOff() (left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	for c := range s.open {
		go s.o.Abort(c)
	}
	return len(s.open) + s.arriving - s.accepting
}
