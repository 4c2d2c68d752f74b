// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
)

// build makes the middleware of the rule. The state of a limit, a breaker and a fault belongs to
// that middleware or has the name of the rule, so it survives when chains are built again.
func (a *active) build() {
	name := "rule " + a.ID
	switch {
	case a.Disable != nil && a.Disable.To == nil:
		a.middleware = a.refuse
	case a.Limit != nil:
		a.middleware = a.limits(name)
	case a.Timeout != nil:
		a.middleware = timeout.After(time.Duration(a.Timeout.After))
	case a.Retry != nil:
		a.middleware = retry.With(&retry.Options{Times: a.Retry.Times, Backoff: time.Duration(a.Retry.Backoff)})
	case a.Hedge != nil:
		a.middleware = hedge.With(&hedge.Options{After: time.Duration(a.Hedge.After), Percentile: a.Hedge.Percentile})
	case a.Breaker != nil:
		b := a.Breaker
		a.endpoint = breaker.With(&breaker.Options{
			Errors: b.Errors, Share: b.Share, Window: time.Duration(b.Window), MinCalls: b.MinCalls, Open: time.Duration(b.Open), Name: name,
		})
	case a.Fault != nil:
		a.faults()
	case a.Mock != nil:
		force := new(atomic.Bool)
		force.Store(true)
		a.middleware = fallback.With(&fallback.Options{Func: a.answer, Force: force})
	case a.Fallback != nil:
		a.middleware = fallback.With(&fallback.Options{Func: a.answer})
	}
}

// limits returns the middleware of a Limit. An operator names what is limited, so Concurrent counts
// streams too.
func (a *active) limits(name string) yodel.Middleware {
	l := a.Limit
	pass := func(next yodel.Handler) yodel.Handler { return next }
	perSecond, concurrent := yodel.Middleware(pass), yodel.Middleware(pass)
	if l.PerSecond > 0 {
		perSecond = rate.With(&rate.Limit{PerSecond: l.PerSecond, Burst: l.Burst, By: keyOf(l.By)})
	}
	if l.Concurrent > 0 {
		concurrent = limit.With(&limit.Options{Limit: l.Concurrent, Queue: l.Queue, Streams: true, Name: name})
	}
	return func(next yodel.Handler) yodel.Handler { return perSecond(concurrent(next)) }
}

// keyOf returns the key of a rate limit by the word in Limit.By.
func keyOf(by string) func(*yodel.Call) rate.Key {
	switch header, isHeader := strings.CutPrefix(by, "header:"); {
	case isHeader:
		return rate.Metadata(header)
	case by == "caller":
		return func(call *yodel.Call) rate.Key { return rate.Key{Name: callerOf(call)} }
	case by == "tenant":
		return rate.Tenant
	case by == "method":
		return rate.Method
	}
	return nil
}

// faults makes the injector of a Fault.
func (a *active) faults() {
	f := a.Fault
	a.injector = new(fault.Injector)
	if err := a.injector.Set(fault.Rule{
		Name: a.ID, Percent: f.Percent, Delay: time.Duration(f.Delay), Jitter: time.Duration(f.Jitter),
		Code: codes[f.Code], Message: f.Message, Lose: fault.Loss(f.Lose),
	}); err != nil {
		a.injector = nil // Check refuses such a rule
		return
	}
	a.middleware = a.injector.Calls
}

// refuse is the middleware of a Disable without a target.
func (a *active) refuse(yodel.Handler) yodel.Handler {
	return func(_ context.Context, call *yodel.Call) error {
		call.Note("rules", a.note)
		return &yodel.Error{
			Code: yodel.FailedPrecondition, ID: "YDL3601", NotProcessed: true,
			Message: fmt.Sprintf("%s: rule %s of %s refuses it: %s", call.Method, a.ID, a.Author, a.Reason),
		}
	}
}

// answer returns the reply of a Mock or a Fallback.
func (a *active) answer(_ context.Context, call *yodel.Call, _ error) (any, error) {
	own := cmp.Or(a.Mock, a.Fallback)
	a.counts.hits.Add(1)
	if own.Code != "" {
		return nil, &yodel.Error{
			Code: codes[own.Code], ID: "YDL3602", NotProcessed: true,
			Message: fmt.Sprintf("%s: %s (rule %s)", call.Method, cmp.Or(own.Message, "a mock"), a.ID),
		}
	}
	codec := call.Encoding()
	_, encoded := call.Reply.(*yodel.Encoded)
	switch {
	case codec != nil && codec.Name() == yodel.JSON.Name():
		return &yodel.Encoded{Body: own.Reply}, nil
	case call.Peer() == nil && call.Reply != nil && !encoded:
		reply := reflect.New(reflect.TypeOf(call.Reply).Elem()).Interface()
		if err := json.Unmarshal(own.Reply, reply); err != nil {
			return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s does not fit %T: %v", call.Method, a.ID, call.Reply, err)
		}
		return reply, nil
	case call.Peer() == nil && call.Reply == nil:
		return nil, nil //nolint:nilnil // a caller that expects no reply gets none
	}
	return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s is JSON, and the call has another codec", call.Method, a.ID)
}

