// SPDX-License-Identifier: Apache-2.0

// Package limit bounds how many calls run at a time (concurrency limit, load shedding). A server
// that gets more calls than it can serve then keeps its throughput and latency, and refuses the
// excess at once.
//
// On a server, put it below auth, which knows the tenant, and above everything that is expensive.
// On a client it is a bulkhead: one slow service does not take all goroutines and memory. As
// Middleware it covers all calls of the client, and belongs above retry, which would otherwise
// queue again for each attempt. As EndpointMiddleware (PerEndpoint) it covers the attempts on one
// endpoint, and belongs below retry, which sends a refused attempt to another endpoint. With
// Options.PerMethod each method has its own limit.
//
// The limiter is separate from the window of a connection (ServerOptions.MaxOpen, Limits.MaxOpen).
// The window bounds the calls that are open on the wire, which may be several thousand. Further
// calls wait in the client. The limiter on the server bounds how many of the open calls run, and
// refuses calls that would wait too long. Keep the window much larger than the limit: the limiter
// does not see calls that wait for the window, and cannot prefer more critical ones.
//
// # Queueing
//
// A call takes a free place if there is one, which costs two atomic instructions and no allocation.
// If there is none, it waits in a short queue. More critical calls go first
// (yodel.Call.Criticality). Within a class, a free place goes to the tenant (yodel.Call.Tenant)
// that holds the fewest places. A call that finds the queue full displaces a less critical call, or
// a call of a tenant that has more than its own. Callers name their own tenant, unless a middleware
// above sets it.
//
// A call that waits on a server does not block the goroutine that reads the connection. While its
// calls have to wait, a short method costs a goroutine for each call. Soon afterwards it runs on
// the reader again.
//
// # Errors
//
//	YDL3201  ResourceExhausted  the queue is full, also for calls that another call has displaced
//	YDL3202  ResourceExhausted  the call did not get a place in time, or would not get one before its deadline
//	YDL3203  DeadlineExceeded   the deadline passed in the queue
//	YDL1006  Canceled           the caller canceled the call in the queue
//
// These calls were not executed, so the client may send them to another endpoint. The first two
// errors say how long the client should wait before it sends another call (Error.RetryAfter). They
// do not say so if the limit is the limit of one endpoint among several, because another endpoint
// may have room.
//
// Queues are for bursts. If calls of a class have been waiting for longer than Options.Interval, it
// is an overload and not a burst. The queue of each tenant then becomes so short that a call waits
// for about a quarter of its service time. A call that has waited twice as long is refused. This is
// CoDel's distinction of good and bad queues (Nichols and Jacobson, Controlling Queue Delay, 2012),
// with a fixed delay in place of a growing drop rate, because callers do not slow down as TCP does
// (Maurer, Fail at Scale, 2015). That article also serves the newest call first. This package does
// not, because with so short a queue it would save little, and refused calls would wait longer.
//
// # Calls without a limit
//
// Three kinds of calls are not limited. The built-in methods (such as yodel.Health) report the
// overload. Streams last for an unknown time; Options.Streams limits them. Ordered calls on a
// client are not limited, because a later one must not hold a place for which an earlier one waits.
// During a shutdown, a server finishes waiting and running calls. Both end with their contexts.
//
// A handler that calls its own server holds a place while its own call waits for another place. The
// wait is bounded, but it is better to limit only the methods that are called from outside.
package limit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/defaults"
)

// Options says how many calls run at a time, and which calls wait. The zero value learns the limit.
type Options struct {
	// Limit is how many calls run at a time. Default: learned from how long calls take.
	Limit int
	// Initial is the limit before the limiter has learned one. Default 20.
	Initial int
	// Min and Max bound the learned limit. Defaults 1 and 10,000.
	Min, Max int

	// Queue is how many calls may wait. Default: the limit, but at least 4. If it is negative, no
	// call waits.
	Queue int
	// Interval is how long a burst may last, and how long a call may wait in it. If calls have been
	// waiting for longer, it is an overload. Interval is at least ten times Target. Default 100 ms.
	Interval time.Duration
	// Target is how long calls may wait in an overload. Default: a quarter of the duration of a
	// call, at least 1 ms.
	Target time.Duration

	// Methods are the names of the limited methods. Default: all methods.
	Methods []string
	// PerMethod gives each method its own limit. Default false: all methods share one limit.
	PerMethod bool
	// Streams limits streams too, for as long as each lasts. Default false.
	Streams bool

	// Name distinguishes the limiters of a client, server or endpoint. The learned limit and the
	// queue belong to the name. They survive a change of the chain and of the options. Two limiters
	// in one chain must not have the same name. Default: derived from Methods, PerMethod and
	// whether the limit is learned.
	Name string

	endpoint *yodel.Endpoint // the endpoint of the limit; nil if there is none
}

// Lower bounds of derived values.
const (
	leastTarget = time.Millisecond
	leastQueue  = 4
)

// forever is longer than any wait, and short enough that sums do not overflow.
const forever = 1 << 55 * time.Nanosecond // a year

// Concurrency lets at most n calls run at a time. An n below 1 counts as 1.
func Concurrency(n int) yodel.Middleware { return With(&Options{Limit: max(n, 1)}) }

// Adaptive learns how many calls may run at a time. It ignores o.Limit. It does not learn from a
// call that ended because its caller gave it less time than its method usually takes. Nil means the
// default Options.
func Adaptive(o *Options) yodel.Middleware {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Limit = 0
	return With(&opts)
}

// With limits calls as o says. Nil means the default Options.
func With(o *Options) yodel.Middleware {
	opts, what := o.complete(), o.describe()
	return func(next yodel.Handler) yodel.Handler {
		var known atomic.Pointer[group] // of the client or server with this chain
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

// PerEndpoint limits the attempts on each endpoint of a client as o says. Nil means the default
// Options. The learned limit and the queue belong to the endpoint.
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

// complete returns o with its defaults filled in.
func (o *Options) complete() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Limit = min(max(opts.Limit, 0), maxLimit)
	opts.Max = min(defaults.Positive(opts.Max, 10_000), maxLimit)
	opts.Min = min(defaults.Positive(opts.Min, 1), opts.Max)
	opts.Initial = min(max(defaults.Positive(opts.Initial, 20), opts.Min), opts.Max)
	opts.Interval = min(defaults.Positive(opts.Interval, 100*time.Millisecond), forever)
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

// describe returns a readable name of what is limited.
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

// groups holds the groups of a client, a server or an endpoint by name.
type groups struct {
	mu     sync.Mutex
	byName map[string]*group
}

type groupsKey struct{}

// groupsIn returns the groups in the state of a call or an endpoint.
func groupsIn(state func(key any, create func() any) any) *groups {
	return state(groupsKey{}, func() any { return &groups{byName: make(map[string]*group)} }).(*groups) //nolint:forcetypeassert // nobody else has the key
}

// group returns the group with the name in o, and sets its options. what describes the limited
// calls.
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

// A group is the limiters with the same name: a single limiter, or one for each method.
type group struct {
	what string
	// common is for all methods, or for the methods beyond maxMethods; nil until needed.
	common atomic.Pointer[limiter]
	each   atomic.Bool

	mu      sync.Mutex
	opts    Options
	methods sync.Map // of *limiter, by method
	n       int      // the number of limiters in methods
}

// maxMethods bounds how many methods have their own limiter, because callers choose the names.
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

// limiters returns all limiters of the group.
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
