// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// kinds notes what happens to connections.
type kinds struct {
	mu    sync.Mutex
	count map[introspect.ConnEventKind]int
}

func (k *kinds) note(e introspect.ConnEvent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.count == nil {
		k.count = make(map[introspect.ConnEventKind]int)
	}
	k.count[e.Kind]++
}

func (k *kinds) of(kind introspect.ConnEventKind) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count[kind]
}

// Connections live for 50 ms, by the server's will or the client's. No call notices.
func TestNoCallIsLostWhenConnectionsAge(t *testing.T) {
	t.Attr("rerun", "never")
	const callers, lasts, age = 50, time.Second, 50 * time.Millisecond
	for _, by := range []string{"client", "server", "both"} {
		t.Run(by, func(t *testing.T) {
			var server, client yodel.Limits
			if by != "client" {
				server.MaxAge = age
			}
			if by != "server" {
				client.MaxAge = age
			}
			s := newServer(t, &yodel.ServerOptions{Limits: server})
			handle(t, s, "Slow", func(_ context.Context, in *Args) (*Reply, error) {
				<-time.After(time.Duration(in.A%10) * time.Millisecond)
				return &Reply{in.A}, nil
			})
			const Slow yodel.Method[Args, Reply] = "Slow"
			var seen kinds
			c := connect(t, s, &yodel.ClientOptions{Limits: client, OnConn: seen.note})
			end := time.Now().Add(lasts)
			var calls, failed atomic.Int64
			check := func(id int, reply *Reply, err error) {
				calls.Add(1)
				if err != nil || reply.C != id {
					if failed.Add(1) < 10 {
						t.Errorf("call %d: got %v, %v", id, reply, err)
					}
				}
			}
			var wg sync.WaitGroup
			for g := range callers {
				wg.Go(func() {
					for id := g; time.Now().Before(end); id += callers {
						var reply *Reply
						var err error
						switch g % 3 {
						case 0:
							reply, err = Mul.Call(t.Context(), c, &Args{id, 1})
						case 1:
							reply, err = Slow.Call(t.Context(), c, &Args{id, 1})
						default:
							reply, err = Mul.Go(t.Context(), c, &Args{id, 1}).Get()
						}
						check(id, reply, err)
					}
				})
			}
			wg.Wait()
			t.Logf("%d calls over %d connections, %d failed", calls.Load(), seen.of(introspect.Connected), failed.Load())
			if n := seen.of(introspect.Connected); n < 5 {
				t.Errorf("there were %d connections: the test did not test anything", n)
			}
		})
	}
}

// An idle connection is closed, and made again when there is a call, not before.
func TestAnIdleConnectionIsMadeAgainForACall(t *testing.T) {
	const idle = 100 * time.Millisecond // a call must come sooner, also on a busy machine
	for _, by := range []string{"client", "server"} {
		t.Run(by, func(t *testing.T) {
			var server, client yodel.Limits
			if by == "client" {
				client.IdleTimeout = idle
			} else {
				server.IdleTimeout = idle
			}
			var seen kinds
			s := newServer(t, &yodel.ServerOptions{Limits: server})
			c := connect(t, s, &yodel.ClientOptions{Limits: client, OnConn: seen.note})
			for i := 1; i <= 3; i++ {
				if reply, err := Mul.Call(t.Context(), c, &Args{6, i}); err != nil || reply.C != 6*i {
					t.Fatalf("got %v, %v", reply, err)
				}
				until(t, "the connection is closed", func() bool { return seen.of(introspect.Closed)+seen.of(introspect.Disconnected) == i })
				<-time.After(2 * idle)
				if n := seen.of(introspect.Connected); n != i || !c.Endpoints()[0].Ready() {
					t.Errorf("%d connections were made for %d calls; the endpoint is ready: %t", n, i, c.Endpoints()[0].Ready())
				}
			}
		})
	}
}

