// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// A cluster maintains a client's set of endpoints, and updates it when the resolver reports a
// change.
type cluster struct {
	client *Client
	set    atomic.Pointer[endpointSet] // nil until the first set is built
	// learner is the set's picker if the picker is a Learner, and nil otherwise.
	learner atomic.Pointer[Learner]

	// mu must not be held while user code runs. See rebuild.
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the set, listed or err changes
	err     error         // the resolver's last failure; nil while it works
	errText string        // the text of err
	heard   time.Duration // when the resolver last reported instances, on the clock; 0 before
	closed  bool

	known    bool        // the resolver has reported instances
	listed   []*Endpoint // the endpoints of the next set; the slice does not change
	gone     []*Endpoint // endpoints that were removed from listed and may still be in the set
	stale    bool        // the set is out of date
	building bool        // a goroutine is building sets
	inactive int         // inactive instances that the resolver reports
	unspoken unspoken    // instances that were left out because the client has no Wire for them
	source   source

	size        int       // the size of the last set that was believed
	peak        int       // the largest recent size
	peakAt      time.Time // when peak was reported
	implausible bool      // the last set was too small to be believed
	settling    bool      // a timer will check the endpoints that are leaving
	reshaping   bool      // a timer will rebuild the set without suspects

	service   string       // the service that the resolver resolves; "" if it does not say
	connected atomic.Int32 // endpoints that have a connection
	dials     atomic.Int32 // attempts to connect in progress
	leaving   atomic.Int32 // listed endpoints that the resolver no longer reports

	searchMu sync.Mutex
	search   *search // nil if none is running
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
		n += ep.inflight.begun.Load()
	}
	return n
}

func newCluster(c *Client, r Resolver) *cluster {
	cl := &cluster{client: c, changed: make(chan struct{})}
	if of, ok := r.(interface{ ServiceName() string }); ok {
		cl.service = of.ServiceName()
	}
	return cl
}

func (cl *cluster) endpoints() []*Endpoint {
	if set := cl.set.Load(); set != nil {
		return slices.Clone(set.endpoints)
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return slices.Clone(cl.listed) // the first set is being built
}

// follow watches the resolver until ctx ends.
func (cl *cluster) follow(ctx context.Context, r Resolver) {
	ctx = introspect.WithNote(ctx, cl.client.Note)
	backoff := firstBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := cl.client.guard.Apart("the resolver's Watch", nil, func() error {
			return r.Watch(ctx, func(instances []Instance) { cl.heardOf(ctx, instances) })
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it stopped watching")
		}
		if cl.fail(err) {
			what := "yodel: the resolver failed, and is asked again; it has named no instances yet"
			if cl.set.Load() != nil {
				what = "yodel: the resolver failed, and is asked again; the last instances stay in use"
			}
			cl.client.opts.Logger.WarnContext(ctx, what, "resolver", cl.source.name, "err", err)
		}
		if time.Since(began) > lastBackoff {
			backoff = firstBackoff
		}
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, lastBackoff)
	}
}

// heardOf handles a set of instances from the resolver.
func (cl *cluster) heardOf(ctx context.Context, instances []Instance) {
	if len(instances) == 0 && cl.set.Load() == nil {
		cl.source.list(ctx, cl.client, firstListTime)
	}
	cl.mu.Lock()
	failed := cl.err != nil
	cl.mu.Unlock()
	cl.update(instances)
	if failed {
		cl.client.opts.Logger.InfoContext(ctx, "yodel: the resolver works again", "resolver", cl.source.name, "instances", len(instances))
	}
}

// fail stores a failure of the resolver, and reports whether it differs from the last one.
func (cl *cluster) fail(err error) bool {
	text := err.Error()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	news := cl.err == nil || cl.errText != text
	cl.err, cl.errText = err, text
	cl.wakeLocked()
	return news
}

func (cl *cluster) wakeLocked() {
	close(cl.changed)
	cl.changed = make(chan struct{})
}

// listLocked sets the endpoints of the next set. Gone has the endpoints that leave. After unlocking
// cl.mu, the caller must call rebuild or rebuildSoon.
func (cl *cluster) listLocked(endpoints, gone []*Endpoint) {
	cl.noteInstances(eventDown, gone)
	cl.listed, cl.gone = endpoints, append(cl.gone, gone...)
	cl.known, cl.stale = true, true
	leaving := int32(0)
	for _, ep := range endpoints {
		if ep.unlisted.Load() {
			leaving++
		}
	}
	cl.leaving.Store(leaving)
	cl.wakeLocked()
}

