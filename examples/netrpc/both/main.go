// SPDX-License-Identifier: Apache-2.0

// Command both serves Arith to clients of net/rpc and to yodel's, at one address, for as long as
// some clients still use net/rpc. Then it puts the server of net/rpc back.
//
//	go run ./examples/netrpc/both
//
// It prints:
//
//	net/rpc: 56 <nil>
//	yodel: 56 <nil>
//	yodel, in the protocol of net/rpc: 56 <nil>
//	rolled back
//	net/rpc: 56 <nil>
//	yodel, in the protocol of net/rpc: 56 <nil>
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/rpc"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/discovery"
	service "github.com/yodel-rpc/yodel/examples/netrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}

	// region both
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{gob.Codec},
		Protocols: []yodel.Protocol{netrpc.Protocol}, // for clients that have not moved yet
	})
	if err := server.Register(new(service.Arith)); err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	// endregion both

	addr := l.Addr().String()
	callBefore(addr)
	callAfter(addr)
	// region wire
	client := yodel.NewClient(discovery.Static("netrpc://"+addr), &yodel.ClientOptions{Wires: []yodel.Wire{netrpc.Wire(gob.Codec)}})
	// endregion wire
	defer client.Close()
	call("yodel, in the protocol of net/rpc:", client)
	stop()
	if err := <-served; err != nil {
		log.Fatal(err) //nolint:gocritic // the client ends with the program
	}

	fmt.Println("rolled back")
	if l, err = net.Listen("tcp", addr); err != nil {
		log.Fatal(err)
	}
	old := rpc.NewServer()
	if err := old.Register(new(service.Arith)); err != nil {
		log.Fatal(err)
	}
	go old.Accept(l)
	callBefore(addr)
	call("yodel, in the protocol of net/rpc:", client)
}

func callBefore(addr string) {
	client, err := rpc.Dial("tcp", addr)
	if err != nil {
		log.Fatal(err)
	}
	var product int
	err = client.Call("Arith.Mul", service.Args{A: 7, B: 8}, &product)
	fmt.Println("net/rpc:", product, err)
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
}

func callAfter(addr string) {
	client := yodel.Dial(addr)
	defer client.Close()
	call("yodel:", client)
}

func call(name string, client *yodel.Client) {
	var product int
	err := client.Call(context.Background(), "Arith.Mul", service.Args{A: 7, B: 8}, &product)
	fmt.Println(name, product, err)
}
