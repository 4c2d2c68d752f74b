// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is for middleware that makes more of a call than attempts one after the other.

// Forkable notes what c is, so that Fork can make the same call again while c is under way, and
// reports whether that is possible: not of a call that is one-way, ordered, pinned to an endpoint,
// or itself a fork, that has a stream, or whose Reply nothing can be decoded into. It is for
// middleware of a client that makes attempts at the same time. If it is true, Join must follow,
// whether or not there was a fork.
func (c *Call) Forkable() bool {
	if c.out == nil || c.out.client == nil || c.OneWay || c.turn != nil || c.kind() != wire.Unary || c.stays || c.pinned() || c.group != nil || !fillable(c.Reply) {
		return false
	}
	g := &c.out.group
	if g.first, g.like = c, c.Reply; g.forks.Load() != nil {
		g.forks.Store(nil) // of a time before
	}
	s := &g.seed
	s.Method, s.Args, s.Metadata, s.Attachment, s.Deadline = c.Method, c.Args, c.Metadata, c.Attachment, c.Deadline
	s.Codec, s.Compressor, s.Key, s.IdempotencyKey, s.Idempotent, s.NoWait = c.Codec, c.Compressor, c.Key, c.IdempotencyKey, c.Idempotent, c.NoWait
	s.Criticality, s.Tenant, s.Explain, s.budget = c.Criticality, c.Tenant, c.Explain, c.tokens()
	s.watch, s.began, s.tried = c.watch, c.made(), c.tried
	if c.IdempotencyKey != "" && c.hold == nil {
		c.hold = new(keyHold)
	}
	s.hold = c.hold
	c.group = g
	return true
}

// Fork returns a call for the same as c was when Forkable was true, without which it must not be
// called: it goes down the same chain, on a goroutine of its own, has a reply of its own, shares
// the budget, and goes to other endpoints than c and its other forks while there are any. Forks are
// made one after the other, while c is under way or before, and Join ends each when all of them,
// and c, have ended.
func (c *Call) Fork() *Call {
	g := &c.out.group
	o := c.out.client.take()
	f := &o.call
	*f = g.seed
	f.tried = slices.Clone(f.tried) // c's own may grow
	f.out, f.group = o, g
	o.began, o.fork = 1, true // for Now: it may begin later than c
	forks := []*Call{f}
	if before := g.forks.Load(); before != nil {
		forks = append(forks, *before...)
	}
	g.forks.Store(&forks)
	return f
}

// A group is a call and its forks.
type group struct {
	first *Call
	like  any                     // what the replies of the forks are to be like
	forks atomic.Pointer[[]*Call] // nil before there is one
	seed  Call                    // what forks begin with
}

// clear forgets the group when its call has ended.
func (g *group) clear() {
	if g.first == nil {
		return
	}
	g.first, g.like, g.seed = nil, nil, Call{}
	if g.forks.Load() != nil {
		g.forks.Store(nil)
	}
}

// Join ends a fork, which must not be used afterwards. With take, its outcome becomes the call's:
// the reply, what came beside it, and the endpoint. What it tried becomes part of the call's
// record, and later attempts avoid it. When there was no fork, Join is called with nil.
func (c *Call) Join(f *Call, take bool) {
	c.group = nil
	if f == nil {
		return
	}
	if take {
		c.recordGood() // before it is taken for the fork's
		takeOver(c.Reply, f.Reply)
		c.Trailer, c.ReplyAttachment = f.Trailer, f.ReplyAttachment
		c.Endpoint, c.picked = f.Endpoint, f.picked
	} else if f.picked != nil {
		c.Avoid(f.picked)
	}
	if f.recordGood(); c.out.arrived == 0 { // else its own last attempt is to be added yet
		c.out.counted += f.Attempt
	}
	c.Attempt += f.Attempt
	for _, ep := range f.tried {
		c.Avoid(ep)
	}
	if f.rare != nil {
		c.rarely().join(f.rare)
	}
	c.out.client.give(f.out)
}

// going notes where an attempt goes, for the others of its group to avoid.
func (c *Call) going(ep *Endpoint) {
	if c.group != nil {
		c.out.at.Store(ep)
	}
}

// besides reports whether another call of the group is under way to ep.
func (c *Call) besides(ep *Endpoint) bool {
	g := c.group
	if g == nil {
		return false
	}
	if g.first != c && g.first.out.at.Load() == ep {
		return true
	}
	forks := g.forks.Load()
	return forks != nil && slices.ContainsFunc(*forks, func(f *Call) bool { return f != c && f.out.at.Load() == ep })
}

// fillable reports whether a reply is what it is to be: nothing, or pointers. What is wrong with
// any other the codec says.
func fillable(reply any) bool {
	if reply == nil {
		return true
	}
	values, ok := reply.(Values)
	if !ok {
		v := reflect.ValueOf(reply)
		return v.Kind() == reflect.Pointer && !v.IsNil()
	}
	return !slices.ContainsFunc(values, func(v any) bool { return v == nil || !fillable(v) })
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

// Client returns the client that carries the call out; nil for a call to a Peer, and on the server.
func (c *Call) Client() *Client {
	if c.out == nil || c.out.peer != nil {
		return nil
	}
	return c.out.client
}

// State returns the value kept under key by the client or the server that carries the call out,
// made with create the first time. Middleware keeps there what must survive a new chain. It may be
// called concurrently.
func (c *Call) State(key any, create func() any) any {
	var states *states
	switch {
	case c.in != nil:
		states = &c.in.server.calls.states
	case c.out != nil:
		states = &c.out.from.states
	default:
		return create() // nobody carries it out
	}
	return states.get(key, create)
}

// A rareCall is what few calls have: what is noted for a record.
type rareCall struct {
	first    [1]introspect.Attempt // memory: most have no more
	attempts []introspect.Attempt  // that have ended; those that errors point to are not changed
	unlisted int                   // attempts that are not there any more
	nowhere  int                   // how many endpoints there were when the call could go nowhere else; 0 before
	notes    []note
	unnoted  int         // notes that are not there
	report   *CallReport // the record: of its attempts, before the call has ended
	own      *Error      // an error that only its client has
	survey   *survey     // nil when nobody has looked at the candidates
}

// join adds what was noted of a fork.
func (r *rareCall) join(f *rareCall) {
	for i := range f.attempts {
		r.add(&f.attempts[i])
	}
	if v := f.survey; v != nil && (r.survey == nil || r.survey.at < v.at) {
		r.survey = v
	}
	for _, n := range f.notes {
		r.note(n)
	}
	r.unlisted, r.unnoted = r.unlisted+f.unlisted, r.unnoted+f.unnoted
}

func (c *Call) rarely() *rareCall {
	if c.rare == nil {
		c.rare = new(rareCall)
	}
	return c.rare
}

// A note is what a middleware adds to the record of a call.
type note struct {
	at       time.Duration // on the clock
	by, what string
}

func (r *rareCall) note(n note) {
	if len(r.notes) == maxNotes {
		r.unnoted++
		return
	}
	r.notes = append(r.notes, n)
}

// Note adds to the record of the call what the middleware called by did with it, for the people who
// find out why a call failed, or was slow. It is for what is unusual: that the call had to wait, or
// was sent again, not that all was well.
func (c *Call) Note(by, what string) {
	c.rarely().note(note{clock(), by, what})
}
