// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/restart"
)

// serve is what a process of the service does. On its standard output, which a successor inherits,
// it says where it listens, what it has done, and that it ends. A SIGHUP makes it hand over to a
// successor; at a SIGTERM, or when its standard input ends because the parent has died, it finishes
// what it has begun and returns.
func serve(addr string) error {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	signal.Ignore(os.Interrupt) // Ctrl-C reaches parent and children alike, and the parent decides
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	p, err := restart.New(nil)
	if err != nil {
		return err
	}
	l, err := p.Transport(yodel.TCP).Listen(addr)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until it ends, for whatever reason
		cancel()
	}()
	say("up", os.Getpid(), l.Addr())
	s := newServer(&handler{record: record})
	err = p.Run(ctx, func(ctx context.Context) error { return s.Serve(ctx, l) })
	if err != nil {
		say("down", os.Getpid(), strings.ReplaceAll(err.Error(), "\n", "; "))
		return err
	}
	say("down", os.Getpid(), "")
	return nil
}

// say says something in one write. What is in the pipe outlives the process.
func say(what string, pid int, about any) { fmt.Printf("%s %d %v\n", what, pid, about) }

// record says that something was done.
func record(what string, numbers ...int) {
	line := []byte(what)
	for _, n := range numbers {
		line = fmt.Appendf(line, " %d", n)
	}
	_, _ = os.Stdout.Write(append(line, '\n')) // without a parent nobody counts
}
