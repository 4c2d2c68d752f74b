// SPDX-License-Identifier: Apache-2.0

// Package yodel calls Go functions across machines.
//
// A server registers functions. A client calls them by name over one fast connection:
//
//	const Mul yodel.Method[Args, Reply] = "Arith.Mul"
//
//	s := yodel.NewServer(nil)
//	Mul.Handle(s, func(ctx context.Context, in *Args) (*Reply, error) {
//		return &Reply{C: in.A * in.B}, nil
//	})
//	err := s.ListenAndServe(ctx, ":8972")
//
//	c := yodel.Dial("127.0.0.1:8972")
//	reply, err := Mul.Call(ctx, c, &Args{A: 7, B: 8})
//
// A call is one *Call that passes down a chain of Handler functions and back. The chain has the
// same shape on both sides:
//
//	client                                               server
//	──────                                               ──────
//	Mul.Call(ctx, client, &args)                         your function
//	  │ Middleware          once per call                  ▲ decode
//	  │ balance             picks an *Endpoint             │ method table
//	  │ EndpointMiddleware  once per attempt               │ Middleware
//	  ▼ connection: encode, write ─── Transport ───▶ read ─┘
//
// Timeouts, retries, limits and logs are Middleware. The interfaces that plug-ins implement are in
// plugin.go, discovery and compress. This package depends on the standard library only.
package yodel
