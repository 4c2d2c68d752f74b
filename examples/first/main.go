// SPDX-License-Identifier: Apache-2.0

// Command first is a service and its client in one file. In two terminals:
//
//	go run ./examples/first -serve
//	go run ./examples/first
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/yodel-rpc/yodel"
)

// Greet is the contract that the server and the client share: the name of the method, the type of
// its request and the type of its reply.
const Greet yodel.Method[Request, Reply] = "Hello.Greet"

// Request says whom to greet.
type Request struct{ Name string }

// Reply has the greeting.
type Reply struct{ Text string }

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

// serve serves until Ctrl-C, and then lets the calls that it has accepted finish.
func serve(ctx context.Context, addr string) error {
	s := yodel.NewServer(nil)
	Greet.Handle(s, func(_ context.Context, in *Request) (*Reply, error) {
		return &Reply{Text: "hello " + in.Name}, nil
	})
	return s.ListenAndServe(ctx, addr)
}

// call calls the server once and prints its reply.
func call(ctx context.Context, addr string) error {
	c := yodel.Dial(addr)
	defer c.Close()
	reply, err := Greet.Call(ctx, c, &Request{Name: "Ann"})
	if err != nil {
		return err
	}
	fmt.Println(reply.Text)
	return nil
}
