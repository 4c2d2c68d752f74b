// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

// A Calculator is the service
//
//	service Calculator {
//		i32 add(1: i32 a, 2: i32 b)
//		i32 divide(1: i32 a, 2: i32 b) throws (1: ZeroError error)
//	}
type Calculator struct{}

func (Calculator) Add(_ context.Context, a, b int32) (int32, error) { return a + b, nil }

func (Calculator) Divide(_ context.Context, a, b int32) (int32, error) {
	if b == 0 {
		return 0, &ZeroError{Dividend: a}
	}
	return a / b, nil
}

// A server that unchanged Thrift clients call, and a client that calls unchanged Thrift servers.
func Example() {
	throws := thrift.Throws{"Calculator.Divide": {1: (*ZeroError)(nil)}}
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{codec.Codec, codec.Compact},
		Protocols: []yodel.Protocol{thrift.New(&thrift.Options{Service: "Calculator", Throws: throws})},
	})
	if err := server.Register(Calculator{}); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("thrift://"+l.Addr().String()), &yodel.ClientOptions{
		Codec: codec.Codec,
		Wires: []yodel.Wire{thrift.Wire(codec.Codec, &thrift.WireOptions{
			Service: "Calculator",
			Throws:  thrift.Throws{"Calculator.divide": throws["Calculator.Divide"]},
		})},
	})
	var result int32
	err = client.Call(ctx, "Calculator.add", yodel.Values{int32(6), int32(7)}, yodel.Values{&result})
	fmt.Println(result, err)
	err = client.Call(ctx, "Calculator.divide", yodel.Values{int32(6), int32(0)}, yodel.Values{&result})
	fmt.Println(err)

	client.Close()
	stop()
	<-ended
	// Output:
	// 13 <nil>
	// unknown: 6 by zero
}
