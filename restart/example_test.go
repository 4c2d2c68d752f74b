// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/restart"
)

func run(ctx context.Context, addr string) error {
	// region run
	process, err := restart.New(nil) // before anything else is started
	if err != nil {
		return err
	}
	listener, err := process.Transport(yodel.TCP).Listen(addr)
	if err != nil {
		return err
	}
	server := yodel.NewServer(nil)
	// … register methods, connect to databases, fill caches: callers do not wait for this
	return process.Run(ctx, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	// endregion run
}

func Example() {
	ctx, stop := context.WithCancel(context.Background()) // in a program, signal.NotifyContext
	stop()                                                // SIGTERM has come already
	fmt.Println(run(ctx, "127.0.0.1:0"))
	// Output: <nil>
}
