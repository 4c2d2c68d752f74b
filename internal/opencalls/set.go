// SPDX-License-Identifier: Apache-2.0

package opencalls

import "sync/atomic"

// A Set has the open calls of one connection. The zero Set is empty. The caller excludes concurrent
// calls of its methods.
type Set struct {
	Len   int // how many calls it has; only the Set changes it
	first *Entry
}

// An Entry is a call of a Set. The call has it as a part of itself, so that adding it takes no
// memory.
type Entry struct {
	Method  string
	Running atomic.Bool // the call executes; it may change while the call is in a Set

	next, before *Entry
}

// Add adds e, which is in no Set.
func (s *Set) Add(e *Entry) {
	if e.next = s.first; e.next != nil {
		e.next.before = e
	}
	s.first = e
	s.Len++
}

// Remove removes e, which is in s.
func (s *Set) Remove(e *Entry) {
	if e.next != nil {
		e.next.before = e.before
	}
	if e.before != nil {
		e.before.next = e.next
	} else {
		s.first = e.next
	}
	e.next, e.before = nil, nil
	s.Len--
}

// Running returns the calls that execute, which are those of a peer.
func (s *Set) Running(peer string) (calls []Call) {
	for e := s.first; e != nil; e = e.next {
		if e.Running.Load() {
			calls = append(calls, Call{Method: e.Method, Peer: peer})
		}
	}
	return calls
}
