// SPDX-License-Identifier: Apache-2.0

package rate_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/rate"
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

	client := yodel.NewClient(yodel.Static("shop"), &yodel.ClientOptions{Transport: network})
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
