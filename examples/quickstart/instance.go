// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"github.com/yodel-rpc/yodel/registry/file"
)

// serve is what an instance does. Clients find it through the registry in a folder. On its standard output it says where it listens,
// for this program's books, and then which orders it carries out. When its standard input ends, because the parent closed it or has died, it finishes what it has begun and returns.
func serve(name, folder string) error {
	signal.Ignore(os.Interrupt) // Ctrl-C reaches parent and children alike, and the parent decides
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until it ends, for whatever reason
		cancel()
	}()
	record := func(id int) { fmt.Println(id) } // what is in the pipe outlives the process
	return newServer(name, file.New(folder, nil), record).Serve(ctx, l)
}

// An instance is a process of the shop, as the parent sees it.
type instance struct {
	name   string
	addr   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	killed bool
	told   time.Time // to end

	gone     chan struct{} // closed when the process has ended; what follows is set then
	executed map[int]int   // how often it began each order
	err      error         // how the process ended
	ended    time.Time
}

// start starts the instance, and returns when it listens. The instance outlives ctx.
func start(ctx context.Context, name, folder string) (*instance, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in := &instance{
		name: name,
		cmd:  exec.CommandContext(context.WithoutCancel(ctx), binary, "-instance", name, "-registry", folder), //nolint:gosec // this very program
		gone: make(chan struct{}), executed: make(map[int]int),
	}
	in.cmd.Stderr = &in.stderr
	stdout, err := in.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if in.stdin, err = in.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err = in.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(stdout)
	if lines.Scan() {
		in.addr = lines.Text()
	}
	go in.follow(lines)
	if in.addr == "" {
		in.kill()
		in.wait()
		return nil, fmt.Errorf("instance %s did not start: %w\n%s", name, in.err, &in.stderr)
	}
	return in, nil
}

// follow reads what the instance says it does until the process has ended.
func (in *instance) follow(lines *bufio.Scanner) {
	for lines.Scan() {
		if id, err := strconv.Atoi(lines.Text()); err == nil {
			in.executed[id]++
		}
	}
	in.err = in.cmd.Wait()
	in.ended = time.Now()
	close(in.gone)
}

// kill ends the process at once, as a crash would.
func (in *instance) kill() {
	if in.told.IsZero() {
		in.killed, in.told = true, time.Now()
	}
	_ = in.cmd.Process.Kill() // it may have ended already
}

// shutDown lets the process finish what it has begun.
func (in *instance) shutDown() {
	if in.told.IsZero() {
		in.told = time.Now()
	}
	_ = in.stdin.Close() // it may have ended already
}

// wait waits until the process has ended, and helps if it does not.
func (in *instance) wait() {
	select {
	case <-in.gone:
	case <-time.After(15 * time.Second):
		in.kill()
		<-in.gone
	}
}
