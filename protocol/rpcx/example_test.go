// SPDX-License-Identifier: Apache-2.0

package rpcx_test

import (
	"context"
	"fmt"
	"net"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
)

const Double yodel.Method[int, int] = "Arith.Double"

// A server serves clients of rpcx on the port of its own clients. Here, the client of rpcx is
// another program that uses yodel.
func Example() {
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{rpcx.Protocol}})
	Double.Handle(s, func(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()

	c := yodel.NewClient(discovery.Static("rpcx://"+l.Addr().String()), &yodel.ClientOptions{
		Wires: []yodel.Wire{rpcx.Wire(yodel.JSON)},
	})
	reply, err := Double.Call(ctx, c, new(21))
	if err == nil {
		fmt.Println(*reply)
	}

	c.Close()
	stop()
	fmt.Println(err, <-served)
	// Output:
	// 42
	// <nil> <nil>
}
