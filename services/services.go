// SPDX-License-Identifier: Apache-2.0

// Package services calls the methods of many services with one value:
//
//	all := services.New(registry.Service, nil)
//	defer all.Close()
//	order, err := PlaceOrder.Call(ctx, all, &cart) // the method Orders.Place, of the service Orders
//	item, err := Reserve.Call(ctx, all, &order)    // the method Inventory.Reserve, of the service Inventory
//
// The service of a method is its name up to the last dot or slash, as in registries. The first call
// of a service makes its client. Each client has its own connections, balancer and retry budget, so
// a service that is slow or down does not affect the calls of others. A program whose services all
// run in the same servers needs no Clients: the client of one service calls the methods of all
// services of its servers.
package services

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Options configures Clients. The zero value works.
type Options struct {
	// Client returns the options of the client of a service. It may return nil. Default: nil for
	// all services.
	Client func(service string) *yodel.ClientOptions
	// Max is the maximum number of services, so that a program that calls methods by names from
	// others, such as a gateway, does not make a client for each name. Calls of further services
	// fail with yodel.ResourceExhausted. Default 1000.
	Max int
}

// Clients has a client for each service that the program has called. It is a yodel.Caller. Its
// methods may be called concurrently.
type Clients struct {
	resolver func(service string) discovery.Resolver
	options  Options

	mu     sync.RWMutex
	all    map[string]func() *yodel.Client // each makes its client when it is called for the first time
	closed bool
}

// New returns Clients for the services whose instances the resolvers know. Resolver is the method
// Service of a registry, for example, or a function that returns discovery.Static for a name. O may
// be nil.
func New(resolver func(service string) discovery.Resolver, o *Options) *Clients {
	c := &Clients{resolver: resolver, all: make(map[string]func() *yodel.Client)}
	if o != nil {
		c.options = *o
	}
	if c.options.Max <= 0 {
		c.options.Max = 1000
	}
	return c
}

// Do sends the call with the client of the service that its method belongs to.
func (c *Clients) Do(ctx context.Context, call *yodel.Call) error {
	service := call.Method
	if i := strings.LastIndexAny(service, "./"); i >= 0 {
		service = service[:i]
	}
	client, err := c.Client(service)
	if err != nil {
		return err
	}
	return client.Do(ctx, call)
}

// Client returns the client of a service, for example to wait until it is ready, or for package
// fanout. It makes the client if there is none yet. It fails if there are Options.Max clients of
// other services. The caller must not close the client.
func (c *Clients) Client(service string) (*yodel.Client, error) {
	c.mu.RLock()
	get := c.all[service]
	c.mu.RUnlock()
	if get == nil {
		if get = c.add(service); get == nil {
			err := yodel.Errorf(yodel.ResourceExhausted, "the program has called %d services, and %.100q is another one: see services.Options.Max", c.options.Max, service)
			err.NotProcessed = true
			return nil, err
		}
	}
	return get(), nil
}

// add returns the function that makes the client of a service. It returns nil if there are too many
// services.
func (c *Clients) add(service string) func() *yodel.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if get := c.all[service]; get != nil {
		return get
	}
	if len(c.all) >= c.options.Max {
		return nil
	}
	service = strings.Clone(service)
	get := sync.OnceValue(func() *yodel.Client { return c.newClient(service) })
	if c.closed {
		get = closing(get)
	}
	c.all[service] = get
	return get
}

func (c *Clients) newClient(service string) *yodel.Client {
	var o *yodel.ClientOptions
	if c.options.Client != nil {
		o = c.options.Client(service)
	}
	return yodel.NewClient(c.resolver(service), o)
}

// closing returns a function that makes a client that is closed.
func closing(get func() *yodel.Client) func() *yodel.Client {
	return sync.OnceValue(func() *yodel.Client {
		client := get()
		client.Close()
		return client
	})
}

// Close closes all clients, and returns when they are closed. Calls in flight and later calls fail.
func (c *Clients) Close() {
	c.mu.Lock()
	c.closed = true
	for service, get := range c.all {
		c.all[service] = closing(get)
	}
	all := make([]func() *yodel.Client, 0, len(c.all))
	for _, get := range c.all {
		all = append(all, get)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for get := range slices.Values(all) {
		wg.Go(func() { get() })
	}
	wg.Wait()
}
