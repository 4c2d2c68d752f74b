// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/source"
	"github.com/yodel-rpc/yodel/introspect"
)

// balance returns the handler between middleware and endpoint middleware. The handler picks the
// endpoint. It sends a call that was certainly not executed to another endpoint, because that is
// always safe.
//
// The handler is a closure and not a method, because a method value would add the stack frame of a
// wrapper: see Decode of package body. For the same reason the closure makes the first attempt
// itself, if it can. So the stacks of 1000 callers remain at 4 KiB with any one of the middlewares
// recovery, timeout, retry and token, or with observers. Without this, each of these would double
// the stacks.
func (c *Client) balance() Handler {
	bare := len(c.opts.EndpointMiddleware) == 0
	return func(ctx context.Context, call *Call) error {
		if call.out == nil || call.Method == "" || call.turn != nil {
			return c.balanceOn(ctx, call, nil)
		}
		ep, err := c.cluster.pick(ctx, call, true)
		if err != nil {
			return c.failed(call, c.explain(ctx, call, nil, err))
		}
		if !call.pinned() {
			call.Endpoint, call.picked = ep, ep
		}
		call.going(ep)
		call.out.began = clock()
		var conn *dialled.Conn
		if bare {
			conn = ep.ready(ctx)
		}
		if conn == nil {
			if err = ep.handle(ctx, call); err != nil {
				return c.balanceOn(ctx, call, err)
			}
			return nil
		}
		call.out.req.Now = call.out.began
		if err = c.attempt(ctx, call, conn, ep); err != nil {
			return c.balanceAfter(ctx, call, err)
		}
		return nil
	}
}

// balanceAfter is balance for a call whose first attempt failed with err. Err is nil if no attempt
// was made.
func (c *Client) balanceAfter(ctx context.Context, call *Call, err error) error {
	if err != nil {
		err = c.explain(ctx, call, call.Endpoint, err)
	}
	return c.balanceOn(ctx, call, err)
}

// balanceOn is balanceAfter for an err that has passed explain.
func (c *Client) balanceOn(ctx context.Context, call *Call, err error) error {
	if call.out == nil {
		return Errorf(Internal, "%s: middleware made a call that no client has begun; use Client.Do", call.Method)
	}
	if call.Method == "" {
		return refusal("YDL2001", "a call without a method name")
	}
	if err == nil {
		call.out.began = clock()
	}
	began := call.out.began
	call.out.req.Now = 0
	for resends, waits := 0, 0; ; {
		if err != nil && !broughtBack(call.turn, err) {
			call.out.record(call, err, began)
			if call.out.readExtra().lent > 0 && NotProcessed(err) {
				call.out.repay(call, 0)
			}
			if ctx.Err() != nil && NotProcessed(err) && CodeOf(err) == Unavailable { // the caller stopped waiting
				return c.failed(call, c.explain(ctx, call, nil, reason.TooLate(context.Cause(ctx), "", " after an attempt: %v", err)))
			}
			if !c.resend(call, err, resends) {
				return c.failed(call, err)
			}
			if e, ok := errors.AsType[*Error](err); ok && e.is(catalogue.Waited) && waits < maxWaits {
				waits++
			} else {
				resends++
			}
		}
		again := err != nil
		ep, pickErr := c.choose(ctx, call)
		if pickErr != nil {
			if err == nil || call.turn != nil {
				err = c.explain(ctx, call, nil, pickErr)
			}
			return c.failed(call, err)
		}
		if !call.pinned() {
			call.Endpoint, call.picked = ep, ep
		}
		call.going(ep)
		if again {
			call.start() // before began is overwritten
			began = clock()
			call.out.began = began
		}
		if err = ep.handle(ctx, call); err == nil {
			return nil
		}
	}
}

// maxResends is how often the client sends a call again without retry middleware, if the call was
// certainly not executed. StaleResends of these attempts may go to the same endpoint when only its
// connection has ended. MaxWaits further ones may follow a wait for another call: see YDL1110.
const maxResends, staleResends, maxWaits = 8, 3, 100

