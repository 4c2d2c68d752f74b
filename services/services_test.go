// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/services"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const (
	place   yodel.Method[int, string] = "Orders.Place"
	reserve yodel.Method[int, string] = "Inventory.Reserve"
	where   yodel.Method[int, string] = "Where"
	watch   yodel.Feed[int, int]      = "shop.Prices/Watch"
)

// A town has servers in a registry, each with one service.
type town struct {
	network  *mem.Network
	registry *registry.Registry
	clients  atomic.Int32 // that were made
}

func newTown(t *testing.T) *town {
	t.Helper()
	n := &town{network: mem.New(), registry: memory.New(nil)}
	for _, m := range []yodel.Method[int, string]{place, reserve, where} {
		n.serve(t, string(m), func(s *yodel.Server) {
			m.Handle(s, func(_ context.Context, n *int) (*string, error) { return new(fmt.Sprint(m, " ", *n)), nil })
		})
	}
	n.serve(t, "prices", func(s *yodel.Server) {
		watch.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error { return send(n) })
	})
	for _, service := range []string{"Orders", "Inventory", "Where", "shop.Prices"} {
		n.await(t, service)
	}
	return n
}

// await waits until the registry has an instance of a service.
func (n *town) await(t *testing.T, service string) {
	t.Helper()
	ctx, found := context.WithTimeout(t.Context(), time.Minute)
	defer found()
	known := false
	_ = n.registry.Service(service).Watch(ctx, func(all []discovery.Instance) { // ctx ends it
		if len(all) > 0 {
			known = true
			found()
		}
	})
	if !known {
		t.Fatalf("the registry has no instance of %s", service)
	}
}

func (n *town) serve(t *testing.T, addr string, register func(s *yodel.Server)) {
	t.Helper()
	l, err := n.network.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{n.registry}})
	register(s)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (n *town) options(string) *yodel.ClientOptions {
	n.clients.Add(1)
	return &yodel.ClientOptions{Transport: n.network, Timeout: 10 * time.Second}
}

// Calls of several services go to the servers of their service, through one client for each.
func TestEachCallGoesToItsService(t *testing.T) {
	n := newTown(t)
	all := services.New(n.registry.Service, &services.Options{Client: n.options})
	defer all.Close()
	var wg sync.WaitGroup
	for i := range 10 {
		for _, m := range []yodel.Method[int, string]{place, reserve, where} {
			wg.Go(func() {
				if got, err := m.Call(t.Context(), all, &i); err != nil || *got != fmt.Sprint(m, " ", i) {
					t.Errorf("got %v, %v, want %s %d", got, err, m, i)
				}
			})
		}
	}
	wg.Wait()
	if got, err := place.Go(t.Context(), all, new(7)).Get(); err != nil || *got != "Orders.Place 7" {
		t.Errorf("asynchronously: got %v, %v", got, err)
	}
	for got, err := range watch.Call(t.Context(), all, new(7)) {
		if err != nil || *got != 7 {
			t.Errorf("a feed: got %v, %v", got, err)
		}
	}
	if made := n.clients.Load(); made != 4 {
		t.Errorf("%d clients were made, want 4", made)
	}
	orders, err := all.Client("Orders")
	if err != nil || len(orders.Endpoints()) != 1 || orders.Endpoints()[0].Addr() != string(place) {
		t.Errorf("the client of Orders: got %v", err)
	}
}

// Names of services from others do not make any number of clients.
func TestServicesAreLimited(t *testing.T) {
	n := newTown(t)
	all := services.New(n.registry.Service, &services.Options{Client: n.options, Max: 2})
	defer all.Close()
	for range 2 {
		for _, m := range []yodel.Method[int, string]{place, reserve} {
			if _, err := m.Call(t.Context(), all, new(int)); err != nil {
				t.Error(err)
			}
		}
		_, err := where.Call(t.Context(), all, new(int))
		if !errors.Is(err, yodel.ResourceExhausted) || !yodel.NotProcessed(err) || !strings.Contains(err.Error(), `"Where"`) {
			t.Errorf("a third service: got %v", err)
		}
	}
	if made := n.clients.Load(); made != 2 {
		t.Errorf("%d clients were made, want 2", made)
	}
}

// After Close, calls fail, whether their service was called before or not.
func TestCloseClosesAllClients(t *testing.T) {
	n := newTown(t)
	all := services.New(n.registry.Service, &services.Options{Client: n.options})
	if _, err := place.Call(t.Context(), all, new(int)); err != nil {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for range 3 { // at the same time as a first call
		wg.Go(all.Close)
		wg.Go(func() { _, _ = drain(t, all) })
	}
	wg.Wait()
	for _, m := range []yodel.Method[int, string]{place, reserve} {
		_, err := m.Call(t.Context(), all, new(int))
		if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != "YDL1007" {
			t.Errorf("%s: got %v, want that the client is closed", m, err)
		}
	}
	all.Close()
}

func drain(t *testing.T, c yodel.Caller) (n int, err error) {
	t.Helper()
	for _, err = range watch.Call(t.Context(), c, new(7)) {
		n++
	}
	return n, err
}
