// SPDX-License-Identifier: Apache-2.0

// Package recommended puts together what most clients and servers should have against servers that
// fail, are slow or have too much to do:
//
//	c := yodel.NewClient(r, recommended.Client(&yodel.ClientOptions{Timeout: time.Second}))
//	s := yodel.NewServer(recommended.Server(nil))
//
// It is options, with the middleware in them; whoever wants other parts, or another order, writes
// down a list of his own. The order of all there are, with the reasons, is docs/governance.md.
//
// None of it executes a call twice that is not idempotent. A server remembers idempotency keys in
// its process: a call with a key that may have been executed is sent again to that process only,
// and fails if that has ended. To let other servers take over, give all of them a shared memory:
// yodel.ServerOptions.Keys with a once.Options.Store. And none makes much of the load that there
// is: retries are a tenth of the calls at most, and hedges a twentieth. What the root does by
// itself needs no chain: calls that were certainly not executed go elsewhere, deadlines and budgets
// go along, panics are recovered, work whose deadline has passed is not begun.
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

// Client returns the options o, which may be nil, with the chain of a client: below o.Middleware,
// for calls that may be executed twice, a second attempt elsewhere when the first one takes longer
// than 99 of 100 lately (hedge), and for all that may be, up to three attempts (retry); above
// o.EndpointMiddleware, endpoints that are much worse than the others are left out for a while
// (outlier). Set o.Timeout: calls without any deadline wait for ever.
func Client(o *yodel.ClientOptions) *yodel.ClientOptions {
	var opts yodel.ClientOptions
	if o != nil {
		opts = *o
	}
	opts.Middleware = slices.Concat(opts.Middleware, []yodel.Middleware{hedge.With(nil), retry.With(nil)})
	opts.EndpointMiddleware = slices.Concat([]yodel.EndpointMiddleware{outlier.Eject(nil)}, opts.EndpointMiddleware)
	return &opts
}

// Server returns the options o, which may be nil, with the chain of a server: below o.Middleware,
// where auth is, no more calls of each method run than the server has learned to be of use, the
// others wait for a moment or are refused, by class and tenant (limit). Keys, unless o has it, is
// once.With(nil): the process remembers idempotency keys for 10 minutes.
func Server(o *yodel.ServerOptions) *yodel.ServerOptions {
	var opts yodel.ServerOptions
	if o != nil {
		opts = *o
	}
	opts.Middleware = slices.Concat(opts.Middleware, []yodel.Middleware{
		// it begins where hardly any server is too small for it, and learns to do with less
		limit.Adaptive(&limit.Options{Initial: 1000, PerMethod: true}),
	})
	if opts.Keys == nil {
		opts.Keys = once.With(nil)
	}
	return &opts
}
