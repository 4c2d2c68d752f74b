// SPDX-License-Identifier: Apache-2.0

// Command lineecho serves a protocol of its own on the port of a yodel server. The protocol is in
// protocol.go; docs/protocols.md explains it.
//
//	go run ./examples/lineecho
//
// It prints:
//
//	yodel     6 * 7 = 42
//	lineecho  Arith.Mul {"A":6,"B":7} → ok 42
//	lineecho  Arith.Div {"A":6,"B":0} → error invalid_argument: division by zero
//	lineecho  Arith.Pow {"A":6,"B":7} → error unimplemented: Arith.Pow: service "Arith" has no method "Pow" [YDL2002]
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/yodel-rpc/yodel"
)

// Args are two numbers.
type Args struct{ A, B int }

// The methods of the service.
const (
	Mul yodel.Method[Args, int] = "Arith.Mul"
	Div yodel.Method[Args, int] = "Arith.Div"
)

// region server

func newServer() *yodel.Server {
	s := yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{LineEcho{}},
	})
	Mul.Handle(s, func(_ context.Context, a *Args) (*int, error) { return new(a.A * a.B), nil })
	Div.Handle(s, func(_ context.Context, a *Args) (*int, error) {
		if a.B == 0 {
			return nil, yodel.Errorf(yodel.InvalidArgument, "division by zero")
		}
		return new(a.A / a.B), nil
	})
	return s
}

// endregion server

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- newServer().Serve(ctx, l) }()

	c := yodel.Dial(l.Addr().String())
	product, err := Mul.Call(ctx, c, &Args{6, 7})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("yodel     6 * 7 = %d\n", *product)
	c.Close()
	if err := talk(ctx, l.Addr().String()); err != nil {
		log.Fatal(err)
	}

	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

// talk sends lines to the server, and prints its replies.
func talk(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	replies := bufio.NewReader(conn)
	for _, line := range []string{`Arith.Mul {"A":6,"B":7}`, `Arith.Div {"A":6,"B":0}`, `Arith.Pow {"A":6,"B":7}`} {
		if _, err = io.WriteString(conn, line+"\n"); err != nil {
			return err
		}
		reply, err := replies.ReadString('\n')
		if err != nil {
			return err
		}
		fmt.Printf("lineecho  %s → %s", line, reply)
	}
	return nil
}
