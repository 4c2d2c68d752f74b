// SPDX-License-Identifier: Apache-2.0

// Command auth lets in callers that have a token: for one server the token goes with each call, for
// the other one with the connection, which costs the calls nothing. A token is a secret, so a
// program that is not a demonstration uses TLS.
//
//	go run ./examples/auth
//
// It prints:
//
//	per call        with a token      hello ann
//	per call        with a wrong one  permission_denied
//	per call        without           unauthenticated
//	per connection  with a token      hello ann
//	per connection  with a wrong one  permission_denied
//	per connection  without           unauthenticated
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/auth"
)

// WhoAmI answers with the name of the caller.
const WhoAmI yodel.Method[struct{}, string] = "Hello.WhoAmI"

// users has the owner of each token.
var users = map[string]string{"s3cret": "ann"}

func main() {
	perCall()
	perConnection()
}

// perCall puts the token into the metadata of each call.
func perCall() {
	type userKey struct{}
	check := func(ctx context.Context, _, token string) (context.Context, error) {
		user, ok := users[token]
		if !ok {
			return nil, errors.New("no such token")
		}
		return context.WithValue(ctx, userKey{}, user), nil
	}
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(check)}})
	WhoAmI.Handle(s, func(ctx context.Context, _ *struct{}) (*string, error) {
		greeting := fmt.Sprint("hello ", ctx.Value(userKey{}))
		return &greeting, nil
	})
	serve(s, func(addr string) {
		call("per call        with a token     ", addr, &yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token("s3cret")}})
		call("per call        with a wrong one ", addr, &yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token("guess")}})
		call("per call        without          ", addr, nil)
	})
}

// perConnection sends the token once, when the client connects.
func perConnection() {
	check := func(_ context.Context, _ *yodel.Peer, token string) error {
		if users[token] == "" {
			return errors.New("no such token")
		}
		return nil
	}
	s := yodel.NewServer(&yodel.ServerOptions{Connect: auth.Conn(check)})
	WhoAmI.Handle(s, func(ctx context.Context, _ *struct{}) (*string, error) {
		token := yodel.CallFrom(ctx).Peer().Metadata["authorization"]
		greeting := "hello " + users[token]
		return &greeting, nil
	})
	serve(s, func(addr string) {
		call("per connection  with a token     ", addr, &yodel.ClientOptions{ConnMetadata: auth.ConnToken("s3cret")})
		call("per connection  with a wrong one ", addr, &yodel.ClientOptions{ConnMetadata: auth.ConnToken("guess")})
		call("per connection  without          ", addr, nil)
	})
}

// serve has s serve at any free port while use runs.
func serve(s *yodel.Server, use func(addr string)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, l) }()
	use(l.Addr().String())
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

// call calls WhoAmI and prints the reply, or the code of the error.
func call(what, addr string, o *yodel.ClientOptions) {
	c := yodel.NewClient(discovery.Static(addr), o)
	defer c.Close()
	reply, err := WhoAmI.Call(context.Background(), c, &struct{}{})
	if err != nil {
		fmt.Println(what, yodel.CodeOf(err))
		return
	}
	fmt.Println(what, *reply)
}
