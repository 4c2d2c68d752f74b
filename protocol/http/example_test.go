// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"fmt"
	"io"
	"net"
	std "net/http"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// The same method has its own path, a route, and a description.
func ExampleRoute() {
	type Cart struct {
		ID    string `json:"id"`
		Items int    `json:"items"`
	}
	server := yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{http.New(&http.Options{
			Routes:  []http.Route{{Pattern: "GET /v1/carts/{id}", Method: "shop.Cart.Get"}},
			OpenAPI: "/openapi.json",
		})},
	})
	get := yodel.Method[Cart, Cart]("shop.Cart.Get")
	get.Handle(server, func(_ context.Context, in *Cart) (*Cart, error) { return &Cart{in.ID, in.Items + 1}, nil })
	server.MarkReadOnly(string(get))

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	response, err := std.Get("http://" + l.Addr().String() + "/v1/carts/a17?items=2")
	if err != nil {
		fmt.Println(err)
		return
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close() // it was read
	fmt.Println(string(body), err)
	std.DefaultClient.CloseIdleConnections()
	stop()
	fmt.Println(<-ended)
	// Output:
	// {"id":"a17","items":3} <nil>
	// <nil>
}
