// SPDX-License-Identifier: Apache-2.0

package mirror_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/mirror"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	for version, greeting := range []string{"hello", "good day"} {
		l, err := network.Listen(fmt.Sprint("v", version+1))
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		server.Handle("Greeter.Greet", func(name string) string { return greeting + ", " + name })
		go func() { served <- server.Serve(ctx, l) }()
	}

	differs := make(chan string)
	next := yodel.NewClient(discovery.Static("v2"), &yodel.ClientOptions{Transport: network})
	client := yodel.NewClient(discovery.Static("v1"), &yodel.ClientOptions{
		Transport: network,
		Middleware: []yodel.Middleware{mirror.To(next, &mirror.Options{
			Compare: func(method string, original, mirrored *mirror.Outcome) {
				differs <- fmt.Sprintf("%s: v1 says %s, v2 says %s", method, original.Reply.Body[2:], mirrored.Reply.Body[2:])
			},
		})},
	})
	var greeting string
	err := client.Call(ctx, "Greeter.Greet", yodel.Values{"Ali"}, yodel.Values{&greeting})
	fmt.Println(greeting, err)
	fmt.Println(<-differs)

	client.Close()
	next.Close()
	stop()
	<-served
	<-served
	// Output:
	// hello, Ali <nil>
	// Greeter.Greet: v1 says "hello, Ali", v2 says "good day, Ali"
}
