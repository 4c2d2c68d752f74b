// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
)

// Addresses returns a source for servers at fixed addresses, without a registry. Its Services asks
// each server for its methods; client has the options of the clients that do so, and may be nil.
// The result knows the services of a server when Services has returned.
func Addresses(client *yodel.ClientOptions, addrs ...string) Source {
	s := &addresses{addrs: addrs, services: make(map[string][]string)}
	if client != nil {
		s.client = *client
	}
	return s
}

type addresses struct {
	addrs  []string
	client yodel.ClientOptions

	mu       sync.Mutex
	services map[string][]string // the services of each address
}

// String returns the addresses.
func (s *addresses) String() string { return strings.Join(s.addrs, ", ") }

// Services implements Source.
func (s *addresses) Services(ctx context.Context) ([]string, error) {
	errs := make([]error, len(s.addrs))
	var wg sync.WaitGroup
	for i, addr := range s.addrs {
		wg.Go(func() { errs[i] = s.ask(ctx, addr) })
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, of := range s.services {
		names = append(names, of...)
	}
	slices.Sort(names)
	return slices.Compact(names), errors.Join(errs...)
}

// ask finds out which services a server has. A server that does not answer keeps those that it had.
func (s *addresses) ask(ctx context.Context, addr string) error {
	o := s.client
	c := yodel.NewClient(discovery.Static(addr), &o)
	defer c.Close()
	info, err := inspect.Info.Call(ctx, c, &inspect.Empty{})
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	all := len(info.Methods)
	boundInfo(info)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[addr] = Services(info)
	if all > maxMethods {
		return fmt.Errorf("%s has %d methods, and the services of the first %d are listed", addr, all, maxMethods)
	}
	return nil
}

// Services returns the services of a server, sorted, without the built-in one and without gRPC's
// own for health and reflection.
func Services(info *introspect.Info) []string {
	var names []string
	for _, m := range info.Methods {
		name := ServiceOf(m.Name)
		if name != "yodel" && !strings.HasPrefix(name, "grpc.health.") && !strings.HasPrefix(name, "grpc.reflection.") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Service implements Source.
func (s *addresses) Service(name string) discovery.Resolver { return &fixed{s, name} }

// fixed resolves a service to the addresses whose servers have it.
type fixed struct {
	of   *addresses
	name string
}

// Watch implements discovery.Resolver.
func (f *fixed) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	var instances []discovery.Instance
	f.of.mu.Lock()
	for _, addr := range f.of.addrs {
		if slices.Contains(f.of.services[addr], f.name) {
			instances = append(instances, discovery.Instance{Addr: addr})
		}
	}
	f.of.mu.Unlock()
	update(instances)
	<-ctx.Done()
	return nil
}

// String describes the resolver in errors and logs.
func (f *fixed) String() string {
	return fmt.Sprintf("service %q at %s", f.name, strings.Join(f.of.addrs, ", "))
}
