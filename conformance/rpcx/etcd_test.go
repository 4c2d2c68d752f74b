// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/recommended"
)

// A fleet has processes with servers of rpcx and of yodel, which register one service in etcd.
// Clients of rpcx and of yodel call it, while each server process in turn is killed and started
// again. No call fails: the retries that both recommend send it to another server.
func TestMixedFleetInEtcdWithKills(t *testing.T) {
	t.Attr("rerun", "never")
	registry := realserver.Etcd(t)
	var servers []*realserver.Server
	for _, role := range []string{roleRPCX, roleYodel, roleRPCX, roleYodel} {
		servers = append(servers, startServer(t, role, registry.Addr))
	}
	began := time.Now()
	clients := []*fleetClient{ofRPCX(t, registry.Addr), ofYodel(t, registry.Addr)}
	for _, c := range clients {
		for _, s := range servers {
			c.await(t, "a call that the server serves", func(a *tally) bool { return a.PIDs[s.Pid()] > 0 })
		}
	}
	const rounds = 4
	for round := range rounds {
		for i, s := range servers {
			killed := s.Pid()
			s.Kill()
			for _, c := range clients { // they make calls while the server is dead
				calls := c.counts(t).Calls
				c.await(t, "calls without the server", func(a *tally) bool { return a.Calls >= calls+100 })
			}
			s.Restart()
			for _, c := range clients {
				c.await(t, "a call that the server serves after its restart", func(a *tally) bool { return a.PIDs[s.Pid()] > 0 })
			}
			if s.Pid() == killed {
				t.Fatalf("round %d: server %d was not restarted", round, i)
			}
		}
	}
	for _, c := range clients {
		a := c.stop()
		t.Logf("%s: %d calls, %d failed, %d processes, %v", c.name, a.Calls, a.Failed, len(a.PIDs), time.Since(began).Round(time.Millisecond))
		if a.Failed > 0 {
			t.Errorf("%s: %d of %d calls failed, the first one: %s", c.name, a.Failed, a.Calls, a.First)
		}
		if len(a.PIDs) != len(servers)*(rounds+1) {
			t.Errorf("%s: %d processes served calls, want %d", c.name, len(a.PIDs), len(servers)*(rounds+1))
		}
	}
}

// A fleetClient calls the fleet all the time.
type fleetClient struct {
	name   string
	counts func(testing.TB) *tally // of the calls until now
	stop   func() *tally           // ends the calls
}

// await waits until the counts are as wanted.
func (c *fleetClient) await(t *testing.T, what string, wanted func(*tally) bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !wanted(c.counts(t)); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: no %s within 20 s: %s", c.name, what, c.counts(t).encode())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// ofYodel returns a client of yodel, with the retries that yodel recommends.
func ofYodel(t *testing.T, etcdAddr string) *fleetClient {
	r := fleetRegistry(etcdAddr)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	c := yodel.NewClient(r.Service("Fleet"), recommended.Client(&yodel.ClientOptions{
		Codec: msgpack.Codec, Wires: []yodel.Wire{rpcx.Wire(nil)}, Timeout: 5 * time.Second,
		Idempotent: []string{"Fleet.Double"}, Logger: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(c.Close)
	var all tally
	var callers sync.WaitGroup
	ended := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(ended)
		callers.Wait()
	})
	t.Cleanup(end)
	for range fleetCallers {
		callers.Go(func() {
			call(ended, &all, func(ctx context.Context, args *Args, reply *Doubled) error {
				return c.Call(ctx, "Fleet.Double", args, reply)
			})
		})
	}
	copied := func(tb testing.TB) *tally { return decodeTally(tb, all.encode()) }
	return &fleetClient{"yodel's client", copied, func() *tally {
		end()
		return copied(t)
	}}
}

func decodeTally(t testing.TB, line []byte) *tally {
	a := new(tally)
	if err := json.Unmarshal(line, a); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return a
}

// ofRPCX returns a process with XClients of rpcx, which fail over.
func ofRPCX(t *testing.T, etcdAddr string) *fleetClient {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := process(program, roleClient, etcdAddr, "")
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	last := []byte("{}")
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			mu.Lock()
			last = append([]byte(nil), lines.Bytes()...)
			mu.Unlock()
		}
	}()
	counts := func(tb testing.TB) *tally {
		mu.Lock()
		defer mu.Unlock()
		return decodeTally(tb, last)
	}
	end := sync.OnceValue(func() error {
		_ = input.Close() // tells the process to end; it may have ended
		<-read
		return cmd.Wait()
	})
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(fmt.Errorf("rpcx's client: %w", err))
		}
	})
	return &fleetClient{"rpcx's client", counts, func() *tally {
		_ = end() // the cleanup reports the error
		return counts(t)
	}}
}
