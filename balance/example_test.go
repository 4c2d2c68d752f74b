// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
)

func Example() {
	// region zone
	c := yodel.NewClient(discovery.Static("10.0.0.1:8972", "10.0.0.2:8972"), &yodel.ClientOptions{
		Balancer: balance.Group("checkout", balance.Zone("eu-1", balance.Smooth)),
	})
	// endregion zone
	c.Close()
	// Output:
}

type getCart struct{ User string }

func ExampleKetama() {
	// region by
	byUser := func(call *yodel.Call) uint64 {
		if args, ok := call.Args.(*getCart); ok {
			return balance.Hash(args.User)
		}
		return balance.ByMethod(call)
	}
	c := yodel.NewClient(discovery.Static("10.0.0.1:8972", "10.0.0.2:8972"), &yodel.ClientOptions{
		Balancer: balance.Bounded(1.25, byUser),
	})
	// endregion by
	c.Close()
	// Output:
}
