// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
)

const Double yodel.Method[int, int] = "Arith.Double"

// A program, or a test, has a server and a client of it.
func Example() {
	r := memory.New(nil)
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
	Double.Handle(s, func(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.ListenAndServe(ctx, "127.0.0.1:0") }()
	waitForInstance(r.Service("Arith"))

	c := yodel.NewClient(r.Service("Arith"), nil)
	reply, err := Double.Call(ctx, c, new(21))
	if err == nil {
		fmt.Println(*reply)
	}

	c.Close()
	stop()
	fmt.Println(err, <-served)
	// Output:
	// 42
	// <nil> <nil>
}

// waitForInstance returns when an instance of the service is known.
func waitForInstance(service discovery.Resolver) {
	ctx, found := context.WithCancel(context.Background())
	defer found()
	if err := service.Watch(ctx, func(all []discovery.Instance) {
		if len(all) > 0 {
			found()
		}
	}); err != nil {
		fmt.Println(err)
	}
}
