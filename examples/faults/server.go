// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/internal/process"
)

// Look is what the servers are asked for. Executing it twice does no harm: serve declares so.
const Look yodel.Method[Question, Answer] = "Library.Look"

// A Question has a number of its own.
type Question struct{ ID int }

// An Answer says to which question it is, and whose it is.
type Answer struct {
	ID     int
	Server string
}

// takes is how long a server takes for an answer, and slower is how much longer one that is slow
// does.
const (
	takes  = 20 * time.Millisecond
	slower = 200 * time.Millisecond
)

// serve is what a server does. On its standard output it says where it listens, on its standard
// input it is told how it shall be: well, slow or failing.
func serve(name string) error {
	var state atomic.Value
	state.Store("well")
	ctx := process.UntilToldToEnd(func(order string) error { state.Store(order); return nil })
	var asked atomic.Int64
	s := yodel.NewServer(nil)
	Look.Handle(s, func(ctx context.Context, q *Question) (*Answer, error) {
		pause := takes
		if state.Load() == "slow" {
			pause += slower
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if state.Load() == "failing" && asked.Add(1)%2 == 0 {
			return nil, yodel.Errorf(yodel.Unavailable, "the library is closed")
		}
		return &Answer{ID: q.ID, Server: name}, nil
	})
	s.MarkIdempotent(string(Look))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return s.Serve(ctx, l)
}

// nameOf returns the name of a server.
func nameOf(i int) string { return fmt.Sprintf("s%d", i) }

// cut is which server is behind the proxy.
const cut = 2

// A fleet is all servers.
type fleet struct {
	servers []server
	proxy   *proxy
}

// A server is a process, as the parent sees it.
type server struct{ *process.Process }

// start starts the servers, and returns when all listen.
func (f *fleet) start(ctx context.Context) (err error) {
	for i := range servers {
		p, err := process.Start(ctx, func(string) {}, "-server", nameOf(i))
		if err != nil {
			return err
		}
		f.servers = append(f.servers, server{p})
	}
	f.proxy, err = startProxy(f.servers[cut].First)
	return err
}

// addrs are where the servers are found.
func (f *fleet) addrs() []string {
	addrs := make([]string, 0, servers)
	for _, s := range f.servers {
		addrs = append(addrs, s.First)
	}
	addrs[cut] = f.proxy.addr()
	return addrs
}

// stop lets the servers finish, and says which ended otherwise.
func (f *fleet) stop() error {
	var faults []error
	for _, s := range f.servers {
		s.ShutDown()
	}
	for i, s := range f.servers {
		s.Wait()
		if s.Err != nil {
			faults = append(faults, fmt.Errorf("server %d ended with %w\n%s", i, s.Err, &s.Stderr))
		}
	}
	f.proxy.close()
	return errors.Join(faults...)
}

func (f *fleet) kill() {
	for _, s := range f.servers {
		s.Kill()
		s.Wait()
	}
	if f.proxy != nil {
		f.proxy.close()
	}
}

// say returns what tells the server to be otherwise.
func (s server) say(state string) func() error {
	return func() error {
		_, err := fmt.Fprintln(s.Orders, state)
		return err
	}
}

// signal returns what sends it a signal.
func (s server) signal(what os.Signal) func() error {
	return func() error { return s.Signal(what) }
}
