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
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/source"
	"github.com/yodel-rpc/yodel/introspect"
)

// A cluster maintains a client's set of endpoints, and updates it when the resolver reports a
// change.
type cluster struct {
	client *Client
	set    atomic.Pointer[endpointSet] // nil until the first set is built
	// learner is the set's picker if the picker is a learner, and nil otherwise.
	learner atomic.Pointer[learner]

	list    endpoints.List[*Endpoint, *dialledConn]
	source  source.Source
	leftOut atomic.Pointer[source.LeftOut] // of the last set; nil before the first
	service string                         // the service that the resolver resolves; "" if it does not say
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
	c, r := cl.client, cl.read(instances)
	keep := func(i int, ep *Endpoint) bool {
		in := r.found[i]
		if in.State != discovery.Inactive && ep.protocol != r.wires[i].name {
			return false
		}
		ep.instance.Store(&in) // of an inactive instance, so that the event that it leaves says why
		return true
	}
	add := func(i int) *endpoints.Endpoint[*Endpoint, *dialledConn] {
		return &newEndpoint(c, r.found[i], r.wires[i]).core
	}
	cl.leftOut.Store(&r.leftOut)
	if none := cl.list.Update(r.named, keep, add); none {
		cl.source.List()
	}
	cl.list.Rebuild()
}

// A resolved is a set of instances from the resolver, with each address once.
type resolved struct {
	named   []endpoints.Named
	found   []discovery.Instance
	wires   []namedWire // of active instances
	leftOut source.LeftOut
}

// read puts a set of instances in this form. Of several records of an address, the first active one
// counts.
func (cl *cluster) read(instances []discovery.Instance) (r resolved) {
	at := make(map[string]int, len(instances))
	active := 0
	for _, in := range instances {
		i, seen := at[in.Addr]
		if seen && r.named[i].Active {
			continue
		}
		if !seen {
			i = len(r.named)
			at[in.Addr] = i
			r.named, r.found, r.wires = append(r.named, endpoints.Named{Addr: in.Addr}), append(r.found, in), append(r.wires, namedWire{})
		}
		if in.State == discovery.Inactive {
			continue
		}
		w, spoken := cl.client.wireFor(in.Protocols)
		if !spoken {
			r.leftOut.Unspoken(in.Protocols)
			continue
		}
		r.named[i].Active, r.found[i], r.wires[i] = true, in, w
		active++
	}
	r.leftOut.Count(len(r.named), active)
	return r
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
		picker = brokenPicker{err}
	}
	if picker == nil {
		picker = noPicker{}
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

// A noPicker replaces the picker of a balancer that returned nil.
type noPicker struct{}

func (noPicker) Pick(*Call) *Endpoint { return nil }
func (noPicker) String() string       { return "it returned no picker" }

// A brokenPicker replaces the picker of a balancer that panicked.
type brokenPicker struct{ error }

func (brokenPicker) Pick(*Call) *Endpoint { return nil }
func (p brokenPicker) String() string     { return p.Error() }

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
		var err error
		set, err = cl.first(ctx, call)
		call.waited(clock()-began, 0)
		if err != nil {
			return nil, err
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
		return nil, refusal("YDL1001", "%s: %s", call.Method, cl.source.Nobody(cl.leftOut.Load(), cl.trouble()))
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

// first waits for the first set of instances.
func (cl *cluster) first(ctx context.Context, call *Call) (*endpointSet, error) {
	err := cl.await(ctx, call, true)
	return cl.set.Load(), err
}

// await waits until the resolver has reported instances and, if set is true, until there is a set.
// It returns an error if ctx, the call's deadline or the dial timeout ends first.
func (cl *cluster) await(ctx context.Context, call *Call, set bool) error {
	limit := cl.client.opts.DialTimeout
	left := limit + 1
	if !call.Deadline.IsZero() {
		left = time.Until(call.Deadline)
		limit = min(limit, left)
	}
	began := clock()
	known, err := cl.list.Await(ctx, limit, set)
	switch late := errors.Is(err, endpoints.ErrLate); {
	case err == nil:
		return nil
	case errors.Is(err, endpoints.ErrClosed):
		return refusal("YDL1007", "%s: the client is closed", call.Method)
	case late && left <= limit:
		return cl.unnamed(mux.ErrDeadline, clock()-began, known)
	case !late:
		return cl.unnamed(err, clock()-began, known)
	case known:
		return refusal("YDL1002", "%s: instances are known, and the balancer has made no picker within %v", call.Method, limit.Round(time.Millisecond))
	}
	return refusal("YDL1201", "%s: the resolver%s named no instances within %v%s", call.Method, cl.source.Of(), limit.Round(time.Millisecond), cl.trouble())
}

// unnamed returns the error of a call that waited for the first set of instances until cause ended
// it. Known says that the resolver has reported instances.
func (cl *cluster) unnamed(cause error, waited time.Duration, known bool) error {
	if waited < time.Millisecond { // the call's time was over before it waited
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	if known {
		return reason.TooLate(cause, "YDL1002", " after %v of waiting for the balancer, which has made no picker yet", reason.Rounded(waited))
	}
	return reason.TooLate(cause, "YDL1201", " after %v of waiting for the resolver%s, which has named no instances yet%s", reason.Rounded(waited), cl.source.Of(), cl.trouble())
}

// trouble returns the resolver's last failure as a suffix for a message, or "".
func (cl *cluster) trouble() string {
	said, _, err := cl.list.Resolver()
	return source.Trouble(said, err)
}

// ready connects and waits until an endpoint is connected.
func (cl *cluster) ready(ctx context.Context) error {
	call := &Call{Method: "Ready"}
	if err := cl.await(ctx, call, false); err != nil {
		return cl.client.explain(ctx, call, nil, err)
	}
	listed := cl.list.Listed() // the set may not have been built yet
	if len(listed) == 0 {
		return refusal("YDL1001", "%s", cl.source.Nobody(cl.leftOut.Load(), cl.trouble()))
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
