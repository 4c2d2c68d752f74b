// SPDX-License-Identifier: Apache-2.0

package protobuf_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
)

// A service whose messages are Protocol Buffers. Here they are wrappers that come with protobuf.
// Use the types that protoc-gen-go makes of your own messages.
func Example_service() {
	// region contract
	const Greet yodel.Method[wrapperspb.StringValue, wrapperspb.StringValue] = "Hello.Greet"
	// endregion contract

	// region server
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}})
	Greet.Handle(s, func(_ context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
		return wrapperspb.String("hello " + in.GetValue()), nil
	})
	// endregion server
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()

	addr := l.Addr().String()
	// region client
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Codec: protobuf.Codec})
	reply, err := Greet.Call(ctx, c, wrapperspb.String("Ann"))
	// endregion client
	if err == nil {
		fmt.Println(reply.GetValue())
	}

	c.Close()
	stop()
	fmt.Println(err, <-served)
	// Output:
	// hello Ann
	// <nil> <nil>
}
