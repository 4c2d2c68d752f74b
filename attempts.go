// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"errors"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/reply"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Attempts is a view of a Call that controls how a client sends it. It is for middleware that sends
// a call several times, and for pickers. Call.Attempts returns it. An Attempts has no state of its
// own.
//
//   - To send a call again: NoRepeat and Take.
//   - To choose endpoints: Avoids, Avoid, AllowUnready and Pin.
//   - To make attempts at the same time: Forkable, Fork and Join.
//   - To make a call that may continue after this one has ended: Detach and Join.
//   - To replace a call by a new one: Resume.
//
// Like its Call, it belongs to one goroutine at a time.
type Attempts Call

// Attempts returns the methods that control how a client sends c. The result is valid as long as c.
func (c *Call) Attempts() *Attempts { return (*Attempts)(c) }

// The passes of a pick. Each pass avoids fewer endpoints than the pass before it. While no endpoint
// is connected, a pass does not avoid an endpoint because it is unconnected.
const (
	avoidUnready = iota // endpoints that are not ready, not connected, or tried before
	avoidLost           // endpoints that are not ready, or tried before
	avoidOffline        // endpoints that are not connected, or tried before
	avoidTried          // endpoints tried before
	avoidNone
)

// Avoids reports whether the call should not go to ep. Pickers call it for every endpoint they
// consider. It is true if the call has already tried ep, if ep is not ready while others are, if ep
// is not connected while others are, or if the call may have been executed and ep leads to no
// server that remembers its idempotency key. Avoids also starts to connect to an endpoint that is
// not connected, so that later calls can use it.
func (a *Attempts) Avoids(ep *Endpoint) bool {
	c := (*Call)(a)
	if c.hold != nil && c.holds(ep) {
		return true
	}
	switch c.pass {
	case avoidUnready:
		if status := ep.core.Status(); status != 0 && c.shuns(ep, status) {
			return true
		}
	case avoidLost:
		if !ep.Ready() {
			return true
		}
	case avoidOffline:
		if !ep.Connected() && ep.client.cluster.list.Connected() > 0 {
			return true
		}
	case avoidNone:
		return false
	}
	return slices.Contains(c.tried, ep) || c.besides(ep)
}

// shuns reports whether a call avoids an endpoint with this status, which is not 0, while there are
// better endpoints. If the endpoint is merely unconnected, shuns starts to dial it.
func (c *Call) shuns(ep *Endpoint, status int32) bool {
	if status != endpoints.Offline {
		return true
	}
	if ep.client.cluster.list.Connected() == 0 {
		return false
	}
	ep.demand(c)
	return true
}

// AllowUnready makes the current pick accept endpoints that are not ready. It is for a Picker that
// wraps another one.
func (a *Attempts) AllowUnready() { a.pass = max(a.pass, avoidOffline) }

// Avoid makes later attempts of the call go to endpoints other than ep, if there are other
// endpoints.
func (a *Attempts) Avoid(ep *Endpoint) {
	if !slices.Contains(a.tried, ep) {
		a.tried = append(a.tried, ep)
	}
}

// Pin makes all attempts of the call go to the endpoint that the balancer picks for the first
// attempt.
func (a *Attempts) Pin() { a.stays = true }

// pinned reports whether the endpoint is fixed, by the user or by Attempts.Pin.
func (c *Call) pinned() bool { return c.Endpoint != nil && (c.Endpoint != c.picked || c.stays) }

// demand dials the endpoint in the background, because the balancer of call would choose it.
func (ep *Endpoint) demand(call *Call) {
	if call.demands < maxDemands && ep.core.Demand() {
		call.demands++
	}
}

// maxDemands is how many endpoints the client starts to dial in the background because of a single
// pick.
const maxDemands = 2

// Take takes one attempt from the call's attempt budget. It returns false if no attempt was left.
// Middleware that sends a call again must call it before every attempt except the first. Without a
// budget Take returns true.
func (a *Attempts) Take() bool {
	b := (*Call)(a).tokens()
	return b == nil || b.Take()
}

// Afford reports whether the client's retry budget allows one more attempt, and spends it. It is
// for middleware that retries calls or makes several attempts at the same time; by names the
// middleware, because each middleware has its own budget. The budget grows by share for each
// regular attempt. Reserve is the number of extra attempts that are available at the start. The
// budget also grows by one attempt each second, so that a client with few calls can retry too.
// Because of the budget, a failing service gets little more load than a healthy one. Afford may be
// called concurrently.
func (c *Client) Afford(by string, share float64, reserve int) bool {
	a := c.states.get(allowanceKey{by}, func() any { return budget.NewAllowance(c.born, 0) }).(*budget.Allowance) //nolint:forcetypeassert // the key type is private
	return a.Take(clock(), share, reserve, c.attempts)
}

