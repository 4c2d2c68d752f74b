// SPDX-License-Identifier: Apache-2.0

// Package limit lets only so many calls run at a time, so that a server that gets more calls than
// it can serve goes on serving as many as it can, as fast as ever, and refuses the others at once.
//
// On a server it belongs below auth, which says whose calls they are, and above all that costs
// something. On a client it is a bulkhead: one service that has become slow does not take all
// goroutines and memory there are. As Middleware it is for all of the client's calls, and belongs
// above retry, which would otherwise wait for places of its own; as EndpointMiddleware
// (PerEndpoint) for the attempts on one endpoint, below retry, which goes to another endpoint with
// what was refused here. With Options.PerMethod each method has its own limit.
//
// Before a limiter on a client sees a call, the call's own goroutine runs; after it, the call may
// wait for the window that the server lets the connection have (ServerOptions.MaxOpen,
// Limits.MaxOpen). The window bounds what is open on the wire, several thousands, and those beyond
// it wait in the client. The limiter on the server bounds what of it runs, and refuses what would
// wait too long. That is why the window should stay much larger than the limit: calls that wait for
// the window are invisible to the limiter, and have no classes.
//
// # Who waits
//
// While there are free places, a call takes one; that costs two atomic instructions and no
// allocation. When there are none, calls wait in a short queue, the more critical first
// (yodel.Call.Criticality), and within a class by tenants (yodel.Call.Tenant): a place that becomes
// free goes to the tenant that holds the fewest. A call that finds the queue full takes the place
// of a less critical one, or of one of a tenant that has more than its own. Tenants are what
// callers say they are, unless a middleware above sets them.
//
// A wait on a server gives up the goroutine that reads the connection: a short method costs a
// goroutine while its calls have to wait, and is run where it is read again soon after they have
// not.
//
// # Who is refused
//
//	YDL3201  ResourceExhausted  the queue is full, also later, for those who came first
//	YDL3202  ResourceExhausted  the turn did not come in time, or would not come before the deadline
//	YDL3203  DeadlineExceeded   the deadline passed in the queue
//	YDL1006  Canceled           the caller canceled it in the queue
//
// None of them was executed, so all may be sent elsewhere. The first two say how long to stay away
// (Error.RetryAfter), unless it is the limit of one endpoint of several: another one may have room.
//
// Queues are for bursts. When calls of a class have been waiting for an interval, that is no burst,
// and the queue of each tenant becomes so short that one waits for about a quarter of what it takes
// to serve it; what has waited for twice that is refused. This is CoDel's distinction of good and
// bad queues (Nichols and Jacobson, Controlling Queue Delay, 2012) with a fixed delay instead of a
// growing rate of drops, because callers do not slow down as TCP does: see Maurer, Fail at Scale,
// 2015. Newest first, which that article has besides, was not taken over: with a queue of a quarter
// of a call's time, it could save no more than that, and those who wait for nothing would wait
// longer.
//
// # What is not limited
//
// The server's own methods (yodel.Health and its like), which tell that it is overloaded; streams,
// which last as long as they please, unless Options.Streams counts them; and on a client ordered
// calls, of which a later one must not hold what an earlier one waits for. A server that is being
// shut down finishes those who wait as those who run: both end with their contexts.
//
// A handler that calls its own server holds a place while it waits for another one. It does not
// wait for ever, but a limit is better on the methods that are called from outside only.
package limit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options says how many calls run at a time, and who waits. The zero value learns the limit.
type Options struct {
	// Limit is how many calls run at a time. Default: it is learned, by how long calls take.
	Limit int
	// Initial is the limit before anything is learned. Default 20.
	Initial int
	// Min and Max bound what is learned. Defaults 1 and 10,000.
	Min, Max int

	// Queue is how many calls may wait. Default as many as run, at least 4; negative: none.
	Queue int
	// Interval is how long a burst may last, and a call wait in it. When somebody has been waiting
	// for longer, that is an overload. It is at least ten targets. Default 100 ms.
	Interval time.Duration
	// Target is how long calls may wait in an overload. Default a quarter of what calls take, at
	// least 1 ms.
	Target time.Duration

	// Methods are the methods that are limited, by name. Default all of them.
	Methods []string
	// PerMethod gives each method a limit of its own. Default false: together they have one.
	PerMethod bool
	// Streams limits streams too, each for as long as it lasts. Default false.
	Streams bool

	// Name tells limiters of one client, server or endpoint apart. What was learned and who waits
	// belongs to the name, and stays when the chain is built anew with other options. Two limiters
	// in one chain must not have the same name. Default made of Methods, PerMethod and whether the
	// limit is learned.
	Name string

	endpoint *yodel.Endpoint // whose limit it is; nil for no endpoint's
}

// The least of what is derived.
const (
	leastTarget = time.Millisecond
	leastQueue  = 4
)

// forever is longer than anybody waits, and so short that what is reckoned with it does not
// overflow.
const forever = 1 << 55 * time.Nanosecond // a year

// Concurrency lets at most n calls run at a time. An n of less than one is one.
func Concurrency(n int) yodel.Middleware { return With(&Options{Limit: max(n, 1)}) }

// Adaptive learns how many calls may run at a time, whatever o.Limit says; nil is the default.
func Adaptive(o *Options) yodel.Middleware {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Limit = 0
	return With(&opts)
}

