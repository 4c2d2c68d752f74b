// SPDX-License-Identifier: Apache-2.0

// Package recommended combines the middleware that most clients and servers should have against
// servers that fail, are slow or are overloaded:
//
//	c := yodel.NewClient(r, recommended.Client(&yodel.ClientOptions{Timeout: time.Second}))
//	s := yodel.NewServer(recommended.Server(nil))
//
// It returns options with the middleware in them. To use other parts or another order, write your
// own list. The order of all middleware, with the reasons, is in docs/governance.md.
//
// None of this middleware executes a call twice unless the call is idempotent. A server remembers
// idempotency keys in its process. If a call with a key may have been executed, the client sends it
// again only to that process, and the call fails if the process has ended. To let other servers
// take over, give all of them a shared store: yodel.ServerOptions.Keys with a once.Options.Store.
// The extra load is bounded: retries are at most a tenth of the calls, and hedges a twentieth. The
// root package does the following without a chain: it sends calls that an unavailable server has
// not begun to execute to another endpoint, passes deadlines and budgets on, recovers panics, and
// does not begin work whose deadline has passed.
package recommended

import (
	"slices"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/outlier"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// Client returns the options o with the chain of a client. O may be nil. Below o.Middleware it adds
// two kinds of middleware. Hedging makes a second attempt on another endpoint for calls that may be
// executed twice, when the first attempt is slower than 99 of 100 recent calls (hedge). Retries
// make up to three attempts for all calls that may be repeated (retry). Above o.EndpointMiddleware
// it adds outlier ejection, which avoids endpoints that are much worse than the others (outlier).
// Set o.Timeout: calls without a deadline wait forever.
func Client(o *yodel.ClientOptions) *yodel.ClientOptions {
	var opts yodel.ClientOptions
	if o != nil {
		opts = *o
	}
	opts.Middleware = slices.Concat(opts.Middleware, []yodel.Middleware{hedge.With(nil), retry.With(nil)})
	opts.EndpointMiddleware = slices.Concat([]yodel.EndpointMiddleware{outlier.Eject(nil)}, opts.EndpointMiddleware)
	return &opts
}

// Server returns the options o with the chain of a server. O may be nil. Below o.Middleware, where
// auth is, it adds a concurrency limit for each method, which the server learns. Further calls wait
// briefly or are refused, by class and tenant (limit). Unless o sets Keys, it is once.With(nil):
// the process remembers idempotency keys for 10 minutes.
func Server(o *yodel.ServerOptions) *yodel.ServerOptions {
	var opts yodel.ServerOptions
	if o != nil {
		opts = *o
	}
	opts.Middleware = slices.Concat(opts.Middleware, []yodel.Middleware{
		// The initial limit is high enough for nearly every server. The limiter learns a lower one.
		limit.Adaptive(&limit.Options{Initial: 1000, PerMethod: true}),
	})
	if opts.Keys == nil {
		opts.Keys = once.With(nil)
	}
	return &opts
}
