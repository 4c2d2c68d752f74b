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

// This file contains the methods for middleware that makes several attempts of a call at the same
// time.

// Forkable saves a copy of the call, from which Fork can repeat the call while the call is in
// flight. It reports whether the call can be repeated in this way. It is for middleware of a client
// that makes several attempts at the same time, such as hedging. If Forkable returns true, the
// middleware must call Join later, even if there was no fork.
//
// Forkable returns false for a call that is one-way, ordered, pinned to an endpoint or itself a
// fork. It also returns false for a call that has a stream, or whose Reply cannot be decoded into.
func (a *Attempts) Forkable() bool {
	c := (*Call)(a)
	if c.out == nil || c.out.from.client == nil || c.OneWay || c.turn != nil || c.kind() != wire.Unary || c.stays || c.pinned() || c.group != nil || !fillable(c.Reply) {
		return false
	}
	g := &c.out.useExtra().group
	if g.first, g.like = c, c.Reply; g.forks.Load() != nil {
		g.forks.Store(nil) // from earlier use
	}
	if c.IdempotencyKey != "" && c.hold == nil {
		c.hold = new(keyHold)
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
// call Join for each fork.
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

// A group is a call and its forks.
type group struct {
	first *Call
	like  any                     // replies of forks have the type of like
	forks atomic.Pointer[[]*Call] // nil before the first fork
	seed  Call                    // the copy of first that forks start with
}

// clear resets the group when its call has ended.
func (g *group) clear() {
	if g.first == nil {
		return
	}
	g.first, g.like, g.seed = nil, nil, Call{}
	if g.forks.Load() != nil {
		g.forks.Store(nil)
	}
}

// Join ends a fork, which must not be used afterwards. If take is set, the call gets the fork's
// outcome: the reply, the trailer, the attachment and the endpoint. The fork's attempts become part
// of the call's record, and later attempts avoid its endpoints. If there was no fork, Join is
// called with nil.
func (a *Attempts) Join(f *Call, take bool) {
	c := (*Call)(a)
	c.group = nil
	if f == nil {
		return
	}
	if take {
		c.recordGood() // before the call gets the fork's outcome
		takeOver(c.Reply, f.Reply)
		c.Trailer, c.ReplyAttachment = f.Trailer, f.ReplyAttachment
		if md := f.Header(); md != nil {
			c.SetHeader(md)
		}
		c.Endpoint, c.picked = f.Endpoint, f.picked
	} else if f.picked != nil {
		a.Avoid(f.picked)
	}
	if f.recordGood(); c.out.arrived == 0 { // otherwise c's last attempt is recorded later
		c.out.useExtra().counted += f.Attempt
	}
	c.Attempt += f.Attempt
	for _, ep := range f.tried {
		a.Avoid(ep)
	}
	if f.rare != nil {
		c.rarely().join(f.rare)
	}
	c.out.from.client.give(f.out)
}

// going stores the endpoint of an attempt. The other calls of the group avoid that endpoint.
func (c *Call) going(ep *Endpoint) {
	if c.group != nil {
		c.out.extra.at.Store(ep) // Forkable or Fork has made it
	}
}

// besides reports whether another call of the group has sent an attempt to ep.
func (c *Call) besides(ep *Endpoint) bool {
	g := c.group
	if g == nil {
		return false
	}
	if g.first != c && g.first.out.extra.at.Load() == ep {
		return true
	}
	forks := g.forks.Load()
	return forks != nil && slices.ContainsFunc(*forks, func(f *Call) bool { return f != c && f.out.extra.at.Load() == ep })
}

// fillable reports whether a reply is nil or consists of pointers that are not nil. For any other
// reply the codec reports the error.
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

// another returns a pointer to a new variable of the type that reply points to.
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

// takeOver copies the variable that from points to into the variable that to points to.
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

// Client returns the client that makes the call. It is nil for a call to a Peer, and on the server.
func (c *Call) Client() *Client {
	if c.out == nil || c.out.peer != nil {
		return nil
	}
	return c.out.from.client
}

// State returns the value that is stored under key in the client or the server of the call. The
// first time it creates the value with create. Middleware stores state there that it must keep when
// the chain is built again. State may be called concurrently.
func (c *Call) State(key any, create func() any) any {
	var states *states
	switch {
	case c.in != nil:
		states = &c.in.server.calls.states
	case c.out != nil:
		states = &c.out.from.states
	default:
		return create() // the call has neither a client nor a server
	}
	return states.get(key, create)
}

// A rareCall is the part of a call's state that few calls need, mainly for its record.
type rareCall struct {
	first    [1]introspect.Attempt // memory for the common case of one attempt
	attempts []introspect.Attempt  // attempts that have ended; a slice that an error refers to is not changed
	unlisted int                   // attempts that were dropped
	nowhere  int                   // the number of endpoints when no other endpoint could take the call; 0 before
	notes    []note
	unnoted  int                    // notes that were dropped
	report   *introspect.CallReport // the record; until the call has ended, it covers the attempts so far
	own      *Error                 // an error to which only the client has a pointer
	survey   *survey                // nil until the candidates are recorded
	header   Metadata               // see Call.Header
}

// join adds the attempts and notes of a fork.
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

// A note is a line that a middleware adds to the record of a call.
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

// Note adds a line to the record of the call. By names the middleware, and what says what the
// middleware did. Such lines help people to find out why a call failed or was slow. Note unusual
// actions only, for example that the call had to wait or was sent again.
func (c *Call) Note(by, what string) {
	c.rarely().note(note{clock(), by, what})
}
