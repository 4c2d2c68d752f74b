// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"net"

	"github.com/yodel-rpc/yodel"
)

// A server pushes news to all clients that are connected, and calls a client back while it works on
// its call.
func ExampleServer_Peers() {
	const (
		News yodel.Method[string, struct{}] = "News"
		Name yodel.Method[struct{}, string] = "Name"
		Join yodel.Method[struct{}, string] = "Join"
	)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := yodel.NewServer(nil)
	Join.Handle(server, func(ctx context.Context, _ *struct{}) (*string, error) {
		// over the connection that the call came on
		name, err := Name.Call(ctx, yodel.CallFrom(ctx).Peer(), &struct{}{})
		if err != nil {
			return nil, err
		}
		welcome := "welcome, " + *name
		return &welcome, nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	heard := make(chan string)
	own := yodel.NewServer(nil) // what the client serves; it does not listen
	News.Handle(own, func(_ context.Context, text *string) (*struct{}, error) {
		heard <- *text
		return nil, nil
	})
	Name.Handle(own, func(context.Context, *struct{}) (*string, error) {
		name := "anna"
		return &name, nil
	})
	client := yodel.NewClient(yodel.Static(l.Addr().String()), &yodel.ClientOptions{Server: own})
	welcome, err := Join.Call(ctx, client, &struct{}{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*welcome)

	text := "the shop is open"
	for _, peer := range server.Peers() {
		if err := News.Notify(ctx, peer, &text); err != nil {
			fmt.Println(err) // it has gone meanwhile; the others are told
		}
	}
	fmt.Println(<-heard)

	client.Close()
	cancel()
	fmt.Println(<-served)
	// Output:
	// welcome, anna
	// the shop is open
	// <nil>
}
