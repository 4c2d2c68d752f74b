// SPDX-License-Identifier: Apache-2.0

package recovery_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/recovery"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("arith")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(&yodel.ServerOptions{
		Middleware: []yodel.Middleware{
			recovery.With(func(_ context.Context, call *yodel.Call, value any, _ []byte) error {
				fmt.Printf("to the tracker: %s: %v\n", call.Method, value)
				return yodel.Errorf(yodel.Internal, "%s failed, and we have been told", call.Method)
			}),
		},
	})
	server.Handle("Arith.Div", func(a, b int) int { return a / b })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("arith"), &yodel.ClientOptions{Transport: network})
	var quotient int
	fmt.Println(client.Call(ctx, "Arith.Div", yodel.Values{1, 0}, yodel.Values{&quotient}))

	client.Close()
	stop()
	<-served
	// Output:
	// to the tracker: Arith.Div: runtime error: integer divide by zero
	// internal: Arith.Div failed, and we have been told
}
