// SPDX-License-Identifier: Apache-2.0

// Package prometheus exports the metrics of yodel's servers and clients to Prometheus.
//
//	metrics := prometheus.New(nil)
//	registry.MustRegister(metrics) // a prometheus.Registerer of client_golang
//	server := metrics.NewServer("shop", &yodel.ServerOptions{…})
//	client := metrics.NewClient("prices", resolver, &yodel.ClientOptions{…})
//
// The table in docs/observability.md has all metrics. Most of them are counters that servers and
// clients have anyway: a scrape reads them with Stats, and calls pay nothing for them. The others
// are counted by an observer that allocates nothing.
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
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options configures Metrics. The zero value works.
type Options struct {
	// MaxMethods is how many methods of each server and client have metrics of their own. On a
	// client, the others share the method "other". On a server, they are left out. Default 500.
	MaxMethods int
	// MaxEndpoints is how many endpoints of each client have metrics of their own. The others are
	// left out: they count in the metrics of the resolver and of the calls. Default 500.
	MaxEndpoints int
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
}

// NewServer returns yodel.NewServer(o) with an observer and with OnConn for the metrics. Name is
// the label server of the metrics. If another server of m has the same name, "-2" is appended, and
// so on. O may be nil. The metrics of a server remain until the process ends.
func (m *Metrics) NewServer(name string, o *yodel.ServerOptions) *yodel.Server {
	var opts yodel.ServerOptions
	if o != nil {
		opts = *o
	}
	c := newCalls(m.opts.MaxMethods)
	opts.Observers = append(slices.Clone(opts.Observers), c.serverObserver())
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

// NewClient returns yodel.NewClient(r, o) with an observer and with OnConn for the metrics. Name is
// the label client of the metrics. If another client of m has the same name, "-2" is appended, and
// so on. O may be nil. The metrics of a client end when it is closed.
func (m *Metrics) NewClient(name string, r yodel.Resolver, o *yodel.ClientOptions) *yodel.Client {
	var opts yodel.ClientOptions
	if o != nil {
		opts = *o
	}
	calls := newCalls(m.opts.MaxMethods)
	opts.Observers = append(slices.Clone(opts.Observers), calls.clientObserver())
	opts.OnConn = calls.onConn(opts.OnConn)
	c := &client{of: yodel.NewClient(r, &opts), calls: calls}
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
		s.collect(to, m.opts.MaxMethods)
	}
	for _, c := range clients {
		c.collect(to, m.opts.MaxEndpoints)
	}
}

func (s *server) collect(to sink, most int) {
	stats := s.of.Stats()
	for i := range min(len(stats.Methods), most) {
		if m := &stats.Methods[i]; m.Name != other || !s.calls.methods.used.Load() {
			s.collectMethod(to, m)
		}
	}
	s.calls.methods.all(func(name string, m *method) {
		if name == other {
			m.outcomes(to, serverCalls, s.name, name)
			to.histogram(serverSeconds, m.latency.counted(), m.latency.sum(), &m.exemplars, s.name, name)
		}
		to.both(serverBytes, m.bytesIn.Load(), m.bytesOut.Load(), s.name, name)
	})
	s.calls.collect(to, serverErrors, serverConnEvents, s.name)
	to.add(serverPanics, float64(stats.Panics), s.name)
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
	failed := uint64(0)
	for code, n := range m.Errors {
		failed += n
		to.add(serverCalls, float64(n), s.name, m.Name, code)
	}
	to.add(serverCalls, float64(m.Calls-failed), s.name, m.Name, yodel.Code(0).String())
	var traced *exemplars
	if seen := s.calls.methods.find(m.Name); seen != nil {
		traced = &seen.exemplars
	}
	to.histogram(serverSeconds, m.Latency, m.Took, traced, s.name, m.Name)
	to.add(serverInFlight, float64(m.Inflight), s.name, m.Name)
	to.both(serverMessages, m.Received, m.Sent, s.name, m.Name)
}

func (c *client) collect(to sink, most int) {
	c.calls.methods.all(func(name string, m *method) {
		m.outcomes(to, clientCalls, c.name, name)
		to.histogram(clientSeconds, m.latency.counted(), m.latency.sum(), &m.exemplars, c.name, name)
		to.add(clientExtra, float64(m.retries.Load()), c.name, name, "retry")
		to.add(clientExtra, float64(m.hedges.Load()), c.name, name, "hedge")
		to.both(clientMessages, m.received.Load(), m.sent.Load(), c.name, name)
		to.both(clientBytes, m.bytesIn.Load(), m.bytesOut.Load(), c.name, name)
	})
	c.calls.collect(to, clientErrors, clientConnEvents, c.name)
	stats := c.of.Stats()
	seen := make(map[string]bool)
	for i := range stats.Endpoints {
		ep := &stats.Endpoints[i]
		if len(seen) < most && !seen[ep.Addr] {
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

// outcomes adds the number of calls by code.
func (m *method) outcomes(to sink, f *family, of, name string) {
	for code := range m.codes {
		if n := m.codes[code].Load(); n > 0 || code == 0 {
			to.add(f, float64(n), of, name, yodel.Code(code).String())
		}
	}
}

// collect adds the errors by ID, and the events of connections.
func (c *calls) collect(to sink, errors, events *family, of string) {
	c.errors.all(func(id string, n *atomic.Uint64) { to.add(errors, float64(n.Load()), of, id) })
	c.events.all(func(kind string, n *atomic.Uint64) { to.add(events, float64(n.Load()), of, kind) })
}
