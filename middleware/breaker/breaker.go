// SPDX-License-Identifier: Apache-2.0

// Package breaker is a circuit breaker: it stops calls to a failing endpoint for a while. Callers
// then do not wait for calls that will fail, and an overloaded server gets time to recover.
//
// It is an EndpointMiddleware of the client. Each endpoint has its own breaker, and each attempt
// counts. Put it outermost among the EndpointMiddleware, so that the outcomes of the others count
// too. Its state is kept on the endpoint, and survives a change of the chain.
//
// A breaker starts closed and lets calls through. It opens when a number of calls in a row fail
// (After), or when a share of the calls within a window fails (Rate). The endpoint is then not
// ready (see yodel.Endpoint.SetReady), so the balancer sends calls elsewhere. Calls that still
// arrive, because they are pinned or no endpoint is ready, are refused with YDL1301 and were not
// executed. After a while the breaker is half open: the endpoint is ready for a few calls, the
// probes. If they succeed, the breaker closes. If one fails, it opens again, for longer each time.
//
// These outcomes count as failures, unless Options.Failure says otherwise (see Failed):
//
//	Unavailable, DeadlineExceeded, DataLoss    yes: the server is in trouble, or cannot be reached
//	Internal                                   yes: something is broken, for example a panic; a reply that cannot be decoded does not count
//	Unknown                                    no: plain errors of handlers have it, and often mean "no such user"
//	any code, certainly not executed           neither failure nor success. A server that refuses excess calls is healthy: to stop all
//	                                           calls to it would also stop the classes of calls that it accepts. A server that drains or
//	                                           cannot be reached is not ready because of its connection, until it is back
//	DeadlineExceeded at the caller's deadline  neither, if the caller gave the server less time than good answers of the method usually take. Before the
//	                                           first good answer, 100 ms are usual
//	Canceled                                   neither: the caller went away. It is a failure if it took as long as Options.Slow
//	every other code                           no: the server has answered, and the caller or the business logic is the cause
//
// One-way calls do not count, because their outcome is unknown. An open breaker refuses them. A
// half-open breaker lets them through while it waits for probes. The built-in methods (such as
// yodel.Health) do not count and are never refused, so a breaker does not block health checks.
//
// A breaker looks at one endpoint by itself. Package outlier compares endpoints with each other.
// Both may be used. When all servers fail, outlier leaves most of them in use, and breakers do not.
//
// The pattern is from Michael Nygard, Release It! (2007). The half-open state with several probes
// and the growing open time are as in Microsoft's Polly and Finagle's failure accrual.
package breaker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/internal/patience"
)

// Options changes when a breaker opens and closes. The zero value opens it when half of the calls
// within 10 s fail.
type Options struct {
	// Errors is how many calls in a row must fail. Default 0: this condition is off.
	Errors int
	// Share is the share of the calls within Window that must fail, above 0 and at most 1. Default
	// 0.5, or off when Errors is set.
	Share float64
	// Window is the time over which Share is measured, in steps of a tenth of it. Default 10 s.
	Window time.Duration
	// MinCalls is how many calls Window must contain before Share counts. Default 20.
	MinCalls int
	// Slow makes calls that take at least this long count as failed, whatever they return. Streams
	// are never slow. It costs two readings of the clock for each call. Default off.
	Slow time.Duration
	// Open is how long a breaker stays open the first time. A random part of up to a fifth is added
	// or subtracted, so that many clients do not return at once. The time doubles each time a probe
	// fails. It is Open again after the breaker was closed for as long as it was open before.
	// Default 1 s.
	Open time.Duration
	// MaxOpen bounds the time that a breaker stays open. Default 30 s, or Open if that is longer.
	MaxOpen time.Duration
	// Probes is how many calls must succeed while the breaker is half open, and how many it lets
	// through. A probe without an outcome for as long as the breaker was open is replaced by
	// another. Default 3.
	Probes int
	// Failure reports whether an error counts as a failure. Err is never nil. It is not asked about
	// calls whose callers left the server too little time. Default Failed.
	Failure func(err error) bool
	// OnChange is called for each change of a breaker's state: "open", with the reason and the
	// duration, "half-open" and "closed". The changes of one breaker are reported in order, one
	// after the other. OnChange must be short. A panic in it is logged. Default none.
	OnChange func(ep *yodel.Endpoint, state, why string, d time.Duration)
	// Name distinguishes several breakers of an endpoint. The endpoint is made not ready under this
	// name. Default "breaker".
	Name string
}

// After opens the breaker of an endpoint for d when n calls in a row have failed. It stays open for
// longer if the endpoint does not recover.
func After(n int, d time.Duration) yodel.EndpointMiddleware {
	return With(&Options{Errors: max(n, 1), Open: d})
}