// rebuild builds the set from cl.listed. It calls user code without a lock: the Balancer and the
// constructors of endpoint middleware. That code may take long and may call the client. Only one
// goroutine builds sets. It builds again until the list has not changed meanwhile, so the last set
// is made from the newest list. If another goroutine is building, rebuild returns at once. See
// docs/decisions/0040-user-code-runs-without-our-locks.md.
func (cl *cluster) rebuild() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.building {
		return
	}
	for cl.stale && !cl.closed {
		cl.building, cl.stale = true, false
		endpoints, gone := cl.listed, len(cl.gone)
		cl.mu.Unlock()
		set := cl.build(endpoints)
		cl.mu.Lock()
		if cl.closed {
			break
		}
		cl.publishLocked(set)
		left := cl.gone[:gone:gone]
		cl.gone = cl.gone[gone:]
		cl.mu.Unlock()
		for _, ep := range left {
			ep.close(false)
		}
		cl.mu.Lock()
	}
	if cl.building {
		cl.building = false
		cl.wakeLocked()
	}
}

// rebuildSoon is rebuild for goroutines for which calls wait. It waits until the set is built, but
// at most reshapeAfter, because a Balancer may take long.
func (cl *cluster) rebuildSoon() {
	if !cl.client.Background(func(context.Context) { cl.rebuild() }) {
		return // the client is closed
	}
	timer := time.NewTimer(reshapeAfter)
	defer timer.Stop()
	for {
		cl.mu.Lock()
		changed, busy := cl.changed, cl.stale || cl.building
		cl.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-cl.client.closing:
			return
		}
	}
}

// build returns a new set. Only rebuild calls it.
func (cl *cluster) build(endpoints []*Endpoint) *endpointSet {
	for _, ep := range endpoints {
		ep.wrap()
	}
	var last Picker
	if set := cl.set.Load(); set != nil {
		last = set.picker
	}
	given := believable(endpoints)
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
	return &endpointSet{endpoints: endpoints, given: given, picker: picker}
}

// publishLocked makes set the current one.
func (cl *cluster) publishLocked(set *endpointSet) {
	if l, ok := set.picker.(Learner); ok {
		cl.learner.Store(&l)
	} else {
		cl.learner.Store(nil)
	}
	if before := cl.set.Load(); before != nil {
		set.past = max(before.attempts()-set.attempts(), 0)
	}
	cl.set.Store(set)
	cl.wakeLocked()
}

// A noPicker replaces the picker of a balancer that returned nil.
type noPicker struct{}

func (noPicker) Pick(*Call) *Endpoint { return nil }
func (noPicker) String() string       { return "it returned no picker" }

// A brokenPicker replaces the picker of a balancer that panicked.
type brokenPicker struct{ error }

func (brokenPicker) Pick(*Call) *Endpoint { return nil }
func (p brokenPicker) String() string     { return p.Error() }

