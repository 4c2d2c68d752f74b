// SPDX-License-Identifier: Apache-2.0

package yodel

// OrderedKeys returns how many keys of ordered calls the client remembers, for the tests that want
// none to be forgotten there.
func (c *Client) OrderedKeys() int {
	return c.orders.Len()
}

// AttemptsOf returns how many attempts a client has counted.
func AttemptsOf(c *Client) int64 { return c.attempts() }

// BindingOf returns the identity of the binding that a session has given to a call.
func BindingOf(v *Served) any { return v.in.as }
