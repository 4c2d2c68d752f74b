// SPDX-License-Identifier: Apache-2.0

// Package dns resolves services by DNS: by the addresses of a name, or by SRV records. Names are
// looked up again and again, because DNS tells nobody of a change.
//
//	c := yodel.NewClient(dns.Host("arith.example:8972", nil), nil)
//	c := yodel.NewClient(dns.Service("_arith._tcp.example", nil), nil)
//
// Names are looked up again every 10 s, and at once when a connection to an instance could not be
// made or was lost. A name that does not exist has no instances. When the servers fail or do not
// answer, clients keep what they know.
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
)

// Options changes how names are looked up. The zero value is good.
type Options struct {
	// Every is how often, about. Default 10 s.
	Every time.Duration
	// Timeout is for one look. Default 5 s.
	Timeout time.Duration
	// Resolver is what looks. By default it is Go's own, and strict: when the question for IPv4 is
	// answered and the one for IPv6 fails, that is a failure.
	Resolver *net.Resolver
}

// A Resolver is the yodel.Resolver of a name.
type Resolver struct {
	what string // is resolved
	opts Options
	look func(ctx context.Context, r *net.Resolver) ([]yodel.Instance, error)

	mu    sync.Mutex
	again chan struct{} // closed and replaced by Refresh
}

// Host resolves HOST:PORT to the addresses of the host.
func Host(addr string, o *Options) *Resolver {
	host, port, err := net.SplitHostPort(addr)
	return newResolver("the addresses of "+addr, o, func(ctx context.Context, r *net.Resolver) ([]yodel.Instance, error) {
		if err != nil {
			return nil, err
		}
		return addresses(ctx, r, host, port, 0)
	})
}

// Service resolves a name that has SRV records, like _arith._tcp.example. Only the targets of the
// first priority that has any instances count, each with its weight: the others are for when there
// are none.
func Service(name string, o *Options) *Resolver {
	return newResolver("the SRV records of "+name, o, func(ctx context.Context, r *net.Resolver) ([]yodel.Instance, error) {
		_, records, err := r.LookupSRV(ctx, "", "", name)
		if err != nil {
			return nil, unlessUnknown(err)
		}
		var instances []yodel.Instance
		for i, record := range records { // sorted by priority
			if i > 0 && record.Priority != records[i-1].Priority && len(instances) > 0 {
				break
			}
			if record.Target == "." { // it says that there is none
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

func newResolver(what string, o *Options, look func(context.Context, *net.Resolver) ([]yodel.Instance, error)) *Resolver {
	if o == nil {
		o = &Options{}
	}
	r := &Resolver{what: what, opts: *o, look: look, again: make(chan struct{})}
	r.opts.Every = min(cmp.Or(max(o.Every, 0), 10*time.Second), forever)
	r.opts.Timeout = cmp.Or(max(o.Timeout, 0), 5*time.Second)
	r.opts.Resolver = cmp.Or(o.Resolver, &net.Resolver{PreferGo: true, StrictErrors: true})
	return r
}

// String says what is resolved, for errors and logs.
func (r *Resolver) String() string { return r.what + " in DNS" }

// addresses returns the instances at the addresses of a host.
func addresses(ctx context.Context, r *net.Resolver, host, port string, weight int) ([]yodel.Instance, error) {
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, unlessUnknown(err)
	}
	instances := make([]yodel.Instance, 0, len(addrs))
	for _, addr := range addrs {
		instances = append(instances, yodel.Instance{Addr: net.JoinHostPort(addr.Unmap().String(), port), Weight: weight})
	}
	return instances, nil
}

// unlessUnknown returns err unless it says that there is no such name, or that it has no such
// records.
func unlessUnknown(err error) error {
	var unknown *net.DNSError
	if errors.As(err, &unknown) && unknown.IsNotFound {
		return nil
	}
	return err
}

// Refresh has the name looked up again now. A client does so by itself when a connection could not
// be made or was lost, which may be because the instances have moved. However often it is called,
// no more than one question a second is asked.
func (r *Resolver) Refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.again)
	r.again = make(chan struct{})
}

// Watch implements yodel.Resolver.
func (r *Resolver) Watch(ctx context.Context, update func([]yodel.Instance)) error {
	var last []yodel.Instance
	for first := true; ctx.Err() == nil; first = false {
		r.mu.Lock()
		again := r.again
		r.mu.Unlock()
		one, cancel := context.WithTimeout(ctx, r.opts.Timeout)
		instances, err := r.look(one, r.opts.Resolver)
		cancel()
		switch {
		case ctx.Err() != nil: // whatever was found
		case err != nil:
			return err
		default:
			slices.SortFunc(instances, func(a, b yodel.Instance) int {
				return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(b.Weight, a.Weight))
			})
			if first || !slices.EqualFunc(instances, last, same) {
				update(instances)
				last = instances
			}
		}
		r.pause(ctx, again)
	}
	return nil
}

func same(a, b yodel.Instance) bool { return a.Addr == b.Addr && a.Weight == b.Weight }

// forever is the longest duration of an option, a hundred years: sums of two such durations do not
// overflow.
const forever = 100 * 365 * 24 * time.Hour

// pause waits until it is time for the next question.
func (r *Resolver) pause(ctx context.Context, again <-chan struct{}) {
	every := r.opts.Every
	late := time.After(every - every/8 + rand.N(every/4+1)) // not all clients at once
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
