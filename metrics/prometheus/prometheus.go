// SPDX-License-Identifier: Apache-2.0

// Package prometheus exports the metrics of yodel's servers and clients to Prometheus.
//
//	metrics := prometheus.New(nil)
//	registry.MustRegister(metrics) // a prometheus.Registerer of client_golang
//	server := metrics.NewServer("shop", &yodel.ServerOptions{…})
//	client := metrics.NewClient("prices", resolver, &yodel.ClientOptions{…})
//
// The table in docs/observability.md has all metrics. Servers and clients count calls themselves,
// and a scrape reads the counters with Stats. An observer sees only calls that failed and calls
// with a sampled trace.
//
// Latencies are classic and native histograms at once: a server of Prometheus that scrapes native
// histograms gets four buckets for each power of two, another one gets one bucket. The buckets of
// traced calls have exemplars with the trace id of Call.Trace, if the trace is sampled. They are
// part of the OpenMetrics format: see promhttp.HandlerOpts.EnableOpenMetrics.
//
// The number of time series is bounded. Calls of methods that a server does not have are counted
// under the method "other". Methods, endpoints and IDs of errors have a limit too: see Options.
package prometheus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options configures Metrics. The zero value works.
type Options struct {
	// MaxMethods is how many methods of each server and client have metrics of their own. On a
	// client, the others share the method "other". On a server, they are left out. Default 500, and
	// at most 1000 on a client.
	MaxMethods int
	// MaxEndpoints is how many endpoints of each client have metrics of their own. The others are
	// left out: they count in the metrics of the resolver and of the calls. Default 500.
	MaxEndpoints int
	// Infrastructure adds the methods of introspect.Infrastructure: yodel's own, and health and
	// reflection of gRPC. Default false: they are left out.
	Infrastructure bool
}

// Metrics collects the metrics of servers and clients. It is a prometheus.Collector. Its methods
// may be called concurrently.
type Metrics struct {
	opts Options

	mu      sync.Mutex
	servers []*server
	clients []*client
}

var _ prometheus.Collector = (*Metrics)(nil)

// New returns Metrics without servers and clients. O may be nil.
func New(o *Options) *Metrics {
	m := &Metrics{}
	if o != nil {
		m.opts = *o
	}
	if m.opts.MaxMethods <= 0 {
		m.opts.MaxMethods = 500
	}
	if m.opts.MaxEndpoints <= 0 {
		m.opts.MaxEndpoints = 500
	}
	return m
}

// A server is a server and what its observer has counted.
type server struct {
	name  string
	of    *yodel.Server
	calls *calls
}

// A client is a client and what its observer has counted.
type client struct {
	name  string
	of    *yodel.Client
	calls *calls

	mu      sync.Mutex
	methods map[string]bool // those with metrics of their own
}

// NewServer returns yodel.NewServer(o) with CountBytes, an observer and OnConn for the metrics.
// Name is the label server of the metrics. If another server of m has the same name, "-2" is
// appended, and so on. O may be nil. The metrics of a server remain until the process ends.
func (m *Metrics) NewServer(name string, o *yodel.ServerOptions) *yodel.Server {
	var opts yodel.ServerOptions
	if o != nil {
		opts = *o
	}
	c := newCalls(m.opts.MaxMethods)
	opts.Observers = append(slices.Clone(opts.Observers), c.serverObserver())
	opts.CountBytes = true
	opts.OnConn = c.onConn(opts.OnConn)
	s := &server{of: yodel.NewServer(&opts), calls: c}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.name = free(name, func(n string) bool {
		return slices.ContainsFunc(m.servers, func(s *server) bool { return s.name == n })
	})
	m.servers = append(m.servers, s)
	return s.of
}

// NewClient returns yodel.NewClient(r, o) with CountCalls, an observer and OnConn for the metrics.
// Name is the label client of the metrics. If another client of m has the same name, "-2" is
// appended, and so on. O may be nil. The metrics of a client end when it is closed.
func (m *Metrics) NewClient(name string, r discovery.Resolver, o *yodel.ClientOptions) *yodel.Client {
	var opts yodel.ClientOptions
	if o != nil {
		opts = *o
	}
	calls := newCalls(m.opts.MaxMethods)
	opts.Observers = append(slices.Clone(opts.Observers), calls.clientObserver())
	opts.CountCalls = true
	opts.OnConn = calls.onConn(opts.OnConn)
	c := &client{of: yodel.NewClient(r, &opts), calls: calls, methods: make(map[string]bool)}
	m.mu.Lock()
	c.name = free(name, func(n string) bool {
		return slices.ContainsFunc(m.clients, func(c *client) bool { return c.name == n })
	})
	m.clients = append(m.clients, c)
	m.mu.Unlock()
	c.of.Background(func(ctx context.Context) {
		<-ctx.Done()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.clients = slices.DeleteFunc(m.clients, func(other *client) bool { return other == c })
	})
	return c.of
}

