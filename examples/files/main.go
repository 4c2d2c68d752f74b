// SPDX-License-Identifier: Apache-2.0

// Command files serves a folder, sends files to it and fetches them from it:
//
//	go run ./examples/files serve -dir DIR
//	go run ./examples/files put FILE
//	go run ./examples/files get NAME
//	go run ./examples/files -check
//
// A file of any size is a stream on the connection that all other calls use, with their TLS and
// their authentication. A transfer that was interrupted is gone on with when the same command runs
// again.
//
// The contract is in files.go, the server in store.go, the client in client.go; what both do with a
// file that is sent is in source.go, and with one that comes in part.go. The last command shows
// that all of it works: check.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/yodel-rpc/yodel"
)

const usage = `usage:
  files serve -dir DIR [-addr HOST:PORT] [-max-bytes N]
  files put FILE [-addr HOST:PORT]
  files get NAME [-out FILE] [-addr HOST:PORT]
  files -check [-size N] [-slow DURATION]`

// settings are what the flags say, of all commands.
type settings struct {
	addr     string
	dir      string
	maxBytes int64
	child    bool
	out      string
	check    bool
	size     int64
	slow     time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	command := args[0]
	if strings.HasPrefix(command, "-") {
		args = append([]string{""}, args...)
	}
	var s settings
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	flags.Usage = func() { fmt.Fprintln(os.Stderr, usage) }
	flags.StringVar(&s.addr, "addr", "127.0.0.1:8975", "the server's address")
	flags.StringVar(&s.dir, "dir", "", "the folder to be served")
	flags.Int64Var(&s.maxBytes, "max-bytes", 0, "the largest file to be taken; 0 is any")
	flags.BoolVar(&s.child, "child", false, "end with the standard input")
	flags.StringVar(&s.out, "out", "", "where the file goes")
	flags.BoolVar(&s.check, "check", false, "try everything")
	flags.Int64Var(&s.size, "size", 100_000_000, "of the file that is measured by -check, in bytes")
	flags.DurationVar(&s.slow, "slow", 10*time.Millisecond, "what 1 in 20 of the small calls that -check makes may exceed")
	var names []string
	for args = args[1:]; len(args) > 0; args = flags.Args() {
		if _ = flags.Parse(args); flags.NArg() > 0 { // it exits on errors
			names = append(names, flags.Arg(0))
			_ = flags.Parse(flags.Args()[1:])
		}
	}
	switch {
	case s.check && len(names) == 0 && s.size >= 0:
		return check(ctx, s.size, s.slow)
	case command == "serve" && len(names) == 0 && s.dir != "":
		return serve(ctx, &s)
	case command == "put" && len(names) == 1:
		return transfer(ctx, &s, names[0], func(c yodel.Caller, report progress) error { return put(ctx, c, names[0], report) })
	case command == "get" && len(names) == 1:
		if s.out == "" {
			s.out = filepath.Base(names[0])
		}
		return transfer(ctx, &s, names[0], func(c yodel.Caller, report progress) error { return get(ctx, c, names[0], s.out, report) })
	}
	return errors.New(usage)
}

// serve serves a folder until ctx ends.
func serve(ctx context.Context, s *settings) error {
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		return err
	}
	fmt.Printf("%s is served at %s\n", s.dir, l.Addr())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.child {
		signal.Ignore(os.Interrupt) // Ctrl-C reaches the parent as well, which decides
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends, for whatever reason
			cancel()
		}()
		defer func() { fmt.Println(taken()) }()
	}
	return newServer(root, s.maxBytes).Serve(ctx, l)
}

// transfer makes a transfer that a person watches.
func transfer(ctx context.Context, s *settings, name string, transfer func(yodel.Caller, progress) error) error {
	c := yodel.Dial(s.addr)
	defer c.Close()
	m := newMeter(filepath.Base(name))
	err := transfer(c, m.report)
	m.end(err)
	if ctx.Err() != nil {
		return errors.New("interrupted: the same command goes on where this one has ended")
	}
	return err
}
