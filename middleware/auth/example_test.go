// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"crypto/subtle"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func ExampleCheck() {
	network := mem.New()
	l, err := network.Listen("bank")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(&yodel.ServerOptions{
		Middleware: []yodel.Middleware{
			auth.Check(func(ctx context.Context, _, token string) (context.Context, error) {
				if subtle.ConstantTimeCompare([]byte(token), []byte("s3cret")) == 0 {
					return nil, yodel.Errorf(yodel.Unauthenticated, "unknown token")
				}
				return context.WithValue(ctx, customer{}, "Ali"), nil
			}, string(inspect.Health)), // open to everybody
		},
	})
	server.Handle("Bank.Owner", func(ctx context.Context) string { return ctx.Value(customer{}).(string) })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(yodel.Static("bank"), &yodel.ClientOptions{
		Transport:  network,
		Middleware: []yodel.Middleware{auth.Token("s3cret")},
	})
	var owner string
	fmt.Println(client.Call(ctx, "Bank.Owner", yodel.Values{}, yodel.Values{&owner}), owner)

	stranger := yodel.NewClient(yodel.Static("bank"), &yodel.ClientOptions{Transport: network})
	fmt.Println(stranger.Call(ctx, "Bank.Owner", yodel.Values{}, yodel.Values{&owner}))
	fmt.Println(inspect.Health.Call(ctx, stranger, &inspect.Empty{}))

	client.Close()
	stranger.Close()
	stop()
	<-served
	// Output:
	// <nil> Ali
	// unauthenticated: Bank.Owner: bank: the call has no token [YDL3101]
	// &{true} <nil>
}

type customer struct{}

func ExampleConn() {
	network := mem.New()
	l, err := network.Listen("bank")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(&yodel.ServerOptions{
		Connect: auth.Conn(func(_ context.Context, _ *yodel.Peer, token string) error {
			if subtle.ConstantTimeCompare([]byte(token), []byte("s3cret")) == 0 {
				return yodel.Errorf(yodel.Unauthenticated, "unknown token")
			}
			return nil
		}),
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(yodel.Static("bank"), &yodel.ClientOptions{
		Transport:    network,
		ConnMetadata: auth.ConnToken("s3cret"),
	})
	_, err = inspect.Ping.Call(ctx, client, &inspect.Empty{})
	fmt.Println(err)

	client.Close()
	stop()
	<-served
	// Output:
	// <nil>
}
