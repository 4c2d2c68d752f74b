// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/instanceevents"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/methods"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file measures what a server with ServerOptions.Diagnostics and the clients of its handlers
// do in the course of time. The counter of a series is chosen when the first call of a method on a
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

// A measuredMethod is the counter of a binding on an endpoint.
type measuredMethod struct {
	generation uint32        // of the binding
	counter    *live.Counter // nil if there is no memory for it
}

// measured counts an attempt on ep that has ended with err, if handlers of a server with live data
// use the client. Ep is nil for a call to a peer.
func (o *outgoing) measured(ctx context.Context, call *Call, ep *Endpoint, b *binding, err error) {
	if ep != nil && ep.client.server.Load() != nil {
		o.count(ctx, call, ep.counter(b), err)
	}
}

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
	if m := ep.counters.At(b.Handle); m != nil && m.generation == b.Generation {
		return m.counter
	}
	l := ep.client.server.Load().live
	c := l.Counter(live.Key{Side: clientSide, Method: b.Name, Peer: text.Clip(ep.Addr(), wire.MaxName)})
	ep.countersMu.Lock()
	defer ep.countersMu.Unlock()
	ep.counters.Set(b.Handle, &measuredMethod{b.Generation, c})
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
	out := &introspect.Live{Now: time.Now(), Name: programName(), Series: []introspect.Series{}, Process: diagnose.Process(s.started)}
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

// maxConnInfos is how many connections Conns returns.
const maxConnInfos = 1000

// Conns returns the open connections of the server, and of the clients that its handlers use. The
// built-in method yodel.Conns returns the same. Conns takes the lock of each connection for a
// moment. It may be called concurrently.
func (s *Server) Conns() *introspect.Conns {
	type accepted struct {
		conn connection
		peer *Peer
	}
	var conns []accepted
	for _, c := range s.conns.All() {
		if peer := c.visible(); peer != nil {
			conns = append(conns, accepted{c, peer})
		}
	}
	out := &introspect.Conns{Conns: []introspect.ConnInfo{}}
	for _, c := range conns[:min(len(conns), maxConnInfos)] {
		info := c.conn.describe()
		info.Side, info.Addr, info.Peer, info.Agent, info.TLS = serverSide, c.peer.Addr.String(), text.Clip(c.peer.Name, wire.MaxCaller), text.Clip(c.peer.Agent, wire.MaxName), c.peer.TLS() != nil
		out.Conns = append(out.Conns, info)
	}
	out.Left = max(len(conns)-maxConnInfos, 0)
	s.dialled(out)
	slices.SortFunc(out.Conns, func(a, b introspect.ConnInfo) int {
		return cmp.Or(strings.Compare(a.Side, b.Side), strings.Compare(a.Addr, b.Addr), a.Since.Compare(b.Since))
	})
	return out
}

// dialled adds the connections of the clients that handlers use.
func (s *Server) dialled(out *introspect.Conns) {
	for _, c := range s.live.Clients() {
		for _, ep := range c.cluster.endpoints() {
			for _, d := range ep.core.Conns() {
				if len(out.Conns) >= maxConnInfos {
					out.Left++
					continue
				}
				out.Conns = append(out.Conns, introspect.ConnInfo{
					Side: clientSide, Addr: ep.Addr(), Agent: d.agent, Protocol: ep.protocol, TLS: d.secure, Since: sinceOf(d.heard), Unlisted: ep.core.Unlisted(), Conn: d.stats(),
				})
			}
		}
	}
}

// sinceOf converts a reading of the clock to a time without a monotonic part.
func sinceOf(at time.Duration) time.Time { return timeOf(at).Round(0).UTC() }

// describe implements connection.
func (sc *serverConn) describe() introspect.ConnInfo {
	return introspect.ConnInfo{Protocol: native, Since: sinceOf(sc.began), Conn: diagnose.Conn(sc.peer.link)}
}

