// SPDX-License-Identifier: Apache-2.0

package timeout_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("reports")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(&yodel.ServerOptions{
		Middleware: []yodel.Middleware{timeout.After(time.Minute)}, // whatever callers allow
	})
	ctx, stop := context.WithCancel(context.Background())
	server.Handle("Report.Make", func(year int) string {
		<-ctx.Done() // it takes for ever, and ignores that its time is over
		return ""
	})
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("reports"), &yodel.ClientOptions{
		Transport:  network,
		Middleware: []yodel.Middleware{timeout.After(20 * time.Millisecond)},
	})
	var report string
	err = client.Call(ctx, "Report.Make", yodel.Values{2026}, yodel.Values{&report})
	fmt.Println(errors.Is(err, yodel.DeadlineExceeded))
	fmt.Println(err)

	client.Close()
	stop()
	<-served
	// Output:
	// true
	// deadline_exceeded: Report.Make: reports: no reply before the deadline; it may be executing still [YDL1004]
}
