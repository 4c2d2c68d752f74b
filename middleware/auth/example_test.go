// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/rate"
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

	client := yodel.NewClient(discovery.Static("bank"), &yodel.ClientOptions{
		Transport:  network,
		Middleware: []yodel.Middleware{auth.Token("s3cret")},
	})
	var owner string
	fmt.Println(client.Call(ctx, "Bank.Owner", yodel.Values{}, yodel.Values{&owner}), owner)

	stranger := yodel.NewClient(discovery.Static("bank"), &yodel.ClientOptions{Transport: network})
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

	client := yodel.NewClient(discovery.Static("bank"), &yodel.ClientOptions{
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

// Each user may make ten calls a second, and have two running at a time. The method knows the user.
func ExampleWithIdentity() {
	// verify stands for the library that verifies your tokens.
	verify := func(token string) (user, customer string, claims map[string]any, err error) {
		user, ok := map[string]string{"token-of-ann": "ann", "token-of-bob": "bob"}[token]
		if !ok {
			return "", "", nil, errors.New("unknown token")
		}
		return user, "acme", map[string]any{"role": "buyer"}, nil
	}
	// region identity
	check := func(ctx context.Context, _, token string) (context.Context, error) {
		user, customer, claims, err := verify(token)
		if err != nil {
			return nil, yodel.Errorf(yodel.Unauthenticated, "the token is not valid")
		}
		return auth.WithIdentity(ctx, &auth.Identity{Subject: user, Tenant: customer, Claims: claims}), nil
	}
	server := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{
		rate.With(&rate.Limit{PerSecond: 100, By: rate.Peer}), // each address, before its token is verified
		auth.Check(check),
		rate.With(&rate.Limit{PerSecond: 10, Burst: 2, By: rate.User}),
		rate.With(&rate.Limit{PerSecond: 1000, By: rate.Tenant}),
		limit.Each(2, rate.User), // calls that run at a time
	}})
	server.Handle("Shop.Buy", func(ctx context.Context, what string) (string, error) {
		id := auth.IdentityFrom(ctx)
		if id.Claims["role"] != "buyer" {
			return "", yodel.Errorf(yodel.PermissionDenied, "%s may not buy", id.Subject)
		}
		return what + " for " + id.Subject, nil
	})
	// endregion identity
	network := mem.New()
	l, err := network.Listen("shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	for _, user := range []string{"ann", "bob"} {
		client := yodel.NewClient(discovery.Static("shop"), &yodel.ClientOptions{
			Transport: network, Middleware: []yodel.Middleware{auth.Token("token-of-" + user)},
		})
		for range 3 {
			var bought string
			err := client.Call(ctx, "Shop.Buy", yodel.Values{"a pear"}, yodel.Values{&bought})
			fmt.Println(cmp.Or(bought, yodel.CodeOf(err).String()))
		}
		client.Close()
	}
	stop()
	<-served
	// Output:
	// a pear for ann
	// a pear for ann
	// resource_exhausted
	// a pear for bob
	// a pear for bob
	// resource_exhausted
}
