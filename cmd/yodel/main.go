// SPDX-License-Identifier: Apache-2.0

// Command yodel shows, calls, measures and operates fleets of yodel servers. It also runs a
// development server with a demonstration.
//
//	go run github.com/yodel-rpc/yodel/cmd/yodel@latest dev --demo
//
// docs/cli.md describes all commands.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
	"golang.org/x/term"
)

func main() {
	redis.SetLogger(silent{}) // it would write to stderr what the errors say too
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv,
		inTTY: isTerminal(os.Stdin), outTTY: isTerminal(os.Stdout), errTTY: isTerminal(os.Stderr),
	}
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// silent is a logger of package redis that writes nothing.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func isTerminal(f *os.File) bool {
	return term.IsTerminal(int(f.Fd()))
}
