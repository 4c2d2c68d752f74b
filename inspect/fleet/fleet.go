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
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Source names the services of a fleet and resolves them. Registries that can list their services
// are sources, and so is the result of Addresses. A source must be safe for concurrent use.
type Source interface {
	// Services returns the names of the services. It may return names together with an error if it
	// knows only a part of them.
	Services(ctx context.Context) ([]string, error)
	// Service returns a resolver for the instances of a service.
	Service(name string) discovery.Resolver
}

// Options changes how a fleet is read. The zero value has sensible defaults.
type Options struct {
	// Timeout limits how long Read waits for each instance. An instance that has not answered by
	// then is silent. Default 1 s.
	Timeout time.Duration
	// SourceTimeout limits how long Read waits for the list of services, and then for their
	// resolvers. Default 3 s, or Timeout if that is longer.
	SourceTimeout time.Duration
	// Limit is how long Read begins to ask instances. The state of those that were not asked by
	// then is Unknown, and View.Late counts them. Default 10 s.
	Limit time.Duration
	// Parallel is the maximum number of instances that Read asks at the same time. Default 128.
	Parallel int
	// Progress is called when Read has asked another instance, with how many it has asked of how
	// many addresses, by several goroutines at the same time. May be nil.
	Progress func(asked, all int)
	// Span is how far back the live data goes: see introspect.LiveQuery. Default 1 min.
	Span time.Duration
	// Conns asks the instances for their connections too.
	Conns bool
	// Rules returns the rules of operators that act, which the services name in their problems. It
	// may return a part of them with an error, which Read ignores. Default: none are known.
	Rules func(ctx context.Context) ([]Ruling, error)
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
	nodes    map[string]*node            // by address
	names    list                        // the last list of services
	left     map[string]*introspect.Live // of instances that have left, by address, for their restart
}

// A list is a list of the services of a source that is complete.
type list struct {
	names []string
	at    time.Time     // when it was read
	took  time.Duration // how long the source took to return it
}

// restAfterList is how many times the duration of a list the source is not asked again. A list of a
// large registry is expensive, and must not keep it busy.
const restAfterList = 9

// New returns a fleet that reads the services of a source. It waits for nothing.
func New(source Source, o *Options) *Fleet {
	f := &Fleet{source: source, services: make(map[string]*watched), nodes: make(map[string]*node), left: make(map[string]*introspect.Live)}
	if o != nil {
		f.opts = *o
	}
	if f.opts.Timeout <= 0 {
		f.opts.Timeout = time.Second
	}
	if f.opts.SourceTimeout <= 0 {
		f.opts.SourceTimeout = max(3*time.Second, f.opts.Timeout)
	}
	if f.opts.Limit <= 0 {
		f.opts.Limit = 10 * time.Second
	}
	if f.opts.Parallel <= 0 {
		f.opts.Parallel = 128
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
	// Span is how far back calls were counted. Traffic.Span says how much of it processes have run.
	Span time.Duration `json:"span"`
	// Services has the services, those that need attention first.
	Services []*Service `json:"services"`
	// Events has what happened recently in the processes, the oldest first.
	Events []introspect.Event `json:"events,omitempty"`
	// Err is why the list of services is not complete. It is empty if it is.
	Err string `json:"err,omitempty"`
	// Outage says that the source named no service because it failed. The services are then those
	// of an earlier read, with the instances that were known, which were asked as in any read.
	Outage bool `json:"outage,omitempty"`
	// Late says how many instances Read could not ask in time. It is empty if it has asked all.
	Late string `json:"late,omitempty"`
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

// Services returns the names of the services, sorted, without those of more than 1 KiB. If it
// returns an error together with names, the list is not complete. It does not ask the source again
// for nine times as long as the source took for the last complete list, unless that was empty.
func (f *Fleet) Services(ctx context.Context) ([]string, error) {
	f.mu.Lock()
	last := f.names
	f.mu.Unlock()
	if time.Since(last.at) < restAfterList*last.took {
		return slices.Clone(last.names), nil
	}
	began := time.Now()
	names, err := f.list(ctx)
	switch {
	case err == nil && len(names) > 0: // without services, the first one is found soon
		f.mu.Lock()
		f.names = list{slices.Clone(names), time.Now(), time.Since(began)}
		f.mu.Unlock()
	case len(names) > 0:
		err = fmt.Errorf("the list of services is not complete: %w", err)
	}
	return names, err
}

// named returns the last list of services that was complete, or nil.
func (f *Fleet) named() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.names.names)
}

