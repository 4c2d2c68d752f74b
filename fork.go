// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"reflect"
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is for middleware that makes more of a call than attempts one after the other.

// Fork returns a call for the same as c, for middleware of a client that makes attempts at the same time: it goes down the same
// chain, on a goroutine of its own, has a reply of its own, shares the budget, and goes to other endpoints than c and its
// other forks while there are any. All forks are made before c or any of them goes on, and Join ends each when all of them have ended. It
// returns nil for a call that cannot be made twice at a time: one that is one-way, ordered, or has a stream.
func (c *Call) Fork() *Call {
	if c.out == nil || c.out.client == nil || c.OneWay || c.turn != nil || c.kind() != wire.Unary {
		return nil
	}
	o := c.out.client.take()
	f := &o.call
	f.out, f.rare = o, &rareCall{like: c.Reply}
	f.Method, f.Args, f.Metadata, f.Attachment, f.Deadline = c.Method, c.Args, c.Metadata, c.Attachment, c.Deadline
	f.Codec, f.Compressor, f.Key, f.IdempotencyKey, f.Idempotent, f.NoWait = c.Codec, c.Compressor, c.Key, c.IdempotencyKey, c.Idempotent, c.NoWait
	f.Criticality, f.Tenant, f.budget = c.Criticality, c.Tenant, c.tokens()
	f.watch, f.began = c.watch, c.made()
	f.tried = slices.Clone(c.tried)
	if c.pinned() {
		f.Endpoint = c.Endpoint
	}
	r := c.rarely()
	if r.group == nil {
		r.group = []*Call{c}
	}
	r.group = append(r.group, f)
	for _, member := range r.group {
		member.rare.group = r.group
	}
	return f
}

// Join ends a fork, which must not be used afterwards. With take, its outcome becomes the call's: the reply, what came beside it, and the
// endpoint. What it tried becomes part of the call's record.
func (c *Call) Join(f *Call, take bool) {
	if take {
		takeOver(c.Reply, f.Reply)
		c.Trailer, c.ReplyAttachment = f.Trailer, f.ReplyAttachment
		c.Endpoint, c.picked = f.Endpoint, f.picked
	}
	c.Attempt += f.Attempt
	for _, ep := range f.tried {
		c.Avoid(ep)
	}
	c.rare.notes = append(c.rare.notes, f.rare.notes...)
	if f.report != nil {
		if c.report == nil {
			c.report = &CallReport{Method: c.Method}
		}
		c.report.Attempts = append(c.report.Attempts, f.report.Attempts...)
	}
	c.rare.group = nil
	c.out.client.give(f.out)
}

// going notes where an attempt goes, for the others of its group to avoid.
func (c *Call) going(ep *Endpoint) {
	if c.rare != nil && c.rare.group != nil {
		c.out.at.Store(ep)
	}
}

// besides reports whether another call of the group is under way to ep.
func (c *Call) besides(ep *Endpoint) bool {
	if c.rare == nil {
		return false
	}
	for _, other := range c.rare.group {
		if other != c && other.out.at.Load() == ep {
			return true
		}
	}
	return false
}

// another returns a new variable like the one that a reply was to be decoded into.
func another(reply any) any {
	values, ok := reply.(Values)
	if !ok {
		return reflect.New(reflect.TypeOf(reply).Elem()).Interface()
	}
	others := make(Values, len(values))
	for i, v := range values {
		others[i] = another(v)
	}
	return others
}

// takeOver makes what to points to what from points to.
func takeOver(to, from any) {
	if to == nil || from == nil {
		return
	}
	values, ok := to.(Values)
	if !ok {
		reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
		return
	}
	for i, v := range values {
		takeOver(v, from.(Values)[i]) //nolint:forcetypeassert // another made it
	}
}

// Unary reports whether the call is one request and one reply at most, and no stream.
func (c *Call) Unary() bool {
	if c.in != nil {
		return c.in.target.kind == wire.Unary
	}
	return c.stream == nil
}

// Client returns the client that carries the call out; nil for a call to a Peer, and on the server.
func (c *Call) Client() *Client {
	if c.out == nil || c.out.peer != nil {
		return nil
	}
	return c.out.client
}

// State returns the value kept under key by the client or the server that carries the call out, made with create the first
// time. Middleware keeps there what must survive a new chain. It may be called concurrently.
func (c *Call) State(key any, create func() any) any {
	var states *states
	switch {
	case c.in != nil:
		states = &c.in.target.conn.server.calls.states
	case c.out != nil:
		states = &c.out.from.states
	default:
		return create() // nobody carries it out
	}
	return states.get(key, create)
}

// A rareCall is what few calls have.
type rareCall struct {
	group []*Call // the call and its forks
	like  any     // of a fork: the reply that its own is to be like
	notes []note
}

func (c *Call) rarely() *rareCall {
	if c.rare == nil {
		c.rare = new(rareCall)
	}
	return c.rare
}

// A note is what a middleware adds to the record of a call.
type note struct{ by, what string }

// Note adds to the record of the call what the middleware called by did with it, for the people who find out why a call failed, or was slow. It is for what
// is unusual: that the call had to wait, or was sent again, not that all was well.
func (c *Call) Note(by, what string) {
	r := c.rarely()
	r.notes = append(r.notes, note{by, what})
}
