// SPDX-License-Identifier: Apache-2.0

// Package outlier takes endpoints out of use that are much worse than the others of the same client
// (outlier ejection): endpoints that fail, are slow, or do not answer. It judges endpoints by the
// calls of the client (passive checks). Package health makes calls of its own (active checks).
//
// It is an EndpointMiddleware of the client, because each attempt counts. Use it once in a chain,
// outermost or just below a breaker. Its state is kept on the endpoints and the client, and
// survives a change of the chain.
//
// Every call ends well or badly. Ten times a second the middleware compares the endpoints' shares
// of bad calls. It ejects an endpoint if its share is much larger than the median and that is very
// unlikely to be chance. An ejected endpoint is not ready (see yodel.Endpoint.SetReady). A problem
// that all endpoints have in common causes no ejection. These calls are bad:
//
//	failed   Unavailable, DeadlineExceeded, Internal, DataLoss, Unknown, Unimplemented and ResourceExhausted, unless Options.Failure says otherwise (see
//	         Failed). The last three may have causes other than the server, but then the other servers return them as often
//	         A call that ran into its caller's deadline before good answers of its method usually come (or 100 ms, before the first one) counts neither way
//	slow     a good answer that took three times as long as usual, and 10 ms more. Usual is the median of the endpoints' (geometric) mean times
//	late     the caller gave up (Canceled) after it had waited longer than usual. A hedge cancels the slower attempt in this way
//	overdue  a call without an answer for as long as makes a call slow: the server hangs, or the network drops everything. Up to twice as many of these
//	         as most endpoints have are normal
//
// One-way calls, the built-in methods (such as yodel.Health) and refusals by the client itself are
// not counted. A broken connection makes an endpoint unready by itself. Streams and ordered calls
// may take any time, and count only as failures in a row.
//
// Two rules judge an endpoint by itself. The first counts failures in a row (5, of the first four
// codes). It needs no comparison, and does not apply if half of all calls are bad. The second
// applies if nearly all calls of an endpoint fail, which takes about 20 of them. It helps when most
// endpoints are bad and the median says nothing.
//
// An ejection ends after a while, which grows with each ejection. The endpoint must then answer a
// ping. After that it gets one call at a time (a trial). It is in use again after about three good
// calls, or ejected for longer after about one bad call. It is also in use again if the trial has
// no result for about four seconds, because there were no calls or because a call is still running.
// So an endpoint that is still bad costs one call, and an unreachable endpoint costs none. Ejection
// refuses no call: pinned calls still reach the endpoint.
//
// At most three of ten endpoints are ejected, but always at least one of several. An endpoint is
// not ejected if that would leave less than half of the endpoints ready, for any reason. If less
// than half are ready, the ejected ones return. If even fewer are ready, balancers use all
// endpoints (see also balance.Panic).
//
// The rules in a row and by percentage, the maximum share and the growing time are those of Envoy's
// outlier detection. Envoy's third rule is a success rate below the mean minus 1.9 deviations. It
// misses three bad endpoints among ten, because they move the mean and the deviation, and it ejects
// an endpoint where a single call of a hundred has failed. This package uses the median and its
// deviation, and E. S. Page's cumulative sum (Continuous inspection schemes, Biometrika 1954), the
// test that finds a change soonest for a given rate of false alarms: one in a million. A. Wald's
// sequential probability ratio test decides about the return.
//
// Up to 1,280 calls a second of each endpoint are all measured, and each reads the clock twice. Of
// more calls, a random sample of about that size is measured.
package outlier

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes which endpoints are ejected, and for how long. The zero value has sensible
// defaults.
type Options struct {
	// MaxEjected is the largest share of the endpoints that may be ejected at a time, above 0 and
	// at most 1. One endpoint may always be ejected. Default 0.3.
	MaxEjected float64
	// Margin is by how much the share of bad calls of an endpoint must exceed the median, above 0
	// and below 1. Default 0.25.
	Margin float64
	// Errors is how many calls in a row must fail for an immediate ejection. A negative value turns
	// this rule off. Default 5.
	Errors int
	// Slow is how many times the usual duration makes a call slow, more than 1. A negative value
	// means that no call is slow. Default 3.
	Slow float64
	// SlowBy is by how much a slow call must exceed the usual duration at least. Default 10 ms.
	SlowBy time.Duration
	// Ejection is how long an endpoint is ejected the first time. A random part of up to a fifth is
	// added or subtracted. The time doubles if the endpoint is ejected again before it was in use
	// for twice as long. Default 1 s.
	Ejection time.Duration
	// MaxEjection bounds the time of an ejection. Default 30 s, or Ejection if that is longer.
	MaxEjection time.Duration
	// Failure reports whether an error is the server's fault. Err is never nil. Default Failed.
	Failure func(err error) bool
	// OnEject is called when an endpoint is ejected, with the reason and the duration, and when it
	// is in use again, with a duration of 0. It must be short. Default none.
	OnEject func(ep *yodel.Endpoint, why string, d time.Duration)
}

