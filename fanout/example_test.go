// SPDX-License-Identifier: Apache-2.0

package fanout_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/fanout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	const forget yodel.Method[string, int] = "Cache.Forget"

	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	for i := range 2 {
		l, err := network.Listen(fmt.Sprint("cache-", i))
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		forget.Handle(server, func(context.Context, *string) (*int, error) { return &i, nil })
		go func() { served <- server.Serve(ctx, l) }()
	}
	client := yodel.NewClient(discovery.Static("cache-0", "cache-1"), &yodel.ClientOptions{Transport: network})

	key := "user/7"
	receipts, err := fanout.Broadcast(ctx, client, forget, &key, nil)
	for _, r := range receipts {
		fmt.Println(r.Addr, "has forgotten", *r.Reply, r.Err)
	}
	fmt.Println(err)

	client.Close()
	stop()
	<-served
	<-served
	// Output:
	// cache-0 has forgotten 0 <nil>
	// cache-1 has forgotten 1 <nil>
	// <nil>
}