// A chain is the middleware of rules around one handler: the calls of a client, the attempts on an
// endpoint, or the calls of a service on a server. It is built again when the rules change.
type chain struct {
	service *service
	side    string
	kinds   []string
	next    yodel.Handler
	ep      *yodel.Endpoint // the endpoint whose attempts pass through the chain; may be nil
	timeout time.Duration   // of the client's options; 0 for none
	plain   yodel.Handler   // the handler when there are no rules

	now   atomic.Pointer[built]
	mu    sync.Mutex
	nodes map[*active]*node // guarded by mu
}

// A built chain belongs to a table.
type built struct {
	table   *table
	handler yodel.Handler
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
	return b.handler(ctx, call)
}

// build builds the chain for a table, from the inside out. Rules that have not changed keep their
// nodes.
func (c *chain) build(t *table) *built {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.now.Load(); b != nil && b.table == t {
		return b
	}
	h, nodes := c.next, make(map[*active]*node)
	for _, kind := range slices.Backward(c.kinds) {
		if kind == "timeout" {
			h = c.timeouts(t, h, nodes)
			continue
		}
		for _, a := range slices.Backward(t.rules) {
			if a.Kind() == kind && a.acts(c.side) && c.concerns(a) {
				h = c.node(a, h, nodes).do
			}
		}
	}
	c.nodes = nodes
	b := &built{t, h}
	c.now.Store(b)
	return b
}

// concerns reports whether a rule may act in this chain.
func (c *chain) concerns(a *active) bool {
	switch {
	case a.target() != nil: // the chain counts the attempts for the rule's Rollback
		if c.ep == nil || a.Rollback == nil {
			return false
		}
		in := c.ep.Instance()
		return a.target().selects(&in) != (a.Disable != nil)
	case a.endpoint != nil:
		return c.ep != nil
	case c.ep != nil:
		return a.injector != nil
	}
	return a.middleware != nil
}

// timeouts returns a handler that applies the first timeout whose scope has the call, or else the
// client's own. The attempts on an endpoint have no timeout.
func (c *chain) timeouts(t *table, next yodel.Handler, nodes map[*active]*node) yodel.Handler {
	h := timeout.After(c.timeout)(next)
	for _, a := range slices.Backward(t.rules) {
		if a.Timeout != nil && c.concerns(a) {
			n := c.node(a, next, nodes)
			n.other = h
			h = n.do
		}
	}
	return h
}

// node returns the node of a rule around next.
func (c *chain) node(a *active, next yodel.Handler, nodes map[*active]*node) *node {
	n := c.nodes[a]
	if n == nil || a.Timeout != nil {
		n = &node{rule: a, chain: c}
		inner := func(ctx context.Context, call *yodel.Call) error { return (*n.next.Load())(ctx, call) }
		switch {
		case a.endpoint != nil:
			n.handler = a.endpoint(c.ep, inner)
		case a.middleware != nil:
			n.handler = a.middleware(inner)
		default:
			n.handler = inner
		}
	}
	n.next.Store(&next)
	nodes[a] = n
	return n
}

// A node is one rule in a chain.
type node struct {
	rule    *active
	chain   *chain
	handler yodel.Handler
	next    atomic.Pointer[yodel.Handler] // the chain below the rule
	other   yodel.Handler                 // for calls outside of the scope; nil means next
}

// do applies the rule to calls in its scope.
func (n *node) do(ctx context.Context, call *yodel.Call) error {
	a := n.rule
	if !a.matches(call) {
		if n.other != nil {
			return n.other(ctx, call)
		}
		return (*n.next.Load())(ctx, call)
	}
	switch {
	case a.injector != nil, a.Mock != nil, a.Fallback != nil: // they count what they do
	case n.chain.ep == nil || a.endpoint != nil:
		a.counts.hits.Add(1)
	}
	err := n.handler(ctx, call)
	a.ended(err)
	if a.middleware != nil && (err != nil || call.Explain) && a.Disable == nil {
		call.Note("rules", a.note)
	}
	return err
}
