// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/fault"
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
	server.Handle("Shop.Buy", func(item string) string { return "bought " + item })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	var faults fault.Injector
	client := yodel.NewClient(discovery.Static("shop"), &yodel.ClientOptions{
		Transport:          network,
		EndpointMiddleware: []yodel.EndpointMiddleware{faults.Attempts},
	})
	buy := func() {
		var bought string
		err := client.Call(ctx, "Shop.Buy", yodel.Values{"milk"}, yodel.Values{&bought})
		fmt.Println(bought, err)
	}
	buy()
	if err := faults.Set(fault.Rule{Name: "game day", Methods: []string{"Shop.Buy"}, Lose: fault.Reply}); err != nil {
		fmt.Println(err)
	}
	buy()

	client.Close()
	stop()
	<-served
	// Output:
	// bought milk <nil>
	//  unavailable: Shop.Buy: shop: an injected fault (fault rule game day); it may have been executed [YDL3511]
}