// resend reports whether the client sends a failed call again without retry middleware, normally to
// an endpoint that was not tried. If the call found no connection, the client does not try further
// endpoints that are unreachable too. Otherwise every call would try every endpoint while no server
// is up.
func (c *Client) resend(call *Call, err error, resends int) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.NotProcessed || call.stream != nil && call.stream.Begun || resends >= maxResends || call.Endpoint == nil {
		return false
	}
	_, absent := errors.AsType[*reason.DialError](e.Cause)
	// a breach of the protocol ends the connection, but another server may still execute the call
	if e.Code != Unavailable && !absent && !e.is(catalogue.Breach) {
		return false
	}
	// The cause was the connection or the order epoch, and not the endpoint. So a new connection
	// may work.
	old := e.Stale() && (!absent || !e.AboutConnection())
	if old {
		call.Endpoint.core.Prune() // prune may run before the connection reports its end
	}
	// With a low MaxAge, the connections of an endpoint drain repeatedly, so draining does not
	// count toward staleResends.
	again := (e.is(catalogue.Draining|catalogue.Waited) || old && (resends < staleResends || !slices.Contains(call.tried, call.Endpoint))) && !call.Endpoint.core.Unreachable()
	call.Attempts().Avoid(call.Endpoint)
	if call.pinned() {
		return again
	}
	all := c.cluster.set.Load().given
	untried := 0
	for _, ep := range all {
		switch {
		// this endpoint was tried, has another attempt of the group, or does not remember the key
		case slices.Contains(call.tried, ep), call.besides(ep), call.holds(ep):
		case !absent || !ep.core.Unreachable():
			return true
		default:
			untried++
		}
	}
	if untried > 0 {
		call.rarely().nowhere = len(all)
	}
	return again
}

// A cluster maintains a client's set of endpoints, and updates it when the resolver reports a
// change.
type cluster struct {
	client *Client
	set    atomic.Pointer[endpointSet] // nil until the first set is built
	// learner is the set's picker if the picker is a learner, and nil otherwise.
	learner atomic.Pointer[learner]

	list    endpoints.List[*Endpoint, *dialled.Conn]
	source  source.Source
	service string // the service that the resolver resolves; "" if it does not say
}

// An endpointSet is one state of the cluster. It does not change.
type endpointSet struct {
	endpoints []*Endpoint
	given     []*Endpoint // the endpoints given to the balancer: without suspects
	picker    Picker
	past      int64 // attempts on endpoints that have left
}

// attempts returns how many attempts have been made on all endpoints, including endpoints that have
// left.
func (s *endpointSet) attempts() int64 {
	n := s.past
	for _, ep := range s.endpoints {
		n += ep.inflight.Begun.Load()
	}
	return n
}

func (cl *cluster) endpoints() []*Endpoint {
	if set := cl.set.Load(); set != nil {
		return slices.Clone(set.endpoints)
	}
	return cl.list.Listed() // the first set is being built
}

// follow watches the resolver until ctx ends.
func (cl *cluster) follow(ctx context.Context, r discovery.Resolver) {
	ctx = introspect.WithNote(ctx, cl.client.Note)
	cl.list.Follow(ctx, func() error {
		return cl.client.guard.Apart("the resolver's Watch", nil, func() error {
			return r.Watch(ctx, func(instances []discovery.Instance) { cl.heardOf(ctx, instances) })
		})
	}, func(err error) {
		what := "yodel: the resolver failed, and is asked again; it has named no instances yet"
		if cl.set.Load() != nil {
			what = "yodel: the resolver failed, and is asked again; the last instances stay in use"
		}
		cl.client.opts.Logger.WarnContext(ctx, what, "resolver", cl.source.Name(), "err", err)
	})
}

// heardOf handles a set of instances from the resolver.
func (cl *cluster) heardOf(ctx context.Context, instances []discovery.Instance) {
	if len(instances) == 0 && cl.set.Load() == nil {
		cl.source.ListFirst(ctx)
	}
	_, _, failed := cl.list.Resolver()
	cl.update(instances) //nolint:contextcheck,nolintlint // it lists services in the background
	if failed != nil {
		cl.client.opts.Logger.InfoContext(ctx, "yodel: the resolver works again", "resolver", cl.source.Name(), "instances", len(instances))
	}
}

// update applies a set of instances from the resolver. Endpoints that are still in the set keep
// their connections and state.
func (cl *cluster) update(instances []discovery.Instance) {
	c := cl.client
	keep := func(in *source.Found, ep *Endpoint) bool {
		if in.State != discovery.Inactive && (!in.Active || ep.protocol != c.speaks[in.Protocol]) {
			return false
		}
		now := in.Instance
		ep.instance.Store(&now) // of an inactive instance, so that the event that it leaves says why
		return true
	}
	add := func(in *source.Found) *endpoints.Endpoint[*Endpoint, *dialled.Conn] {
		return &newEndpoint(c, in.Instance, in.Protocol).core
	}
	if none := cl.list.Update(cl.source.Read(instances, c.speaks), keep, add); none {
		cl.source.List()
	}
	cl.list.Rebuild()
}

