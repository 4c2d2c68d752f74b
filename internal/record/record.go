// SPDX-License-Identifier: Apache-2.0

// Package record remembers what happened in a call: its attempts, the notes of middleware, and the
// endpoints to which an attempt could have gone. What it remembers is bounded. It words the error
// of a call whose attempts have all failed.
//
// All times are readings of one clock, which the package does not read itself. A Record belongs to
// one goroutine at a time, as its call does.
package record

import (
	"cmp"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// Limits of a record.
const (
	maxCandidates = 32
	maxAttempts   = 32
	maxNotes      = 32

	MaxText = 300 // bytes of a message
	MaxName = 100 // bytes of a name that a peer chose
)

// A Record is what happened in a call. The zero value is an empty record.
type Record struct {
	first      [1]introspect.Attempt // memory for the common case of one attempt
	attempts   []introspect.Attempt  // a slice that Attempts has returned is not changed
	unlisted   int                   // attempts that were dropped
	notes      []note
	unnoted    int         // notes that were dropped
	Candidates *Candidates // nil until they are known
}

// A note is a line that a middleware adds to the record of a call.
type note struct {
	at       time.Duration // on the clock
	by, what string
}

// Add adds an attempt that has ended. If there are too many attempts, it drops one from the middle.
func (r *Record) Add(a *introspect.Attempt) {
	if len(r.attempts) == maxAttempts {
		// errors that user code holds may refer to the old slice
		r.attempts = slices.Delete(slices.Clone(r.attempts), maxAttempts/2, maxAttempts/2+1)
		r.unlisted++
	}
	if r.attempts == nil {
		r.attempts = r.first[:0]
	}
	r.attempts = append(r.attempts, *a)
}

// Made returns how many attempts were added.
func (r *Record) Made() int { return len(r.attempts) + r.unlisted }

// Unsent reports whether no attempt was processed.
func (r *Record) Unsent() bool {
	return !slices.ContainsFunc(r.attempts, func(a introspect.Attempt) bool { return !a.NotProcessed })
}

// Tried reports whether an attempt went to an address.
func (r *Record) Tried(addr string) bool {
	return slices.ContainsFunc(r.attempts, func(a introspect.Attempt) bool { return a.Addr == addr })
}

// Waited returns how long the attempts waited for connections and for the windows of servers.
func (r *Record) Waited() (d time.Duration) {
	for i := range r.attempts {
		d += r.attempts[i].Connecting + r.attempts[i].Credit
	}
	return d
}

// AddTraffic adds the traffic of the attempts to t.
func (r *Record) AddTraffic(t *introspect.Traffic) {
	for i := range r.attempts {
		t.Add(&r.attempts[i])
	}
}

// Note adds the line of a middleware. By names the middleware. If there are too many lines, it
// drops this one.
func (r *Record) Note(at time.Duration, by, what string) { r.note(note{at, by, what}) }

func (r *Record) note(n note) {
	if len(r.notes) == maxNotes {
		r.unnoted++
		return
	}
	r.notes = append(r.notes, n)
}

// Join adds what is in the record of a fork of the call. The later of both lists of candidates
// remains.
func (r *Record) Join(fork *Record) {
	for i := range fork.attempts {
		r.Add(&fork.attempts[i])
	}
	if c := fork.Candidates; c != nil && (r.Candidates == nil || r.Candidates.At < c.At) {
		r.Candidates = c
	}
	for _, n := range fork.notes {
		r.note(n)
	}
	r.unlisted, r.unnoted = r.unlisted+fork.unlisted, r.unnoted+fork.unnoted
}

// Attempts adds the attempts to the report of the call.
func (r *Record) Attempts(to *introspect.CallReport) {
	to.Attempts, to.MoreAttempts = slices.Clip(r.attempts), r.unlisted
}

// Notes adds the notes to the report of a call that began at a time of the clock.
func (r *Record) Notes(to *introspect.CallReport, began time.Duration) {
	to.MoreNotes = r.unnoted
	for _, n := range r.notes {
		to.Notes = append(to.Notes, introspect.Note{At: max(n.at-began, 0), By: n.by, What: text.Cut(n.what, MaxText)})
	}
	// the notes of forks were added last
	slices.SortStableFunc(to.Notes, func(a, b introspect.Note) int { return cmp.Compare(a.At, b.At) })
}
