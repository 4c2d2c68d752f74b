// SPDX-License-Identifier: Apache-2.0

// Command wires serves one service to the clients of twelve protocols on one port.
//
//	go run ./examples/wires
//
// It prints commands that call the service, and serves until Ctrl-C. With -check it checks itself:
//
//	go run ./examples/wires -check
//
// It starts the server and one client for each protocol as processes of their own. Each client
// checks what its protocol carries. Then all of them call the service while the server is drained
// and started again, and while it is killed and started again. At the end the program prints a
// table. It fails if a call did not succeed at last, if a reply was wrong, or if a drain left a
// client of yodel in doubt whether a call was executed.
//
// The service is in service.go, the clients are in clients.go, and the check is in check.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	check := flag.Bool("check", false, "check all clients, and end")
	addr := flag.String("addr", "127.0.0.1:0", "the address of the server")
	role := flag.String("role", "", "server, or the protocol of a client: the program starts itself so")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "want flags only")
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	var err error
	switch {
	case *role == "server":
		err = serveAsChild(*addr)
	case *role != "":
		err = callAsChild(*role, *addr)
	case *check:
		ctx, cancel := context.WithTimeoutCause(ctx, 40*time.Second, errTooLong)
		err = runCheck(ctx)
		cancel()
	default:
		err = serve(ctx, *addr, printCommands)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
