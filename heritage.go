// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file gives the context of a handler its call, and passes state of the call down to the calls
// that the handler makes: the attempt budget, the criticality, the tenant and Explain. It also
// spends the budgets of attempts.

// A heritage is the state that a handler's calls inherit from the handler's own call.
type heritage struct {
	budget      budget.Tokens
	given       int32 // the number of tokens at the beginning
	bounded     bool  // the call has a budget
	criticality int
	tenant      string
	trace       string
	explain     bool
	server      *Server // with live data; nil without
}

// inherited says which fields a call got from a heritage. These fields are reset when the call
// ends.
type inherited struct{ criticality, tenant, trace, explain bool }

type heritageKey struct{}

type callKey struct{}

// CallFrom returns the call that a handler is executing, from the handler's context. The call has
// the metadata, the attachment, the trailer to be sent, and the peer. For any other context
// CallFrom returns nil. If a goroutine outlives its handler, it must call CallFrom before the
// handler returns. Afterwards the result may have only the method's name.
func CallFrom(ctx context.Context) *Call {
	call, _ := ctx.Value(callKey{}).(*Call)
	return call
}

// A callRef is the part of a handler's context that refers to the call. It is not reused, because
// handlers keep contexts, and the call may already serve another request.
type callRef struct {
	as *boundMethod
	in *serverCall
}

// value returns the values of a handler's context that come from its call. Known reports whether it
// knows key.
func (r *callRef) value(key any) (value any, known bool) {
	switch key.(type) {
	case callKey:
		if c := r.hold(); c != nil {
			return &c.call, true
		}
		return &Call{Method: r.as.Name}, true
	case samplerKey:
		return r.as.server.samples, true
	case heritageKey:
		if c := r.hold(); c != nil {
			if c.method != nil && !c.method.Nests.Load() {
				c.method.Nests.Store(true)
			}
			return c.heritage(), true
		}
		return nil, true
	}
	return nil, false
}

// hold returns the call that the reference belongs to, and prevents its reuse for another request.
// It returns nil if the call is already reused.
func (r *callRef) hold() *serverCall {
	if r.in.owner.Hold(r, &r.in.held) {
		return r.in
	}
	return nil
}

// background is the context of most calls that are made outside of handlers.
var background = context.Background()

// inherit sets the fields that a call inherits from the handler that makes it, if ctx is a
// handler's context. If ctx is context.Background, inherit makes only one comparison.
func (c *Call) inherit(ctx context.Context) {
	if ctx == background {
		return
	}
	h, _ := ctx.Value(heritageKey{}).(*heritage)
	if h == nil {
		return
	}
	if client := c.Client(); h.server != nil && client != nil && client.server.Load() == nil {
		h.server.adopt(client)
	}
	if h.bounded {
		c.budget = &h.budget
	}
	if c.Criticality == 0 && h.criticality != 0 {
		c.Criticality, c.lent.criticality = h.criticality, true
	}
	if c.Tenant == "" && h.tenant != "" {
		c.Tenant, c.lent.tenant = h.tenant, true
	}
	if c.Trace == "" && h.trace != "" {
		c.Trace, c.lent.trace = h.trace, true
	}
	if h.explain && !c.Explain {
		c.Explain, c.lent.explain = true, true
	}
}

// disinherit undoes inherit.
func (c *Call) disinherit() {
	if c.budget != nil {
		c.budget = nil
	}
	if c.lent.criticality {
		c.Criticality = 0
	}
	if c.lent.tenant {
		c.Tenant = ""
	}
	if c.lent.trace {
		c.Trace = ""
	}
	if c.lent.explain {
		c.Explain = false
	}
	if c.lent != (inherited{}) {
		c.lent = inherited{}
	}
}

// heritage returns the state for calls made with the handler's context, or nil if there is none. It
// may be called concurrently.
func (c *serverCall) heritage() *heritage {
	if h := c.heirs.Load(); h != nil {
		return h
	}
	call := &c.call // with the changes that middleware has made
	if call.Budget == 0 && call.Criticality == 0 && call.Tenant == "" && call.Trace == "" && !call.Explain {
		if c.server.live != nil {
			return &c.server.measuring
		}
		return nil
	}
	h := &heritage{
		given: budget.Of(max(call.Budget, 1)), bounded: call.Budget > 0,
		criticality: call.Criticality, tenant: call.Tenant, trace: call.Trace, explain: call.Explain,
	}
	if c.server.live != nil {
		h.server = c.server
	}
	h.budget.Set(h.given)
	if !c.heirs.CompareAndSwap(nil, h) {
		return c.heirs.Load()
	}
	return h
}

// The attempt budget of a call consists of tokens. Each token pays for one attempt beyond the
// first. A token belongs to one process at any time. When a client sends a request to a method
// whose handler makes calls of its own, the client keeps one token and lends the others to the
// request. The client knows such a method because its server has said so. The reply says how many
// tokens were used, and the client takes the rest back. The client also does so for a stream whose
// caller no longer waits for it. Tokens that were lent to a request without a reply are lost,
// because they may be in use.
//
// So no level of the call tree makes more attempts than the budget of the root call allows. The
// callers nearest to the failure retry first. If a server dies, its client still has the token that
// it kept.

// Take takes one attempt from the call's attempt budget. It returns false if no attempt was left.
// Middleware that sends a call again must call it before every attempt except the first. Without a
// budget Take returns true.
func (a *Attempts) Take() bool {
	b := (*Call)(a).tokens()
	return b == nil || b.Take()
}

// lend lends tokens to an attempt if its method is known to make calls of its own. The tokens are
// lost if no reply comes. The client keeps one token for a retry. It keeps no token for a call that
// sends a stream and has a budget of its own, because such a call cannot be retried once the server
// has accepted it.
func (o *outgoing) lend(call *Call) {
	b, x := call.tokens(), o.useExtra()
	x.lent = 0
	if o.binding.Of.Nests.Load() {
		kept := int32(1)
		if k := o.binding.Kind; (k == wire.Upload || k == wire.Duplex) && b == &x.budget {
			kept = 0
		}
		x.lent = b.Lend(kept)
	}
	o.req.Budget = uint64(1 + x.lent) //nolint:gosec // not negative
}

// repay takes back the tokens that the attempt did not use.
func (o *outgoing) repay(call *Call, used uint64) {
	x := o.useExtra()
	call.budget.Repay(x.lent, used)
	x.lent = 0
}

// lender returns the Completer for a stream. If the stream borrowed tokens from a handler's budget,
// it is a lender, which returns the tokens when the stream ends. Tokens from the call's own budget
// need not be returned, because that budget ends with the call.
func (o *outgoing) lender(ctx context.Context, c *Call, st *mux.Stream) mux.Completer {
	lent := o.readExtra().lent
	if lent == 0 {
		return st
	}
	if h, _ := ctx.Value(heritageKey{}).(*heritage); h == nil || c.budget != &h.budget {
		return st
	}
	return c.budget.Lender(st, lent)
}

// used returns how many of the request's tokens were used or lost by the calls made for it.
func (c *serverCall) used() uint64 {
	h := c.heirs.Load()
	if h == nil || !h.bounded {
		return 0
	}
	return uint64(max(h.given-h.budget.Left(), 0))
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
