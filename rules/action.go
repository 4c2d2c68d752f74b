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
	case a.Mock != nil, a.Fallback != nil:
		a.middleware = a.answers(nil)
	}
}

// answers returns the middleware of a Mock or a Fallback. Server is nil on a client.
func (a *active) answers(server *yodel.Server) yodel.Middleware {
	force := new(atomic.Bool)
	force.Store(a.Mock != nil)
	return fallback.With(&fallback.Options{Force: force, Func: func(_ context.Context, call *yodel.Call, _ error) (any, error) {
		return a.answer(server, call)
	}})
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

// answer returns the reply of a Mock or a Fallback. Server is nil on a client. The reply of the
// rule is JSON. For a call in another codec, it becomes a value of the type that the caller expects
// or the method returns, which is encoded in that codec.
func (a *active) answer(server *yodel.Server, call *yodel.Call) (any, error) {
	own := cmp.Or(a.Mock, a.Fallback)
	a.counts.hits.Add(1)
	if own.Code != "" {
		return nil, &yodel.Error{
			Code: codes[own.Code], ID: "YDL3602", NotProcessed: true,
			Message: fmt.Sprintf("%s: %s (rule %s)", call.Method, cmp.Or(own.Message, "a mock"), a.ID),
		}
	}
	codec := call.Encoding()
	isJSON := codec != nil && codec.Name() == yodel.JSON.Name()
	if server == nil && call.Reply == nil && !isJSON {
		return nil, nil //nolint:nilnil // a caller that expects no reply gets none
	}
	types, several, err := replyTypes(server, call)
	switch {
	case err != nil:
		return nil, err
	case several:
		return a.decodeAll(call, own.Reply, types)
	case isJSON:
		return &yodel.Encoded{Body: own.Reply}, nil
	case len(types) == 1:
		return a.decode(call, own.Reply, types[0])
	}
	return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s is JSON, the call has another codec, and the rule cannot know the type of the reply", call.Method, a.ID)
}

// replyTypes returns the types of the values in the reply of a call, if they are known, and whether
// the reply is of several values. Server is nil on a client.
func replyTypes(server *yodel.Server, call *yodel.Call) (types []reflect.Type, several bool, err error) {
	if server != nil {
		var request yodel.Encoded
		if err := call.Request(&request); err != nil {
			return nil, false, err
		}
		_, types = server.Types(call.Method)
		return types, request.Several, nil
	}
	switch reply := call.Reply.(type) {
	case nil, *yodel.Encoded:
		return nil, false, nil
	case yodel.Values:
		for _, value := range reply {
			types = append(types, pointee(value))
		}
		return types, true, nil
	}
	return []reflect.Type{pointee(call.Reply)}, false, nil
}

// pointee returns the type that v points to. If v is no pointer, the value cannot be decoded into
// it, and the error of the decoder says so.
func pointee(v any) reflect.Type {
	if t := reflect.TypeOf(v); t != nil && t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return reflect.TypeFor[any]()
}

// decode returns a pointer to the value of type t that the JSON of the rule stands for.
func (a *active) decode(call *yodel.Call, text json.RawMessage, t reflect.Type) (any, error) {
	reply := reflect.New(t).Interface()
	if err := json.Unmarshal(text, reply); err != nil {
		return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s does not fit %v: %v", call.Method, a.ID, t, err)
	}
	return reply, nil
}

// decodeAll returns the values of these types that the JSON array of the rule stands for.
func (a *active) decodeAll(call *yodel.Call, text json.RawMessage, types []reflect.Type) (any, error) {
	var texts []json.RawMessage
	if err := json.Unmarshal(text, &texts); err != nil || len(texts) != len(types) {
		return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s is no JSON array of the %d values that the method returns", call.Method, a.ID, len(types))
	}
	values := make(yodel.Values, len(types))
	for i, t := range types {
		value, err := a.decode(call, texts[i], t)
		if err != nil {
			return nil, err
		}
		values[i] = value
	}
	return values, nil
}

// A chain is the middleware of rules around one handler: the calls of a client, the attempts on an
// endpoint, or the calls of a service on a server. It is built again when the rules change.
type chain struct {
	service *service
	side    string
	server  *yodel.Server // nil on a client
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
		case c.server != nil && (a.Mock != nil || a.Fallback != nil):
			n.handler = a.answers(c.server)(inner)
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
