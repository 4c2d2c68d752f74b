// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/retry"
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
		Middleware: []yodel.Middleware{limit.With(&limit.Options{Limit: 1, Queue: -1})}, // or limit.Adaptive(nil)
	})
	begun, release := make(chan struct{}), make(chan struct{})
	server.Handle("Report.Make", func(year int) string {
		close(begun)
		<-release
		return fmt.Sprint("the report of ", year)
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("reports"), &yodel.ClientOptions{Transport: network})
	var report string
	var first sync.WaitGroup
	first.Go(func() { client.Call(ctx, "Report.Make", yodel.Values{2025}, yodel.Values{&report}) })
	<-begun
	err = client.Do(ctx, &yodel.Call{Method: "Report.Make", Args: yodel.Values{2026}, Criticality: criticality.Batch})
	fmt.Println(errors.Is(err, yodel.ResourceExhausted), yodel.NotProcessed(err))
	fmt.Println(err)
	close(release)
	first.Wait()
	fmt.Println(report)

	client.Close()
	stop()
	<-served
	// Output:
	// true true
	// resource_exhausted: Report.Make: reports: no more may wait: concurrency has a limit of 1 calls at a time, and 0 wait [YDL3201]
	// the report of 2025
}

// A bulkhead for each server: one that has become slow gets one call at a time, and the other one
// gets the rest.
func ExamplePerEndpoint() {
	network := mem.New()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served, begun, release := make(chan error), make(chan struct{}, 1), make(chan struct{})
	for _, addr := range []string{"slow", "quick"} {
		l, err := network.Listen(addr)
		if err != nil {
			fmt.Println(err)
			return
		}
		server := yodel.NewServer(nil)
		server.Handle("Report.Make", func(year int) string {
			if addr == "slow" {
				begun <- struct{}{}
				<-release
			}
			return fmt.Sprint("the report of ", year, ", ", addr)
		})
		go func() { served <- server.Serve(ctx, l) }()
	}

	client := yodel.NewClient(discovery.Static("slow", "quick"), &yodel.ClientOptions{
		Transport: network, Balancer: retry.Any, // the first, as long as it is well
		Middleware:         []yodel.Middleware{retry.Times(2)},
		EndpointMiddleware: []yodel.EndpointMiddleware{limit.PerEndpoint(&limit.Options{Limit: 1, Queue: -1})},
	})
	var late string
	var first sync.WaitGroup
	first.Go(func() { client.Call(ctx, "Report.Make", yodel.Values{2024}, yodel.Values{&late}) })
	<-begun
	for year := 2025; year <= 2026; year++ {
		var report string
		if err := client.Call(ctx, "Report.Make", yodel.Values{year}, yodel.Values{&report}); err != nil {
			fmt.Println(err)
		}
		fmt.Println(report)
	}
	close(release)
	first.Wait()
	fmt.Println(late)

	client.Close()
	stop()
	<-served
	<-served
	// Output:
	// the report of 2025, quick
	// the report of 2026, quick
	// the report of 2024, slow
}
