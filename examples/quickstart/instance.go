// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/yodel-rpc/yodel/examples/internal/process"
	"github.com/yodel-rpc/yodel/registry/file"
)

// serve is what an instance does. Clients find it through the registry in a folder. On its standard
// output it says where it listens, for this program's books, and then which orders it carries out.
// When it is told to end, it finishes what it has begun and returns.
func serve(name, folder string) error {
	ctx := process.UntilToldToEnd(func(string) error { return nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	record := func(id int) { fmt.Println(id) } // what is in the pipe outlives the process
	return newServer(name, file.New(folder, nil), record).Serve(ctx, l)
}

// An instance is a process of the shop, as the parent sees it.
type instance struct {
	*process.Process

	name     string
	addr     string
	executed map[int]int // how often it began each order; complete when it has ended
}

// start starts the instance, and returns when it listens.
func start(ctx context.Context, name, folder string) (*instance, error) {
	in := &instance{name: name, executed: make(map[int]int)}
	var err error
	in.Process, err = process.Start(ctx, in.wrote, "-instance", name, "-registry", folder)
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
