// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/health"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	server.Handle("Shop.Ready", func(context.Context, *struct{}) (*struct{}, error) {
		return nil, yodel.Errorf(yodel.FailedPrecondition, "the price list is not there")
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	changes := make(chan string, 1)
	client := yodel.NewClient(discovery.Static("shop"), &yodel.ClientOptions{
		Transport: network,
		EndpointMiddleware: []yodel.EndpointMiddleware{health.Check(&health.Options{
			Every:    20 * time.Millisecond,
			Method:   "Shop.Ready",
			OnChange: func(ep *yodel.Endpoint, err error) { changes <- fmt.Sprint(ep.Addr(), ": ", err) },
		})},
	})
	fmt.Println(<-changes)
	fmt.Println(client.Endpoints()[0].Ready())

	client.Close()
	stop()
	<-served
	// Output:
	// shop: failed_precondition: the price list is not there
	// false
}
