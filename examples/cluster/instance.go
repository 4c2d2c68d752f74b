// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/etcd"
)

// serve is what an instance does. Clients find it through etcd. On its standard output it says where it listens, for this program's
// books, and then which orders it carries out. On its standard input it is told what to say of itself. When that ends, because the
// parent closed it or has died, it finishes what it has begun and returns.
func serve(name, endpoint string) error {
	signal.Ignore(os.Interrupt) // Ctrl-C reaches parent and children alike, and the parent decides
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	registry := etcd.New(endpoint, nil)
	s := newServer(name, registry, func(id int) { fmt.Println(id) }) // what is in the pipe outlives the process
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { cancel(obey(s, os.Stdin)) }()
	err = s.Serve(ctx, l)
	if told := context.Cause(ctx); !errors.Is(told, io.EOF) {
		err = errors.Join(err, told)
	}
	return errors.Join(err, registry.Close())
}

// obey reads what the server shall say of itself, its weight and its state, until there is no more: io.EOF is the end.
func obey(s *yodel.Server, orders io.Reader) error {
	for {
		var weight int
		var state string
		if _, err := fmt.Fscanln(orders, &weight, &state); err != nil {
			return err
		}
		s.UpdateInstance(func(in *yodel.Instance) { in.Weight, in.State = weight, state })
	}
}

// The states of an instance.
const (
	active   = "active"
	inactive = "inactive"
)

// An instance is a process of the shop, as the parent sees it.
type instance struct {
	name   string
	addr   string
	weight int    // it was told to say this
	state  string // and this
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	killed bool
	told   time.Time // to end

	gone     chan struct{} // closed when the process has ended; what follows is set then
	executed map[int]int   // how often it began each order
	err      error         // how the process ended
	ended    time.Time
}

// start starts the instance, and returns when it listens. The instance outlives ctx.
func start(ctx context.Context, name, endpoint string) (*instance, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in := &instance{
		name: name, weight: 1, state: active,
		cmd:  exec.CommandContext(context.WithoutCancel(ctx), binary, "-instance", name, "-etcd", endpoint), //nolint:gosec // this very program
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

// say has the instance say something else of itself.
func (in *instance) say(weight int, state string) error {
	in.weight, in.state = weight, state
	_, err := fmt.Fprintln(in.stdin, weight, state)
	return err
}

// share is what part of the calls the instance is to have, beside those of the others.
func (in *instance) share() int {
	if in.state == inactive || !in.told.IsZero() {
		return 0
	}
	return in.weight
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
