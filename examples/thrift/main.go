// SPDX-License-Identifier: Apache-2.0

// Command thrift serves a service of Apache Thrift to Thrift clients and to yodel clients on one
// port, and calls Thrift servers and yodel servers with one client. It needs no generated code.
//
//	go run ./examples/thrift
//
// It prints:
//
//	7 <nil>
//	7 <nil>
//	7 <nil>
//	7 <nil>
//	unknown: 1 by zero; declared: true
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

// region service

// DivideArgs has the arguments of the method divide:
//
//	service Calculator {
//		i32 divide(1: i32 dividend, 2: i32 divisor) throws (1: ZeroError zero)
//	}
type DivideArgs struct {
	_        struct{} `thrift:",args"`
	Dividend int32    `thrift:"dividend,1"`
	Divisor  int32    `thrift:"divisor,2"`
}

// ZeroError is an exception of Thrift.
type ZeroError struct {
	Dividend int32 `thrift:"dividend,1"`
}

// Error implements error.
func (e *ZeroError) Error() string { return fmt.Sprintf("%d by zero", e.Dividend) }

// Divide is the name of the method in Thrift, with its types.
const Divide yodel.Method[DivideArgs, int32] = "Calculator.divide"

// throws has the exceptions that the methods declare, by the numbers of their fields.
var throws = thrift.Throws{string(Divide): {1: (*ZeroError)(nil)}}

func divide(_ context.Context, in *DivideArgs) (*int32, error) {
	if in.Divisor == 0 {
		return nil, &ZeroError{in.Dividend}
	}
	return new(in.Dividend / in.Divisor), nil
}

// endregion service

func main() {
	ctx, stop := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}

	// region server
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{codec.Codec, codec.Compact}, // TBinaryProtocol, TCompactProtocol
		Protocols: []yodel.Protocol{thrift.New(&thrift.Options{Service: "Calculator", Throws: throws})},
	})
	Divide.Handle(s, divide)
	// endregion server
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()

	addr := l.Addr().String()
	old := addr // stands for a server of Apache Thrift
	// region client
	c := yodel.NewClient(discovery.Static("thrift://"+old, addr), &yodel.ClientOptions{
		Codec:            codec.Codec,
		ConnsPerEndpoint: 16, // a connection to a Thrift server carries one call at a time
		Wires:            []yodel.Wire{thrift.Wire(codec.Codec, &thrift.WireOptions{Service: "Calculator", Throws: throws})},
	})
	for range 4 { // two of them go to each server
		quotient, err := Divide.Call(ctx, c, &DivideArgs{Dividend: 56, Divisor: 8})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(*quotient, err)
	}
	// endregion client
	c.Close()

	// region exception
	c = yodel.NewClient(discovery.Static("thrift://"+old), &yodel.ClientOptions{
		Codec: codec.Codec,
		Wires: []yodel.Wire{thrift.Wire(codec.Codec, &thrift.WireOptions{Service: "Calculator", Throws: throws})},
	})
	_, err = Divide.Call(ctx, c, &DivideArgs{Dividend: 1})
	_, declared := errors.AsType[*ZeroError](err)
	// endregion exception
	fmt.Printf("%v; declared: %t\n", err, declared)

	c.Close()
	stop()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
}
