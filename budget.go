// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file passes state of a call down to the calls that its handlers make: the attempt budget,
// the criticality, the tenant and Explain.
//
// The budget consists of tokens. Each token pays for one attempt beyond the first. A token belongs
// to one process at any time. When a client sends a request to a method whose handler makes calls
// of its own, the client keeps one token and lends the others to the request. The client knows such
// a method because its server has said so. The reply says how many tokens were used, and the client
// takes the rest back. The client also does so for a stream whose caller no longer waits for it.
// Tokens that were lent to a request without a reply are lost, because they may be in use.
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

// tokens returns the call's budget, or nil if it has none.
func (c *Call) tokens() *budget.Tokens {
	if c.budget == nil && c.Budget > 0 && c.out != nil {
		c.budget = &c.out.useExtra().budget
		c.budget.Set(budget.Of(c.Budget))
	}
	return c.budget
}

// lend lends tokens to an attempt if its method is known to make calls of its own. The tokens are
// lost if no reply comes. The client keeps one token for a retry. It keeps no token for a call that
// sends a stream and has a budget of its own, because such a call cannot be retried once the server
// has accepted it.
func (o *outgoing) lend(call *Call) {
	b, x := call.tokens(), o.useExtra()
	x.lent = 0
	if o.binding.of.nests.Load() {
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
func (c *Call) lender(ctx context.Context, st *mux.Stream) mux.Completer {
	lent := c.out.readExtra().lent
	if lent == 0 {
		return st
	}
	if h, _ := ctx.Value(heritageKey{}).(*heritage); h == nil || c.budget != &h.budget {
		return st
	}
	return c.budget.Lender(st, lent)
}

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
	if h.server != nil && c.out != nil && c.out.from.client != nil && c.out.from.client.server.Load() == nil {
		h.server.adopt(c.out.from.client)
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
			return &c.server.live.heritage
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

// used returns how many of the request's tokens were used or lost by the calls made for it.
func (c *serverCall) used() uint64 {
	h := c.heirs.Load()
	if h == nil || !h.bounded {
		return 0
	}
	return uint64(max(h.given-h.budget.Left(), 0))
}

// On the wire a criticality is a number whose lowest bit is the sign.
func criticalityOf(n uint64) int {
	n = min(n, math.MaxInt16)
	return int(n>>1) ^ -int(n&1)
}

func wireCriticality(c int) uint64 {
	c = min(max(c, math.MinInt8), math.MaxInt8)
	return uint64(c<<1 ^ c>>8)
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
