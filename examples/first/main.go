// SPDX-License-Identifier: Apache-2.0

// Command first is a server that clients of yodel, gRPC and HTTP can call, and a Go client of it.
// In two terminals:
//
//	go run ./examples/first -serve
//	go run ./examples/first
//
// The README also calls the server with curl and grpcurl.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// region server

// Greet is the contract that the server shares with Go clients: a name and two types.
const Greet yodel.Method[Request, Reply] = "hello.Greeter.Greet"

// Request and Reply are JSON over HTTP, and messages of Protocol Buffers over gRPC.
type (
	Request struct {
		Name string `json:"name" pb:"1"`
	}
	Reply struct {
		Text string `json:"text" pb:"1"`
	}
)

// serve serves until ctx ends. Then it finishes the calls that it has accepted.
func serve(ctx context.Context, addr string) error {
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{pbstruct.Codec},
		Protocols: []yodel.Protocol{http.New(nil)},
	})
	Greet.Handle(s, func(_ context.Context, in *Request) (*Reply, error) {
		return &Reply{Text: "hello " + in.Name}, nil
	})
	return s.ListenAndServe(ctx, addr)
}

// endregion server

// call calls the server once and prints its reply.
func call(ctx context.Context, addr string) error {
	// region call
	c := yodel.Dial(addr)
	defer c.Close()
	reply, err := Greet.Call(ctx, c, &Request{Name: "Ann"})
	// endregion call
	if err != nil {
		return err
	}
	fmt.Println(reply.Text)
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8972", "the address of the server")
	server := flag.Bool("serve", false, "serve calls instead of making one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	run := call
	if *server {
		run = serve
	}
	if err := run(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}
