// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/examples/internal/process"
	"github.com/yodel-rpc/yodel/registry/etcd"
)

// serve is what an instance does. Clients find it through etcd. On its standard output it says
// where it listens, for this program's books, and then which orders it carries out. On its standard
// input it is told what to say of itself. When it is told to end, it finishes what it has begun and
// returns.
func serve(name, endpoint string) error {
	registry := etcd.New(endpoint, nil)
	s := newServer(name, registry, func(id int) { fmt.Println(id) }) // what is in the pipe outlives the process
	ctx := process.UntilToldToEnd(func(order string) error { return obey(s, order) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	err = s.Serve(ctx, l)
	if told := context.Cause(ctx); !errors.Is(told, context.Canceled) {
		err = errors.Join(err, told)
	}
	return errors.Join(err, registry.Close())
}

// obey has the server say of itself what an order says: its weight and its state.
func obey(s *yodel.Server, order string) error {
	var weight int
	var state string
	if _, err := fmt.Sscan(order, &weight, &state); err != nil {
		return fmt.Errorf("the order %q: %w", order, err)
	}
	s.UpdateInstance(func(in *discovery.Instance) { in.Weight, in.State = weight, state })
	return nil
}

// The states of an instance.
const (
	active   = "active"
	inactive = "inactive"
)

// An instance is a process of the shop, as the parent sees it.
type instance struct {
	*process.Process

	name     string
	addr     string
	weight   int         // it was told to say this
	state    string      // and this
	executed map[int]int // how often it began each order; complete when it has ended
}

// start starts the instance, and returns when it listens.
func start(ctx context.Context, name, endpoint string) (*instance, error) {
	in := &instance{name: name, weight: 1, state: active, executed: make(map[int]int)}
	var err error
	in.Process, err = process.Start(ctx, in.wrote, "-instance", name, "-etcd", endpoint)
	if err != nil {
		return nil, fmt.Errorf("instance %s: %w", name, err)
	}
	in.addr = in.First
	return in, nil
}

// wrote takes note of a line that the instance wrote.
func (in *instance) wrote(line string) {
	if id, err := strconv.Atoi(line); err == nil {
		in.executed[id]++
	}
}

// say has the instance say something else of itself.
func (in *instance) say(weight int, state string) error {
	in.weight, in.state = weight, state
	_, err := fmt.Fprintln(in.Orders, weight, state)
	return err
}

// share is what part of the calls the instance is to have, beside those of the others.
func (in *instance) share() int {
	if in.state == inactive || !in.Told.IsZero() {
		return 0
	}
	return in.weight
}
