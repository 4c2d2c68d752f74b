// SPDX-License-Identifier: Apache-2.0

// Package dns resolves services by DNS, either by the addresses of a name or by SRV records. It
// looks names up again and again, because DNS does not report changes.
//
//	c := yodel.NewClient(dns.Host("arith.example:8972", nil), nil)
//	c := yodel.NewClient(dns.Service("_arith._tcp.example", nil), nil)
//
// Names are looked up again every 10 s, and at once when a connection to an instance fails or is
// lost. A name that does not exist has no instances. If the DNS servers fail or do not answer,
// clients keep the previous instances.
package dns

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how names are looked up. The zero value is good.
type Options struct {
	// Every is the approximate interval between two lookups. Default 10 s.
	Every time.Duration
	// Timeout limits a lookup. Default 5 s.
	Timeout time.Duration
	// Resolver looks names up. The default is Go's own resolver in strict mode: if the query for
	// IPv4 succeeds and the query for IPv6 fails, the lookup fails.
	Resolver *net.Resolver
}

// A Resolver is the discovery.Resolver of a name.
type Resolver struct {
	what string // what the Resolver looks up, for String
	opts Options
	look func(ctx context.Context, r *net.Resolver) ([]discovery.Instance, error)

	mu    sync.Mutex
	again chan struct{} // closed and replaced by Refresh
}

// Host resolves HOST:PORT to the addresses of the host.
func Host(addr string, o *Options) *Resolver {
	host, port, err := net.SplitHostPort(addr)
	return newResolver("the addresses of "+addr, o, func(ctx context.Context, r *net.Resolver) ([]discovery.Instance, error) {
		if err != nil {
			return nil, err
		}
		return addresses(ctx, r, host, port, 0)
	})
}

// Service resolves a name that has SRV records, like _arith._tcp.example. It uses only the targets
// of the first priority that has any instances, each with its weight. Targets of the next
// priorities are used when these have none.
func Service(name string, o *Options) *Resolver {
	return newResolver("the SRV records of "+name, o, func(ctx context.Context, r *net.Resolver) ([]discovery.Instance, error) {
		_, records, err := r.LookupSRV(ctx, "", "", name)
		if err != nil {
			return nil, unlessUnknown(err)
		}
		var instances []discovery.Instance
		for i, record := range records { // sorted by priority
			if i > 0 && record.Priority != records[i-1].Priority && len(instances) > 0 {
				break
			}
			if record.Target == "." { // the record says that there is no instance
				continue
			}
			more, err := addresses(ctx, r, record.Target, strconv.Itoa(int(record.Port)), int(record.Weight))
			if err != nil {
				return nil, err
			}
			instances = append(instances, more...)
		}
		return instances, nil
	})
}

func newResolver(what string, o *Options, look func(context.Context, *net.Resolver) ([]discovery.Instance, error)) *Resolver {
	if o == nil {
		o = &Options{}
	}
	r := &Resolver{what: what, opts: *o, look: look, again: make(chan struct{})}
	r.opts.Every = defaults.Positive(o.Every, 10*time.Second)
	r.opts.Timeout = cmp.Or(max(o.Timeout, 0), 5*time.Second)
	r.opts.Resolver = cmp.Or(o.Resolver, &net.Resolver{PreferGo: true, StrictErrors: true})
	return r
}

// String describes the resolver in errors and logs.
func (r *Resolver) String() string { return r.what + " in DNS" }

// addresses returns the instances at the addresses of a host.
func addresses(ctx context.Context, r *net.Resolver, host, port string, weight int) ([]discovery.Instance, error) {
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, unlessUnknown(err)
	}
	instances := make([]discovery.Instance, 0, len(addrs))
	for _, addr := range addrs {
		instances = append(instances, discovery.Instance{Addr: net.JoinHostPort(addr.Unmap().String(), port), Weight: weight})
	}
	return instances, nil
}

// unlessUnknown returns nil if err says that the name does not exist or has no records of the type.
// Otherwise it returns err.
func unlessUnknown(err error) error {
	var unknown *net.DNSError
	if errors.As(err, &unknown) && unknown.IsNotFound {
		return nil
	}
	return err
}

// Describe implements the optional method of discovery.Resolver.
func (r *Resolver) Describe() yodel.Description { return yodel.Description{Refresh: r.Refresh} }

// Refresh looks the name up again now. A client calls it when a connection fails or is lost,
// because the instances may have moved. Calling it often causes at most one lookup a second.
func (r *Resolver) Refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.again)
	r.again = make(chan struct{})
}

// Watch implements discovery.Resolver.
func (r *Resolver) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	var last []discovery.Instance
	for first := true; ctx.Err() == nil; first = false {
		r.mu.Lock()
		again := r.again
		r.mu.Unlock()
		one, cancel := context.WithTimeout(ctx, r.opts.Timeout)
		instances, err := r.look(one, r.opts.Resolver)
		cancel()
		switch {
		case ctx.Err() != nil: // ctx has ended, so the result does not count
		case err != nil:
			return err
		default:
			slices.SortFunc(instances, func(a, b discovery.Instance) int {
				return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(b.Weight, a.Weight))
			})
			instances = registry.Distinct(instances)
			if first || !slices.EqualFunc(instances, last, same) {
				update(instances)
				last = instances
			}
		}
		r.pause(ctx, again)
	}
	return nil
}

func same(a, b discovery.Instance) bool { return a.Addr == b.Addr && a.Weight == b.Weight }

// pause waits until the next lookup is due.
func (r *Resolver) pause(ctx context.Context, again <-chan struct{}) {
	every := r.opts.Every
	late := time.After(every - every/8 + rand.N(every/4+1)) // spreads the lookups of many clients
	select {
	case <-time.After(min(time.Second, every/2)):
	case <-ctx.Done():
	}
	select {
	case <-late:
	case <-again:
	case <-ctx.Done():
	}
}
