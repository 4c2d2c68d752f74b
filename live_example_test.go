// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example_liveData() { //nolint:testableexamples // its output depends on the time
	network := mem.New()
	l, err := network.Listen("cafe")
	if err != nil {
		fmt.Println(err)
		return
	}
	const order yodel.Method[string, int] = "Cafe.Order"
	server := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})
	order.Handle(server, func(_ context.Context, drink *string) (*int, error) { return new(len(*drink)), nil })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("cafe"), &yodel.ClientOptions{Transport: network, Name: "waiter"})
	drink := "tea"
	if _, err := order.Call(ctx, client, &drink); err != nil {
		fmt.Println(err)
	}

	// region live
	live, err := inspect.Live.Call(ctx, client, &introspect.LiveQuery{Span: time.Hour, Side: "server"})
	if err == nil {
		for _, s := range live.Series {
			last := len(s.Calls) - 1
			fmt.Println(s.Method, "from", s.Peer+":", s.Calls[last], "calls in the last", live.Step)
		}
	}
	// endregion live

	client.Close()
	stop()
	<-served
}
