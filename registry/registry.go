// SPDX-License-Identifier: Apache-2.0

// Package registry is the common part of all registries. The packages below it are the registries.
// A server uses a registry as a discovery.Registrar. A client uses the discovery.Resolver that the
// registry's method Service returns.
//
//	r := etcd.New("10.0.0.1:2379", nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
//	c := yodel.NewClient(r.Service("Arith"), nil)
//
// A Store is a system that stores values under keys. New makes a registry of it. A Layout is the
// format of the instances in the store. Merge and Prefer combine several resolvers. Snapshot lets a
// client start while its registry is down.
package registry

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A Store keeps values under keys and makes them visible to other processes. It must be safe for
// concurrent use. It may have these methods besides:
//
//   - List, see Lister: without it, the registry lists neither services nor rules.
//   - String, which names the registry in logs and errors.
//   - Writable(ctx context.Context, key string) error, which returns why key, which does not exist,
//     could not be put. It changes nothing.
type Store interface {
	// Put sets the value of key. The store removes the key when ttl has passed since the last Put
	// of the key, or soon after that, but not before. A ttl of 0 means that the key does not
	// expire. Put must not assume that the results of earlier calls still exist, because the store
	// may have lost them.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Get returns the value of a key, or nil if there is none.
	Get(ctx context.Context, key string) ([]byte, error)
	// Delete removes a key. Deleting an unknown key succeeds.
	Delete(ctx context.Context, key string) error
	// Watch reports the keys that begin with prefix to view until ctx ends: first all keys, by
	// Replace, and then every change. An error means that Watch may have missed changes. The
	// registry then calls Watch again. It also restarts Watch now and then without an error.
	Watch(ctx context.Context, prefix string, view *View) error
}

// Options changes how a registry works. The zero value has sensible defaults.
type Options struct {
	// Prefix is the prefix of all keys. Default "yodel".
	Prefix string
	// Layout is the format of instances. Default JSON.
	Layout Layout
	// Reconcile is how often a client reads all instances again, in case it missed a change.
	// Default 1 min.
	Reconcile time.Duration
	// Logger logs records that cannot be read. Default slog.Default().
	Logger *slog.Logger
}

// A Registry is a Registrar on top of a store, and returns resolvers for its services. It may be
// used concurrently.
type Registry struct {
	store Store
	opts  Options

	mu      sync.Mutex
	written map[string]written // by key: what this process announced last
}

// written is a record that this process has announced.
type written struct {
	in      discovery.Instance
	certain bool // the store has accepted it, so another value there is not from this process
}

// New returns a registry on top of store.
func New(store Store, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	r := &Registry{store: store, opts: *o, written: make(map[string]written)}
	opts := &r.opts
	if opts.Prefix == "" {
		opts.Prefix = "yodel"
	}
	opts.Prefix = strings.TrimSuffix(opts.Prefix, "/")
	if opts.Layout == nil {
		opts.Layout = JSON
	}
	if opts.Reconcile <= 0 {
		opts.Reconcile = time.Minute
	}
	return r
}

// Announce implements discovery.Registrar.
func (r *Registry) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	in, known, err := r.settled(ctx, service, in)
	if err != nil {
		return err
	}
	value, err := r.opts.Layout.Value(in)
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", in.Addr, err)
	}
	key := r.key(service, in.Addr)
	r.wrote(key, written{in: known}) // the store may write it despite an error
	if err := r.store.Put(ctx, key, value, ttl); err != nil {
		return err
	}
	r.wrote(key, written{known, true})
	return nil
}

// Withdraw implements discovery.Registrar. It leaves the record of another process that has
// announced itself at addr since.
func (r *Registry) Withdraw(ctx context.Context, service, addr string) error {
	key := r.key(service, addr)
	r.mu.Lock()
	ours, known := r.written[key]
	r.mu.Unlock()
	if known && ours.in.Incarnation != "" {
		value, err := r.store.Get(ctx, key)
		if err != nil {
			return err
		}
		found, err := r.opts.Layout.Instance(r.opts.Layout.Name(addr), value)
		if err == nil && found.Incarnation != "" && found.Incarnation != ours.in.Incarnation {
			return nil
		}
	}
	if err := r.store.Delete(ctx, key); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.written, key)
	return nil
}

func (r *Registry) prefix(service string) string { return r.opts.Prefix + "/" + escape(service) + "/" }

func (r *Registry) key(service, addr string) string {
	return r.prefix(service) + r.opts.Layout.Name(addr)
}

// Service returns a resolver for the instances of a service.
func (r *Registry) Service(name string) discovery.Resolver { return &service{r, name, r.prefix(name)} }

// A service is the resolver for one service of a registry.
type service struct {
	*Registry
	name, prefix string
}

// Describe implements the optional method of discovery.Resolver.
func (s *service) Describe() yodel.Description {
	return yodel.Description{Service: s.name, Services: s.hint}
}

// Watch implements discovery.Resolver.
func (s *service) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := newView(s)
	failed := make(chan error, 1)
	go func() {
		failed <- safely("the Watch of a store", func() error { return s.read(ctx, v) })
		cancel()
	}()
	v.tell(ctx, update)
	cancel()
	return <-failed
}

// read keeps v in step with the store until ctx ends or the store fails.
func (s *service) read(ctx context.Context, v *View) error {
	for ctx.Err() == nil {
		// The random part spreads the times at which clients read everything.
		one, cancel := context.WithTimeout(ctx, s.opts.Reconcile-rand.N(s.opts.Reconcile/4+1))
		err := s.store.Watch(one, s.prefix, v)
		ended := one.Err() != nil
		cancel()
		if err != nil && !ended {
			return err
		}
	}
	return nil
}