type allowanceKey struct{ by string }

// attempts returns how many attempts the client has made.
func (c *Client) attempts() int64 {
	if set := c.cluster.set.Load(); set != nil {
		return set.attempts()
	}
	return 0
}

// NoRepeat returns why a call that failed with err must not be sent again, as a text for people. It
// returns "" if the call may be sent again: it was certainly not executed, it is idempotent, or the
// server that may have executed it remembers its idempotency key. In the last case the client sends
// the call only to servers that share that memory. If err is nil, NoRepeat returns why no second
// attempt may begin while the first attempt is in flight.
func (a *Attempts) NoRepeat(err error) (why string) {
	c := (*Call)(a) // Client.resend decides whether the client itself sends it again
	unsent := NotProcessed(err)
	again := keyscope.Repeat{
		Hold: c.hold, Keyed: c.IdempotencyKey != "", Harmless: c.harmless(), Failed: err != nil, Unsent: unsent,
		Fork: c.group != nil && c.group.first != c, Ended: c.requester() == nil, ToPeer: c.out != nil && c.out.peer != nil,
		Streams: c.stream != nil, Begun: c.stream != nil && c.stream.Begun, Overtaken: c.turn != nil && !c.turn.MayRepeat(unsent),
	}
	if refused, ok := errors.AsType[*keyscope.Refusal](err); ok {
		again.Refused = refused.Why
	}
	return again.Barred(clock(), func(first *keyscope.Attempt) bool {
		return slices.ContainsFunc(c.Client().cluster.set.Load().endpoints, func(ep *Endpoint) bool {
			if err == nil && (ep.identity.Load() == nil || c.besides(ep) || ep == c.Endpoint) {
				return false // a second attempt in parallel goes to another endpoint
			}
			return ep.shares(first)
		})
	})
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
		c.out.useExtra().Counted += f.Attempt
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

// A call with an idempotency key is sent again only to servers that remember the key. See
// docs/decisions/0032-where-a-key-is-remembered.md.

// keyScope returns the scope of the KeyMemory, or nil if there is none. If Scope panics, the result
// is empty. No lock may be held.
func (s *Server) keyScope() *keyscope.Scope {
	if s.opts.Keys == nil {
		return nil
	}
	scope := new(keyscope.Scope)
	_ = s.guard.Apart("the KeyMemory's Scope", nil, func() error { // a failure is in the log
		*scope = keyscope.Named(s.opts.Keys.Scope())
		return nil
	})
	return scope
}

// shares reports whether a server of ep may share the memory of the server that got an attempt.
func (ep *Endpoint) shares(a *keyscope.Attempt) bool {
	if id := ep.identity.Load(); id != nil {
		return a.SharedBy(&id.Keys) || a.Name != "" && dialled.Conns(ep.core.Conns()).Remembering(a.Name) != nil
	}
	return a.SharedBy(nil)
}

// holds reports whether the call may only go to servers that share a memory, and no server of ep
// may be one of them.
func (c *Call) holds(ep *Endpoint) bool {
	if c.hold == nil || c.harmless() {
		return false
	}
	first, open := c.hold.First()
	return open && !ep.shares(&first)
}

// held returns why the call may only be sent to servers that remember its key, because it may have
// been executed. It returns "" if the call may go anywhere.
func (c *Call) held() string {
	if c.hold == nil || c.harmless() {
		return ""
	}
	return c.hold.Held(clock())
}

// heldToOne reports whether the call may only go to one endpoint, because no other one remembers
// its key.
func heldToOne(c *Call) bool {
	client := c.Client()
	if c.hold == nil || client == nil || c.held() == "" {
		return false
	}
	n := 0
	for _, ep := range client.cluster.set.Load().endpoints {
		if !c.holds(ep) {
			n++
		}
	}
	return n == 1
}

// harmless reports whether executing the call twice does no harm.
func (c *Call) harmless() bool {
	q := c.requester()
	return c.Idempotent || q != nil && q.called.Idempotent(c.Method)
}

// claimKey records that an attempt of a call with a key is about to be sent to ep over conn. It
// returns the connection to use: conn, or another connection of ep if only the other one leads to a
// server that remembers the key. It returns an error if a server that does not share its memory
// with the server of ep may have executed the call. If claimKey succeeds and the attempt then
// fails, the caller must call unclaimKey. Ep and conn are nil for a call to a peer, because peers
// do not say whether they remember keys.
func (o *outgoing) claimKey(call *Call, ep *Endpoint, conn *dialled.Conn) (*dialled.Conn, error) {
	if ep == nil {
		if why := call.held(); why != "" {
			return nil, notRepeated(call, why)
		}
		return nil, nil //nolint:nilnil // as for any call to a peer
	}
	conn, first, err := ep.claim(call, conn)
	if err == nil && conn.Mux != nil {
		o.req.Fields.KeyBegan = 0
		if conn.Server.Keys.Name != "" { // it remembers keys
			o.req.Fields.KeyBegan = first.Began(conn.Heard)
		}
	}
	return conn, err
}

func (ep *Endpoint) claim(c *Call, conn *dialled.Conn) (*dialled.Conn, *keyscope.Attempt, error) {
	if c.hold == nil {
		c.hold = new(keyscope.Hold)
	}
	if conn.Server.Keys.Name == "" {
		ep.client.unremembered(c, ep)
	}
	now := clock()
	claim := func(conn *dialled.Conn) (keyscope.Attempt, bool) {
		return c.hold.Claim(keyscope.Attempt{Scope: conn.Server.Keys, Addr: ep.Addr(), At: now}, c.harmless())
	}
	first, ok := claim(conn)
	if !ok && c.turn == nil && first.Name != conn.Server.Keys.Name { // an ordered call has to use its connection
		if other := dialled.Conns(ep.core.Conns()).Remembering(first.Name); other != nil {
			conn = other
			first, ok = claim(conn)
		}
	}
	if !ok {
		return nil, nil, notRepeated(c, first.Held(now))
	}
	return conn, &first, nil
}

// unclaimKey undoes claimKey for an attempt that failed with err, if the attempt was certainly not
// executed.
func unclaimKey(c *Call, err error) {
	if c.IdempotencyKey != "" && wasUnsent(err) {
		c.hold.Release()
	}
}

// wasUnsent reports whether an attempt that failed with err was certainly not executed. Err need
// not have passed explain yet.
func wasUnsent(err error) bool { return reason.Unsent(err) || NotProcessed(err) }

// notRepeated returns the error of a call that may have been executed and is not sent again.
func notRepeated(c *Call, why string) error { return faultError(keyscope.Refuse(c.Method, why)) }

// unremembered logs once per client that a server does not remember keys.
func (c *Client) unremembered(call *Call, ep *Endpoint) {
	if !c.toldKeys.Load() && c.toldKeys.CompareAndSwap(false, true) {
		c.opts.Logger.Warn("yodel: a call has an idempotency key, and its server does not remember keys: each call with the key is executed, "+
			"and one that may have been executed is not sent again; see ServerOptions.Keys", "method", call.Method, "addr", ep.Addr())
	}
}

// Resume makes the attempts of another call, from, count as attempts of this call. If from may have
// been executed, this call is sent only to servers that remember their idempotency key. Resume is
// for client middleware that replaces a call by a new call with the same key. The middleware must
// call Resume before the new call begins.
func (a *Attempts) Resume(from *Call) {
	if a.resumed = from.hold; a.resumed == nil && a.IdempotencyKey != "" && from.requester() != nil {
		from.hold = new(keyscope.Hold)
		a.resumed = from.hold
	}
}

// KeyAge returns, on the server, an upper bound of the time since the caller first sent a request
// with the call's idempotency key. It is 0 if the caller did not send this time. Callers send it
// only to servers that have a KeyMemory.
func (c *Call) KeyAge() time.Duration {
	if c.in == nil || c.in.keySent == 0 {
		return 0
	}
	return max(clock()-c.in.keySent, 0)
}

// sharing returns the best endpoint for a call that may only go to servers that remember its key.
// It is called when the picker has chosen an endpoint without such a server.
func (s *endpointSet) sharing(call *Call) (*Endpoint, error) {
	var best *Endpoint
	least := 0
	for _, ep := range s.endpoints {
		if call.holds(ep) {
			continue
		}
		bad := 0
		for i, worse := range [...]bool{!ep.Ready(), !ep.Connected(), slices.Contains(call.tried, ep), call.besides(ep)} {
			if worse {
				bad |= 1 << i
			}
		}
		if best == nil || bad < least {
			best, least = ep, bad
		}
	}
	if best == nil {
		return nil, notRepeated(call, call.held())
	}
	return best, nil
}