// Rate opens the breaker of an endpoint when a share of the calls fails, between 0 and 1. It needs
// at least 20 calls within 10 s, unless o says otherwise. O may be nil.
func Rate(share float64, o *Options) yodel.EndpointMiddleware {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Share = share
	if !(share > 0) { // nor NaN
		opts.Share = defaultShare
	}
	return With(&opts)
}

// With opens the breaker of an endpoint as o says. Nil means the default Options.
func With(o *Options) yodel.EndpointMiddleware {
	p := o.withDefaults()
	return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		return handler(p, circuitOf(ep, p.Name), next)
	}
}

const defaultShare = 0.5

func (o *Options) withDefaults() *Options {
	var p Options
	if o != nil {
		p = *o
	}
	p.Errors = max(p.Errors, 0)
	if !(p.Share > 0) { // nor NaN
		p.Share = 0
		if p.Errors == 0 {
			p.Share = defaultShare
		}
	}
	p.Share = min(p.Share, 1)
	if p.Window < buckets {
		p.Window = 10 * time.Second
	}
	if p.MinCalls <= 0 {
		p.MinCalls = 20
	}
	p.Slow = max(p.Slow, 0)
	if p.Open <= 0 {
		p.Open = time.Second
	}
	if p.MaxOpen <= 0 {
		p.MaxOpen = 30 * time.Second
	}
	p.MaxOpen = max(p.MaxOpen, p.Open)
	if p.Probes <= 0 {
		p.Probes = 3
	}
	if p.Failure == nil {
		p.Failure = Failed
	}
	if p.Name == "" {
		p.Name = "breaker"
	}
	return &p
}

// Failed reports whether an error counts as a failure by default. The package comment lists these
// errors. Options.Failure may call Failed.
func Failed(err error) bool {
	e, ok := errors.AsType[*yodel.Error](err)
	if ok && e.NotProcessed {
		return false
	}
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded, yodel.DataLoss:
		return true
	case yodel.Internal:
		return !ok || !e.AboutMessage()
	default:
		return false
	}
}

// unmeasured is the beginning of a call that is not measured.
const unmeasured time.Duration = -1

// handler lets calls through c and records their outcomes. With a closed breaker, a call that
// succeeds costs three atomic loads and a random number, and one addition with a window. Few calls
// are measured: see patience.Times. The others read no clock and take no lock.
func handler(p *Options, c *circuit, next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		word := c.word.Load()
		if word&stateMask != closed || call.OneWay || p.Slow > 0 || builtIn(call.Method) {
			return c.unusual(ctx, p, call, next)
		}
		began := unmeasured
		if c.times.Measure() {
			began = c.clock()
		}
		err := next(ctx, call)
		if err != nil {
			c.ended(p, word, c.outcome(ctx, p, call, began, err, false), err)
			return err
		}
		if began != unmeasured {
			now := c.clock()
			c.times.Succeeded(call.Method, now, now-began)
		}
		c.succeeded(p)
		return nil
	}
}

// builtIn reports whether a method is one of the built-in methods.
func builtIn(method string) bool { return strings.HasPrefix(method, "yodel.") }

// unusual handles a call while the breaker is not closed, and the rarer outcomes while it is
// closed.
func (c *circuit) unusual(ctx context.Context, p *Options, call *yodel.Call, next yodel.Handler) error {
	if builtIn(call.Method) {
		return next(ctx, call)
	}
	word, err := c.admit(p, call)
	if err != nil {
		return err
	}
	if call.OneWay {
		return next(ctx, call)
	}
	began := c.clock()
	err = next(ctx, call)
	now := c.clock()
	slow := p.Slow > 0 && !call.Streams() && now-began >= p.Slow
	if err == nil && c.times.Measure() {
		c.times.Succeeded(call.Method, now, now-began)
	}
	if err == nil && !slow && word&stateMask == closed {
		c.succeeded(p)
		return nil
	}
	c.ended(p, word, c.outcome(ctx, p, call, began, err, slow), err)
	return err
}

// An outcome says what a call reveals about the health of its server.
type outcome int

const (
	good outcome = iota
	bad
	neither
)

// impatient reports whether a call failed because its caller gave the server less time than the
// method usually takes.
func (c *circuit) impatient(ctx context.Context, call *yodel.Call, began time.Duration, err error) bool {
	if !patience.AtDeadline(ctx, call, err) {
		return false
	}
	now, took := c.clock(), unmeasured
	if began != unmeasured {
		took = now - began
	}
	return c.times.Impatient(call.Method, now, took)
}

func (c *circuit) outcome(ctx context.Context, p *Options, call *yodel.Call, began time.Duration, err error, slow bool) outcome {
	switch {
	case slow:
		return bad
	case err == nil:
		return good
	case c.impatient(ctx, call, began, err):
		return neither
	case p.Failure(err):
		return bad
	case yodel.CodeOf(err) == yodel.Canceled || yodel.NotProcessed(err):
		return neither
	}
	return good
}
