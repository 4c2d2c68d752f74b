// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options changes how a process follows rules. The zero value has sensible defaults.
type Options struct {
	// Caller is the name of this process in the scope of rules, if it makes calls. Default: the
	// base name of the program.
	Caller string
	// OnChange is called after the rules of a service have changed, with the rules that are now in
	// force. It is called by one goroutine for each service. Default none.
	OnChange func(service string, rules []Rule)
	// Logger logs rules that are refused, and rules that are rolled back. Default slog.Default().
	Logger *slog.Logger
}

// A Registry is what With needs: a registrar that has resolvers for services and keeps rules.
type Registry interface {
	discovery.Registrar
	Keeper
	Service(name string) discovery.Resolver
}

// Rules makes clients and servers follow the rules in a registry. It is a discovery.Registrar, and
// its method Service returns resolvers. Its methods may be called concurrently.
type Rules struct {
	registry Registry
	opts     Options
	caller   atomic.Pointer[string] // the name of this process as a caller; nil before its first client
	book     *Book
	ruled    atomic.Int64 // services with rules that act
	services sync.Map     // of *service, by name
	outage   outage
}

// With returns the registry r with rules. O may be nil. The clients of its resolvers follow the
// rules of their service, and the servers that it announces follow the rules of their services. It
// changes the options of these clients and servers, and needs no further wiring. A resolver that
// wraps one of these hides the rules from the client if it has no method Describe.
//
// A process reads the rules while a client of the service is open or a server of it is announced.
// If the registry fails, the last rules stay in force. If a record is not a valid rule, the last
// valid rule with its ID stays in force, until it expires.
func With(r Registry, o *Options) *Rules {
	rules := &Rules{registry: r, book: &Book{keeper: r, running: make(chan struct{}, 1)}}
	if o != nil {
		rules.opts = *o
	}
	return rules
}

// of returns the rules of a service. Programs choose the names of services.
func (r *Rules) of(name string) *service {
	if s, ok := r.services.Load(name); ok {
		return s.(*service) //nolint:forcetypeassert // nothing else is in it
	}
	s, _ := r.services.LoadOrStore(name, newService(r, name))
	return s.(*service) //nolint:forcetypeassert // nothing else is in it
}

// count counts a service that has got its first rule, or has lost its last one.
func (r *Rules) count(ruled bool) {
	if ruled {
		r.ruled.Add(1)
	} else {
		r.ruled.Add(-1)
	}
}

// Service returns a resolver for a service whose clients follow the rules of the service.
func (r *Rules) Service(name string) discovery.Resolver {
	return &resolver{service: r.of(name), inner: r.registry.Service(name)}
}

// String names the registry in logs.
func (r *Rules) String() string {
	return cmp.Or(yodel.Description{}.Over(r.registry).Name, fmt.Sprintf("a %T", r.registry))
}

// Announce implements discovery.Registrar. It reads the rules of the service before the first
// announcement, so that the server follows them from its first call on.
func (r *Rules) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	s := r.of(service)
	select {
	case <-s.loaded:
	default:
		release := s.use() //nolint:contextcheck // the goroutine serves all users of the service
		s.load(ctx)
		release()
	}
	return r.registry.Announce(ctx, service, in, ttl)
}

// Withdraw implements discovery.Registrar.
func (r *Rules) Withdraw(ctx context.Context, service, addr string) error {
	return r.registry.Withdraw(ctx, service, addr)
}

// Describe implements the optional method of discovery.Registrar. While a server watches the
// settings of operators for a service, the process follows the rules of the service.
func (r *Rules) Describe() yodel.Description {
	d := yodel.Description{Rules: r.Rules}.Over(r.registry)
	amend, settings := d.AmendServer, d.Overrides
	d.AmendServer = func(s *yodel.Server, o *yodel.ServerOptions) *yodel.ServerOptions {
		if amend != nil {
			o = amend(s, o)
		}
		return r.amendServer(s, o)
	}
	d.Overrides = func(service string) discovery.Resolver {
		if settings == nil {
			return &resolver{service: r.of(service)}
		}
		return &resolver{service: r.of(service), inner: settings(service)}
	}
	return d
}

// Keep implements Keeper.
func (r *Rules) Keep(ctx context.Context, service, kind, id string, value []byte) error {
	return r.registry.Keep(ctx, service, kind, id, value)
}

// Kept implements Keeper.
func (r *Rules) Kept(ctx context.Context, service, kind string, update func(records map[string][]byte)) error {
	return r.registry.Kept(ctx, service, kind, update)
}

// KeptServices implements Keeper.
func (r *Rules) KeptServices(ctx context.Context, kind string) ([]string, error) {
	return r.registry.KeptServices(ctx, kind)
}

// amendServer adds the rules to the options of a server. They act below the other middleware, so
// that authentication comes first.
func (r *Rules) amendServer(server *yodel.Server, o *yodel.ServerOptions) *yodel.ServerOptions {
	opts := *o
	opts.Middleware = slices.Concat(o.Middleware, []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return r.serve(server, next)
	}})
	return &opts
}

