// SPDX-License-Identifier: Apache-2.0

// Command server greets whoever calls it, until Ctrl-C. In two terminals:
//
//	go run ./examples/hello/server
//	go run ./examples/hello/client
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/hello"
)

// region main

func main() {
	addr := flag.String("addr", "127.0.0.1:8972", "where to listen")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	s := yodel.NewServer(nil)
	hello.Greet.Handle(s, func(_ context.Context, in *hello.Request) (*hello.Reply, error) {
		return &hello.Reply{Text: "hello " + in.Name + ", from " + *addr}, nil
	})
	if err := s.ListenAndServe(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

// endregion main
