// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"math"
	"time"
)

// OrderedKeys returns how many keys of ordered calls the client remembers, for the tests that want none to be forgotten
// there.
func (c *Client) OrderedKeys() int {
	c.orders.mu.Lock()
	defer c.orders.mu.Unlock()
	return len(c.orders.lines)
}

// Reported is what a reply that says n does to the endpoint's load.
func (ep *Endpoint) Reported(n uint64) { ep.reported(n) }

// ForgetRTT takes back the last measurement, but not when it was.
func (ep *Endpoint) ForgetRTT() { ep.trip.took.Store(0) }

// An Allowance is what Client.Afford keeps.
type Allowance struct{ allowance }

// NewAllowance returns that of a client which was made at a reading of the clock, and has counted so many attempts by then.
func NewAllowance(now time.Duration, attempts int64) *Allowance {
	return &Allowance{allowance{at: now, seen: attempts}}
}

// Take asks it at a reading of the clock, when so many attempts have been made.
func (a *Allowance) Take(now time.Duration, share float64, reserve int, attempts int64) bool {
	return a.take(now, share, reserve, func() int64 { return attempts })
}

// Attempts returns how many attempts a client has counted.
func Attempts(c *Client) int64 { return c.attempts() }

// ForgetSamples forgets the records of calls that the process has kept, and how many there were.
func ForgetSamples() {
	samples.leftOut.Store(0)
	for i := range samples.kinds {
		k := &samples.kinds[i]
		k.mu.Lock()
		k.calls, k.next = nil, 0
		k.mu.Unlock()
		k.seen.Store(0)
		k.due.Store(math.MaxInt64) // of another clock
	}
}
