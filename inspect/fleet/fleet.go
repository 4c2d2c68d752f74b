// SPDX-License-Identifier: Apache-2.0

// Package fleet reads the state of a fleet: the services in a registry, their instances, and what
// the instances say about themselves by the built-in methods of package inspect.
//
//	f := fleet.New(registry, nil)
//	defer f.Close()
//	view, err := f.Read(ctx)
//	for _, s := range view.Services {
//		fmt.Println(s.Name, s.Up, len(s.Instances), s.Traffic.Rate, s.Note)
//	}
//
// A Fleet is a client like any other. It needs no agent and stores nothing. Middleware of the
// servers authorizes it: see Options.Client.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Source names the services of a fleet and resolves them. Registries that can list their services
// are sources, and so is the result of Addresses. A source must be safe for concurrent use.
type Source interface {
	// Services returns the names of the services. It may return names together with an error if it
	// knows only a part of them.
	Services(ctx context.Context) ([]string, error)
	// Service returns a resolver for the instances of a service.
	Service(name string) yodel.Resolver
}

// Options changes how a fleet is read. The zero value has sensible defaults.
type Options struct {
	// Timeout limits how long Read waits for the source, and how long it waits for each instance.
	// An instance that has not answered by then is silent. Default 1 s.
	Timeout time.Duration
	// Parallel is the maximum number of instances that Read asks at the same time. Default 64.
	Parallel int
	// Span is how far back the live data goes: see introspect.LiveQuery. Default 1 min.
	Span time.Duration
	// Conns asks the instances for their connections too.
	Conns bool
	// Client has the options of the clients that ask the instances, for example a Transport with
	// TLS, or metadata with a token. Its DialTimeout is at most Timeout. Default: the defaults of
	// yodel.NewClient.
	Client *yodel.ClientOptions
}

// A Fleet reads a fleet repeatedly. Between two reads, it watches the services and remains
// connected to the instances. Its methods may be called concurrently. Close ends it.
type Fleet struct {
	source Source
	opts   Options
	client yodel.ClientOptions
	slots  chan struct{} // capacity Options.Parallel: one for each instance that is being asked

	mu       sync.Mutex
	closed   bool
	services map[string]*watched
	nodes    map[string]*node // by address
}

// New returns a fleet that reads the services of a source. It waits for nothing.
func New(source Source, o *Options) *Fleet {
	f := &Fleet{source: source, services: make(map[string]*watched), nodes: make(map[string]*node)}
	if o != nil {
		f.opts = *o
	}
	if f.opts.Timeout <= 0 {
		f.opts.Timeout = time.Second
	}
	if f.opts.Parallel <= 0 {
		f.opts.Parallel = 64
	}
	if f.opts.Span <= 0 {
		f.opts.Span = time.Minute
	}
	f.slots = make(chan struct{}, f.opts.Parallel)
	f.client = clientOptions(f.opts.Client, f.opts.Timeout)
	return f
}

// clientOptions returns the options of a client that asks an instance.
func clientOptions(given *yodel.ClientOptions, timeout time.Duration) yodel.ClientOptions {
	var o yodel.ClientOptions
	if given != nil {
		o = *given
	}
	if o.DialTimeout <= 0 || o.DialTimeout > timeout {
		o.DialTimeout = timeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler) // the view has what is wrong with an instance
	}
	o.MaxMemory = cmp.Or(o.MaxMemory, 64<<20) // of each instance; the default is a share of the machine's
	o.Codec = yodel.JSON                      // the messages of the built-in methods are plain structs
	return o
}

// Close stops watching and closes the connections.
func (f *Fleet) Close() {
	f.mu.Lock()
	services, nodes := f.services, f.nodes
	f.closed, f.services, f.nodes = true, nil, nil
	f.mu.Unlock()
	for _, w := range services {
		w.stop()
	}
	for _, n := range nodes {
		n.client.Close()
	}
}

// errClosed is the error of a fleet that has been closed.
var errClosed = errors.New("the fleet has been closed")

// A View is the state of a fleet at one time. It belongs to the caller of Read.
type View struct {
	At time.Time `json:"at"`
	// Services has the services, those that need attention first.
	Services []*Service `json:"services"`
	// Events has what happened recently in the processes, the oldest first.
	Events []introspect.Event `json:"events,omitempty"`
	// Err is why the source has named only a part of the services; empty if it has named all.
	Err string `json:"err,omitempty"`
}

