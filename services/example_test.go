// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/services"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	for addr, method := range map[string]yodel.Method[int, string]{"10.0.0.1:8972": place, "10.0.0.2:8972": reserve} {
		l, err := network.Listen(addr)
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		method.Handle(server, func(context.Context, *int) (*string, error) { return new(string(method) + " at " + addr), nil })
		go func() { served <- server.Serve(ctx, l) }()
	}

	addrs := map[string]string{"Orders": "10.0.0.1:8972", "Inventory": "10.0.0.2:8972"}
	all := services.New(
		func(service string) discovery.Resolver { return discovery.Static(addrs[service]) }, // or the method Service of a registry
		&services.Options{Client: func(string) *yodel.ClientOptions { return &yodel.ClientOptions{Transport: network} }},
	)
	defer all.Close()
	for _, method := range []yodel.Method[int, string]{place, reserve} {
		reply, err := method.Call(ctx, all, new(7))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(*reply)
	}

	all.Close()
	stop()
	<-served
	<-served
	// Output:
	// Orders.Place at 10.0.0.1:8972
	// Inventory.Reserve at 10.0.0.2:8972
}
