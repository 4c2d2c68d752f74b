// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/stack"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// region contract

// DivMod divides.
const DivMod stack.Method[stack.V2[int, int], stack.V2[int, int]] = "Arith.DivMod"

// endregion contract

func Example() {
	network := mem.New()
	l, err := network.Listen("arith")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	// region server
	DivMod.Handle(server, func(_ context.Context, in stack.V2[int, int]) (stack.V2[int, int], error) {
		a, b := in.Pop()
		if b == 0 {
			return stack.Push2(0, 0), yodel.Errorf(yodel.InvalidArgument, "division by zero")
		}
		return stack.Push2(a/b, a%b), nil
	})
	// endregion server
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("arith"), &yodel.ClientOptions{Transport: network})

	// region client
	out, err := DivMod.Call(ctx, client, stack.Push2(17, 5)) // waits
	quotient, remainder := out.Pop()

	later := DivMod.Go(ctx, client, stack.Push2(23, 4)) // does not wait
	out, laterErr := later.Get()
	// endregion client
	fmt.Println(quotient, remainder, err)
	fmt.Println(out.Pop())
	fmt.Println(laterErr)

	// region untyped
	err = client.Call(ctx, "Arith.DivMod", yodel.Values{17, 5}, yodel.Values{&quotient, &remainder})
	// endregion untyped
	fmt.Println(quotient, remainder, err)

	// region steps
	values := stack.New(yodel.JSON)
	_ = values.Push(17)
	_ = values.Push(5)
	err = values.Call(ctx, client, "Arith.DivMod")
	popErr := values.Pop(&quotient)
	wrongErr := values.Pop(new(string)) // the value remains, for another type
	// endregion steps
	fmt.Println(quotient, values.Len(), err, popErr)
	fmt.Println(wrongErr)

	client.Close()
	stop()
	<-served
	// Output:
	// 3 2 <nil>
	// 5 3
	// <nil>
	// 3 2 <nil>
	// 3 1 <nil> <nil>
	// invalid_argument: stack: value 2 does not fit string: json: cannot unmarshal number into Go value of type string
}
