// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file decides where a call with an idempotency key may be sent again: only where the outcome
// of the first attempt is remembered. See docs/decisions/0032-where-a-key-is-remembered.md.

// A KeyMemory remembers the outcomes of calls that have an idempotency key. Package once has one.
// Its methods are called concurrently.
type KeyMemory interface {
	// Guard returns a handler that calls next once for each key, and answers later calls with the
	// same key with the outcome of the first. The server calls it once and puts the handler below
	// its middleware, so that every method is guarded.
	Guard(next Handler) Handler
	// Scope names the memory, in at most 255 bytes, and says how long it remembers a key after a
	// call with it came. Servers that share a memory return the same name, and no two memories have
	// the same one. The name of a memory that ends with its process begins with "process:". An
	// empty name says that the memory has no name yet: clients are told that the server remembers
	// nothing. The server calls Scope when it begins to serve, and for each connection, which
	// begins when Scope has returned.
	Scope() (name string, keep time.Duration)
}

// processScope is what the names of memories begin with that end with their process.
const processScope = "process:"

// A keyScope is what a server says of its memory of keys in the settings of a connection.
type keyScope struct {
	name string
	keep time.Duration
}

// keyScope asks the KeyMemory for its scope, which is empty if that panics. It returns nil without
// a KeyMemory. No lock may be held.
func (s *Server) keyScope() *keyScope {
	if s.opts.Keys == nil {
		return nil
	}
	scope := &keyScope{}
	if err := s.guard.apart("the KeyMemory's Scope", nil, func() error {
		scope.name, scope.keep = s.opts.Keys.Scope()
		return nil
	}); err != nil {
		return &keyScope{}
	}
	if len(scope.name) > wire.MaxKeyScope {
		scope.name = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(scope.name)))
	}
	return scope
}

// A keyHold says where a call with an idempotency key may have been executed, or is being executed.
// A call and its forks share it.
type keyHold struct {
	mu    sync.Mutex
	open  int             // attempts that are under way, or may have been executed
	at    *serverIdentity // of the server that got them; any of those that share its memory
	addr  string          // of that server
	began time.Duration   // when the first of them was sent, on the clock
}

// harmless reports whether executing the call twice does no harm.
func (c *Call) harmless() bool { return c.Idempotent || c.out != nil && c.out.from.declared(c.Method) }

// MayRepeat reports whether a call that failed with err may be sent again: it was certainly not
// executed, executing it twice does no harm, or its idempotency key is remembered where it may have
// been executed. The client sends such a call only to servers that share that memory. NoRepeat says
// why not.
func (c *Call) MayRepeat(err error) bool { return c.NoRepeat(err) == "" }

// NoRepeat returns why a call that failed with err must not be sent again, for people, and nothing
// if it may be. With a nil error it says why no second attempt may be made while the first one is
// under way.
func (c *Call) NoRepeat(err error) (why string) {
	switch unsent := NotProcessed(err); {
	case c.stream != nil && c.stream.begun:
		return "messages of its stream have been sent"
	case c.turn != nil && !c.turn.mayRepeat(unsent):
		return "a later call with its order key may have been executed"
	case c.harmless():
		return ""
	case c.hold != nil:
		return c.hold.obstacle(c, err)
	case unsent:
		return ""
	case c.IdempotencyKey == "":
		return "its method is not declared idempotent, and it has no idempotency key"
	case c.stream != nil:
		return "what went over a stream is not remembered for its idempotency key"
	case c.out != nil && c.out.peer != nil:
		return "an idempotency key does not make a call to a peer repeatable"
	}
	return "" // no attempt has been made
}

// obstacle is NoRepeat for a call with a key of which an attempt has been made, or will be.
func (h *keyHold) obstacle(c *Call, err error) string {
	if refused, ok := errors.AsType[*keyRefusal](err); ok {
		return refused.why
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.open == 0 && err == nil && c.out != nil && c.out.fork:
		return "the first attempt has not been sent, so nobody knows where its idempotency key will be remembered"
	case h.open == 0:
		return ""
	case c.stream != nil:
		return "what went over a stream is not remembered for its idempotency key"
	}
	if why := h.forgottenLocked(); why != "" {
		return why
	}
	if c.out == nil { // it has ended, and will be made again
		return ""
	}
	for _, ep := range c.out.client.cluster.set.Load().endpoints {
		if err == nil && (ep.identity.Load() == nil || c.besides(ep) || ep == c.Endpoint) {
			continue // a second attempt beside the first one goes elsewhere
		}
		if h.sharedLocked(ep) {
			return ""
		}
	}
	if err == nil {
		return h.aloneLocked()
	}
	return h.aloneLocked() + ", which cannot be reached"
}

