// SPDX-License-Identifier: Apache-2.0

// Command after serves and calls Arith with yodel.
package main

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/netrpc"
)

const div yodel.Method[netrpc.Args, netrpc.Quotient] = "Arith.Div"

func main() {
	ctx := context.Background()
	server := yodel.NewServer(nil)
	if err := server.Register(new(netrpc.Arith)); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Print(server.Serve(ctx, l)) }()

	client := yodel.Dial(l.Addr().String())
	var product int
	err = client.Call(ctx, "Arith.Mul", netrpc.Args{A: 7, B: 8}, &product)
	fmt.Println(product, err)

	call := div.Go(ctx, client, &netrpc.Args{A: 17, B: 5})
	fmt.Println(call.Get())

	err = client.Call(ctx, "Arith.Div", netrpc.Args{A: 17, B: 0}, new(netrpc.Quotient))
	fmt.Println(err)
}
