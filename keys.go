// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/reason"
)

// This file decides where a call with an idempotency key may be sent again: only to servers that
// remember the key. See docs/decisions/0032-where-a-key-is-remembered.md.

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
		return a.SharedBy(&id.Keys) || a.Name != "" && ep.remembering(a) != nil
	}
	return a.SharedBy(nil)
}

// remembering returns a connection of ep to a server that has the memory of the server that got an
// attempt, or nil.
func (ep *Endpoint) remembering(a *keyscope.Attempt) *dialledConn {
	conns := ep.core.Conns()
	i := slices.IndexFunc(conns, func(conn *dialledConn) bool { return conn.server.Keys.Name == a.Name })
	if i < 0 {
		return nil
	}
	return conns[i]
}

// holds reports whether the call may only go to servers that share a memory, while ep is not known
// to lead to such a server.
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
	first, open := c.hold.First()
	if !open {
		return ""
	}
	return first.Held(clock())
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
func (o *outgoing) claimKey(call *Call, ep *Endpoint, conn *dialledConn) (*dialledConn, error) {
	if ep == nil {
		if why := call.held(); why != "" {
			return nil, notRepeated(call, why)
		}
		return nil, nil //nolint:nilnil // as for any call to a peer
	}
	conn, first, err := ep.claim(call, conn)
	if err == nil && conn.mux != nil {
		o.req.Fields.KeyBegan = 0
		if conn.server.Keys.Name != "" { // it remembers keys
			o.req.Fields.KeyBegan = first.Began(conn.heard)
		}
	}
	return conn, err
}

func (ep *Endpoint) claim(c *Call, conn *dialledConn) (*dialledConn, *keyscope.Attempt, error) {
	if c.hold == nil {
		c.hold = new(keyscope.Hold)
	}
	if conn.server.Keys.Name == "" {
		ep.client.unremembered(c, ep)
	}
	now := clock()
	claim := func(conn *dialledConn) (keyscope.Attempt, bool) {
		return c.hold.Claim(keyscope.Attempt{Scope: conn.server.Keys, Addr: ep.Addr(), At: now}, c.harmless())
	}
	first, ok := claim(conn)
	if !ok && c.turn == nil && first.Name != conn.server.Keys.Name { // an ordered call has to use its connection
		if other := ep.remembering(&first); other != nil {
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

// A keyRefusal is the cause of the error of an attempt that was refused because of its key.
type keyRefusal struct{ why string }

func (r *keyRefusal) Error() string { return r.why }

// notRepeated returns the error of a call that may have been executed and is not sent again.
func notRepeated(c *Call, why string) error {
	return failure("YDL1010", "%s: it may have been executed; not sent again: %s", c.Method, why).because(&keyRefusal{why})
}

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
