// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/accesslog"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTimes}))
	network := mem.New()
	l, err := network.Listen("shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	server.Handle("Shop.Price", func(product string) (int, error) {
		if product != "pear" {
			return 0, yodel.Errorf(yodel.NotFound, "there is no %s", product)
		}
		return 7, nil
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("shop"), &yodel.ClientOptions{
		Transport: network,
		Observers: []yodel.Observer{accesslog.To(logger, &accesslog.Options{ // likewise in ServerOptions
			Slow: time.Minute,
			Skip: []string{"yodel.Ping"},
		})},
	})
	var price int
	for _, product := range []string{"pear", "plum"} {
		client.Call(ctx, "Shop.Price", yodel.Values{product}, yodel.Values{&price})
	}
	inspect.Ping.Call(ctx, client, &inspect.Empty{})

	client.Close()
	stop()
	<-served
	// Output:
	// level=INFO msg="yodel: call" method=Shop.Price endpoint=shop code=ok attempt=1
	// level=INFO msg="yodel: call" method=Shop.Price endpoint=shop code=not_found attempt=1
}

// withoutTimes leaves out what is different each time.
func withoutTimes(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "took" {
		return slog.Attr{}
	}
	return a
}
