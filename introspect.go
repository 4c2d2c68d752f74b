// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/monotime"
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
	s.addBuiltIn("yodel.Tap", feed(s.serveTap))
	diagnostic(s, "yodel.Rules", s.activeRules)
	builtIn(s, "yodel.Health", func(*struct{}) *introspect.Health { return &introspect.Health{Serving: s.Ready() == nil} })
	builtIn(s, "yodel.Ping", func(in *struct{}) *struct{} { return in })
}

// diagnostic registers a built-in method that answers only if ServerOptions.Diagnostics is set.
func diagnostic[In, Out any](s *Server, name string, f func(*In) *Out) {
	if s.opts.Diagnostics {
		builtIn(s, name, f)
		return
	}
	register(s, name, func(*In) (*Out, error) {
		return nil, failure("YDL3103", "%s: this server does not share its diagnostics", name)
	})
}

// builtIn registers a built-in method that always succeeds.
func builtIn[In, Out any](s *Server, name string, f func(*In) *Out) {
	register(s, name, func(in *In) (*Out, error) { return f(in), nil })
}

// register registers a built-in method, unless OnRegister refuses it.
func register[In, Out any](s *Server, name string, f func(*In) (*Out, error)) {
	m := unary(func(_ context.Context, in *In) (*Out, error) { return f(in) })
	m.Idempotent.Store(true)
	s.addBuiltIn(name, m)
}

func (s *Server) addBuiltIn(name string, m *method) {
	if err := s.add(name, m); err != nil {
		s.opts.Logger.Debug("yodel: built-in method left out", "err", err)
	}
}

// Info describes the server and its methods. The built-in method yodel.Info returns the same. The
// methods are described anew only after they have changed. The caller must not change the schemas
// and the aliases of the methods.
func (s *Server) Info() *introspect.Info {
	info := &introspect.Info{Agent: agent, Started: s.started, Codecs: strings.Split(names(s.codecs), ", ")}
	info.Overrides = s.announced.Overrides()
	if s.opts.Diagnostics {
		l := &s.limits
		info.Limits = &introspect.Limits{MaxConns: s.opts.MaxConns, MaxOpen: s.opts.MaxOpen, MaxMemory: s.opts.MaxMemory, MaxMessage: l.MaxMessage, ConnOpen: l.MaxOpen, ConnMemory: l.MaxMemory}
	} else { // callers do not learn where the registry is
		for i := range info.Overrides {
			info.Overrides[i].Registry = ""
		}
	}
	if len(s.compressors) > 0 {
		info.Compressors = strings.Split(names(s.compressors), ", ")
	}
	info.Methods = slices.Clone(s.schemas.Methods(s.methods.Version(), s.describe))
	return info
}

// describe describes the methods. Schemas returns the schemas of messages.
func (s *Server) describe(schemas func([]reflect.Type) []introspect.Schema) (all []introspect.Method) {
	s.methods.Each(func(names []string, m *method) {
		all = append(all, introspect.Method{
			Name: names[0], Aliases: names[1:], Args: schemas(m.Args), Results: schemas(m.Results),
			Values: m.Positional, Kind: strings.TrimPrefix(kinds.Name(m.Kind), kinds.Name(wire.Unary)),
			Idempotent: m.Idempotent.Load(), ReadOnly: m.ReadOnly.Load(),
		})
	})
	return all
}

// Types returns the types of the messages of a method, as Served.Types does. Both are nil if the
// server has no method of that name. The caller must not change them.
func (s *Server) Types(method string) (in, out []reflect.Type) {
	if m := s.methods.Get(method); m != nil {
		return m.Args, m.Results
	}
	return nil, nil
}

// Stats returns the counters of the server since it started. The built-in method yodel.Stats
// returns the same counters.
func (s *Server) Stats() *introspect.Stats {
	out := &introspect.Stats{Since: s.started, Conns: s.conns.Len() + len(s.lent.Conns()), Panics: s.guard.Panics(), LeftOut: s.leftOut.Load(), Draining: s.conns.Stopping()}
	out.Announced = s.announced.State()
	out.Open, out.Granted, out.MaxOpen = s.budget.Open(), s.budget.Granted(), s.opts.MaxOpen
	callers := s.live.Callers(serverSide)
	s.methods.Each(func(names []string, m *method) {
		stats := diagnose.Method(names[0], &m.Stats)
		stats.Callers = callers(names)
		out.Methods = append(out.Methods, stats)
	})
	return out
}

// Stats returns the counters of the client since it was made: of its present endpoints, and with
// ClientOptions.CountCalls those of its calls by method. It takes
// the lock of each connection for a moment, so call it from time to time and not for each call.
func (c *Client) Stats() *introspect.ClientStats {
	now := clock()
	out := &introspect.ClientStats{Since: monotime.Wall(now, c.born)}
	for _, ep := range c.cluster.endpoints() {
		out.Endpoints = append(out.Endpoints, ep.stats())
	}
	slices.SortFunc(out.Endpoints, func(a, b introspect.EndpointStats) int { return strings.Compare(a.Addr, b.Addr) })
	out.Resolver = c.cluster.resolver()
	if c.counts != nil {
		out.Methods = c.counts.All()
	}
	return out
}

func (ep *Endpoint) stats() introspect.EndpointStats {
	out := introspect.EndpointStats{
		Addr: ep.Addr(), Protocol: ep.protocol, Inflight: ep.Inflight(), Load: ep.Load(), Ready: ep.Ready(), NotReady: ep.notReady(),
		Attempts: uint64(ep.inflight.Begun.Load()), Failed: uint64(ep.failed.Load()), Unconnected: uint64(ep.unconnected.Load()), //nolint:gosec // counters
		RTT: ep.trip.Took(), Unlisted: ep.core.Unlisted(),
	}
	out.Picks = out.Attempts + out.Unconnected
	out.Ejections = ep.core.Shunned()
	for _, conn := range ep.core.Conns() {
		out.Conns = append(out.Conns, conn.stats())
	}
	return out
}

// Stats returns the counters of the connection. They are empty in other protocols than yodel's own.
func (p *Peer) Stats() introspect.Conn {
	if p.link == nil {
		return introspect.Conn{}
	}
	return diagnose.Conn(p.link)
}

// activeRules returns the rules that the server's registrars apply to it.
func (s *Server) activeRules(*struct{}) *introspect.Rules {
	all := &introspect.Rules{Rules: []introspect.RuleState{}}
	for _, rules := range s.rules {
		_ = s.guard.Apart("the Registrar's Rules", nil, func() error { // a failure is in the log
			its := rules()
			all.Name, all.Rules = its.Name, append(all.Rules, its.Rules...)
			return nil
		})
	}
	return all
}
