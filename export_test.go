// SPDX-License-Identifier: Apache-2.0

package yodel

// OrderedKeys returns how many keys of ordered calls the client remembers, for the tests that want
// none to be forgotten there.
func (c *Client) OrderedKeys() int {
	return c.orders.lines.Len()
}

// Reported is what a reply that says n does to the endpoint's load.
func (ep *Endpoint) Reported(n uint64) { ep.reported(n) }

// ForgetRTT takes back the last measurement, but not when it was.
func (ep *Endpoint) ForgetRTT() { ep.trip.took.Store(0) }

// AttemptsOf returns how many attempts a client has counted.
func AttemptsOf(c *Client) int64 { return c.attempts() }
