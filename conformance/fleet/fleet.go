// SPDX-License-Identifier: Apache-2.0

// Package fleet tries registries with whole fleets: servers that announce themselves in a real one,
// and clients that find them there and call them all the time. What it tries takes a few seconds
// each; with -fleet.long it takes as long as trouble does.
package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
)

var long = flag.Bool("fleet.long", false, "registries are away for a minute, and fleets restarted 20 times")

// A Client is a process's connection to a registry.
type Client interface {
	discovery.Registrar
	Service(name string) discovery.Resolver
}

// A Registry is one to try.
type Registry struct {
	// Server is its server.
	Server *realserver.Server
	// Open connects to a registry as a process of its own does, until the test ends.
	Open func(t testing.TB, addr string, o registry.Options) Client
}

// What servers serve.
const (
	service                        = "Fleet"
	double  yodel.Method[int, int] = "Fleet.Double"
	mirror  yodel.Duplex[int, int] = "Fleet.Mirror"
)

const (
	every = time.Second // servers are announced
	lease = 3 * every
)

var quiet = slog.New(slog.DiscardHandler) // trouble is what is wanted

// An instance is a server that runs.
type instance struct {
	addr string
	stop func() error // shuts it down
}

// start starts a server that is announced in a registry. It ends with the test.
func start(t testing.TB, r discovery.Registrar) instance {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}, AnnounceEvery: every, Logger: quiet})
	double.Handle(s, func(_ context.Context, n *int) (*int, error) {
		twice := 2 * *n
		return &twice, nil
	})
	mirror.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err = send(n); err != nil {
				return err
			}
		}
		return nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the server does not end well: %v", err)
		}
	})
	return instance{l.Addr().String(), stop}
}

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, r discovery.Resolver) *yodel.Client {
	t.Helper()
	c := yodel.NewClient(r, &yodel.ClientOptions{Logger: quiet})
	t.Cleanup(c.Close)
	return c
}

// found waits until a resolver says what is wanted, and returns an error when it does not within a
// time. It asks again when the resolver fails, as a client does.
func found(r discovery.Resolver, within time.Duration, wanted func([]discovery.Instance) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var last []discovery.Instance
	var failed error
	seen := false
	for ctx.Err() == nil && !seen {
		failed = r.Watch(ctx, func(instances []discovery.Instance) {
			if last = instances; wanted(instances) {
				seen = true
				cancel()
			}
		})
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if !seen {
		return errors.Join(fmt.Errorf("after %v the registry says %v", within, last), failed)
	}
	return nil
}

// all wants these addresses.
func all(addrs ...string) func([]discovery.Instance) bool {
	return func(instances []discovery.Instance) bool {
		for _, addr := range addrs {
			if !slices.ContainsFunc(instances, func(in discovery.Instance) bool { return in.Addr == addr }) {
				return false
			}
		}
		return len(instances) == len(addrs)
	}
}

// Users call all the time.
type users struct {
	ended chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	calls  int
	failed []error
}

// use begins to call, with so many callers and streams at once. None of them tries again.
func use(c *yodel.Client, callers, streams int) *users {
	u := &users{ended: make(chan struct{})}
	for i := range callers + streams {
		one := call
		if i >= callers {
			one = stream
		}
		u.wg.Go(func() {
			for n := 0; ; n++ {
				u.count(one(c, n))
				select {
				case <-time.After(5 * time.Millisecond): // they share two processors with the servers and the registry
				case <-u.ended:
					return
				}
			}
		})
	}
	return u
}

func (u *users) count(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls++
	if err != nil {
		u.failed = append(u.failed, err)
	}
}

func call(c *yodel.Client, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	twice, err := double.Call(ctx, c, &n)
	if err == nil && *twice != 2*n {
		err = fmt.Errorf("twice %d is not %d", n, *twice)
	}
	return err
}

// stream has a stream reflect some numbers.
func stream(c *yodel.Client, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return mirror.Call(ctx, c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for i := range 20 {
			sent := n + i
			if err := send(&sent); err != nil {
				return err
			}
			got, err := recv.Next()
			if err != nil {
				return err
			}
			if *got != sent {
				return fmt.Errorf("%d came back as %d", sent, *got)
			}
			<-time.After(5 * time.Millisecond)
		}
		return nil
	})
}

// check reports calls that failed until now.
func (u *users) check(t testing.TB, when string) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	t.Logf("%s: %d calls, %d failed", when, u.calls, len(u.failed))
	if len(u.failed) > 0 {
		t.Errorf("%s: %d of %d calls failed, the first one: %v", when, len(u.failed), u.calls, u.failed[0])
	}
	u.calls, u.failed = 0, nil
}

func (u *users) stop() {
	close(u.ended)
	u.wg.Wait()
}
