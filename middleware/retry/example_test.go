// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
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

	client := yodel.NewClient(discovery.Static("shop-1", "shop-2"), &yodel.ClientOptions{
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

// A caller need not wait for what can be done later.
func ExampleLater() {
	const Visited yodel.Method[string, struct{}] = "Log.Visited"
	network := mem.New()
	client := yodel.NewClient(discovery.Static("log"), &yodel.ClientOptions{
		Transport: network,
		Middleware: []yodel.Middleware{
			retry.Later(&retry.LaterOptions{
				Backoff: 50 * time.Millisecond,
				Dropped: func(call *yodel.Call, err error) { fmt.Println("lost:", call.Method, err) },
			}),
		},
	})
	page := "/prices"
	fmt.Println(client.Call(context.Background(), string(Visited), &page, nil)) // there is no server yet

	l, err := network.Listen("log")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	server := yodel.NewServer(nil)
	visited := make(chan string)
	Visited.Handle(server, func(_ context.Context, page *string) (*struct{}, error) {
		visited <- *page
		return nil, nil
	})
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	fmt.Println(<-visited)

	stop()
	<-served
	client.Close()
	// Output:
	// <nil>
	// /prices
}

// All calls go to the first instance while it is there, and to the standby otherwise.
func ExampleAny() {
	client := yodel.NewClient(discovery.Static("primary:8972", "standby:8972"), &yodel.ClientOptions{Balancer: retry.Any})
	defer client.Close()
	fmt.Println(client.Endpoints()[0].Addr())
	// Output:
	// primary:8972
}
