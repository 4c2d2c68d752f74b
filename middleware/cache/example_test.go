// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("rates")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	server.Handle("Rates.Of", func(currency string) float64 {
		fmt.Println("looking up", currency)
		return 1.5
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	var kept cache.Contents
	client := yodel.NewClient(discovery.Static("rates"), &yodel.ClientOptions{
		Transport:  network,
		Middleware: []yodel.Middleware{cache.With(&cache.Options{For: time.Minute, Methods: []string{"Rates.Of"}, Contents: &kept})},
	})
	for i := range 4 {
		if i == 3 {
			fmt.Println(kept.Stats().Hits, "hits;", kept.Purge("Rates.Of"), "purged")
		}
		var rate float64
		err = client.Call(ctx, "Rates.Of", yodel.Values{"CHF"}, yodel.Values{&rate})
		fmt.Println(rate, err)
	}

	client.Close()
	stop()
	<-served
	// Output:
	// looking up CHF
	// 1.5 <nil>
	// 1.5 <nil>
	// 1.5 <nil>
	// 2 hits; 1 purged
	// looking up CHF
	// 1.5 <nil>
}
