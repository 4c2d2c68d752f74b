// SPDX-License-Identifier: Apache-2.0

package admission

import "time"

// Pauses are the times at which a connection that is drained does not read, so that its open calls
// end although its client has more requests. The first pause begins after firstPause, and takes as
// long at most. Each next time both are twice as long: reading pauses for about half of the time,
// and long enough for any call in the end. The last pause lasts to the end of the drain, so that
// calls that take less time are not cut off then.
type Pauses struct {
	// Turn gets an element when a pause begins or ends: then Next must be called.
	Turn   <-chan time.Time
	end    time.Time // of the drain; zero if it has none
	period time.Duration
	paused bool
}

// firstPause is how long a drain waits for a client that makes no calls, before the first pause.
const firstPause = 500 * time.Millisecond

// NewPauses returns the Pauses of a drain that begins now.
func NewPauses(end time.Time) *Pauses {
	p := &Pauses{end: end, period: firstPause}
	if !end.IsZero() {
		p.period = min(p.period, time.Until(end)/4)
	}
	p.Turn = time.After(p.period)
	return p
}

// Next reports whether a pause begins now.
func (p *Pauses) Next() (begins bool) {
	if p.paused = !p.paused; !p.paused {
		p.period *= 2
	}
	p.Turn = time.After(p.period)
	// Behind this pause there must be time for the next one, and for the last one.
	if p.paused && !p.end.IsZero() && time.Until(p.end) < 7*p.period {
		p.Turn = nil
	}
	return p.paused
}