func (cl *cluster) close() {
	cl.mu.Lock()
	cl.closed = true
	endpoints := slices.Concat(cl.listed, cl.gone)
	cl.wakeLocked()
	cl.mu.Unlock()
	var wg sync.WaitGroup
	for _, ep := range endpoints {
		wg.Go(func() { ep.close(true) })
	}
	wg.Wait()
}

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
		if call.out != nil {
			call.out.useExtra().resolving = clock() - began
		}
		if err != nil {
			return nil, err
		}
	}
	ep := set.pick(call)
	if ep != nil && !ep.Connected() && call.pass < avoidTried && cl.connected.Load() > 0 {
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
		return nil, refusal("YDL1001", "%s: %s", call.Method, cl.nobody())
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

// instead asks the picker again, and returns a connected endpoint if the picker picks one.
// Otherwise it returns ep. It is called when a picker ignores Attempts.Avoids and picks an endpoint
// without a connection.
func (s *endpointSet) instead(call *Call, ep *Endpoint) *Endpoint {
	tried := call.tried
	defer func() { call.tried = tried }()
	for other := ep; other != nil && len(call.tried) < len(tried)+maxRepicks; other = s.pick(call) {
		if other.Connected() {
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
	err := cl.await(ctx, call, func() bool { return cl.set.Load() != nil })
	return cl.set.Load(), err
}

// await waits until done returns true, or until ctx, the call's deadline or the dial timeout ends.
// It calls done with cl.mu held. Done reports that there is a set, or that the resolver has
// reported instances.
func (cl *cluster) await(ctx context.Context, call *Call, done func() bool) error {
	limit := cl.client.opts.DialTimeout
	left := limit + 1
	if !call.Deadline.IsZero() {
		left = time.Until(call.Deadline)
		limit = min(limit, left)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	began := clock()
	for {
		cl.mu.Lock()
		changed, closed, known, ended := cl.changed, cl.closed, cl.known, done()
		cl.mu.Unlock()
		if ended {
			return nil
		}
		if closed {
			return refusal("YDL1007", "%s: the client is closed", call.Method)
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			return cl.unnamed(context.Cause(ctx), clock()-began, known)
		case <-timer.C:
		}
		if left <= limit {
			return cl.unnamed(mux.ErrDeadline, clock()-began, known)
		}
		if known {
			return refusal("YDL1002", "%s: instances are known, and the balancer has made no picker within %v", call.Method, limit.Round(time.Millisecond))
		}
		return refusal("YDL1201", "%s: the resolver%s named no instances within %v%s", call.Method, cl.source.of(), limit.Round(time.Millisecond), cl.trouble())
	}
}

// unnamed returns the error of a call that waited for the first set of instances until cause ended
// it. Known says that the resolver has reported instances.
func (cl *cluster) unnamed(cause error, waited time.Duration, known bool) error {
	if waited < time.Millisecond { // the call's time was over before it waited
		return &mux.CallError{Cause: cause, NotProcessed: true}
	}
	if known {
		return tooLate(cause, "YDL1002", " after %v of waiting for the balancer, which has made no picker yet", rounded(waited))
	}
	return tooLate(cause, "YDL1201", " after %v of waiting for the resolver%s, which has named no instances yet%s", rounded(waited), cl.source.of(), cl.trouble())
}

// trouble returns the resolver's last failure as a suffix for a message, or "".
func (cl *cluster) trouble() string {
	cl.mu.Lock()
	err, text := cl.err, cl.errText
	cl.mu.Unlock()
	if err == nil {
		return ""
	}
	if errors.Is(err, errNoResolver) || errors.Is(err, errNoAddress) {
		return ": " + text
	}
	return "; it failed: " + text
}

// nobody returns the reason why there is no endpoint, as a text for a message.
func (cl *cluster) nobody() string {
	cl.mu.Lock()
	inactive, unspoken := cl.inactive, cl.unspoken.String()
	cl.mu.Unlock()
	if unspoken != "" {
		return "no instance" + cl.source.of() + unspoken + cl.trouble()
	}
	if inactive > 0 {
		return fmt.Sprintf("no instance is active of %d that are known%s%s", inactive, cl.source.of(), cl.trouble())
	}
	return cl.source.none() + cl.trouble()
}

// ready connects and waits until an endpoint is connected.
func (cl *cluster) ready(ctx context.Context) error {
	call := &Call{Method: "Ready"}
	var endpoints []*Endpoint // cl.listed, because the set may not have been built yet
	err := cl.await(ctx, call, func() bool {
		endpoints = cl.listed
		return cl.known
	})
	if err != nil {
		return cl.client.explain(ctx, call, nil, err)
	}
	if len(endpoints) == 0 {
		return refusal("YDL1001", "%s", cl.nobody())
	}
	if slices.ContainsFunc(endpoints, (*Endpoint).Connected) {
		return nil
	}
	results := make(chan error, readyAtOnce)
	order := rand.Perm(len(endpoints))
	for begun, ended := 0, 0; ended < len(order) && (ended == 0 || ctx.Err() == nil); ended++ {
		for ; begun < min(ended+readyAtOnce, len(order)); begun++ {
			go func(ep *Endpoint) {
				_, err := ep.connected(ctx, time.Time{}, true) // returns when ctx ends, or within the dial timeout
				if err != nil {
					err = cl.client.explain(ctx, call, ep, err)
				}
				results <- err
			}(endpoints[order[begun]])
		}
		if err = <-results; err == nil {
			return nil
		}
	}
	return err
}
