// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/instanceevents"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/text"
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
	m := registered.Unary(func(_ context.Context, in *In) (*Out, error) { return f(in) })
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
	info := &introspect.Info{Agent: agent, Started: s.started, Codecs: strings.Split(s.methods.Codecs, ", ")}
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
		info.Compressors = strings.Split(s.methods.Compressors, ", ")
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
	out := &introspect.Stats{Since: s.started, Conns: s.conns.Len() + len(s.lent.Conns()), Panics: s.guard.Panics(), LeftOut: s.peerLines.PairsLeftOut(), Draining: s.conns.Stopping()}
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
	out := &introspect.ClientStats{Since: monotime.Wall(c.born)}
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
		Addr: ep.Addr(), Protocol: ep.protocol, Inflight: ep.Inflight(), Load: ep.Load(), Ready: ep.Ready(), NotReady: ep.core.NotReady(),
		Attempts: uint64(ep.inflight.Begun.Load()), Failed: uint64(ep.failed.Load()), Unconnected: uint64(ep.unconnected.Load()), //nolint:gosec // counters
		RTT: ep.trip.Took(), Unlisted: ep.core.Unlisted(),
	}
	out.Picks = out.Attempts + out.Unconnected
	out.Ejections = ep.core.Shunned()
	for _, conn := range ep.core.Conns() {
		out.Conns = append(out.Conns, conn.Stats())
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

// A server with ServerOptions.Diagnostics measures what it and the clients of its handlers do in
// the course of time. The counter of a series is chosen when the first call of a method on a
// connection ends, so that later calls only add to it. See docs/decisions/0049-live-data.md.

// count counts a call of the method with this connection's caller. The first call chooses the
// counter.
func (b *boundMethod) count(latency time.Duration, code int) {
	b.chosen.Do(func() {
		b.counter = b.server.live.Counter(live.Key{Side: serverSide, Method: b.Name, Peer: b.caller})
	})
	if b.counter != nil {
		b.counter.End(latency, code)
	}
}

// measure counts a call that has ended, and shows it to the taps.
func (c *serverCall) measure(took, latency time.Duration, code Code) {
	if c.method != nil {
		c.as.count(latency, countsAs(code, c.err))
		if c.call.Tenant != "" {
			c.server.live.CountTenant(c.as.Name, c.call.Tenant, countsAs(code, c.err))
		}
	}
	if c.server.live.Taps.Any() {
		c.tap(took, code)
	}
}

// count counts an attempt that has ended with err. K is nil if there is no memory for the counter.
func (o *outgoing) count(ctx context.Context, call *Call, k *live.Counter, err error) {
	if k == nil {
		return
	}
	code := 0
	if err != nil {
		told := o.from.explainAt(ctx, call, addrOf(call), err)
		code = countsAs(CodeOf(told), told)
	}
	began, ended := max(o.began, o.req.Began), o.arrived
	if ended < began {
		ended = clock()
	}
	took := ended - began
	if call.stream != nil {
		took = stats.Unmeasured
	}
	k.End(took, code)
}

// countUnsent counts a call that no instance got, such as one that a rule refused. The peer of its
// series is empty.
func (c *Client) countUnsent(call *Call, err error) {
	if s := c.server.Load(); s != nil {
		k := s.live.Counter(live.Key{Side: clientSide, Method: text.Clip(call.Method, wire.MaxName)})
		if k != nil {
			k.End(stats.Unmeasured, countsAs(CodeOf(err), err))
		}
	}
}

// counter returns the counter of a method on the endpoint, always the same one. It may be nil.
func (ep *Endpoint) counter(b *binding) *live.Counter {
	c, known := ep.counters.At(b.Handle, b.Generation)
	if !known {
		c = ep.client.server.Load().live.Counter(live.Key{Side: clientSide, Method: b.Name, Peer: text.Clip(ep.Addr(), wire.MaxName)})
		ep.counters.Set(b.Handle, b.Generation, c)
	}
	return c
}

// adopt makes the calls and the events of a client part of the server's live data. A client belongs
// to the first server whose handlers use it.
func (s *Server) adopt(c *Client) {
	if s.live == nil || !c.server.CompareAndSwap(nil, s) {
		return
	}
	s.live.Adopt(c, c.opts.Name)
	if c.shut.Load() {
		s.live.Leave(c)
	}
	s.take(c)
}

// take adds the events that a client has kept.
func (s *Server) take(c *Client) {
	for _, e := range c.events.Take() {
		s.Note(e)
	}
}

// Live returns the calls of the last minutes and hours, the last events, and the state of the
// process. It contains the calls that the server has executed, and those of the clients that its
// handlers use. If ServerOptions.Diagnostics is not set, it has only the state of the process. The
// built-in method yodel.Live returns the same. A nil query returns the last minute. Live may be
// called concurrently.
//
// A step begins when the wall clock shows a multiple of its length. The server divides the time
// into steps while it serves. While it does not, for example because it executes only calls of
// Server.Do, calls count in the step in which Live is called.
func (s *Server) Live(q *introspect.LiveQuery) *introspect.Live {
	if q == nil {
		q = &introspect.LiveQuery{}
	}
	out := &introspect.Live{Now: time.Now(), Name: diagnose.Program(), Series: []introspect.Series{}, Process: diagnose.Process(s.started)}
	if s.live != nil {
		s.live.Answer(q, out)
		out.Inflight = s.inflight(q)
	}
	return out
}

// inflight returns how many calls the server is executing, by method.
func (s *Server) inflight(q *introspect.LiveQuery) map[string]int64 {
	calls := make(map[string]int64)
	s.methods.Each(func(names []string, m *method) {
		if n := m.Stats.Inflight(); n > 0 && q.Side != clientSide && (q.Method == "" || slices.Contains(names, q.Method)) {
			calls[names[0]] = n
		}
	})
	return calls
}

// Conns returns the open connections of the server, and of the clients that its handlers use. The
// built-in method yodel.Conns returns the same. Conns takes the lock of each connection for a
// moment. It may be called concurrently.
func (s *Server) Conns() *introspect.Conns {
	var all diagnose.Conns
	for _, c := range s.conns.All() {
		if peer := c.visible(); peer != nil && all.Room() {
			info := c.describe()
			info.Side, info.Addr, info.Peer, info.Agent, info.TLS = serverSide, peer.Addr.String(), text.Clip(peer.Name, wire.MaxCaller), text.Clip(peer.Agent, wire.MaxName), peer.TLS() != nil
			all.Add(info)
		}
	}
	for _, c := range s.live.Clients() {
		for _, ep := range c.cluster.endpoints() {
			for _, d := range ep.core.Conns() {
				if all.Room() {
					all.Add(introspect.ConnInfo{
						Side: clientSide, Addr: ep.Addr(), Agent: d.Agent, Protocol: ep.protocol, TLS: d.Secure, Since: sinceOf(d.Heard), Unlisted: ep.core.Unlisted(), Conn: d.Stats(),
					})
				}
			}
		}
	}
	return all.Answer()
}

// sinceOf converts a reading of the clock to a time without a monotonic part.
func sinceOf(at time.Duration) time.Time { return timeOf(at).Round(0).UTC() }

// describe implements connection.
func (sc *serverConn) describe() introspect.ConnInfo {
	return introspect.ConnInfo{Protocol: native, Since: sinceOf(sc.began), Conn: diagnose.Conn(sc.peer.link)}
}

// describe implements connection.
func (ses *Session) describe() introspect.ConnInfo { return ses.conn.Describe() }

// Note adds an event to the live data of the server whose handlers use the client. It is for
// plug-ins that change how the client calls, for example by a rule. A client that no server with
// ServerOptions.Diagnostics uses keeps the last 64 events for such a server. A zero At means the
// present. Note cuts texts that are too long. It may be called concurrently, and calls no user
// code.
func (c *Client) Note(e introspect.Event) {
	c.events.Add(e)
	if s := c.server.Load(); s != nil {
		s.take(c)
	}
}

// Note adds an event to the live data of the server, for plug-ins that change what the server does,
// for example by a rule. Without ServerOptions.Diagnostics, Note does nothing. It adds an event
// only once, so the server and its clients may all be told of it. A zero At means the present. Note
// cuts texts that are too long. It may be called concurrently.
func (s *Server) Note(e introspect.Event) { s.live.Note(e) }

// noteReady adds the event of an endpoint that becomes ready, or not ready, for the reason by.
func (ep *Endpoint) noteReady(by string, ready bool) {
	ep.client.Note(instanceevents.OfReadiness(ep.Addr(), by, ready))
}

// noteInstances adds the events of instances that the resolver has added, or that have left.
func (cl *cluster) noteInstances(kind string, endpoints []*Endpoint) {
	instances := make([]*discovery.Instance, len(endpoints))
	for i, ep := range endpoints {
		instances[i] = ep.instance.Load()
	}
	for _, e := range instanceevents.Of(kind, cl.service, instances) {
		cl.client.Note(e)
	}
}

// Name returns the name under which the client calls: ClientOptions.Name or its default.
func (c *Client) Name() string { return c.opts.Name }

// tapped reports whether a tap is open, so that all calls are timed.
func (s *Server) tapped() bool { return s.live != nil && s.live.Taps.Any() }

// caller returns the name of the caller, or its address.
func (c *serverCall) caller() string { return cmp.Or(c.as.caller, c.peer.Addr.String()) }

// tap shows a call that has ended to the open taps.
func (c *serverCall) tap(took time.Duration, code Code) {
	ended := &diagnose.Ended{
		Method: c.call.Method, Tenant: c.call.Tenant, Trace: c.call.Trace, Took: took, Caller: c.caller, Traffic: c.call.Traffic,
	}
	if code != 0 {
		ended.Code = code.String()
	}
	if c.err != nil {
		ended.Message = asError(c.err).Message
	}
	c.server.live.Taps.Show(ended, clock())
}

// serveTap is the handler of yodel.Tap.
func (s *Server) serveTap(ctx context.Context, q *introspect.TapQuery, send Send[introspect.Tapped]) error {
	if s.live == nil {
		return failure("YDL3103", "yodel.Tap: this server does not share its diagnostics")
	}
	t, err := s.live.Taps.Open(q)
	if err != nil {
		return Errorf(ResourceExhausted, "%d taps are open, which is the limit", diagnose.MaxTaps)
	}
	defer s.live.Taps.Close(t)
	return t.Run(ctx, CallFrom(ctx).Draining(), send)
}

// count counts a call of a client that has ended with err: see ClientOptions.CountCalls. It uses
// data that the client has anyway, so a call that is counted reads the clock no more often than
// others.
func (q *requester) count(o *outgoing, call *Call, err error) {
	if q.counts == nil || o.peer != nil {
		return
	}
	code := countsAs(CodeOf(err), err)
	var kept *atomic.Pointer[stats.Calls]
	if b := o.binding; b != nil {
		kept = &b.Of.Calls
	} else if m := q.called.Find(call.Method); m != nil {
		kept = &m.Calls
	}
	n, took := q.counts.For(kept, call.Method, code), q.tookFor(o, call, err)
	if call.stream != nil {
		took = stats.Unmeasured
	}
	n.End(took, code)
	if call.rare == nil && call.stream == nil && call.turn == nil {
		if call.Attempt > 0 {
			n.Bytes.Add(uint64(o.received), uint64(len(o.req.Body)+len(o.req.Attachment)+len(o.req.Metadata)))
		}
		return
	}
	if call.turn != nil && call.turn.kept != nil {
		return // another goroutine may be sending the call again, with the same memory
	}
	n.AddTraffic(call.Traffic(), call.Attempt)
}

// tookFor returns how long a call took that has ended with err. If its reply ended it, the time of
// the reply counts, which the reader goroutine has read.
func (q *requester) tookFor(o *outgoing, call *Call, err error) time.Duration {
	if call.watch == watched {
		return call.took
	}
	began, ended := call.start(), o.arrived
	if began == 0 { // it failed before it could be sent
		return 0
	}
	if ended == 0 || err != nil || call.rare != nil || call.stream != nil || q.client != nil && q.client.wraps {
		ended = clock()
	}
	return max(ended-began, 0)
}