// free returns name, or name with the first number that is free.
func free(name string, used func(string) bool) string {
	for n, try := 2, name; ; n++ {
		if !used(try) {
			return try
		}
		try = fmt.Sprintf("%s-%d", name, n)
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, f := range families {
		to <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	servers, clients := slices.Clone(m.servers), slices.Clone(m.clients)
	m.mu.Unlock()
	for _, s := range servers {
		s.collect(to, &m.opts)
	}
	for _, c := range clients {
		c.collect(to, &m.opts)
	}
}

// shown returns the methods that have metrics.
func (o *Options) shown(methods []introspect.MethodStats) []introspect.MethodStats {
	if o.Infrastructure {
		return methods
	}
	return slices.DeleteFunc(methods, func(m introspect.MethodStats) bool {
		return introspect.Infrastructure(m.Name[:max(strings.LastIndexAny(m.Name, "./"), 0)])
	})
}

func (s *server) collect(to sink, o *Options) {
	stats := s.of.Stats()
	stats.Methods = o.shown(stats.Methods)
	unknown := &s.calls.unknown
	for i := range min(len(stats.Methods), o.MaxMethods) {
		if m := &stats.Methods[i]; m.Name != other || !unknown.used.Load() {
			s.collectMethod(to, m)
		}
	}
	if unknown.used.Load() {
		unknown.outcomes(to, s.name)
		to.histogram(serverSeconds, unknown.latency.counted(), unknown.latency.sum(), s.calls.exemplars.find(other), s.name, other)
		to.both(serverBytes, unknown.bytesIn.Load(), unknown.bytesOut.Load(), s.name, other)
	}
	s.calls.collect(to, serverErrors, serverConnEvents, s.name)
	to.add(serverPanics, float64(stats.Panics), s.name)
	to.add(serverLeftOut, float64(stats.LeftOut), s.name)
	to.add(serverConns, float64(stats.Conns), s.name)
	to.add(serverOpen, float64(stats.Open), s.name)
	to.add(serverGranted, float64(stats.Granted), s.name)
	to.add(serverMaxOpen, float64(stats.MaxOpen), s.name)
	to.flag(serverDraining, stats.Draining, s.name)
	for _, a := range announcedOnce(stats.Announced) {
		to.flag(serverAnnounced, !a.Failing && !a.At.IsZero(), s.name, a.Registry, a.Addr)
		at := 0.0
		if !a.At.IsZero() {
			at = float64(a.At.UnixMilli()) / 1000
		}
		to.add(serverAnnouncedAt, at, s.name, a.Registry, a.Addr)
	}
}

// announcedOnce removes all but the first announcement with the same registry and address.
func announcedOnce(all []introspect.Announced) (out []introspect.Announced) {
	for _, a := range all {
		if !slices.ContainsFunc(out, func(b introspect.Announced) bool { return a.Registry == b.Registry && a.Addr == b.Addr }) {
			out = append(out, a)
		}
	}
	return out
}

// collectMethod adds what the server has counted for a method.
func (s *server) collectMethod(to sink, m *introspect.MethodStats) {
	to.outcomes(serverCalls, m.Calls, m.Errors, s.name, m.Name)
	to.histogram(serverSeconds, m.Latency, m.Took, s.calls.exemplars.find(m.Name), s.name, m.Name)
	to.add(serverInFlight, float64(m.Inflight), s.name, m.Name)
	to.both(serverMessages, m.Received, m.Sent, s.name, m.Name)
	to.both(serverBytes, m.BytesIn, m.BytesOut, s.name, m.Name)
	for i := range m.Callers {
		caller := &m.Callers[i]
		to.outcomes(serverCallers, caller.Calls, caller.Errors, s.name, m.Name, caller.Name)
	}
}

func (c *client) collect(to sink, o *Options) {
	stats := c.of.Stats()
	for _, m := range c.bounded(o.shown(stats.Methods), o.MaxMethods) {
		to.outcomes(clientCalls, m.Calls, m.Errors, c.name, m.Name)
		to.histogram(clientSeconds, m.Latency, m.Took, c.calls.exemplars.find(m.Name), c.name, m.Name)
		to.add(clientExtra, float64(m.Retries), c.name, m.Name, "retry")
		to.add(clientExtra, float64(m.Hedges), c.name, m.Name, "hedge")
		to.both(clientMessages, m.Received, m.Sent, c.name, m.Name)
		to.both(clientBytes, m.BytesIn, m.BytesOut, c.name, m.Name)
	}
	c.calls.collect(to, clientErrors, clientConnEvents, c.name)
	seen := make(map[string]bool)
	for i := range stats.Endpoints {
		ep := &stats.Endpoints[i]
		if len(seen) < o.MaxEndpoints && !seen[ep.Addr] {
			seen[ep.Addr] = true
			c.collectEndpoint(to, ep)
		}
	}
	to.add(resolverInstances, float64(stats.Resolver.Instances), c.name)
	to.flag(resolverFailing, stats.Resolver.Err != "", c.name)
	to.add(resolverAge, stats.Resolver.Age.Seconds(), c.name)
}

func (c *client) collectEndpoint(to sink, ep *introspect.EndpointStats) {
	to.add(endpointAttempts, float64(ep.Attempts), c.name, ep.Addr)
	to.add(endpointFailures, float64(ep.Failed), c.name, ep.Addr)
	to.add(endpointUnconnected, float64(ep.Unconnected), c.name, ep.Addr)
	to.add(endpointInFlight, float64(ep.Inflight), c.name, ep.Addr)
	to.add(endpointLoad, float64(ep.Load), c.name, ep.Addr)
	to.add(endpointRTT, ep.RTT.Seconds(), c.name, ep.Addr)
	to.add(endpointConns, float64(len(ep.Conns)), c.name, ep.Addr)
	to.flag(endpointReady, ep.Ready, c.name, ep.Addr)
	for _, by := range ep.NotReady {
		to.add(endpointNotReady, 1, c.name, ep.Addr, by)
	}
	for by, n := range ep.Ejections {
		to.add(endpointEjections, float64(n), c.name, ep.Addr, by)
	}
}

// bounded returns the statistics of as many methods as most says, and the sum of all others as the
// method other. A method remains with one of them, because a counter must not decrease.
func (c *client) bounded(all []introspect.MethodStats, most int) []*introspect.MethodStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*introspect.MethodStats
	rest := &introspect.MethodStats{Name: other}
	for i := range all {
		m := &all[i]
		if m.Name != other && (c.methods[m.Name] || len(c.methods) < most) {
			c.methods[m.Name] = true
			out = append(out, m)
			continue
		}
		rest = sum(rest, m)
	}
	if rest.Calls > 0 {
		out = append(out, rest)
	}
	return out
}

// sum returns the statistics of the calls of a and of b, with the name of a.
func sum(a, b *introspect.MethodStats) *introspect.MethodStats {
	out := &introspect.MethodStats{
		Name: a.Name, Calls: a.Calls + b.Calls, Errors: maps.Clone(b.Errors), Took: a.Took + b.Took,
		Received: a.Received + b.Received, Sent: a.Sent + b.Sent, BytesIn: a.BytesIn + b.BytesIn, BytesOut: a.BytesOut + b.BytesOut,
		Retries: a.Retries + b.Retries, Hedges: a.Hedges + b.Hedges,
	}
	if out.Errors == nil {
		out.Errors = make(map[string]uint64)
	}
	for code, n := range a.Errors {
		out.Errors[code] += n
	}
	calls := make(map[time.Duration]uint64)
	for _, bucket := range slices.Concat(a.Latency, b.Latency) {
		calls[bucket.UpTo] += bucket.Calls
	}
	for _, upTo := range slices.Sorted(maps.Keys(calls)) {
		out.Latency = append(out.Latency, introspect.Bucket{UpTo: upTo, Calls: calls[upTo]})
	}
	return out
}

// outcomes adds the number of calls by code. The code is the last label.
func (s sink) outcomes(f *family, calls uint64, errors map[string]uint64, labels ...string) {
	failed := uint64(0)
	for code, n := range errors {
		failed += n
		s.add(f, float64(n), append(slices.Clip(labels), code)...)
	}
	s.add(f, float64(calls-failed), append(slices.Clip(labels), yodel.Code(0).String())...)
}

// outcomes adds the number of calls by code.
func (u *unknown) outcomes(to sink, server string) {
	for code := range u.codes {
		if n := u.codes[code].Load(); n > 0 || code == 0 {
			to.add(serverCalls, float64(n), server, other, yodel.Code(code).String())
		}
	}
}

// collect adds the errors by ID, and the events of connections.
func (c *calls) collect(to sink, errors, events *family, of string) {
	c.errors.all(func(id string, n *atomic.Uint64) { to.add(errors, float64(n.Load()), of, id) })
	c.events.all(func(kind string, n *atomic.Uint64) { to.add(events, float64(n.Load()), of, kind) })
}
