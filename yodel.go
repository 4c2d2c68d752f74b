// SPDX-License-Identifier: Apache-2.0

// Package yodel calls Go functions across machines.
//
// A server registers functions, a client calls them by name over one fast connection:
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
// A call is one *Call that goes down a chain of Handler functions and back, the same on both
// sides:
//
//	client                                               server
//	──────                                               ──────
//	Mul.Call(ctx, client, &args)                         your function
//	  │ Middleware          once per call                  ▲ decode
//	  │ balance             picks an *Endpoint             │ method table
//	  │ EndpointMiddleware  once per attempt               │ Middleware
//	  ▼ connection: encode, write ─── Transport ───▶ read ─┘
//
// Whatever treats calls (timeouts, retries, limits, logs) is a Middleware. What a plug-in author
// implements (Codec, Compressor, Transport, Resolver, Balancer) is on one page,
// plugin.go. This package needs the standard library alone.
package yodel