// Eject ejects endpoints that are worse than the others, as o says. Nil means the default Options.
func Eject(o *Options) yodel.EndpointMiddleware {
	p := o.withDefaults()
	return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		m := memberOf(ep)
		return func(ctx context.Context, call *yodel.Call) error {
			if mask := m.mask.Load(); mask != 0 && rand.Uint32()&mask != 0 || !measured(call) {
				began := unmeasured
				if m.usual.Measure() {
					began = m.clock()
				}
				err := next(ctx, call)
				if err == nil && began != unmeasured {
					now := m.clock()
					m.usual.Succeeded(call.Method, now, now-began)
				}
				if err != nil || m.row.Load() != 0 {
					m.unmeasured(ctx, p, call, began, err)
				}
				return err
			}
			return m.measure(ctx, p, call, next)
		}
	}
}

func (o *Options) withDefaults() *Options {
	var p Options
	if o != nil {
		p = *o
	}
	if !(p.MaxEjected > 0) { // nor NaN
		p.MaxEjected = 0.3
	}
	p.MaxEjected = min(p.MaxEjected, 1)
	if !(p.Margin > 0 && p.Margin < 1) {
		p.Margin = 0.25
	}
	if p.Errors == 0 {
		p.Errors = 5
	}
	if !(p.Slow < 0 || p.Slow > 1) {
		p.Slow = 3
	}
	if p.SlowBy <= 0 {
		p.SlowBy = 10 * time.Millisecond
	}
	if p.Ejection <= 0 {
		p.Ejection = time.Second
	}
	if p.MaxEjection <= 0 {
		p.MaxEjection = 30 * time.Second
	}
	p.MaxEjection = max(p.MaxEjection, p.Ejection)
	if p.Failure == nil {
		p.Failure = Failed
	}
	return &p
}

// Failed reports whether an error is the server's fault by default, as the package comment
// describes. Options.Failure may call it.
func Failed(err error) bool {
	e, ok := errors.AsType[*yodel.Error](err)
	if ok && e.AboutMessage() {
		return false
	}
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded, yodel.Internal, yodel.DataLoss, yodel.Unknown, yodel.Unimplemented:
		return true
	case yodel.ResourceExhausted:
		return ok && e.NotProcessed // else it is a quota of the caller's
	default:
		return false
	}
}

// certain reports whether a failure counts towards the failures in a row.
func certain(err error) bool {
	if yodel.NotProcessed(err) {
		return false
	}
	switch yodel.CodeOf(err) {
	case yodel.Unavailable, yodel.DeadlineExceeded, yodel.Internal, yodel.DataLoss:
		return true
	default:
		return false
	}
}

// own reports whether an error is one of the client's own refusals, which say nothing about the
// server. The error for a full window is an exception, because a slow server can be its cause.
func own(err error) bool {
	e, ok := errors.AsType[*yodel.Error](err)
	return ok && e.NotProcessed && (e.OfClient() || e.AboutConnection() || e.Stale())
}

// unmeasured is the beginning of a call that is not measured.
const unmeasured time.Duration = -1

// measured reports whether a call should end soon, so that its duration counts.
func measured(call *yodel.Call) bool {
	return !call.OneWay && !call.Ordered && !call.Streams() && !strings.HasPrefix(call.Method, "yodel.")
}