// list asks the source for the names of the services.
func (f *Fleet) list(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.opts.SourceTimeout, f.late())
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

// late is the cause of a source that has not answered in time.
func (f *Fleet) late() error {
	return fmt.Errorf("the registry has not answered within %v", f.opts.SourceTimeout)
}

// Read reads the given services, or all services if none is given. Only a process that is read can
// say which instances its clients have ejected, so the states in a view of some services lack the
// ejections by clients in all others. Read returns an error if the source fails and has never named
// a service, if ctx ends, or if the fleet is closed. While a source fails that has named some, Read
// reads these: see View.Outage. It never fails because of a resolver or an instance: Service.Err
// and Instance.Why have the reasons.
func (f *Fleet) Read(ctx context.Context, services ...string) (*View, error) {
	view := &View{At: time.Now()}
	all := len(services) == 0
	if all {
		names, err := f.Services(ctx)
		if err != nil {
			if len(names) == 0 {
				if names, view.Outage = f.named(), true; len(names) == 0 || ctx.Err() != nil {
					return nil, err
				}
			}
			view.Err = short(err.Error())
		}
		services = names
	}
	watches, err := f.watch(services, all && view.Err == "") //nolint:contextcheck // watching goes on after the read
	if err != nil {
		return nil, err
	}
	rulings := f.rulings(ctx)
	named, cancel := context.WithTimeoutCause(ctx, f.opts.SourceTimeout, f.late())
	defer cancel()
	byAddr := make(map[string][]*Instance)
	for i, w := range watches {
		s := &Service{Name: services[i]}
		view.Services = append(view.Services, s)
		instances, err := w.get(named)
		if err != nil {
			s.Err = short(err.Error())
		}
		s.unread = w.unread.Records()
		for _, in := range instances {
			one := &Instance{Instance: in, Service: s.Name, State: Up}
			s.Instances = append(s.Instances, one)
			byAddr[in.Addr] = append(byAddr[in.Addr], one)
		}
	}
	if err := f.ask(ctx, byAddr, all); err != nil {
		<-rulings
		return nil, err
	}
	acting := <-rulings
	view.complete(acting.rulings, acting.all)
	if unasked := view.unasked(); unasked != "" {
		view.Late = fmt.Sprintf("not asked within %v: %s", f.opts.Limit, unasked)
	}
	return view, nil
}

// ruled is the rules that act. They may be a part of them unless all is set.
type ruled struct {
	rulings []Ruling
	all     bool
}

// rulings reads the rules that act. The channel gets them once, within Options.Timeout if the
// function of the options heeds its context.
func (f *Fleet) rulings(ctx context.Context) <-chan ruled {
	read := make(chan ruled, 1)
	if f.opts.Rules == nil {
		read <- ruled{}
		return read
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, f.opts.Timeout)
		defer cancel()
		rulings, err := f.opts.Rules(ctx) // a part is better than nothing
		read <- ruled{rulings, err == nil}
	}()
	return read
}

