// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"time"
)

// OrderedKeys returns how many keys of ordered calls the client remembers, for the tests that want
// none to be forgotten there.
func (c *Client) OrderedKeys() int {
	return c.orders.lines.Len()
}

// Reported is what a reply that says n does to the endpoint's load.
func (ep *Endpoint) Reported(n uint64) { ep.reported(n) }

// ForgetRTT takes back the last measurement, but not when it was.
func (ep *Endpoint) ForgetRTT() { ep.trip.took.Store(0) }

// An Allowance is what Client.Afford keeps.
type Allowance struct{ allowance }

// NewAllowance returns that of a client which was made at a reading of the clock, and has counted
// so many attempts by then.
func NewAllowance(now time.Duration, attempts int64) *Allowance {
	return &Allowance{allowance{at: now, seen: attempts}}
}

// Take asks it at a reading of the clock, when so many attempts have been made.
func (a *Allowance) Take(now time.Duration, share float64, reserve int, attempts int64) bool {
	return a.take(now, share, reserve, func() int64 { return attempts })
}

// AttemptsOf returns how many attempts a client has counted.
func AttemptsOf(c *Client) int64 { return c.attempts() }
