// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is what a call hands down to the calls that are made for it: its budget of attempts,
// its class, its tenant.
//
// The budget is tokens, each of which is leave for one attempt more than the first. A token is in
// one place only. Whoever sends a request to a method that makes calls of its own, as its server
// says once it has seen that, keeps one, and lets it take the others along; the reply says how many
// were used, and brings the rest back, also that of a stream whose caller has left it. Those that
// went with a request to which no reply came are gone: they may be in use. So there are never more
// attempts at any level of the tree than the root was given, those who are nearest to the failure
// repeat first, and a server that dies does not take the last chance with it.

// A budget is tokens.
type budget struct{ spare atomic.Int32 }

// take takes one token.
func (b *budget) take() bool {
	for {
		n := b.spare.Load()
		if n <= 0 {
			return false
		}
		if b.spare.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// lend takes all tokens but those that are kept.
func (b *budget) lend(kept int32) int32 {
	for {
		n := b.spare.Load()
		if n <= kept {
			return 0
		}
		if b.spare.CompareAndSwap(n, kept) {
			return n - kept
		}
	}
}

// repay takes back those of the lent ones that were not used.
func (b *budget) repay(lent int32, used uint64) {
	if left := int64(lent) - int64(min(used, maxBudget)); left > 0 {
		b.spare.Add(int32(left)) //nolint:gosec // at most lent
	}
}

// maxBudget bounds what is believed of a budget.
const maxBudget = 1 << 20

// Again takes leave to send the call once more out of its budget, and reports whether there was
// any. Whoever sends calls again asks before each attempt but the first. Without a budget it
// returns true.
func (c *Call) Again() bool {
	b := c.tokens()
	return b == nil || b.take()
}

// tokens returns the call's budget, or nil if it has none.
func (c *Call) tokens() *budget {
	if c.budget == nil && c.Budget > 0 && c.out != nil {
		c.out.budget.spare.Store(int32(min(c.Budget, maxBudget) - 1))
		c.budget = &c.out.budget
	}
	return c.budget
}

// lend lets an attempt take tokens along, if the method is known to make calls of its own: a reply
// that does not come takes them with it. None is kept where nobody could use it: by a call that
// sends a stream, which cannot be made again once the server has taken it, and shares its budget
// with no other one.
func (o *outgoing) lend(call *Call) {
	b := call.tokens()
	o.lent = 0
	if o.binding.of.nests.Load() {
		kept := int32(1)
		if k := o.binding.Kind; (k == wire.Upload || k == wire.Duplex) && b == &o.budget {
			kept = 0
		}
		o.lent = b.lend(kept)
	}
	o.req.Budget = uint64(1 + o.lent) //nolint:gosec // not negative
}

// repay takes back those that the attempt did not use.
func (o *outgoing) repay(call *Call, used uint64) {
	call.budget.repay(o.lent, used)
	o.lent = 0
}

// lender returns who is told of the end of a stream. When the request has taken tokens of a
// handler's along, that is a lender. Those of the call's own end with it.
func (c *Call) lender(ctx context.Context, st *mux.Stream) mux.Completer {
	if c.out.lent == 0 {
		return st
	}
	if h, _ := ctx.Value(heritageKey{}).(*heritage); h == nil || c.budget != &h.budget {
		return st
	}
	return &lender{st, loan{c.budget, c.out.lent}}
}

// A lender is a stream that is told also of the end of a call that its caller has left: then it
// gets back what was not used.
type lender struct {
	*mux.Stream
	loan
}

// A loan is tokens, and where they come from.
type loan struct {
	of   *budget
	lent int32
}

// Abandoned implements mux.Follower.
func (l *lender) Abandoned() mux.Completer { return &abandoned{l.loan} }

// An abandoned loan waits for the reply to a call whose caller has gone. Without one it is lost.
type abandoned struct{ loan }

// Complete implements mux.Completer.
func (l *abandoned) Complete(a *mux.Answer, err error) {
	var f wire.Fields
	if err == nil && wire.ParseFields(a.Fields, &f) == nil {
		l.of.repay(l.lent, f.Budget)
	}
}

// A heritage is what the calls that a handler makes have of the handler's own.
type heritage struct {
	budget      budget
	given       int32 // tokens in it to begin with
	bounded     bool  // there is a budget
	criticality int
	tenant      string
	explain     bool
}

// inherited says what a call has of a heritage, to be undone at its end.
type inherited struct{ criticality, tenant, explain bool }

type heritageKey struct{}

// background is the context that most calls without a handler have.
var background = context.Background()

// inherit gives a call what it has of the one whose handler's context ctx is. A context that is
// nobody's costs a comparison.
func (c *Call) inherit(ctx context.Context) {
	if ctx == background {
		return
	}
	h, _ := ctx.Value(heritageKey{}).(*heritage)
	if h == nil {
		return
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
	if c.lent.explain {
		c.Explain = false
	}
	if c.lent != (inherited{}) {
		c.lent = inherited{}
	}
}

// heritage returns what calls inherit that are made with the handler's context, or nil. It may be
// called concurrently.
func (c *serverCall) heritage() *heritage {
	if h := c.heirs.Load(); h != nil {
		return h
	}
	call := &c.call // as middleware has left it
	if call.Budget == 0 && call.Criticality == 0 && call.Tenant == "" && !call.Explain {
		return nil
	}
	h := &heritage{
		given: int32(min(max(call.Budget, 1), maxBudget) - 1), bounded: call.Budget > 0,
		criticality: call.Criticality, tenant: call.Tenant, explain: call.Explain,
	}
	h.budget.spare.Store(h.given)
	if !c.heirs.CompareAndSwap(nil, h) {
		return c.heirs.Load()
	}
	return h
}

// used returns how many tokens of the request's the calls made for it have used, or lost.
func (c *serverCall) used() uint64 {
	h := c.heirs.Load()
	if h == nil || !h.bounded {
		return 0
	}
	return uint64(max(h.given-h.budget.spare.Load(), 0))
}

// On the wire a criticality is a number of which the lowest bit is the sign.
func criticalityOf(n uint64) int {
	n = min(n, math.MaxInt16)
	return int(n>>1) ^ -int(n&1)
}

func wireCriticality(c int) uint64 {
	c = min(max(c, math.MinInt8), math.MaxInt8)
	return uint64(c<<1 ^ c>>8)
}