// ask asks all instances, each address once. If the addresses are those of the whole fleet, it also
// closes the connections to all others.
func (f *Fleet) ask(ctx context.Context, byAddr map[string][]*Instance, all bool) error {
	var wg sync.WaitGroup
	var asked atomic.Int64
	var missed misses
	begins, cancel := context.WithTimeout(ctx, f.opts.Limit)
	defer cancel()
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
			case <-begins.Done():
				unask(instances, fmt.Sprintf("it was not asked within %v", f.opts.Limit))
				return
			}
			defer func() { <-f.slots }()
			answer := n.ask(ctx, &f.opts)
			for _, in := range instances {
				in.take(answer)
			}
			missed.note(question{n, instances}, answer, f.opts.Timeout)
			if n := asked.Add(1); f.opts.Progress != nil {
				f.opts.Progress(int(n), len(byAddr))
			}
		})
	}
	wg.Wait()
	f.askAgain(ctx, begins, &missed)
	if all {
		f.prune(byAddr)
	}
	return context.Cause(ctx)
}

// unask makes the state of instances unknown.
func unask(instances []*Instance, why string) {
	for _, in := range instances {
		in.State, in.Unasked, in.Why = Unknown, true, why
	}
}

// A question is what asks a node, for its instances.
type question struct {
	*node

	instances []*Instance
}

// misses finds out whether instances miss questions because the reader is slow: if it is, many
// answers come just in time.
type misses struct {
	mu       sync.Mutex
	missed   []question
	answered int
	late     int // answers that took more than half of the time
}

func (m *misses) note(q question, a *answer, timeout time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.state == Silent || a.state == Down && a.took > timeout/2 {
		m.missed = append(m.missed, q)
	}
	if a.heard {
		m.answered++
		if a.took > timeout/2 {
			m.late++
		}
	}
}

// slow reports whether the reader is slow.
func (m *misses) slow() bool {
	return m.late > 0 && (m.late >= len(m.missed) || 4*m.late >= m.answered)
}

// askAgain asks instances that have missed their questions once more: all of them, a few at a time,
// if the reader is slow, and otherwise those to which it is connected. If the reader is slow, the
// state of those for which no time is left is unknown.
func (f *Fleet) askAgain(ctx, begins context.Context, m *misses) {
	const few = 8
	slow, parallel := m.slow(), min(few, cap(f.slots))
	if !slow {
		parallel = cap(f.slots)
		m.missed = slices.DeleteFunc(m.missed, func(q question) bool { return !q.connected() })
	}
	next := make(chan question)
	var wg sync.WaitGroup
	for range min(parallel, len(m.missed)) {
		wg.Go(func() {
			for q := range next {
				if begins.Err() == nil {
					answer := q.ask(ctx, &f.opts)
					for _, in := range q.instances {
						in.take(answer)
					}
				} else if slow {
					unask(q.instances, fmt.Sprintf("it has not answered in time, and was not asked again within %v", f.opts.Limit))
				}
			}
		})
	}
	for _, q := range m.missed {
		next <- q
	}
	close(next)
	wg.Wait()
}

// unasked describes the instances that were not asked, for View.Late.
func (v *View) unasked() string {
	const most = 5
	var said []string
	for _, s := range v.Services {
		if n := s.unasked(); n > 0 {
			said = append(said, fmt.Sprintf("%d of %d instances of %s", n, len(s.Instances), s.Name))
		}
	}
	if more := len(said) - most; more > 0 {
		said = append(said[:most], fmt.Sprintf("instances of %d more services", more))
	}
	return short(strings.Join(said, ", "))
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
		n = &node{client: yodel.NewClient(discovery.Static(addr), &o), lived: f.left[addr]}
		f.nodes[addr] = n
	}
	return n, nil
}

// prune closes the connections to nodes that no service names any more.
func (f *Fleet) prune(byAddr map[string][]*Instance) {
	var gone []*node
	f.mu.Lock()
	maps.DeleteFunc(f.left, func(_ string, live *introspect.Live) bool { return time.Since(live.Now) > f.opts.Span })
	for addr, n := range f.nodes {
		if _, ok := byAddr[addr]; !ok {
			gone = append(gone, n)
			delete(f.nodes, addr)
			if n.lived != nil { // no read is asking it
				f.left[addr] = n.lived
			}
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
