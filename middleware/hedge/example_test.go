// SPDX-License-Identifier: Apache-2.0

package hedge_test

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	const Price yodel.Method[string, int] = "Shop.Price"
	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	for i, addr := range []string{"shop-1", "shop-2"} {
		l, err := network.Listen(addr)
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		Price.Handle(server, func(ctx context.Context, _ *string) (*int, error) {
			if i == 0 { // this one hangs, until it is told that nobody waits any more
				<-ctx.Done()
				return nil, ctx.Err()
			}
			price := 7
			return &price, nil
		})
		go func() { served <- server.Serve(ctx, l) }()
	}

	client := yodel.NewClient(discovery.Static("shop-1", "shop-2"), &yodel.ClientOptions{
		Transport: network,
		Middleware: []yodel.Middleware{
			timeout.After(10 * time.Second),
			hedge.After(5 * time.Millisecond), // or hedge.Percentile(99)
		},
		Idempotent: []string{string(Price)}, // or it would not be hedged
	})
	pear := "pear"
	for range 4 { // whichever shop is asked first
		price, err := Price.Call(ctx, client, &pear)
		fmt.Println(*price, err)
	}

	client.Close()
	stop()
	<-served
	<-served
	// Output:
	// 7 <nil>
	// 7 <nil>
	// 7 <nil>
	// 7 <nil>
}
