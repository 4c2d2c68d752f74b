// SPDX-License-Identifier: Apache-2.0

package coalesce_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/coalesce"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func Example() {
	network := mem.New()
	l, err := network.Listen("reports")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	begun := make(chan struct{}, 3)
	all := make(chan struct{})
	server.Handle("Report.Make", func(year int) string {
		begun <- struct{}{}
		<-all // until then, those who ask for it share this call
		return fmt.Sprint("report of ", year)
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("reports"), &yodel.ClientOptions{
		Transport:  network,
		Middleware: []yodel.Middleware{coalesce.Calls("Report.Make")},
	})
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			var report string
			err := client.Call(ctx, "Report.Make", yodel.Values{2026}, yodel.Values{&report})
			fmt.Println(report, err)
		})
	}
	<-begun
	close(all)
	callers.Wait()

	client.Close()
	stop()
	<-served
	// Output:
	// report of 2026 <nil>
	// report of 2026 <nil>
	// report of 2026 <nil>
}