// forgottenLocked returns why no server would know the key.
func (h *keyHold) forgottenLocked() string {
	switch {
	case h.at.keyScope == "":
		return h.addr + " does not remember idempotency keys"
	case clock()-h.began >= h.at.keyKeep:
		return fmt.Sprintf("%s remembers an idempotency key for %v only", h.addr, h.at.keyKeep)
	}
	return ""
}

// aloneLocked returns why the call can go nowhere: there is no endpoint that shares the memory.
func (h *keyHold) aloneLocked() string {
	if strings.HasPrefix(h.at.keyScope, processScope) {
		return "its idempotency key is remembered by the process at " + h.addr + " only"
	}
	return "no other endpoint shares the memory of idempotency keys of " + h.addr
}

// sharedLocked reports whether ep may have the memory of the servers that got the call: its server
// says so, or has not said yet.
func (h *keyHold) sharedLocked(ep *Endpoint) bool {
	if h.at.keyScope == "" {
		return false
	}
	id := ep.identity.Load()
	if id == nil {
		return !strings.HasPrefix(h.at.keyScope, processScope)
	}
	return id.keyScope == h.at.keyScope || h.connLocked(ep) != nil
}

// connLocked returns a connection of ep to a server that has the memory; nil if there is none.
func (h *keyHold) connLocked(ep *Endpoint) *mux.Conn {
	conns := *ep.conns.Load()
	i := slices.IndexFunc(conns, func(conn *mux.Conn) bool { return whose(conn).server.keyScope == h.at.keyScope })
	if i < 0 {
		return nil
	}
	return conns[i]
}

// holds reports whether the call may only go to servers that share a memory, and ep is not known to
// be one of them.
func (c *Call) holds(ep *Endpoint) bool {
	h := c.hold
	if h == nil || c.harmless() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open > 0 && !h.sharedLocked(ep)
}

// held returns why the call, which may have been executed, must not be sent anywhere but where its
// key is remembered; empty if it may go anywhere.
func (c *Call) held() string {
	h := c.hold
	if h == nil || c.harmless() {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == 0 {
		return ""
	}
	if why := h.forgottenLocked(); why != "" {
		return why
	}
	return h.aloneLocked()
}

// heldToOne reports whether the call may only go to one endpoint, because its key is not remembered
// elsewhere.
func (c *Call) heldToOne() bool {
	h := c.hold
	if h == nil || c.out == nil || c.out.client == nil || c.held() == "" {
		return false
	}
	n := 0
	for _, ep := range c.out.client.cluster.set.Load().endpoints {
		if !c.holds(ep) {
			n++
		}
	}
	return n == 1
}

// claimKey notes that an attempt of a call with a key is about to be sent to ep over conn. It
// returns the connection to use, which is another one if only that leads to where the key is
// remembered, or an error if the call may have been executed elsewhere. Unless it fails, release
// must follow when the attempt has failed.
func (c *Call) claimKey(ep *Endpoint, conn *mux.Conn) (*mux.Conn, error) {
	if c.hold == nil {
		c.hold = new(keyHold)
	}
	id := whose(conn).server
	if id.keyScope == "" {
		ep.client.unremembered(c, ep)
	}
	h := c.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == 0 {
		h.at, h.addr, h.began = id, ep.Addr(), clock()
	} else if !c.harmless() {
		why := h.forgottenLocked()
		if why == "" && id.keyScope != h.at.keyScope {
			if conn = h.connLocked(ep); conn == nil {
				why = h.aloneLocked()
			}
		}
		if why != "" {
			return nil, c.notRepeated(why)
		}
	}
	h.open++
	return conn, nil
}

// keyBegan says when a request with the key was first sent, for the server behind conn; 0 if that
// does not remember keys.
func (h *keyHold) keyBegan(conn *mux.Conn) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if whose(conn).server.keyScope == "" {
		return 0
	}
	after := int64((h.began - whose(conn).heard) / time.Microsecond)
	if after == 0 {
		after = -1 // a field that is 0 is not sent
	}
	return uint64(after<<1 ^ after>>63) //nolint:gosec // zigzag
}

