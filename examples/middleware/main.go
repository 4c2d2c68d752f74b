// SPDX-License-Identifier: Apache-2.0

// Command middleware wraps calls on both sides: a Middleware of the client sees each call once, an
// EndpointMiddleware each attempt and where it goes, and a Middleware of the server sees it before
// the method does.
//
//	go run ./examples/middleware
//
// It prints:
//
//	client    Hello.Greet begins
//	endpoint  attempt 1
//	server    Hello.Greet from ann
//	client    Hello.Greet ends: <nil>
//	client    Hello.Greet begins
//	endpoint  attempt 2
//	client    Hello.Greet ends: unauthenticated: who are you?
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Greet answers a name with a greeting.
const Greet yodel.Method[string, string] = "Hello.Greet"

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{requireName}})
	c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{
		Middleware:         []yodel.Middleware{announce, addName}, // the first one is outermost
		EndpointMiddleware: []yodel.EndpointMiddleware{countAttempts},
	})
	Greet.Handle(s, func(_ context.Context, name *string) (*string, error) {
		greeting := "hello " + *name
		return &greeting, nil
	})
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l) }()

	name := "Bob"
	for _, caller := range []string{"ann", ""} {
		_, _ = Greet.Call(context.WithValue(ctx, callerKey{}, caller), c, &name) // announce prints the error
	}
	c.Close()
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

// announce prints when a call begins and how it ends.
func announce(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		fmt.Println("client   ", call.Method, "begins")
		err := next(ctx, call)
		fmt.Printf("client    %s ends: %v\n", call.Method, err)
		return err
	}
}

type callerKey struct{}

// addName sends the caller's name, which the context holds, along with the request.
func addName(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if caller, _ := ctx.Value(callerKey{}).(string); caller != "" {
			call.Metadata = yodel.Metadata{"caller": caller}
		}
		return next(ctx, call)
	}
}

// countAttempts counts what goes to one endpoint: it is called once for each.
func countAttempts(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
	var attempts atomic.Int64
	return func(ctx context.Context, call *yodel.Call) error {
		fmt.Println("endpoint  attempt", attempts.Add(1))
		return next(ctx, call)
	}
}

// requireName refuses calls without a name, before their arguments are decoded.
func requireName(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		caller := call.Metadata["caller"]
		if caller == "" {
			return yodel.Errorf(yodel.Unauthenticated, "who are you?")
		}
		fmt.Println("server   ", call.Method, "from", caller)
		return next(ctx, call)
	}
}
