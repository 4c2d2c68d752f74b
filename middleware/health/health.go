// SPDX-License-Identifier: Apache-2.0

// Package health checks each endpoint at intervals and takes unhealthy ones out of use (active
// health checks).
//
// It is an EndpointMiddleware of the client. It costs calls nothing, because checks are calls of
// their own, on one goroutine for each endpoint. They begin when the client learns of the endpoint,
// even without calls to it, so they also connect to it. An unhealthy endpoint is not ready (see
// yodel.Endpoint.SetReady). The balancer sends calls elsewhere while another endpoint is ready. If
// none is, it sends calls to all of them. Packages outlier and breaker judge an endpoint by its
// calls (passive checks). They are faster, and do not see an endpoint without calls.
//
// A check calls the built-in method yodel.Health, or another method, through the whole chain of the
// client and pinned to the endpoint. So it carries a token if calls carry one. A check fails if
// there is no answer in time, if an error says that something is wrong, or if the answer says that
// the server is not serving. Every other answer counts as healthy, also these errors: the server
// has no such method (Unimplemented), does not permit this client (Unauthenticated,
// PermissionDenied), or is overloaded (ResourceExhausted). Taking an overloaded server out of use
// would move its load to others that may be overloaded too.
package health

import (
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/internal/aside"
)

// Options changes how endpoints are checked. The zero value has sensible defaults.
type Options struct {
	// Every is the time between two checks of an endpoint. A random part of up to a quarter is
	// added or subtracted, so that many clients do not check at once. At least 10 ms. Default 5 s.
	Every time.Duration
	// Timeout is how long an answer may take. Default 1 s, or Every if that is shorter.
	Timeout time.Duration
	// Method is the method to call, without arguments. Default "yodel.Health", whose answer says
	// whether the server is serving. For another method, any answer counts as healthy.
	Method string
	// Failures is how many checks in a row must fail before the endpoint is taken out of use. If
	// the very first check fails, that is enough. Default 2.
	Failures int
	// Successes is how many checks in a row must succeed before the endpoint is in use again.
	// Default 2.
	Successes int
	// OnChange is called when an endpoint becomes healthy, with a nil error, and when it becomes
	// unhealthy, with the reason. It must be short. Default none.
	OnChange func(ep *yodel.Endpoint, err error)
}

// who is the name under which endpoints are made not ready.
const who = "health"

// Check checks endpoints as o says. Nil means the default Options.
//
// Use it once in a chain. If there are several, the outermost counts. A new chain changes how
// endpoints are checked. A new chain without Check does not end the checks, which go on as long as
// the endpoint exists.
func Check(o *Options) yodel.EndpointMiddleware {
	p := o.withDefaults()
	return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		c := ep.State(checkerKey{}, func() any { return &checker{ep: ep} }).(*checker) //nolint:forcetypeassert // nobody else has the key
		if c.options.Swap(p) == nil {
			ep.Go(c.run)
		}
		return next
	}
}

func (o *Options) withDefaults() *Options {
	var p Options
	if o != nil {
		p = *o
	}
	if p.Every <= 0 {
		p.Every = 5 * time.Second
	}
	p.Every = min(max(p.Every, leastEvery), mostEvery)
	if p.Timeout <= 0 {
		p.Timeout = min(time.Second, p.Every)
	}
	if p.Method == "" {
		p.Method = builtIn
	}
	if p.Failures <= 0 {
		p.Failures = 2
	}
	if p.Successes <= 0 {
		p.Successes = 2
	}
	return &p
}

// builtIn is the health method of package inspect.
const builtIn = "yodel.Health"

const (
	leastEvery = 10 * time.Millisecond            // more frequent checks would be a load
	mostEvery  = time.Duration(math.MaxInt64 / 4) // sums with it do not overflow
)

type checkerKey struct{}

// A checker checks an endpoint.
type checker struct {
	ep      *yodel.Endpoint
	options atomic.Pointer[Options]

	// Owned by the goroutine of run.
	known bool // a check has been made
	ill   bool
	row   int // consecutive checks that contradict the current state
}

// firstCheck bounds the wait before the first check.
const firstCheck = time.Second

// run checks the endpoint until ctx ends.
func (c *checker) run(ctx context.Context) {
	p := c.options.Load()
	wait := rand.N(min(p.Every, firstCheck))
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		p = c.options.Load()
		err := c.check(ctx, p)
		if ctx.Err() != nil {
			return
		}
		c.learn(p, err)
		wait = p.Every*3/4 + rand.N(p.Every/2+1)
	}
}

// check makes one check. An error says why the endpoint is unhealthy.
func (c *checker) check(ctx context.Context, p *Options) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	health := introspect.Health{Serving: true}
	call := &yodel.Call{
		Method: p.Method, Args: &struct{}{}, Endpoint: c.ep,
		Idempotent: true, NoWait: true, Criticality: criticality.Critical,
	}
	if p.Method == builtIn {
		health.Serving = false // false unless the answer sets it
		call.Reply = &health
	}
	err := c.ep.Client().Do(ctx, call)
	switch yodel.CodeOf(err) {
	case yodel.Unimplemented, yodel.Unauthenticated, yodel.PermissionDenied, yodel.ResourceExhausted:
		return nil
	default:
		if err == nil && !health.Serving {
			return yodel.Errorf(yodel.Unavailable, "%s: %s says that it is not serving", p.Method, c.ep.Addr())
		}
		return err
	}
}

// learn records the result of a check.
func (c *checker) learn(p *Options, err error) {
	if ill := err != nil; ill == c.ill {
		c.row, c.known = 0, true
		return
	}
	c.row++
	enough := p.Failures
	switch {
	case c.ill:
		enough = p.Successes
	case !c.known:
		enough = 1
	}
	c.known = true
	if c.row < enough {
		return
	}
	c.row, c.ill = 0, err != nil
	e := introspect.Event{Kind: "readmitted", Object: c.ep.Addr(), What: "its checks succeed", By: who}
	if c.ill {
		e.Kind, e.What = "ejected", "its checks fail: "+err.Error()
	}
	c.ep.Client().Note(e)
	c.ep.SetReady(who, !c.ill)
	if p.OnChange != nil {
		// A panic of OnChange is logged.
		_ = aside.Do("health.Options.OnChange", nil, func() { p.OnChange(c.ep, err) })
	}
}