// With limits calls as o says; nil is the default.
func With(o *Options) yodel.Middleware {
	opts, what := o.complete(), o.describe()
	return func(next yodel.Handler) yodel.Handler {
		var known atomic.Pointer[group] // of the client or server whose chain this is
		return func(ctx context.Context, call *yodel.Call) error {
			if opts.passes(call) {
				return next(ctx, call)
			}
			g := known.Load()
			if g == nil {
				g = groupsIn(call.State).group(opts, what)
				known.Store(g)
			}
			return g.limiter(call.Method).do(ctx, call, next)
		}
	}
}

// PerEndpoint limits the attempts on each endpoint of a client as o says; nil is the default. What
// was learned and who waits belongs to the endpoint.
func PerEndpoint(o *Options) yodel.EndpointMiddleware {
	common, what := o.complete(), o.describe()
	return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		opts := common
		opts.endpoint = ep
		g := groupsIn(ep.State).group(opts, what+" at "+ep.Addr())
		return func(ctx context.Context, call *yodel.Call) error {
			if opts.passes(call) {
				return next(ctx, call)
			}
			return g.limiter(call.Method).do(ctx, call, next)
		}
	}
}

// complete returns o with defaults.
func (o *Options) complete() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Limit = min(max(opts.Limit, 0), maxLimit)
	opts.Max = min(orDefault(opts.Max, 10_000), maxLimit)
	opts.Min = min(orDefault(opts.Min, 1), opts.Max)
	opts.Initial = min(max(orDefault(opts.Initial, 20), opts.Min), opts.Max)
	opts.Interval = min(orDefault(opts.Interval, 100*time.Millisecond), forever)
	opts.Target = min(max(opts.Target, 0), forever)
	opts.Methods = slices.Clone(opts.Methods)
	if opts.Name == "" {
		opts.Name = opts.describe()
		if opts.PerMethod {
			opts.Name += ", each"
		}
	}
	return opts
}

// orDefault returns v, or def when v is zero or negative.
func orDefault[T int | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// describe returns what is limited, for people.
func (o *Options) describe() string {
	if o == nil {
		o = &Options{}
	}
	if o.Name != "" {
		return o.Name
	}
	name := "concurrency"
	if o.Limit <= 0 {
		name = "adaptive concurrency"
	}
	if len(o.Methods) > 0 {
		name += " of " + strings.Join(o.Methods, ", ")
	}
	return name
}

// passes reports whether a call is not limited.
func (o *Options) passes(call *yodel.Call) bool {
	switch {
	case strings.HasPrefix(call.Method, "yodel."):
		return true
	case len(o.Methods) > 0 && !slices.Contains(o.Methods, call.Method):
		return true
	case call.Ordered && call.Peer() == nil:
		return true
	}
	return !o.Streams && call.Streams()
}

// groups is every group of a client, a server or an endpoint.
type groups struct {
	mu     sync.Mutex
	byName map[string]*group
}

type groupsKey struct{}

// groupsIn returns the groups that are kept by state.
func groupsIn(state func(key any, create func() any) any) *groups {
	return state(groupsKey{}, func() any { return &groups{byName: make(map[string]*group)} }).(*groups) //nolint:forcetypeassert // nobody else has the key
}

// group returns the group of the options' name, with these options. What is its name for people.
func (g *groups) group(o Options, what string) *group {
	g.mu.Lock()
	defer g.mu.Unlock()
	group := g.byName[o.Name]
	if group == nil {
		group = newGroup(o, what)
		g.byName[o.Name] = group
		return group
	}
	group.configure(o)
	return group
}

// A group is the limiters of one name: one, or one for each method.
type group struct {
	what   string
	common atomic.Pointer[limiter] // for all methods, or for those beyond maxMethods; nil before it is needed
	each   atomic.Bool

	mu      sync.Mutex
	opts    Options
	methods sync.Map // of *limiter, by method
	n       int      // limiters in it
}

// maxMethods bounds how many methods have a limiter of their own: the names come from callers.
const maxMethods = 1024

func newGroup(o Options, what string) *group {
	g := &group{what: what}
	g.configure(o)
	return g
}

func (g *group) configure(o Options) {
	g.mu.Lock()
	g.opts = o
	if g.common.Load() == nil && !o.PerMethod {
		g.common.Store(newLimiter(g.what, o))
	}
	g.each.Store(o.PerMethod) // last, because calls look here first
	g.mu.Unlock()
	for _, l := range g.limiters() {
		l.configure(o)
	}
}

// limiter returns the limiter of a method.
func (g *group) limiter(method string) *limiter {
	if !g.each.Load() {
		return g.common.Load()
	}
	if l, ok := g.methods.Load(method); ok {
		return l.(*limiter) //nolint:forcetypeassert // nothing else is in it
	}
	return g.add(method)
}

//go:noinline
func (g *group) add(method string) *limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l, ok := g.methods.Load(method); ok {
		return l.(*limiter) //nolint:forcetypeassert // nothing else is in it
	}
	if g.n >= maxMethods {
		if g.common.Load() == nil {
			g.common.Store(newLimiter(g.what+", other methods", g.opts))
		}
		return g.common.Load()
	}
	g.n++
	name := strings.Clone(method)
	l := newLimiter(g.what+" of "+name, g.opts)
	g.methods.Store(name, l)
	return l
}

// limiters returns all there are.
func (g *group) limiters() (all []*limiter) {
	if l := g.common.Load(); l != nil {
		all = append(all, l)
	}
	g.methods.Range(func(_, l any) bool {
		all = append(all, l.(*limiter)) //nolint:forcetypeassert // nothing else is in it
		return true
	})
	return all
}
