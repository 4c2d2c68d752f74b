// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func ExampleCall_Report() {
	network := mem.New()
	l, err := network.Listen("cafe")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	server.Handle("Cafe.Order", func(item string) error {
		if item == "tea" {
			return nil
		}
		return yodel.Errorf(yodel.NotFound, "there is no %s", item)
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("cafe"), &yodel.ClientOptions{Transport: network})

	// region error
	err = client.Call(ctx, "Cafe.Order", yodel.Values{"coffee"}, nil)
	if report, ok := errors.AsType[*introspect.CallReport](err); ok { // fmt.Printf("%+v", err) prints it
		last := report.Attempts[len(report.Attempts)-1]
		fmt.Println(last.Addr, last.Code, last.Message)
	}
	// endregion error

	// region explain
	call := &yodel.Call{Method: "Cafe.Order", Args: yodel.Values{"tea"}, Explain: true}
	if err := client.Do(ctx, call); err == nil {
		report := call.Report() // fmt.Println(report) prints it
		fmt.Println(report.Candidates[0].Addr, report.Candidates[0].Verdict, report.Attempts[0].Took > 0)
	}
	// endregion explain

	// region samples
	samples := client.Samples(&introspect.SamplesQuery{Method: "Cafe.Order", Failed: true})
	for _, report := range samples.Calls {
		fmt.Println(report.Side, report.Method, report.Code)
	}
	// endregion samples

	client.Close()
	stop()
	<-served
	// Output:
	// cafe not_found there is no coffee
	// cafe picked true
	// client Cafe.Order not_found
}
