// SPDX-License-Identifier: Apache-2.0

package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
)

const Double yodel.Method[int, int] = "Arith.Double"

// Processes on one machine find each other by a folder that they share.
func Example() {
	folder, err := os.MkdirTemp("", "yodel-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	r := file.New(folder, nil)

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

// A client calls the instances in a list that people write, and follows its changes.
func ExampleList() {
	folder, err := os.MkdirTemp("", "yodel-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	list := filepath.Join(folder, "arith.txt")
	if err := os.WriteFile(list, []byte("# the old machines\n10.0.0.1:8972\n10.0.0.2:8972?weight=2\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	resolver := file.List(list) // for yodel.NewClient(resolver, nil)

	ctx, enough := context.WithCancel(context.Background())
	defer enough()
	err = resolver.Watch(ctx, func(all []discovery.Instance) {
		for _, instance := range all {
			fmt.Println(instance.Addr, max(instance.Weight, 1))
		}
		enough()
	})
	fmt.Println(err)
	// Output:
	// 10.0.0.1:8972 1
	// 10.0.0.2:8972 2
	// <nil>
}
