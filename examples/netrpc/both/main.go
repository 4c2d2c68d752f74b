// SPDX-License-Identifier: Apache-2.0

// Command both serves Arith by net/rpc and by yodel, each at its own address, for as long as some
// clients still use net/rpc.
//
//	go run ./examples/netrpc/both
//
// It prints:
//
//	net/rpc: 56 <nil>
//	yodel: 56 <nil>
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/rpc"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/netrpc"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	old, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}

	// region both
	arith := new(netrpc.Arith)
	before, after := rpc.NewServer(), yodel.NewServer(nil)
	if err := errors.Join(before.Register(arith), after.Register(arith)); err != nil {
		log.Fatal(err)
	}
	go before.Accept(old) // clients that have not moved yet
	served := make(chan error)
	go func() { served <- after.Serve(ctx, l) }()
	// endregion both

	callBefore(old.Addr().String())
	callAfter(ctx, l.Addr().String())
	stop()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
}

func callBefore(addr string) {
	client, err := rpc.Dial("tcp", addr)
	if err != nil {
		log.Fatal(err)
	}
	var product int
	err = client.Call("Arith.Mul", netrpc.Args{A: 7, B: 8}, &product)
	fmt.Println("net/rpc:", product, err)
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
}

func callAfter(ctx context.Context, addr string) {
	client := yodel.Dial(addr)
	defer client.Close()
	var product int
	err := client.Call(ctx, "Arith.Mul", netrpc.Args{A: 7, B: 8}, &product)
	fmt.Println("yodel:", product, err)
}
