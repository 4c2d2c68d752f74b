// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("bank")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(&yodel.ServerOptions{Keys: once.With(nil)})
	balance := 100
	server.Handle("Bank.Withdraw", func(amount int) int { balance -= amount; return balance })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("bank"), &yodel.ClientOptions{Transport: network})
	withdraw := func(amount int, key string) {
		var left int
		err := client.Do(ctx, &yodel.Call{
			Method: "Bank.Withdraw", Args: yodel.Values{amount}, Reply: yodel.Values{&left}, IdempotencyKey: key,
		})
		fmt.Println(left, err)
	}
	withdraw(30, "withdrawal 7")
	withdraw(30, "withdrawal 7") // again, perhaps because the first reply was lost
	withdraw(30, "withdrawal 8")
	withdraw(50, "withdrawal 8") // a mistake

	client.Close()
	stop()
	<-served
	// Output:
	// 70 <nil>
	// 70 <nil>
	// 40 <nil>
	// 0 invalid_argument: Bank.Withdraw: bank: the idempotency key was used before, for other arguments or by another caller [YDL3401]
}
