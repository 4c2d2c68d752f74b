// SPDX-License-Identifier: Apache-2.0

// Package outlier takes endpoints out of use that are much worse than the others of the same
// client: that fail, that are slow, that do not answer at all. It looks at the calls that are made
// anyway (passive checks); package health makes calls of its own (active checks).
//
// It is an EndpointMiddleware of the client, because each attempt counts, and belongs once into a
// chain, outermost or just below a breaker. What it knows is kept on the endpoints and the client,
// and outlives a change of the chain.
//
// Every call ends well or badly. Ten times a second the shares of bad calls are compared, and an
// endpoint is ejected, which is to say not ready (see yodel.Endpoint.SetReady), when its share is
// much larger than the median of all of them, and that can hardly be chance. What is bad with all
// of them alike ejects nobody. Bad are:
//
//	failed   Unavailable, DeadlineExceeded, Internal, DataLoss, Unknown, Unimplemented and ResourceExhausted, unless Options.Failure says otherwise (see
//	         Failed). The last three may be no fault of the server's, but then the others return them as often
//	slow     a good answer that took three times as long as usual, and 10 ms more. Usual is the median of the endpoints' (geometric) mean times
//	late     the caller gave up (Canceled) when it had waited for longer than usual. A hedge does so to the slower attempt
//	overdue  nothing was heard of a call for as long as makes one slow: the server hangs, or the network swallows everything. Of these, twice as many as most
//	         have are nothing special
//
// Not counted are one-way calls, the built-in methods (yodel.Health and its like), and refusals of
// the client's own: what is wrong with connections makes an endpoint unready by itself. Streams and
// ordered calls may take as long as they please, and count only as failures in a row.
//
// Two rules are about an endpoint by itself: failures in a row (5, of the first four codes), which
// need no comparison, unless half of all calls are bad; and that nearly all calls fail, which takes
// some 20 of them, for when most of the endpoints are bad and the median is no measure, and any is
// better.
//
// An ejection ends after a while, which grows. Then the endpoint must answer a ping, and after that
// gets one call at a time, until it has answered so many that it is back for good (about three), or
// so many were bad (about one) that it is ejected for longer. It is back too when the trial has
// told nothing for some four seconds: there were no calls, or one that takes its time as others do.
// So an endpoint that is still bad costs one call, and one that is still not there costs none.
// Ejection refuses no call: those that are pinned go on.
//
// At most three endpoints of ten are ejected, but always one of several, and none when that would
// leave less than half of them ready for whatever reason; when so few are, the ejected ones come
// back. Below that balancers use all (see also balance.Panic).
//
// The rules in a row and by percentage, the maximum share and the growing time are those of Envoy's
// outlier detection. Its third rule, a success rate below the mean minus 1.9 deviations, does not
// see three bad ones among ten, which draw mean and deviation their way, and sees one where a
// single call of a hundred has failed; here it is the median and its deviation, and E. S. Page's
// cumulative sum (Continuous inspection schemes, Biometrika 1954), which is the test that finds a
// change the soonest for a given rate of false alarms: one in a million. A. Wald's sequential
// probability ratio test decides about coming back.
//
// Up to 1,280 calls a second of each endpoint are all looked at, which takes two readings of the
// clock for each; of more, that many, drawn by chance.
package outlier

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes who is ejected, and for how long. The zero value is a good choice.
type Options struct {
	// MaxEjected is the largest share of the endpoints that is ejected at a time, above 0 and at
	// most 1; at least one may be. Default 0.3.
	MaxEjected float64
	// Margin is by how much the share of an endpoint's bad calls must be above the median, above 0
	// and below 1. Default 0.25.
	Margin float64
	// Errors is how many calls in a row must fail for an ejection at once. Less than zero: no
	// number. Default 5.
	Errors int
	// Slow is how many times as long as usual a slow call takes, more than 1. Less than zero: no
	// call is slow. Default 3.
	Slow float64
	// SlowBy is how much longer than usual it takes at least. Default 10 ms.
	SlowBy time.Duration
	// Ejection is how long an endpoint is ejected the first time: a fifth more or less, by chance.
	// It doubles each time that the endpoint is ejected again before it was in use for twice as
	// long. Default 1 s.
	Ejection time.Duration
	// MaxEjection is the longest time. Default 30 s, or Ejection if that is longer.
	MaxEjection time.Duration
	// Failure reports whether an error is the server's fault; err is never nil. Default Failed.
	Failure func(err error) bool
	// OnEject is told when an endpoint is ejected, why and for how long; and that it is back, with
	// a time of 0. It must be short. Default none.
	OnEject func(ep *yodel.Endpoint, why string, d time.Duration)
}

// Eject ejects endpoints that are worse than the others as o says; nil is the default.
func Eject(o *Options) yodel.EndpointMiddleware {
	p := o.withDefaults()
	return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		m := memberOf(ep)
		return func(ctx context.Context, call *yodel.Call) error {
			if mask := m.mask.Load(); mask != 0 && rand.Uint32()&mask != 0 || !measured(call) {
				err := next(ctx, call)
				if err != nil || m.row.Load() != 0 {
					m.unmeasured(p, call, err)
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

// Failed reports whether an error is the server's fault by default: see the package's comment.
// Options.Failure may ask it.
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

// certain reports whether a failure is one of those that count in a row.
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
// server; that its window is full does.
func own(err error) bool {
	e, ok := errors.AsType[*yodel.Error](err)
	return ok && e.NotProcessed && (e.OfClient() || e.AboutConnection() || e.Stale())
}

// measured reports whether a call is one that should end soon.
func measured(call *yodel.Call) bool {
	return !call.OneWay && !call.Ordered && !call.Streams() && !strings.HasPrefix(call.Method, "yodel.")
}