// Service returns the service of a name, or nil.
func (v *View) Service(name string) *Service {
	for _, s := range v.Services {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Services returns the names of the services, sorted, without those of more than 1 KiB. It may
// return names together with an error.
func (f *Fleet) Services(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()
	names, err := f.source.Services(ctx)
	all := len(names)
	names = slices.DeleteFunc(names, func(name string) bool { return len(name) > maxText })
	if long := all - len(names); long > 0 {
		err = cmp.Or(err, fmt.Errorf("%d services have names of more than %d bytes", long, maxText))
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// Read reads the given services, or all services if none is given. Only a process that is read can
// say which instances its clients have ejected, so the states in a view of some services lack the
// ejections by clients in all others. Read returns an error if the source names no service because
// it failed, if ctx ends, or if the fleet is closed. It never fails because of a resolver or an
// instance: Service.Err and Instance.Why have the reasons.
func (f *Fleet) Read(ctx context.Context, services ...string) (*View, error) {
	view := &View{At: time.Now()}
	all := len(services) == 0
	if all {
		names, err := f.Services(ctx)
		if err != nil {
			if len(names) == 0 {
				return nil, err
			}
			view.Err = short(err.Error())
		}
		services = names
	}
	watches, err := f.watch(services, all && view.Err == "") //nolint:contextcheck // watching goes on after the read
	if err != nil {
		return nil, err
	}
	named, cancel := context.WithTimeoutCause(ctx, f.opts.Timeout, fmt.Errorf("the registry has not answered within %v", f.opts.Timeout))
	defer cancel()
	byAddr := make(map[string][]*Instance)
	for i, w := range watches {
		s := &Service{Name: services[i]}
		view.Services = append(view.Services, s)
		instances, err := w.get(named)
		if err != nil {
			s.Err = short(err.Error())
		}
		for _, in := range instances {
			one := &Instance{Instance: in, Service: s.Name, State: Up}
			s.Instances = append(s.Instances, one)
			byAddr[in.Addr] = append(byAddr[in.Addr], one)
		}
	}
	if err := f.ask(ctx, byAddr, all); err != nil {
		return nil, err
	}
	view.complete()
	return view, nil
}

// ask asks all instances, each address once. If the addresses are those of the whole fleet, it also
// closes the connections to all others.
func (f *Fleet) ask(ctx context.Context, byAddr map[string][]*Instance, all bool) error {
	var wg sync.WaitGroup
	for addr, instances := range byAddr {
		if !native(instances[0].Protocols) {
			for _, in := range instances {
				in.State, in.Why = Listed, short(fmt.Sprintf("it speaks %v, and cannot be asked", in.Protocols))
			}
			continue
		}
		n, err := f.node(addr)
		if err != nil {
			wg.Wait()
			return err
		}
		wg.Go(func() {
			select {
			case f.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-f.slots }()
			answer := n.ask(ctx, &f.opts)
			for _, in := range instances {
				in.take(answer)
			}
		})
	}
	wg.Wait()
	if all {
		f.prune(byAddr)
	}
	return context.Cause(ctx)
}

// native reports whether protocols include yodel's own.
func native(protocols []string) bool {
	return len(protocols) == 0 || slices.Contains(protocols, "yodel")
}

// node returns the node at an address.
func (f *Fleet) node(addr string) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errClosed
	}
	n := f.nodes[addr]
	if n == nil {
		o := f.client
		n = &node{client: yodel.NewClient(yodel.Static(addr), &o)}
		f.nodes[addr] = n
	}
	return n, nil
}

// prune closes the connections to nodes that no service names any more.
func (f *Fleet) prune(byAddr map[string][]*Instance) {
	var gone []*node
	f.mu.Lock()
	for addr, n := range f.nodes {
		if _, ok := byAddr[addr]; !ok {
			gone = append(gone, n)
			delete(f.nodes, addr)
		}
	}
	f.mu.Unlock()
	for _, n := range gone {
		n.client.Close()
	}
}

// Client returns the client with which the fleet asks the instance at addr, for the methods that
// Read does not call, such as inspect.Samples. The fleet closes it when the instance has left, or
// by Close. Client returns nil if the fleet is closed.
func (f *Fleet) Client(addr string) *yodel.Client {
	n, err := f.node(addr)
	if err != nil {
		return nil
	}
	return n.client
}
