// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file decides where a call with an idempotency key may be sent again: only to servers that
// remember the key. See docs/decisions/0032-where-a-key-is-remembered.md.

// A KeyMemory remembers the outcomes of calls that have an idempotency key. Package once has one.
// Its methods are called concurrently.
type KeyMemory interface {
	// Guard returns a handler that calls next once for each key, and answers later calls with the
	// same key with the outcome of the first. The server calls Guard once and puts the handler
	// below its middleware, so that it guards every method.
	Guard(next Handler) Handler
	// Scope returns the name of the memory, and how long the memory remembers a key after a call
	// with that key arrived. Servers that share a memory return the same name. Different memories
	// have different names. A name has at most 255 bytes. The server replaces a longer name by a
	// hash. The name of a memory that ends with its process begins with "process:". If the name is
	// empty, the memory is not ready, and the server tells clients that it remembers nothing. The
	// server calls Scope when it begins to serve and when each connection begins. The connection
	// waits until Scope returns.
	Scope() (name string, keep time.Duration)
}

// processScope is the prefix of the names of memories that end with their process.
const processScope = "process:"

// A keyScope describes a server's memory of keys in the settings of a connection.
type keyScope struct {
	name string
	keep time.Duration
}

// keyScope returns the scope of the KeyMemory, or nil if there is none. If Scope panics, the result
// is empty. No lock may be held.
func (s *Server) keyScope() *keyScope {
	if s.opts.Keys == nil {
		return nil
	}
	scope := &keyScope{}
	if err := s.guard.Apart("the KeyMemory's Scope", nil, func() error {
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

// A keyHold records where a call with an idempotency key may have been executed or is executing. A
// call shares it with its forks.
type keyHold struct {
	mu    sync.Mutex
	open  int             // attempts that are in flight or may have been executed
	at    *serverIdentity // the server that got the attempts, or one that shares its memory
	addr  string          // the address of that server
	began time.Duration   // when the first of the attempts was sent, on the clock
}

// harmless reports whether executing the call twice does no harm.
func (c *Call) harmless() bool { return c.Idempotent || c.out != nil && c.out.from.declared(c.Method) }

// MayRepeat reports whether a call that failed with err may be sent again. The call may be sent
// again if it was certainly not executed, if it is idempotent, or if the server that may have
// executed it remembers its idempotency key. In the last case the client sends the call only to
// servers that share that memory. If the call may not be sent again, NoRepeat returns the reason.
func (a *Attempts) MayRepeat(err error) bool { return a.NoRepeat(err) == "" }

// NoRepeat returns why a call that failed with err must not be sent again, as a text for people. It
// returns "" if the call may be sent again. If err is nil, NoRepeat returns why no second attempt
// may begin while the first attempt is in flight.
func (a *Attempts) NoRepeat(err error) (why string) {
	c := (*Call)(a)
	switch unsent := NotProcessed(err); {
	case c.stream != nil && c.stream.begun:
		return "messages of its stream have been sent"
	case c.turn != nil && !c.turn.MayRepeat(unsent):
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

// obstacle is NoRepeat for a call with a keyHold.
func (h *keyHold) obstacle(c *Call, err error) string {
	if refused, ok := errors.AsType[*keyRefusal](err); ok {
		return refused.why
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.open == 0 && err == nil && c.out != nil && c.out.readExtra().fork:
		return "the first attempt has not been sent, so nobody knows where its idempotency key will be remembered"
	case h.open == 0:
		return ""
	case c.stream != nil:
		return "what went over a stream is not remembered for its idempotency key"
	}
	if why := h.forgottenLocked(); why != "" {
		return why
	}
	if c.out == nil { // the call has ended, and middleware makes a new one
		return ""
	}
	for _, ep := range c.out.from.client.cluster.set.Load().endpoints {
		if err == nil && (ep.identity.Load() == nil || c.besides(ep) || ep == c.Endpoint) {
			continue // a second attempt in parallel goes to another endpoint
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

// forgottenLocked returns why no server would know the key any more. It returns "" if a server may
// still know it.
func (h *keyHold) forgottenLocked() string {
	switch {
	case h.at.keyScope == "":
		return h.addr + " does not remember idempotency keys"
	case clock()-h.began >= h.at.keyKeep:
		return fmt.Sprintf("%s remembers an idempotency key for %v only", h.addr, h.at.keyKeep)
	}
	return ""
}

// aloneLocked returns the text for a call that cannot be sent again because no other endpoint
// shares the memory.
func (h *keyHold) aloneLocked() string {
	if strings.HasPrefix(h.at.keyScope, processScope) {
		return "its idempotency key is remembered by the process at " + h.addr + " only"
	}
	return "no other endpoint shares the memory of idempotency keys of " + h.addr
}

// sharedLocked reports whether ep may share the memory of the servers that got the call. This is so
// if the server of ep has named the same memory, or has not named its memory yet.
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

// connLocked returns a connection of ep to a server that has the memory, or nil.
func (h *keyHold) connLocked(ep *Endpoint) *dialledConn {
	conns := *ep.conns.Load()
	i := slices.IndexFunc(conns, func(conn *dialledConn) bool { return conn.server.keyScope == h.at.keyScope })
	if i < 0 {
		return nil
	}
	return conns[i]
}

// holds reports whether the call may only go to servers that share a memory, while ep is not known
// to lead to such a server.
func (c *Call) holds(ep *Endpoint) bool {
	h := c.hold
	if h == nil || c.harmless() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open > 0 && !h.sharedLocked(ep)
}

// held returns why the call may only be sent to servers that remember its key, because it may have
// been executed. It returns "" if the call may go anywhere.
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

// heldToOne reports whether the call may only go to one endpoint, because no other one remembers
// its key.
func (c *Call) heldToOne() bool {
	h := c.hold
	if h == nil || c.out == nil || c.out.from.client == nil || c.held() == "" {
		return false
	}
	n := 0
	for _, ep := range c.out.from.client.cluster.set.Load().endpoints {
		if !c.holds(ep) {
			n++
		}
	}
	return n == 1
}

// claimKey records that an attempt of a call with a key is about to be sent to ep over conn. It
// returns the connection to use: conn, or another connection of ep if only the other one leads to a
// server that remembers the key. It returns an error if a server that does not share its memory
// with the server of ep may have executed the call. If claimKey succeeds and the attempt then
// fails, the caller must call unclaimKey. Ep and conn are nil for a call to a peer, because peers
// do not say whether they remember keys.
func (c *Call) claimKey(ep *Endpoint, conn *dialledConn) (*dialledConn, error) {
	if ep == nil {
		if why := c.held(); why != "" {
			return nil, c.notRepeated(why)
		}
		return nil, nil //nolint:nilnil // as for any call to a peer
	}
	conn, err := c.claimAt(ep, conn)
	if err == nil && conn.mux != nil {
		c.out.req.Fields.KeyBegan = c.hold.keyBegan(conn)
	}
	return conn, err
}

func (c *Call) claimAt(ep *Endpoint, conn *dialledConn) (*dialledConn, error) {
	if c.hold == nil {
		c.hold = new(keyHold)
	}
	id := conn.server
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
			// an ordered call has to use its connection
			if conn = h.connLocked(ep); conn == nil || c.turn != nil {
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

// keyBegan returns the time at which a request with the key was first sent, in the encoding for the
// server at the other end of conn. It returns 0 if that server does not remember keys.
func (h *keyHold) keyBegan(conn *dialledConn) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if conn.server.keyScope == "" {
		return 0
	}
	after := int64((h.began - conn.heard) / time.Microsecond)
	if after == 0 {
		after = -1 // a field of value 0 is not sent
	}
	return uint64(after<<1 ^ after>>63) //nolint:gosec // zigzag
}

// unclaimKey undoes claimKey for an attempt that failed with err, if the attempt was certainly not
// executed.
func (c *Call) unclaimKey(ep *Endpoint, err error) {
	if ep != nil && c.IdempotencyKey != "" && wasUnsent(err) {
		c.hold.release()
	}
}

// release undoes a claim.
func (h *keyHold) release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
}

// wasUnsent reports whether an attempt that failed with err was certainly not executed. Err need
// not have passed explain yet.
func wasUnsent(err error) bool {
	return unsent(err) || NotProcessed(err)
}

// A keyRefusal is the cause of the error of an attempt that was refused because of its key.
type keyRefusal struct{ why string }

func (r *keyRefusal) Error() string { return r.why }

// notRepeated returns the error of a call that may have been executed and is not sent again.
func (c *Call) notRepeated(why string) error {
	e := failure("YDL1010", "%s: it may have been executed; not sent again: %s", c.Method, why)
	e.Cause = &keyRefusal{why}
	return e
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
	if a.resumed = from.hold; a.resumed == nil && a.IdempotencyKey != "" && from.out != nil {
		from.hold = new(keyHold)
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
		return nil, call.notRepeated(call.held())
	}
	return best, nil
}
