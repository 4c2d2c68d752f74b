// SPDX-License-Identifier: Apache-2.0

// Package breaker stops calls to an endpoint that fails, for a while, so that callers do not wait
// for what will fail, and a server that is overwhelmed gets time to recover.
//
// It is an EndpointMiddleware of the client, where each endpoint has a breaker of its own and each
// attempt counts. It belongs outermost among those, so that what the others refuse or make of an
// attempt counts as well. Its state is kept on the endpoint, and outlives a change of the chain.
//
// A breaker is closed at first and lets calls through. It opens when a number of calls in a row
// fail (After), or a share of those within a window (Rate). Then the endpoint is not ready (see
// yodel.Endpoint.SetReady): the balancer sends calls elsewhere. Those that come all the same,
// because they are pinned or nobody else is ready, are refused with YDL1301, certainly not
// executed. After a while it is half open: the endpoint is ready for a few calls, the probes. When
// they succeed, it closes; when one fails, it is open again, for longer each time.
//
// What counts as a failure, unless Options.Failure says otherwise (see Failed):
//
//	Unavailable, DeadlineExceeded, DataLoss    yes: the server is in trouble, or cannot be reached
//	Internal                                   yes: something is broken, a panic for example; but not that a reply cannot be decoded
//	Unknown                                    no: plain errors of handlers have it, which say "no such user" as often as anything else
//	any code, certainly not executed           neither failure nor success. A server that refuses what is too much for it is well: to send it nothing at
//	                                           all would also stop the classes of calls that it does not refuse. A server that drains, or cannot be
//	                                           connected to, is not ready for the connection's own reasons, and is again when it is back.
//	Canceled                                   neither: the caller went away. It is a failure if it took as long as Options.Slow
//	every other code                           no: it is the caller's fault, or a business matter, and the server has answered
//
// One-way calls do not count, because nobody knows how they end. A breaker that is open refuses
// them, and one that is half open lets them through while it waits for probes. The built-in methods
// (yodel.Health and its like) do not count and are never refused, so that a breaker is not in the
// way of health checks.
//
// This is about one endpoint, by itself, and absolute. Package outlier compares endpoints with each
// other; both may be used. When all servers fail, outlier leaves most of them in use, and breakers
// do not.
//
// The pattern is that of Michael Nygard, Release It! (2007); the half-open state with several
// probes and the growing time are as in Microsoft's Polly and Finagle's failure accrual.
package breaker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes when a breaker opens and closes. The zero value is a good choice: half of the
// calls within 10 s.
type Options struct {
	// Errors is how many calls in a row must fail. Default 0: however many.
	Errors int
	// Share is which share of the calls within Window must fail, above 0 and at most 1. Default
	// 0.5, or none when Errors is set.
	Share float64
	// Window is how far back Share looks, in steps of a tenth of it. Default 10 s.
	Window time.Duration
	// MinCalls is how many calls there must be within Window before Share counts. Default 20.
	MinCalls int
	// Slow makes calls that take this long, or longer, count as failed, whatever they return.
	// Streams are never slow. It takes two readings of the clock for each call. Default none.
	Slow time.Duration
	// Open is how long a breaker is open the first time: a fifth more or less, by chance, so that
	// many clients do not come back at once. It doubles each time that a probe fails, and is this
	// again when the breaker was closed for as long as it was open before. Default 1 s.
	Open time.Duration
	// MaxOpen is the longest time. Default 30 s, or Open if that is longer.
	MaxOpen time.Duration
	// Probes is how many calls must succeed when it is half open, which is also how many are let
	// through. Those of which nothing is heard for as long as it was open make room for others.
	// Default 3.
	Probes int
	// Failure reports whether an error counts as a failure; err is never nil. Default Failed.
	Failure func(err error) bool
	// OnChange is told of each change of a breaker's state: "open", why and for how long;
	// "half-open"; and "closed". It is told of the changes of one breaker in order, one after the
	// other, and must be short. A panic in it is logged. Default none.
	OnChange func(ep *yodel.Endpoint, state, why string, d time.Duration)
	// Name tells the breakers of an endpoint apart when a chain has several, and is in whose name
	// the endpoint is not ready. Default "breaker".
	Name string
}

// After opens the breaker of an endpoint when n calls in a row have failed, for d, and longer when
// it does not recover.
func After(n int, d time.Duration) yodel.EndpointMiddleware {
	return With(&Options{Errors: max(n, 1), Open: d})
}

// Rate opens the breaker of an endpoint when a share of the calls fails, between 0 and 1, out of at
// least 20 within 10 s unless o, which may be nil, says otherwise.
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

// With opens the breaker of an endpoint as o says; nil is the default.
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

// Failed reports whether an error counts as a failure by default: see the package's comment.
// Options.Failure may ask it.
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

// handler lets calls through c, and tells it how they end. A call of a closed breaker that succeeds
// costs two loads, and with a window an addition; no clock is read and no lock taken.
func handler(p *Options, c *circuit, next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		word := c.word.Load()
		if word&stateMask != closed || call.OneWay || p.Slow > 0 || builtIn(call.Method) {
			return c.unusual(ctx, p, call, next)
		}
		err := next(ctx, call)
		if err != nil {
			c.ended(p, word, p.outcome(err, false), err)
			return err
		}
		c.succeeded(p)
		return nil
	}
}

// builtIn reports whether a method is one that every server has.
func builtIn(method string) bool { return strings.HasPrefix(method, "yodel.") }

// unusual carries out a call of a breaker that is not closed, and what is less usual of one that
// is.
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
	slow := p.Slow > 0 && !call.Streams() && c.clock()-began >= p.Slow
	if err == nil && !slow && word&stateMask == closed {
		c.succeeded(p)
		return nil
	}
	c.ended(p, word, p.outcome(err, slow), err)
	return err
}

// An outcome is what a call says about its server.
type outcome int

const (
	good outcome = iota
	bad
	neither
)

func (p *Options) outcome(err error, slow bool) outcome {
	switch {
	case slow:
		return bad
	case err == nil:
		return good
	case p.Failure(err):
		return bad
	case yodel.CodeOf(err) == yodel.Canceled || yodel.NotProcessed(err):
		return neither
	}
	return good
}