// describe implements connection.
func (ses *Session) describe() introspect.ConnInfo {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return introspect.ConnInfo{Protocol: ses.protocol, Since: sinceOf(ses.began), Conn: introspect.Conn{Open: ses.conn.Open()}}
}

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

// The kinds of events that the root package adds.
const (
	eventNotReady = "not ready"
	eventReady    = "ready"
	eventDrain    = "drain"
	eventStart    = "start"
)

// noteReady adds the event of an endpoint that becomes ready, or not ready, for the reason by.
func (ep *Endpoint) noteReady(by string, ready bool) {
	e := introspect.Event{Kind: eventNotReady, Object: ep.Addr(), What: "gets no calls while others are ready", By: by}
	if ready {
		e.Kind, e.What = eventReady, "no longer held back"
	}
	ep.client.Note(e)
}

// noteInstances adds the events of instances that the resolver has added, or that have left.
func (cl *cluster) noteInstances(kind string, endpoints []*Endpoint) {
	for _, e := range instanceevents.Of(kind, cl.service, len(endpoints), func(i int) (string, bool) {
		in := endpoints[i].instance.Load()
		return in.Addr, in.State == discovery.Inactive
	}) {
		cl.client.Note(e)
	}
}

// programName returns the default of ClientOptions.Name.
func programName() string {
	if len(os.Args) == 0 {
		return ""
	}
	return text.Product(filepath.Base(os.Args[0]), wire.MaxCaller)
}

// Name returns the name under which the client calls: ClientOptions.Name or its default.
func (c *Client) Name() string { return c.opts.Name }

// tapped reports whether a tap is open, so that all calls are timed.
func (s *Server) tapped() bool { return s.live != nil && s.live.Taps.Any() }

// caller returns the name of the caller, or its address.
func (c *serverCall) caller() string { return cmp.Or(c.as.caller, c.peer.Addr.String()) }

// tap shows a call that has ended to the open taps.
func (c *serverCall) tap(took time.Duration, code Code) {
	ended := &diagnose.Ended{Method: c.call.Method, Tenant: c.call.Tenant, Took: took, Failed: code != 0, Caller: c.caller}
	ended.Describe = func() introspect.Tapped { return c.describe(took, code) }
	c.server.live.Taps.Show(ended, clock())
}

// describe describes the call for a tap.
func (c *serverCall) describe(took time.Duration, code Code) introspect.Tapped {
	call := &c.call
	traffic := call.Traffic()
	m := introspect.Tapped{
		At: time.Now().Round(0).UTC(), Method: shorten(call.Method, record.MaxName), Peer: c.caller(), Tenant: shorten(call.Tenant, record.MaxName),
		In: traffic.BytesIn, Out: traffic.BytesOut, Trace: shorten(call.Trace, record.MaxText),
	}
	if took != mux.Untimed {
		m.Took = took
	}
	if code != 0 {
		m.Code = code.String()
	}
	if c.err != nil {
		m.Message = shorten(asError(c.err).Message, record.MaxText)
	}
	return m
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
	n, took := q.countsOf(o, call, code), q.tookFor(o, call, err)
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
	t := call.Traffic()
	n.Bytes.Add(uint64(t.BytesIn), uint64(t.BytesOut))
	n.Messages.Add(uint64(t.Received), uint64(t.Sent))
	if extra := call.Attempt - 1; extra > 0 {
		hedges := min(t.Forks, extra)
		n.Extra.Add(uint64(extra-hedges), uint64(hedges))
	}
}

// countsOf returns the counters of the method of a call that has ended with a code.
func (q *requester) countsOf(o *outgoing, call *Call, code int) *stats.Calls {
	var m *methods.Method[format]
	if b := o.binding; b != nil {
		m = b.Of
	} else {
		m = q.called.Find(call.Method)
	}
	if m != nil {
		if n := m.Calls.Load(); n != nil {
			return n
		}
	}
	n, final := q.counts.Of(call.Method, code == int(Unimplemented))
	if m != nil && final {
		m.Calls.Store(n)
	}
	return n
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
