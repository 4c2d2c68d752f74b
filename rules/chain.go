// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A chain is the middleware of rules around one handler: the calls of a client, the attempts on an
// endpoint, or the calls of a service on a server. It is built again when the rules change.
type chain struct {
	service *service
	side    string
	server  *yodel.Server // nil on a client
	stages  []*kind
	next    yodel.Handler
	ep      *yodel.Endpoint // the endpoint whose attempts pass through the chain; may be nil
	own     limits          // of the client's options
	plain   yodel.Handler   // the handler when there are no rules

	now   atomic.Pointer[built]
	mu    sync.Mutex
	nodes map[*active]*node // guarded by mu
}

// A built chain belongs to a table.
type built struct {
	chain  *chain
	table  *table
	stages []stage
	nodes  []*node // of the rules that act in the chain, by their index in the table
	rules  uint64  // the indices of these rules, as bits
}

// A stage is the rules of one kind in a chain.
type stage struct {
	rules uint64 // bits by the index in the table
	first bool   // only the first rule whose scope has the call acts
	// otherwise is called if no rule of the stage acts. Nil means the next stage.
	otherwise yodel.Handler
}

// do makes a call. Without rules it costs an atomic load.
func (c *chain) do(ctx context.Context, call *yodel.Call) error {
	t := c.service.table.Load()
	if t == unloaded {
		t = c.service.await(ctx)
	}
	if t == nil {
		return c.plain(ctx, call)
	}
	b := c.now.Load()
	if b == nil || b.table != t {
		b = c.build(t)
	}
	return b.do(ctx, call, 0, 0)
}

// build builds the chain for a table. Rules that have not changed keep their nodes, and calls are
// in them. So a node gets its place in the new chain when that is complete.
func (c *chain) build(t *table) *built {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.now.Load(); b != nil && b.table == t {
		return b
	}
	b, nodes, below := &built{chain: c, table: t}, make(map[*active]*node), make(map[*node]*position)
	for _, k := range c.stages {
		s := stage{first: k.decides == firstRule}
		at := len(b.stages)
		for i, a := range t.rules {
			if a.kind != k || !a.acts(c.side) || !c.concerns(a) {
				continue
			}
			if b.nodes == nil {
				b.nodes = make([]*node, len(t.rules))
			}
			s.rules |= 1 << i
			b.nodes[i] = c.node(a)
			nodes[a] = b.nodes[i]
			below[b.nodes[i]] = &position{b, at, 2<<i - 1}
			if s.first {
				below[b.nodes[i]] = &position{b, at + 1, 0}
			}
		}
		if s.first && c.own != (limits{}) {
			s.otherwise = c.own.around((&position{b, at + 1, 0}).do)
		}
		if s.rules != 0 || s.otherwise != nil {
			b.stages = append(b.stages, s)
			b.rules |= s.rules
		}
	}
	for n, at := range below {
		n.below.Store(at)
	}
	c.nodes = nodes
	c.now.Store(b)
	return b
}

// A position is a place in a built chain: within a stage, below the rules that are passed.
type position struct {
	built  *built
	stage  int
	passed uint64
}

// do makes a call below the position.
func (p *position) do(ctx context.Context, call *yodel.Call) error {
	return p.built.do(ctx, call, p.stage, p.passed)
}

// do makes a call, from a stage on and below the rules of this stage that are passed.
func (b *built) do(ctx context.Context, call *yodel.Call, at int, passed uint64) error {
	selected := everything.rules
	if b.rules&b.table.scoped != 0 {
		selected = b.table.selected(call.Method).rules
	}
	for ; at < len(b.stages); at, passed = at+1, 0 {
		s := &b.stages[at]
		for left := s.rules & selected &^ passed; left != 0; left &= left - 1 {
			if n := b.nodes[bits.TrailingZeros64(left)]; n.rule.matches(ctx, call) {
				return n.do(ctx, call)
			}
		}
		if s.otherwise != nil {
			return s.otherwise(ctx, call)
		}
	}
	return b.chain.next(ctx, call)
}

// concerns reports whether a rule may act in this chain.
func (c *chain) concerns(a *active) bool {
	switch {
	case a.target() != nil: // the chain counts the attempts for the rule's Rollback
		if c.ep == nil || a.Rollback == nil {
			return false
		}
		in := c.ep.Instance()
		return a.target().selects(&in) != (a.narrows(true).leaves == otherInstances)
	case a.endpoint != nil:
		return c.ep != nil
	case c.ep != nil:
		return a.wrap != nil && a.kind.place.beneath > 0
	}
	return a.wrap != nil
}

// limits are ClientOptions.Timeout and ClientOptions.StreamTimeout.
type limits struct{ call, stream time.Duration }

// around returns a handler that gives calls without a deadline the one of the client's options, as
// the client itself would. A deadline of the caller counts, be it earlier or later.
func (l limits) around(next yodel.Handler) yodel.Handler {
	if l.call <= 0 && l.stream <= 0 {
		return next
	}
	return func(ctx context.Context, call *yodel.Call) error {
		d := l.call
		if call.Streams() {
			d = l.stream
		}
		if d <= 0 || !call.Deadline.IsZero() {
			return next(ctx, call)
		}
		call.Deadline = call.Now().Add(d)
		err := next(ctx, call)
		call.Deadline = time.Time{} // the caller may reuse the call
		return err
	}
}

// node returns the node of a rule.
func (c *chain) node(a *active) *node {
	if n := c.nodes[a]; n != nil {
		return n
	}
	n := &node{rule: a, chain: c}
	n.handler = func(ctx context.Context, call *yodel.Call) error { return n.below.Load().do(ctx, call) }
	switch {
	case a.endpoint != nil:
		n.handler = a.endpoint(c.ep, n.handler)
	case a.wrap != nil:
		n.handler = a.wrap(c.server)(n.handler)
	}
	return n
}

// A node is one rule in a chain.
type node struct {
	rule    *active
	chain   *chain
	handler yodel.Handler
	below   atomic.Pointer[position]
}

// do applies the rule to a call in its scope.
func (n *node) do(ctx context.Context, call *yodel.Call) error {
	a := n.rule
	switch {
	case a.countsItself:
	case n.chain.ep == nil || a.endpoint != nil:
		a.counts.hits.Add(1)
	}
	err := n.handler(ctx, call)
	a.ended(err)
	if a.wrap != nil && (err != nil || call.Explain) {
		call.Note("rules", a.note)
	}
	return err
}