// build makes a set, and returns the function that makes it the current one.
func (cl *cluster) build(all, given []*Endpoint) (publish func()) {
	for _, ep := range all {
		ep.wrap()
	}
	var last Picker
	if set := cl.set.Load(); set != nil {
		last = set.picker
	}
	var picker Picker
	if err := cl.client.guard.Apart("the Balancer", nil, func() error {
		picker = cl.client.opts.Balancer(given, last)
		return nil
	}); err != nil {
		picker = brokenPicker(err.Error())
	}
	if picker == nil {
		picker = brokenPicker("it returned no picker")
	}
	return func() { cl.publish(&endpointSet{endpoints: all, given: given, picker: picker}) }
}

// publish makes set the current one.
func (cl *cluster) publish(set *endpointSet) {
	if l, ok := set.picker.(learner); ok {
		cl.learner.Store(&l)
	} else {
		cl.learner.Store(nil)
	}
	if before := cl.set.Load(); before != nil {
		set.past = max(before.attempts()-set.attempts(), 0)
	}
	cl.set.Store(set)
}

// A brokenPicker replaces the picker of a balancer that panicked or returned nil. Its String
// returns the reason.
type brokenPicker string

func (brokenPicker) Pick(*Call) *Endpoint { return nil }

func (p brokenPicker) String() string { return string(p) }

// pick returns the endpoint for the next attempt. If wait is set, it waits for the first set of
// instances.
func (cl *cluster) pick(ctx context.Context, call *Call, wait bool) (*Endpoint, error) {
	if call.Endpoint != nil && call.pinned() {
		return call.Endpoint, nil
	}
	set := cl.set.Load()
	if set == nil {
		if !wait {
			return nil, errNotYet
		}
		began := call.made()
		err := cl.source.Await(ctx, call.Method, call.Deadline, true)
		set = cl.set.Load()
		call.waited(clock()-began, 0)
		if err != nil {
			return nil, errorOf(err)
		}
	}
	ep := set.pick(call)
	if ep != nil && !ep.Connected() && call.pass < avoidTried && cl.list.Connected() > 0 {
		ep = set.instead(call, ep)
	}
	if ep != nil {
		if call.Explain {
			cl.survey(call, ep, clock())
		}
		return ep, nil
	}
	if call.held() != "" {
		return set.sharing(call)
	}
	if len(set.endpoints) == 0 {
		return nil, refusal("YDL1001", "%s: %s", call.Method, cl.source.Nobody())
	}
	why := ""
	if p, ok := set.picker.(fmt.Stringer); ok {
		why = ": " + shorten(p.String(), 150)
	}
	return nil, refusal("YDL1002", "%s: %d instances are known and the balancer chose none%s", call.Method, len(set.endpoints), why)
}

// pick asks the picker, pass by pass: see avoidUnready.
func (s *endpointSet) pick(call *Call) *Endpoint {
	if call.pass != avoidUnready {
		call.pass = avoidUnready
	}
	if call.demands != 0 {
		call.demands = 0
	}
	for ; call.pass <= avoidNone; call.pass++ {
		if ep := s.picker.Pick(call); ep != nil && (call.hold == nil || !call.holds(ep)) {
			return ep
		}
	}
	return nil
}

// instead asks the picker again, and returns a connected endpoint if the picker picks one to which
// no other attempt beside this one was sent. Otherwise it returns ep. It is called when a picker
// ignores Attempts.Avoids and picks an endpoint without a connection.
func (s *endpointSet) instead(call *Call, ep *Endpoint) *Endpoint {
	tried := call.tried
	defer func() { call.tried = tried }()
	for other := ep; other != nil && len(call.tried) < len(tried)+maxRepicks; other = s.pick(call) {
		if other.Connected() && !call.besides(other) {
			ep.demand(call)
			return other
		}
		call.tried = append(slices.Clone(call.tried), other)
	}
	return ep
}

// maxRepicks is how often the method instead asks the picker again.
const maxRepicks = 3

var errNotYet = errors.New("the instances are not known yet")

// ready connects and waits until an endpoint is connected.
func (cl *cluster) ready(ctx context.Context) error {
	call := &Call{Method: "Ready"}
	if err := cl.source.Await(ctx, call.Method, call.Deadline, false); err != nil {
		return cl.client.explain(ctx, call, nil, errorOf(err))
	}
	listed := cl.list.Listed() // the set may not have been built yet
	if len(listed) == 0 {
		return refusal("YDL1001", "%s", cl.source.Nobody())
	}
	if slices.ContainsFunc(listed, (*Endpoint).Connected) {
		return nil
	}
	return endpoints.ConnectAny(ctx, listed, func(ep *Endpoint) error {
		if _, err := ep.connected(ctx, time.Time{}, true); err != nil { // it returns when ctx ends, or within the dial timeout
			return cl.client.explain(ctx, call, ep, err)
		}
		return nil
	})
}