// A connection is added when all are saturated, not when they are busy, and goes again when it has
// been idle.
func TestConnectionsAreAddedWhenAllAreSaturated(t *testing.T) {
	const most, window = 3, 4
	release := make(chan struct{})
	s := newServer(t, &yodel.ServerOptions{Limits: yodel.Limits{MaxOpen: window}})
	var running atomic.Int64
	handle(t, s, "Hold", func(ctx context.Context, in *Args) (*Reply, error) {
		running.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return &Reply{in.A}, nil
	})
	const Hold yodel.Method[Args, Reply] = "Hold"
	var seen kinds
	c := connect(t, s, &yodel.ClientOptions{ConnsPerEndpoint: most, OnConn: seen.note, Limits: yodel.Limits{IdleTimeout: 50 * time.Millisecond}})
	var wg sync.WaitGroup
	begun := 0
	begin := func(n int) {
		begun += n
		for i := range n {
			wg.Go(func() {
				if reply, err := Hold.Call(t.Context(), c, &Args{i, 0}); err != nil || reply.C != i {
					t.Errorf("got %v, %v", reply, err)
				}
			})
		}
	}
	held := func() int { return int(running.Load()) }
	for i := 1; i <= most; i++ {
		begin(window)
		until(t, "the window is full", func() bool { return held() == window*i })
		if n := seen.of(introspect.Connected); n < i || n > (begun+window-1)/window {
			t.Errorf("there are %d connections for %d calls, and %d windows are full", n, begun, i)
		}
		begin(1) // it waits in one of the windows that are full, unless the further connection is made before
		if i < most {
			until(t, "there is one more connection", func() bool { return seen.of(introspect.Connected) == i+1 })
		}
	}
	begin(5)
	close(release)
	wg.Wait()
	until(t, "all have been idle", func() bool { return seen.of(introspect.Closed) == most })
	begin(1)
	wg.Wait()
	if n := seen.of(introspect.Connected); n != most+1 {
		t.Errorf("then %d connections were made for a call", n-most)
	}
}

// A fixed number of connections is open whatever the load. Calls one after the other go over all of
// them. They stay when they are idle, and one that is lost is replaced.
func TestAFixedNumberOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4
		var seen kinds
		s := newServer(t, nil)
		calls := make(map[net.Conn]int)
		handle(t, s, "Where", func(ctx context.Context, in *Args) (*Reply, error) {
			calls[yodel.CallFrom(ctx).Peer().Conn]++
			return &Reply{in.A}, nil
		})
		network := mem.New()
		l, err := network.Listen("fixed")
		must(t, err)
		serveOn(t, s, l)
		c := newClient(t, &yodel.ClientOptions{Transport: network, ConnsPerEndpoint: most, FixedConns: true, OnConn: seen.note}, "fixed")
		call := func(n int) {
			t.Helper()
			clear(calls)
			for i := range n {
				if reply, err := yodel.Method[Args, Reply]("Where").Call(t.Context(), c, &Args{i, 0}); err != nil || reply.C != i {
					t.Fatalf("got %v, %v", reply, err)
				}
				synctest.Wait() // until a connection that the call has asked for is made
			}
		}
		call(most)
		if n := seen.of(introspect.Connected); n != most {
			t.Errorf("%d connections after %d calls", n, most)
		}
		<-time.After(time.Hour)
		call(200)
		if n := seen.of(introspect.Connected); n != most || len(calls) != most {
			t.Errorf("%d connections were made, and %d carry calls", n, len(calls))
		}
		for conn, n := range calls {
			if n < 20 {
				t.Errorf("a connection carries %d of 200 calls", n)
			}
			defer conn.Close()
		}
		for conn := range calls {
			must(t, conn.Close())
			break
		}
		synctest.Wait()
		call(200)
		if n := seen.of(introspect.Connected); n != most+1 || len(calls) != most {
			t.Errorf("after a loss %d connections were made in all, and %d carry calls", n, len(calls))
		}
	})
}
