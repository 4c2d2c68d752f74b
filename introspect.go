// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// introspect registers the built-in methods, which package inspect documents and offers as Methods.
// Calls of built-in methods pass through the same middleware as all calls, so that authorization
// applies to them.
func (s *Server) introspect() {
	builtIn(s, "yodel.Info", func(*struct{}) *introspect.Info { return s.Info() })
	diagnostic(s, "yodel.Stats", func(*struct{}) *introspect.Stats { return s.Stats() })
	diagnostic(s, "yodel.Samples", s.Samples)
	diagnostic(s, "yodel.Live", s.Live)
	diagnostic(s, "yodel.Conns", func(*struct{}) *introspect.Conns { return s.Conns() })
	const tap Feed[introspect.TapQuery, introspect.Tapped] = "yodel.Tap"
	s.addBuiltIn(string(tap), tap.method(s.serveTap))
	diagnostic(s, "yodel.Rules", s.rules)
	builtIn(s, "yodel.Health", func(*struct{}) *introspect.Health {
		s.mu.Lock()
		defer s.mu.Unlock()
		return &introspect.Health{Serving: !s.closing}
	})
	builtIn(s, "yodel.Ping", func(in *struct{}) *struct{} { return in })
}

// diagnostic registers a built-in method that answers only if ServerOptions.Diagnostics is set.
func diagnostic[In, Out any](s *Server, name Method[In, Out], f func(*In) *Out) {
	if s.opts.Diagnostics {
		builtIn(s, name, f)
		return
	}
	register(s, name, func(*In) (*Out, error) {
		return nil, failure("YDL3103", "%s: this server does not share its diagnostics", name)
	})
}

// builtIn registers a built-in method that always succeeds.
func builtIn[In, Out any](s *Server, name Method[In, Out], f func(*In) *Out) {
	register(s, name, func(in *In) (*Out, error) { return f(in), nil })
}

// register registers a built-in method, unless OnRegister refuses it.
func register[In, Out any](s *Server, name Method[In, Out], f func(*In) (*Out, error)) {
	m := name.method(func(_ context.Context, in *In) (*Out, error) { return f(in) })
	m.idempotent.Store(true)
	s.addBuiltIn(string(name), m)
}

func (s *Server) addBuiltIn(name string, m *method) {
	if err := s.add(name, m); err != nil {
		s.opts.Logger.Debug("yodel: built-in method left out", "err", err)
	}
}

// registered calls f for each method with its names, sorted by the first name.
func (s *Server) registered(f func(names []string, m *method)) {
	s.methodsMu.Lock()
	byName := *s.methods.Load()
	methods := make(map[*method][]string)
	for _, m := range byName {
		methods[m] = slices.Clone(m.names)
	}
	s.methodsMu.Unlock()
	sorted := make([]*method, 0, len(methods))
	for m := range methods {
		sorted = append(sorted, m)
	}
	slices.SortFunc(sorted, func(a, b *method) int { return strings.Compare(methods[a][0], methods[b][0]) })
	for _, m := range sorted {
		f(methods[m], m)
	}
}

// Info describes the server and its methods. The built-in method yodel.Info returns the same. The
// methods are described anew only after they have changed. The caller must not change the schemas
// and the aliases of the methods.
func (s *Server) Info() *introspect.Info {
	info := &introspect.Info{Agent: agent, Started: s.started, Codecs: strings.Split(names(s.codecs), ", ")}
	info.Overrides = s.overrides()
	if !s.opts.Diagnostics { // without Diagnostics, callers do not learn where the registry is
		for i := range info.Overrides {
			info.Overrides[i].Registry = ""
		}
	}
	if len(s.compressors) > 0 {
		info.Compressors = strings.Split(names(s.compressors), ", ")
	}
	info.Methods = slices.Clone(s.schemas.Methods(s.methodsVersion.Load(), s.describe))
	return info
}

