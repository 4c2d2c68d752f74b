// SPDX-License-Identifier: Apache-2.0

package session

import "time"

// pauses are the times at which a connection that is drained does not read, so that its open calls
// end although its client has more requests. The first pause begins after firstPause, and takes as
// long at most. Each next time both are twice as long: reading pauses for about half of the time,
// and long enough for any call in the end. The last pause lasts to the end of the drain, so that
// calls that take less time are not cut off then.
type pauses struct {
	// turn gets an element when a pause begins or ends: then next must be called.
	turn   <-chan time.Time
	end    time.Time // of the drain; zero if it has none
	period time.Duration
	paused bool
}

// firstPause is how long a drain waits for a client that makes no calls, before the first pause.
const firstPause = 500 * time.Millisecond

// newPauses returns the pauses of a drain that begins now.
func newPauses(end time.Time) *pauses {
	p := &pauses{end: end, period: firstPause}
	if !end.IsZero() {
		p.period = min(p.period, time.Until(end)/4)
	}
	p.turn = time.After(p.period)
	return p
}

// next reports whether a pause begins now.
func (p *pauses) next() (begins bool) {
	if p.paused = !p.paused; !p.paused {
		p.period *= 2
	}
	p.turn = time.After(p.period)
	// Behind this pause there must be time for the next one, and for the last one.
	if p.paused && !p.end.IsZero() && time.Until(p.end) < 7*p.period {
		p.turn = nil
	}
	return p.paused
}