// serve returns the handler of server around next.
func (r *Rules) serve(server *yodel.Server, next yodel.Handler) yodel.Handler {
	var chains sync.Map // of *chain, by *service
	return func(ctx context.Context, call *yodel.Call) error {
		if r.ruled.Load() == 0 {
			return next(ctx, call)
		}
		name, _ := splitMethod(call.Method)
		known, ok := r.services.Load(name)
		if !ok {
			return next(ctx, call)
		}
		s := known.(*service) //nolint:forcetypeassert // nothing else is in it
		c, ok := chains.Load(s)
		if !ok {
			c, _ = chains.LoadOrStore(s, &chain{service: s, side: "server", server: server, stages: serverStages, next: next, plain: next})
		}
		return c.(*chain).do(ctx, call) //nolint:forcetypeassert // nothing else is in it
	}
}

// Switch returns the value of a switch of a service, or otherwise if no rule sets it. It costs an
// atomic load and a search in the rules of the service. The process follows the rules only while it
// has a client or a server of the service.
func (r *Rules) Switch(service, name string, otherwise bool) bool {
	if t := r.of(service).rules(); t != nil {
		if on, ok := t.switches[name]; ok {
			return on
		}
	}
	return otherwise
}

// Rules returns the rules that this process knows, sorted by service and ID, with their counters.
// The built-in method yodel.Rules of a server that is announced in r returns the same.
func (r *Rules) Rules() introspect.Rules {
	all, now := introspect.Rules{Rules: []introspect.RuleState{}}, time.Now()
	if name := r.caller.Load(); name != nil {
		all.Name = *name
	}
	services := make(map[string]*service)
	r.services.Range(func(name, s any) bool {
		services[name.(string)] = s.(*service) //nolint:forcetypeassert // nothing else is in it
		return true
	})
	for _, name := range sortedKeys(services) {
		all.Rules = append(all.Rules, services[name].states(now)...)
	}
	return all
}

// A resolver is a resolver of the registry whose clients follow rules, or the settings of operators
// for a service.
type resolver struct {
	service *service
	inner   discovery.Resolver // nil if the registry has no settings
}

// Watch implements discovery.Resolver. When the rules change, it reports the instances again, so
// that the client makes a new picker.
func (r *resolver) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	if note := introspect.NoteOf(ctx); note != nil {
		defer r.service.join(note)()
	}
	release := r.service.use() //nolint:contextcheck // the goroutine serves all users of the service
	defer release()
	r.service.load(ctx)
	if r.inner == nil {
		<-ctx.Done()
		return nil
	}
	reports := &repeater{update: update, running: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reports.follow(ctx, r.service)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	return r.inner.Watch(ctx, reports.report)
}

// A repeater reports instances to a client, and reports them again when the rules have changed.
type repeater struct {
	update  func([]discovery.Instance)
	running chan struct{} // holds the token of the running report
	last    []discovery.Instance
	known   bool
}

func (r *repeater) report(instances []discovery.Instance) {
	r.running <- struct{}{}
	defer func() { <-r.running }()
	r.last, r.known = instances, true
	r.update(instances)
}

// follow reports the last instances after each change of the rules, until ctx ends.
func (r *repeater) follow(ctx context.Context, s *service) {
	seen := s.rules()
	for ctx.Err() == nil {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if now := s.rules(); now != seen {
			seen = now
			r.repeat()
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (r *repeater) repeat() {
	r.running <- struct{}{}
	defer func() { <-r.running }()
	if r.known {
		r.update(r.last)
	}
}

// Describe implements the optional method of discovery.Resolver.
func (r *resolver) Describe() yodel.Description {
	d := yodel.Description{}.Over(r.inner)
	d.Name = cmp.Or(d.Name, fmt.Sprintf("service %q with rules", r.service.name))
	d.Service = cmp.Or(d.Service, r.service.name)
	amend := d.AmendClient
	d.AmendClient = func(o *yodel.ClientOptions) *yodel.ClientOptions {
		if amend != nil {
			o = amend(o)
		}
		return r.amendClient(o)
	}
	return d
}

// amendClient adds the rules to the options of a client. They act above the other middleware of the
// client, except faults, which act below everything.
func (r *resolver) amendClient(o *yodel.ClientOptions) *yodel.ClientOptions {
	opts, s := *o, r.service
	if opts.Balancer == nil {
		opts.Balancer = yodel.RoundRobin
	}
	c := &client{service: s, inner: opts.Balancer, running: make(chan struct{}, 1)}
	opts.Balancer = c.balance
	own := limits{opts.Timeout, opts.StreamTimeout}
	opts.Timeout, opts.StreamTimeout = 0, 0 // the chain of the calls has them
	opts.Middleware = slices.Concat([]yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return (&chain{service: s, side: "client", stages: callStages, next: next, plain: own.around(next), own: own}).do
	}}, opts.Middleware)
	on := func(stages []*kind) yodel.EndpointMiddleware {
		return func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			return (&chain{service: s, side: "client", stages: stages, next: next, plain: next, ep: ep}).do
		}
	}
	opts.EndpointMiddleware = slices.Concat([]yodel.EndpointMiddleware{on(attemptStages)}, opts.EndpointMiddleware, []yodel.EndpointMiddleware{on(beneathStages)})
	name := cmp.Or(opts.Name, filepath.Base(os.Args[0]))
	s.of.caller.CompareAndSwap(nil, &name)
	return &opts
}
