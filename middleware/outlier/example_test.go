// SPDX-License-Identifier: Apache-2.0

package outlier_test

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/outlier"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	const Price yodel.Method[string, int] = "Shop.Price"
	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	addrs := []string{"shop-1", "shop-2", "shop-3"}
	for _, addr := range addrs {
		l, err := network.Listen(addr)
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		Price.Handle(server, func(context.Context, *string) (*int, error) {
			if addr == "shop-2" {
				return nil, yodel.Errorf(yodel.Internal, "the disk is full")
			}
			price := 7
			return &price, nil
		})
		go func() { served <- server.Serve(ctx, l) }()
	}

	ejected := make(chan string, 1)
	client := yodel.NewClient(discovery.Static(addrs...), &yodel.ClientOptions{
		Transport: network,
		EndpointMiddleware: []yodel.EndpointMiddleware{outlier.Eject(&outlier.Options{
			OnEject: func(ep *yodel.Endpoint, why string, _ time.Duration) { ejected <- ep.Addr() + ": " + why },
		})},
	})
	pear := "pear"
	failed := 0
	for range 15 { // one after the other to each
		if _, err := Price.Call(ctx, client, &pear); err != nil {
			failed++
		}
	}
	fmt.Println(failed)
	fmt.Println(<-ejected)
	for range 15 {
		if _, err := Price.Call(ctx, client, &pear); err != nil {
			fmt.Println(err)
		}
	}

	client.Close()
	stop()
	for range addrs {
		<-served
	}
	// Output:
	// 5
	// shop-2: 5 calls in a row failed
}
