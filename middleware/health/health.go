// SPDX-License-Identifier: Apache-2.0

// Package health asks each endpoint every now and then whether it is well, and takes those that are
// not out of use.
//
// It is an EndpointMiddleware of the client, and costs calls nothing: the checks are calls of its
// own, on a goroutine of each endpoint (active checks). They begin when the client learns of the
// endpoint, whether or not there are calls to it, so they also connect to it. An endpoint that is
// not well is not ready (see yodel.Endpoint.SetReady): the balancer sends calls elsewhere while
// anybody is ready, and when nobody is, to all of them. What calls find out about an endpoint
// (passive checks) is the matter of packages outlier and breaker, which are faster and do not see
// an endpoint that gets no calls.
//
// A check asks the built-in method yodel.Health, or another one, through the whole chain of the
// client, pinned to the endpoint, so that it has a token if calls have one. Bad is no answer in
// time, any error that says that something is wrong, and an answer that says that the server is not
// serving. Good is every other answer, also that the server knows no such method (Unimplemented),
// does not let this client ask (Unauthenticated, PermissionDenied), or has too much to do
// (ResourceExhausted): it is there, and to take it out of use would give what it does to the
// others, who have too much to do as well.
package health

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/internal/aside"
)

// Options changes how endpoints are checked. The zero value is a good choice.
type Options struct {
	// Every is the time between two checks of an endpoint: a quarter more or less, by chance, so
	// that many clients do not ask at once. At least 10 ms. Default 5 s.
	Every time.Duration
	// Timeout is how long an answer may take. Default 1 s, or Every if that is shorter.
	Timeout time.Duration
	// Method is what is called, without arguments. Default "yodel.Health", whose answer says
	// whether the server is serving; any answer of another one is good.
	Method string
	// Failures is how many checks in a row must be bad before the endpoint is out of use, the first
	// of all excepted: one will do. Default 2.
	Failures int
	// Successes is how many must be good before it is in use again. Default 2.
	Successes int
	// OnChange is told when an endpoint is well again, with a nil error, and when it is not, and
	// why. It must be short. Default none.
	OnChange func(ep *yodel.Endpoint, err error)
}

// who is in whose name endpoints are not ready.
const who = "health"

// Check checks endpoints as o says; nil is the default.
//
// It belongs once into a chain: of several the outermost counts. A new chain changes how endpoints
// are checked. One without Check does not end the checks, which go on for as long as the endpoint
// is there.
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

// builtIn is the method of that name in package inspect.
const builtIn = "yodel.Health"

const (
	leastEvery = 10 * time.Millisecond            // or checks would be a load of their own
	mostEvery  = time.Duration(math.MaxInt64 / 4) // what is reckoned with it does not overflow
)

type checkerKey struct{}

// A checker checks an endpoint.
type checker struct {
	ep      *yodel.Endpoint
	options atomic.Pointer[Options]

	// Of the goroutine that runs.
	known bool // there was a check
	ill   bool
	row   int // checks in a row that say the opposite
}

// firstCheck is how long the first check waits at most.
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
		if c.placed() {
			err := c.check(ctx, p)
			if ctx.Err() != nil {
				return
			}
			c.learn(p, err)
		}
		wait = p.Every*3/4 + rand.N(p.Every/2+1)
	}
}

// placed reports whether the client has put the endpoint in its set. Until then its chain is being
// built.
func (c *checker) placed() bool { return slices.Contains(c.ep.Client().Endpoints(), c.ep) }

// check asks the endpoint once. An error says why it is not well.
func (c *checker) check(ctx context.Context, p *Options) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	health := introspect.Health{Serving: true}
	call := &yodel.Call{
		Method: p.Method, Args: &struct{}{}, Endpoint: c.ep,
		Idempotent: true, NoWait: true, Criticality: criticality.Critical,
	}
	if p.Method == builtIn {
		health.Serving = false // unless it says so
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

// learn takes note of a check.
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
	c.ep.SetReady(who, !c.ill)
	if p.OnChange != nil {
		_ = aside.Do("health.Options.OnChange", nil, func() { p.OnChange(c.ep, err) }) // that it failed is in the log
	}
}