// describe describes the methods. Schemas returns the schemas of messages.
func (s *Server) describe(schemas func([]reflect.Type) []introspect.Schema) (all []introspect.Method) {
	s.registered(func(names []string, m *method) {
		all = append(all, introspect.Method{
			Name: names[0], Aliases: names[1:], Args: schemas(m.in), Results: schemas(m.out),
			Values: m.positional, Kind: strings.TrimPrefix(kinds.Name(m.kind), kinds.Name(wire.Unary)),
			Idempotent: m.idempotent.Load(), ReadOnly: m.readOnly.Load(),
		})
	})
	return all
}

// Types returns the types of the messages of a method, as Served.Types does. Both are nil if the
// server has no method of that name. The caller must not change them.
func (s *Server) Types(method string) (in, out []reflect.Type) {
	if m := (*s.methods.Load())[method]; m != nil {
		return m.in, m.out
	}
	return nil, nil
}

// Stats returns the counters of the server since it started. The built-in method yodel.Stats
// returns the same counters.
func (s *Server) Stats() *introspect.Stats {
	s.mu.Lock()
	out := &introspect.Stats{Since: s.started, Conns: len(s.conns) + len(s.links), Panics: s.guard.Panics(), LeftOut: s.leftOut.Load(), Draining: s.closing}
	announced := s.announced
	s.mu.Unlock()
	for _, a := range announced {
		out.Announced = append(out.Announced, a.stats()...)
	}
	out.Open, out.Granted, out.MaxOpen = s.budget.Open(), s.budget.Granted(), s.opts.MaxOpen
	callers := s.callers()
	s.registered(func(names []string, m *method) {
		stats := diagnose.Method(names[0], &m.stats)
		stats.Callers = diagnose.Callers(callers, names)
		out.Methods = append(out.Methods, stats)
	})
	return out
}

// callers returns the calls of each method name by caller, or nil without Diagnostics.
func (s *Server) callers() map[string]map[string]live.Totals {
	if s.live == nil {
		return nil
	}
	all := make(map[string]map[string]live.Totals)
	for k, t := range s.live.Totals(serverSide) {
		if all[k.Method] == nil {
			all[k.Method] = make(map[string]live.Totals)
		}
		all[k.Method][k.Peer] = t
	}
	return all
}

// Stats returns the counters of the client since it was made: of its present endpoints, and with
// ClientOptions.CountCalls those of its calls by method. It takes
// the lock of each connection for a moment, so call it from time to time and not for each call.
func (c *Client) Stats() *introspect.ClientStats {
	now := clock()
	out := &introspect.ClientStats{Since: wallOf(now, c.born)}
	for _, ep := range c.cluster.endpoints() {
		out.Endpoints = append(out.Endpoints, ep.stats())
	}
	slices.SortFunc(out.Endpoints, func(a, b introspect.EndpointStats) int { return strings.Compare(a.Addr, b.Addr) })
	out.Resolver = c.cluster.resolver()
	out.Methods = c.callStats()
	return out
}

func (ep *Endpoint) stats() introspect.EndpointStats {
	out := introspect.EndpointStats{
		Addr: ep.Addr(), Protocol: ep.protocol, Inflight: ep.Inflight(), Load: ep.Load(), Ready: ep.Ready(), NotReady: ep.notReady(),
		Attempts: uint64(ep.inflight.begun.Load()), Failed: uint64(ep.failed.Load()), Unconnected: uint64(ep.unconnected.Load()), //nolint:gosec // counters
		RTT: time.Duration(ep.trip.took.Load()), Unlisted: ep.unlisted.Load(),
	}
	out.Picks = out.Attempts + out.Unconnected
	ep.mu.Lock()
	out.Ejections = maps.Clone(ep.shunned)
	ep.mu.Unlock()
	for _, conn := range *ep.conns.Load() {
		out.Conns = append(out.Conns, conn.stats())
	}
	return out
}

func (d *dialledConn) stats() introspect.Conn {
	open, full := d.load()
	if d.link != nil {
		return introspect.Conn{Open: open, Full: full}
	}
	return diagnose.Conn(d.mux)
}

// Stats returns the counters of the connection. They are empty in other protocols than yodel's own.
func (p *Peer) Stats() introspect.Conn {
	if p.link == nil {
		return introspect.Conn{}
	}
	return diagnose.Conn(p.link)
}
