// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	const Price yodel.Method[string, int] = "Shop.Price"
	network := mem.New()
	l, err := network.Listen("shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	Price.Handle(server, func(context.Context, *string) (*int, error) {
		return nil, yodel.Errorf(yodel.Unavailable, "the database is down")
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("shop"), &yodel.ClientOptions{
		Transport:          network,
		EndpointMiddleware: []yodel.EndpointMiddleware{breaker.After(3, 10*time.Second)},
	})
	pear := "pear"
	for range 5 {
		_, err := Price.Call(ctx, client, &pear)
		e, _ := errors.AsType[*yodel.Error](err)
		fmt.Println(e.Code, e.ID, e.NotProcessed)
	}

	client.Close()
	stop()
	<-served
	// Output:
	// unavailable  false
	// unavailable  false
	// unavailable  false
	// unavailable YDL1301 true
	// unavailable YDL1301 true
}