// release notes how an attempt that claimKey allowed has failed.
func (h *keyHold) release(err error) {
	if h == nil || !wasUnsent(err) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
}

// landed is release for an ordered call.
func (h *keyHold) landed(how landing) {
	if h == nil || how != refused {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
}

// claimInOrder is claimKey for an ordered call, which has to go over conn, after it was prepared.
func (c *Call) claimInOrder(ep *Endpoint, conn *mux.Conn) error {
	other, err := c.claimKey(ep, conn)
	if err == nil && other != conn {
		c.hold.landed(refused)
		err = c.notRepeated(c.held())
	}
	if err == nil {
		c.out.req.Fields.KeyBegan = c.hold.keyBegan(conn)
	}
	return err
}

// wasUnsent reports whether an attempt that failed with err was certainly not executed, before
// explain has made an Error of it.
func wasUnsent(err error) bool {
	return unsent(err) || NotProcessed(err)
}

// A keyRefusal is the cause of the error of an attempt that was not made.
type keyRefusal struct{ why string }

func (r *keyRefusal) Error() string { return r.why }

// notRepeated is the error of a call that may have been executed and is not sent again.
func (c *Call) notRepeated(why string) error {
	e := failure("YDL1010", "%s: it may have been executed; not sent again: %s", c.Method, why)
	e.Cause = &keyRefusal{why}
	return e
}

// attemptKeyed is attempt for a call with an idempotency key to an endpoint.
func (q *requester) attemptKeyed(ctx context.Context, call *Call, conn *mux.Conn, ep *Endpoint) error {
	if ep == nil {
		return q.attemptKeyedPeer(ctx, call, conn)
	}
	conn, err := call.claimKey(ep, conn)
	if err != nil {
		return err
	}
	if err = q.prepareKeyed(ctx, call, conn); err == nil {
		err = q.send(ctx, call, conn, ep)
	}
	if err != nil {
		call.hold.release(err)
	}
	return err
}

// attemptKeyedPeer is attemptKeyed for a call to a peer, which says nothing of keys.
func (q *requester) attemptKeyedPeer(ctx context.Context, call *Call, conn *mux.Conn) error {
	if why := call.held(); why != "" {
		return call.notRepeated(why)
	}
	if err := q.prepare(ctx, call.out, call); err != nil {
		return err
	}
	return q.send(ctx, call, conn, nil)
}

func (q *requester) prepareKeyed(ctx context.Context, call *Call, conn *mux.Conn) error {
	if err := q.prepare(ctx, call.out, call); err != nil {
		return err
	}
	call.out.req.Fields.KeyBegan = call.hold.keyBegan(conn)
	return nil
}

// unremembered logs, once for the client, that keys are sent to a server that does not remember
// them.
func (c *Client) unremembered(call *Call, ep *Endpoint) {
	if !c.toldKeys.Load() && c.toldKeys.CompareAndSwap(false, true) {
		c.opts.Logger.Warn("yodel: a call has an idempotency key, and its server does not remember keys: each call with the key is executed, "+
			"and one that may have been executed is not sent again; see ServerOptions.Keys", "method", call.Method, "addr", ep.Addr())
	}
}

// Resume makes the attempts of another call, from, count as attempts of this one: if from may have
// been executed, c is sent only where their idempotency key is remembered. It is for middleware of
// a client that makes a new call for the one that it has, with the same key, and is called before
// that begins.
func (c *Call) Resume(from *Call) {
	if c.resumed = from.hold; c.resumed == nil && c.IdempotencyKey != "" && from.out != nil {
		from.hold = new(keyHold)
		c.resumed = from.hold
	}
}

// KeyAge returns, on the server, how long ago the caller first sent a request with the call's
// idempotency key, at most. It is 0 if the caller did not say, as callers do not that were told of
// no KeyMemory.
func (c *Call) KeyAge() time.Duration {
	if c.in == nil || c.in.keySent == 0 {
		return 0
	}
	return max(clock()-c.in.keySent, 0)
}

// sharing returns the endpoint of the next attempt of a call that has to go where its key is
// remembered. The picker has chosen none of those.
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
		return nil, call.notRepeated(call.held())
	}
	return best, nil
}
