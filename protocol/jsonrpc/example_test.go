// SPDX-License-Identifier: Apache-2.0

package jsonrpc_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/rpc"
	std "net/rpc/jsonrpc"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
)

// A server answers a client that writes JSON-RPC 2.0 by hand.
func Example_server() {
	server := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{jsonrpc.Protocol}, Logger: slog.New(slog.DiscardHandler)})
	yodel.Method[Args, int]("Arith.Multiply").Handle(server, func(_ context.Context, a *Args) (*int, error) {
		product := a.A * a.B
		return &product, nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	defer func() {
		stop()
		<-served
	}()

	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	if _, err = io.WriteString(conn, `{"jsonrpc": "2.0", "method": "Arith.Multiply", "params": {"A": 7, "B": 8}, "id": 1}`); err != nil {
		fmt.Println(err)
		return
	}
	reply := make([]byte, 1000)
	n, err := conn.Read(reply)
	fmt.Print(string(reply[:n]), err)
	// Output:
	// {"jsonrpc":"2.0","id":1,"result":56}
	// <nil>
}

// ExampleWire1 calls an unchanged server of net/rpc/jsonrpc.
func ExampleWire1() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	server := rpc.NewServer()
	if err = server.RegisterName("Arith", &Plain{new(Arith)}); err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go server.ServeCodec(std.NewServerCodec(conn))
		}
	}()

	client := yodel.NewClient(discovery.Static("jsonrpc1://"+l.Addr().String()), &yodel.ClientOptions{
		Wires: []yodel.Wire{jsonrpc.Wire1(yodel.JSON)},
	})
	defer client.Close()
	product, err := yodel.Method[Args, int]("Arith.Multiply").Call(context.Background(), client, &Args{A: 7, B: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*product)
	// Output: 56
}
