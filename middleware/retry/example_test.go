// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	const Price yodel.Method[string, int] = "Shop.Price"
	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	var asked atomic.Int32
	for _, addr := range []string{"shop-1", "shop-2"} {
		l, err := network.Listen(addr)
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		Price.Handle(server, func(context.Context, *string) (*int, error) {
			if asked.Add(1) == 1 { // whichever is asked first
				return nil, yodel.Errorf(yodel.Unavailable, "the price list is being loaded")
			}
			price := 7
			return &price, nil
		})
		server.MarkIdempotent(string(Price)) // or it would not be sent again
		go func() { served <- server.Serve(ctx, l) }()
	}

	client := yodel.NewClient(yodel.Static("shop-1", "shop-2"), &yodel.ClientOptions{
		Transport: network,
		Middleware: []yodel.Middleware{
			timeout.After(10 * time.Second), // for all attempts together
			retry.Times(3),
		},
	})
	pear := "pear"
	price, err := Price.Call(ctx, client, &pear)
	fmt.Println(*price, err, asked.Load())

	client.Close()
	stop()
	<-served
	<-served
	// Output:
	// 7 <nil> 2
}
