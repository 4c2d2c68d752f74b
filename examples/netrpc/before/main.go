// SPDX-License-Identifier: Apache-2.0

// Command before serves and calls Arith with net/rpc.
package main

import (
	"fmt"
	"log"
	"net"
	"net/rpc"

	"github.com/yodel-rpc/yodel/examples/netrpc"
)

func main() {
	server := rpc.NewServer()
	if err := server.Register(new(netrpc.Arith)); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Accept(l)

	client, err := rpc.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	var product int
	err = client.Call("Arith.Mul", netrpc.Args{A: 7, B: 8}, &product)
	fmt.Println(product, err)

	call := client.Go("Arith.Div", netrpc.Args{A: 17, B: 5}, new(netrpc.Quotient), nil)
	<-call.Done
	fmt.Println(call.Reply, call.Error)

	err = client.Call("Arith.Div", netrpc.Args{A: 17, B: 0}, new(netrpc.Quotient))
	fmt.Println(err)
}
