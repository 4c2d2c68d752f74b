// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"errors"
	"slices"

	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/reply"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file contains the methods for middleware that sends a call again, or makes several attempts
// of it at the same time. Client.resend decides which calls the client itself sends again.

// NoRepeat returns why a call that failed with err must not be sent again, as a text for people. It
// returns "" if the call may be sent again: it was certainly not executed, it is idempotent, or the
// server that may have executed it remembers its idempotency key. In the last case the client sends
// the call only to servers that share that memory. If err is nil, NoRepeat returns why no second
// attempt may begin while the first attempt is in flight.
func (a *Attempts) NoRepeat(err error) (why string) {
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
		return "the method is not declared idempotent, and the call has no idempotency key"
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

// Forkable saves a copy of the call, from which Fork can repeat the call while the call is in
// flight. It reports whether the call can be repeated in this way. It is for middleware of a client
// that makes several attempts at the same time, such as hedging. If Forkable returns true, the
// middleware must call Join later, also if there was no fork.
//
// Forkable returns false for a call that is one-way, ordered, pinned to an endpoint or itself a
// fork. It also returns false for a call that has a stream, or whose Reply cannot be decoded into.
func (a *Attempts) Forkable() bool {
	c := (*Call)(a)
	if c.Client() == nil || c.OneWay || c.turn != nil || c.kind() != wire.Unary || c.stays || c.pinned() || c.group != nil || !reply.Fillable(c.Reply) {
		return false
	}
	g := &c.out.useExtra().group
	if g.first, g.like = c, c.Reply; g.forks.Load() != nil {
		g.forks.Store(nil) // from earlier use
	}
	if c.IdempotencyKey != "" && c.hold == nil {
		c.hold = new(keyscope.Hold)
	}
	c.copyFor(forFork, &g.seed)
	c.group = g
	return true
}

// Fork returns an independent copy of the call, as it was when Forkable returned true. Fork must
// not be called otherwise. The copy goes down the chain on its own goroutine, has its own Reply and
// shares the call's attempt budget. It goes to an endpoint that neither the call nor another fork
// uses, if there is one. Middleware makes the forks of a call one after the other, before the call
// is sent or while it is in flight. When the call and all forks have ended, the middleware must
// call Join of the Attempts of each fork.
func (a *Attempts) Fork() *Call {
	g := &a.out.extra.group
	o := a.out.from.client.take()
	f := &o.call
	*f = g.seed
	f.tried = slices.Clone(f.tried) // the call may still append to its own
	f.out, f.group = o, g
	o.began = 1 // for Now, because the fork may begin later than the call
	o.useExtra().fork = true
	forks := []*Call{f}
	if before := g.forks.Load(); before != nil {
		forks = append(forks, *before...)
	}
	g.forks.Store(&forks)
	return f
}

// Join ends a call that Fork or Detach has returned. That call must not be used afterwards. If take
// is set, the call that was forked gets the fork's outcome: the reply, the trailer, the attachment
// and the endpoint. The fork's attempts become part of the record of that call, and its later
// attempts avoid the fork's endpoints. If there was no fork, Join is called for the call itself.
func (a *Attempts) Join(take bool) {
	f, g := (*Call)(a), a.group
	f.group = nil
	switch {
	case g != nil && g.first != f:
		joinFork(g.first, f, take)
	case g == nil && f.out.readExtra().detached:
		f.out.from.client.give(f.out)
	}
}

// joinFork ends the fork f of c.
func joinFork(c, f *Call, take bool) {
	if c.group = nil; take {
		c.out.recordGood(c) // before the call gets the fork's outcome
		reply.Copy(c.Reply, f.Reply)
		c.Trailer, c.ReplyAttachment = f.Trailer, f.ReplyAttachment
		if md := f.Header(); md != nil {
			c.SetHeader(md)
		}
		c.Endpoint, c.picked = f.Endpoint, f.picked
	} else if f.picked != nil {
		c.Attempts().Avoid(f.picked)
	}
	if f.out.recordGood(f); c.out.arrived == 0 { // otherwise c's last attempt is recorded later
		c.out.useExtra().counted += f.Attempt
	}
	c.Attempt += f.Attempt
	for _, ep := range f.tried {
		c.Attempts().Avoid(ep)
	}
	if f.rare != nil {
		c.rarely().Join(&f.rare.Record)
	}
	c.out.from.client.give(f.out)
}

// Detach returns a copy of the call for middleware of a client. The copy goes down the same chain
// on another goroutine. Unlike a Fork, it may continue after the call has ended. It therefore has
// no deadline. It shares no memory with the call except the arguments to which Args points. If the
// caller reuses its arguments, Args must be an *Encoded. The middleware sets the Reply of the copy.
// The copy takes over the rest of the call's own attempt budget. If the call has the budget of a
// handler's call, the copy shares that budget. When the copy has ended, the middleware must call
// Join of the copy's Attempts. Detach returns nil for a call that is one-way, ordered, or has a
// stream.
func (a *Attempts) Detach() *Call {
	c := (*Call)(a)
	client := c.Client()
	if client == nil || c.OneWay || c.turn != nil || c.Streams() {
		return nil
	}
	o := client.take()
	detached := &o.call
	c.copyFor(forDetached, detached)
	detached.out, o.useExtra().detached = o, true
	return detached
}
