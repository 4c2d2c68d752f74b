// SPDX-License-Identifier: Apache-2.0

package yodel

import "errors"

// This file decides which failed calls middleware may send again. Client.resend decides which ones
// the client itself sends again.

// MayRepeat reports whether a call that failed with err may be sent again. The call may be sent
// again if it was certainly not executed, if it is idempotent, or if the server that may have
// executed it remembers its idempotency key. In the last case the client sends the call only to
// servers that share that memory. If the call may not be sent again, NoRepeat returns the reason.
func (a *Attempts) MayRepeat(err error) bool { return a.obstacle(err) == "" }

// NoRepeat returns why a call that failed with err must not be sent again, as a text for people. It
// returns "" if the call may be sent again. If err is nil, NoRepeat returns why no second attempt
// may begin while the first attempt is in flight.
func (a *Attempts) NoRepeat(err error) (why string) {
	if why = a.obstacle(err); why == undeclared {
		return a.Method + why
	}
	return why
}

// undeclared follows the name of a method. MayRepeat asks for each call, and the name would be
// joined to it each time.
const undeclared = " is not declared idempotent, and the call has no idempotency key"

// obstacle is NoRepeat, except that it returns undeclared without the name of the method.
func (a *Attempts) obstacle(err error) (why string) {
	c := (*Call)(a)
	switch unsent := NotProcessed(err); {
	case c.stream != nil && c.stream.Begun:
		return "messages of its stream have been sent"
	case c.turn != nil && !c.turn.MayRepeat(unsent):
		return "a later call with its order key may have been executed"
	case c.harmless():
		return ""
	case c.hold != nil:
		return a.heldBack(err)
	case unsent:
		return ""
	case c.IdempotencyKey == "":
		return undeclared
	case c.stream != nil:
		return "what went over a stream is not remembered for its idempotency key"
	case c.requester() != nil && c.Client() == nil:
		return "an idempotency key does not make a call to a peer repeatable"
	}
	return "" // no attempt has been made
}

// heldBack is NoRepeat for a call whose key may be remembered somewhere.
func (a *Attempts) heldBack(err error) string {
	c := (*Call)(a)
	if refused, ok := errors.AsType[*keyRefusal](err); ok {
		return refused.why
	}
	first, open := c.hold.First()
	switch {
	case !open && err == nil && c.group != nil && c.group.first != c: // it is a fork
		return "the first attempt has not been sent, so nobody knows where its idempotency key will be remembered"
	case !open:
		return ""
	case c.stream != nil:
		return "what went over a stream is not remembered for its idempotency key"
	}
	if why := first.Forgotten(clock()); why != "" {
		return why
	}
	if c.requester() == nil { // the call has ended, and middleware makes a new one
		return ""
	}
	for _, ep := range c.Client().cluster.set.Load().endpoints {
		if err == nil && (ep.identity.Load() == nil || c.besides(ep) || ep == c.Endpoint) {
			continue // a second attempt in parallel goes to another endpoint
		}
		if ep.shares(&first) {
			return ""
		}
	}
	if err == nil {
		return first.Alone()
	}
	return first.Alone() + ", which cannot be reached"
}
