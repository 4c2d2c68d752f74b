// SPDX-License-Identifier: Apache-2.0

package rate_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{
		rate.With(&rate.Limit{PerSecond: 0.5, Burst: 2, By: rate.Tenant}), // each tenant
		rate.PerSecond(10_000), // all of them
	}})
	server.Handle("Shop.Buy", func(what string) string { return "a " + what })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("shop"), &yodel.ClientOptions{Transport: network})
	buy := func(tenant string) {
		var bought string
		err := client.Do(ctx, &yodel.Call{Method: "Shop.Buy", Args: yodel.Values{"pear"}, Reply: yodel.Values{&bought}, Tenant: tenant})
		fmt.Printf("%s: %q, refused: %v, not executed: %v\n", tenant, bought, errors.Is(err, yodel.ResourceExhausted), yodel.NotProcessed(err))
	}
	buy("blue")
	buy("blue")
	buy("blue")
	buy("green")

	client.Close()
	stop()
	<-served
	// Output:
	// blue: "a pear", refused: false, not executed: false
	// blue: "a pear", refused: false, not executed: false
	// blue: "", refused: true, not executed: true
	// green: "a pear", refused: false, not executed: false
}

// A client that keeps to what each of its servers takes: another server may take what one does not.
func ExamplePerEndpoint() {
	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	for _, addr := range []string{"a", "b"} {
		l, err := network.Listen(addr)
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		server.Handle("Shop.Buy", func(what string) string { return "a " + what + " of " + addr })
		go func() { served <- server.Serve(ctx, l) }()
	}

	client := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{
		Transport: network, Balancer: retry.Any, // the first, as long as it is well
		Middleware:         []yodel.Middleware{retry.Times(2)},
		EndpointMiddleware: []yodel.EndpointMiddleware{rate.PerEndpoint(&rate.Limit{PerSecond: 0.5, Burst: 2})},
	})
	for range 5 {
		var bought string
		err := client.Call(ctx, "Shop.Buy", yodel.Values{"pear"}, yodel.Values{&bought})
		fmt.Println(bought, errors.Is(err, yodel.ResourceExhausted))
	}

	client.Close()
	stop()
	<-served
	<-served
	// Output:
	// a pear of a false
	// a pear of a false
	// a pear of b false
	// a pear of b false
	//  true
}
