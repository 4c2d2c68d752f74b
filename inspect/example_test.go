// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("cafe")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})
	server.Handle("Cafe.Order", func(drink string) int { return len(drink) })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("cafe"), &yodel.ClientOptions{Transport: network})

	health, err := inspect.Health.Call(ctx, client, &inspect.Empty{})
	if err == nil {
		fmt.Println("serving:", health.Serving)
	}
	info, err := inspect.Info.Call(ctx, client, &inspect.Empty{})
	if err == nil {
		for _, m := range info.Methods {
			fmt.Println(m.Name, m.Args[0].Type, "to", m.Results[0].Type)
		}
	}
	stats, err := inspect.Stats.Call(ctx, client, &inspect.Empty{})
	if err == nil {
		fmt.Println("connections:", stats.Conns)
	}

	client.Close()
	stop()
	<-served
	// Output:
	// serving: true
	// Cafe.Order string to int
	// yodel.Conns struct {} to introspect.Conns
	// yodel.Health struct {} to introspect.Health
	// yodel.Info struct {} to introspect.Info
	// yodel.Live introspect.LiveQuery to introspect.Live
	// yodel.Ping struct {} to struct {}
	// yodel.Rules struct {} to introspect.Rules
	// yodel.Samples introspect.SamplesQuery to introspect.Samples
	// yodel.Stats struct {} to introspect.Stats
	// yodel.Tap introspect.TapQuery to introspect.Tapped
	// connections: 1
}
