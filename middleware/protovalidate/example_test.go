// SPDX-License-Identifier: Apache-2.0

package protovalidate_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/protovalidate"
	"github.com/yodel-rpc/yodel/middleware/protovalidate/internal/testpb"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("club")
	if err != nil {
		fmt.Println(err)
		return
	}
	// region server
	rules := &validate.Options{Rules: []func(any) error{protovalidate.Rules(nil)}}
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Middleware: []yodel.Middleware{validate.With(rules)},
	})
	// endregion server
	signUp.Handle(server, func(context.Context, *testpb.Signup) (*testpb.Person, error) { return new(testpb.Person), nil })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("club"), &yodel.ClientOptions{Transport: network, Codec: protobuf.Codec})

	_, err = signUp.Call(ctx, client, &testpb.Signup{Email: "nobody"})
	for _, broken := range validate.Of(err) {
		fmt.Printf("%s breaks the rule %s\n", broken.Field, broken.Rule)
	}

	client.Close()
	stop()
	<-served
	// Output: email breaks the rule string.email
}
