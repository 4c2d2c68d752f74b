// SPDX-License-Identifier: Apache-2.0

package keyscope

import "time"

// A Repeat is what a client knows of a call that middleware may send again.
type Repeat struct {
	Hold      *Hold  // nil if no attempt of a call with a key was made
	Keyed     bool   // it has an idempotency key
	Harmless  bool   // executing it twice does no harm
	Failed    bool   // its last attempt has failed; otherwise a second one is to run in parallel
	Unsent    bool   // that attempt was certainly not executed
	Refused   string // why that attempt was refused because of the key; "" if it was not
	Fork      bool   // it is a fork of another call
	Ended     bool   // it has ended, and middleware makes a new call in place of it
	ToPeer    bool   // a server calls its client
	Streams   bool   // it has a stream
	Begun     bool   // messages of its stream have been sent
	Overtaken bool   // a later call with its order key may have been executed
}

// notOfStreams is why a key does not make a call with a stream repeatable.
const notOfStreams = "what went over a stream is not remembered for its idempotency key"

// Barred returns why the call must not be sent again, for people. It returns "" if the call may be
// sent again. Now is a reading of the clock. Shared reports whether the call can reach a server
// that may share the memory of keys with the one that got an attempt.
func (r *Repeat) Barred(now time.Duration, shared func(first *Attempt) bool) string {
	switch {
	case r.Begun:
		return "messages of its stream have been sent"
	case r.Overtaken:
		return "a later call with its order key may have been executed"
	case r.Harmless:
		return ""
	case r.Hold != nil:
		return r.heldBack(now, shared)
	case r.Unsent:
		return ""
	case !r.Keyed:
		return "the method is not declared idempotent, and the call has no idempotency key"
	case r.Streams:
		return notOfStreams
	case r.ToPeer:
		return "an idempotency key does not make a call to a peer repeatable"
	}
	return "" // no attempt has been made
}

// heldBack is Barred for a call whose key may be remembered somewhere.
func (r *Repeat) heldBack(now time.Duration, shared func(first *Attempt) bool) string {
	if r.Refused != "" {
		return r.Refused
	}
	first, open := r.Hold.First()
	switch {
	case !open && !r.Failed && r.Fork:
		return "the first attempt has not been sent, so nobody knows where its idempotency key will be remembered"
	case !open:
		return ""
	case r.Streams:
		return notOfStreams
	}
	if why := first.Forgotten(now); why != "" {
		return why
	}
	switch {
	case r.Ended, shared(&first):
		return ""
	case r.Failed:
		return first.Alone() + ", which cannot be reached"
	}
	return first.Alone()
}
