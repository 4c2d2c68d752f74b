// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/redis"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A Redis that hangs costs a server a part of its DrainTimeout, and no call.
func TestAServerDrainsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	r := realserver.Redis(t)
	network := mem.New()
	l, err := network.Listen("server")
	must(t, err)
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars:   []discovery.Registrar{newRegistry(t, r.Addr, nil)},
		DrainTimeout: 3 * time.Second, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	begun := make(chan struct{}, 12)
	must(t, s.Handle("Shop.Slow", func() { begun <- struct{}{}; <-time.After(time.Second) }))
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	known := make(chan struct{})
	watching, stop := context.WithCancel(t.Context())
	go func() {
		var once sync.Once
		_ = newRegistry(t, r.Addr, nil).Service("Shop").Watch(watching, func(in []discovery.Instance) {
			if len(in) == 1 {
				once.Do(func() { close(known) })
			}
		})
	}()
	<-known
	stop()
	r.Stop()
	defer r.Continue()
	s.UpdateInstance(func(in *discovery.Instance) { in.Weight = 2 })
	<-time.After(100 * time.Millisecond) // this announcement is under way
	c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
	defer c.Close()
	var calls sync.WaitGroup
	for range cap(begun) {
		calls.Go(func() {
			if err := c.Call(context.Background(), "Shop.Slow", yodel.Values{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	began := time.Now()
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	t.Logf("the shutdown took %v", time.Since(began))
	calls.Wait()
}

// A Delete must not overtake a Put that was canceled and that the server executes later.
func TestAWithdrawalWaitsForACanceledAnnouncement(t *testing.T) {
	t.Parallel()
	s := realserver.Redis(t)
	r, client := newRegistry(t, s.Addr, &redis.Options{Timeout: time.Minute}), direct(t, s)
	in := discovery.Instance{Addr: "10.0.0.1:8972"}
	for round := range 10 {
		must(t, r.Announce(t.Context(), "Shop", in, time.Minute)) // there is a connection
		s.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := r.Announce(ctx, "Shop", in, time.Minute); err == nil {
			t.Error("an announcement succeeded while the server hung")
		}
		cancel()
		withdrawn := make(chan error, 1)
		go func() { withdrawn <- r.Withdraw(t.Context(), "Shop", in.Addr) }()
		<-time.After(20 * time.Millisecond)
		s.Continue()
		must(t, <-withdrawn)
		if n, err := client.Exists(t.Context(), "yodel/Shop/"+in.Addr).Result(); n != 0 || err != nil {
			t.Fatalf("round %d: the record is there after it was withdrawn, %v", round, err)
		}
	}
}
