// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file measures what a server with ServerOptions.Diagnostics and the clients of its handlers
// do in the course of time. The counter of a series is chosen when a connection first uses a
// method, so that a call only adds to it. See docs/decisions/0049-live-data.md.

// A liveServer is the live data of a server.
type liveServer struct {
	*live.Recorder
	events live.Ring[introspect.Event]
	taps   diagnose.Taps
	// heritage is inherited by the calls of handlers whose own call passes on nothing else.
	heritage heritage

	mu      sync.Mutex
	clients map[*Client]struct{} // those that handlers use
	name    string               // of the first of them
}

func newLiveServer(s *Server) *liveServer {
	l := &liveServer{Recorder: live.New(time.Now()), clients: make(map[*Client]struct{})}
	l.heritage.server = s
	return l
}

// measure records the steps of time until the caller calls stop.
func (s *Server) measure() (stop func()) {
	if s.live == nil {
		return func() {}
	}
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		s.live.Run(ended)
	}()
	return func() {
		close(ended)
		<-stopped
	}
}

// choose chooses the counter of the method's calls with this connection's caller, once.
func (b *boundMethod) choose() {
	l := b.server.live
	if l == nil {
		return
	}
	b.chosen.Do(func() {
		b.counter.Store(l.Counter(live.Key{Side: serverSide, Method: b.name, Peer: b.caller}))
	})
}

// measure counts a call that has ended, and shows it to the taps.
func (c *serverCall) measure(took time.Duration, code Code) {
	if c.method != nil {
		if k := c.as.counter.Load(); k != nil {
			k.End(took, int(code))
		}
	}
	if c.server.live.taps.Any() {
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
		code = int(CodeOf(o.from.explainAt(ctx, call, addrOf(call), err)))
	}
	began, ended := max(o.began, o.req.Began), o.arrived
	if ended < began || call.stream != nil {
		ended = clock()
	}
	k.End(ended-began, code)
}

// counter returns the counter of a method on the endpoint, always the same one. It may be nil.
func (ep *Endpoint) counter(b *binding) *live.Counter {
	if m := ep.counters.At(b.Handle); m != nil && m.generation == b.Generation {
		return m.counter
	}
	l := ep.client.server.Load().live
	c := l.Counter(live.Key{Side: clientSide, Method: b.Name, Peer: text.Clip(ep.Addr(), wire.MaxName)})
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.counters.Set(b.Handle, &measuredMethod{b.Generation, c})
	return c
}

// adopt makes the calls and the events of a client part of the server's live data. A client belongs
// to the first server whose handlers use it.
func (s *Server) adopt(c *Client) {
	l := s.live
	if l == nil || !c.server.CompareAndSwap(nil, s) {
		return
	}
	l.mu.Lock()
	l.clients[c] = struct{}{}
	l.name = cmp.Or(l.name, c.opts.Name)
	l.mu.Unlock()
	if c.shut.Load() {
		l.leave(c)
	}
	c.events.mu.Lock()
	defer c.events.mu.Unlock()
	for _, e := range c.events.early {
		l.events.Add(e)
	}
	c.events.early = nil
}

// leave removes a client that was closed.
func (l *liveServer) leave(c *Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.clients, c)
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
	if l := s.live; l != nil {
		diagnose.Series(l.Recorder, q, out)
		out.Inflight = s.inflight(q)
		out.Events = l.events.All()
		l.mu.Lock()
		out.Name = cmp.Or(l.name, out.Name)
		l.mu.Unlock()
	}
	return out
}

// inflight returns how many calls the server is executing, by method.
func (s *Server) inflight(q *introspect.LiveQuery) map[string]int64 {
	calls := make(map[string]int64)
	s.registered(func(names []string, m *method) {
		if n := m.stats.Inflight(); n > 0 && q.Side != clientSide && (q.Method == "" || slices.Contains(names, q.Method)) {
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
	s.mu.Lock()
	for c := range s.conns {
		if peer := c.visible(); peer != nil && c != connection(s.local) {
			conns = append(conns, accepted{c, peer})
		}
	}
	s.mu.Unlock()
	out := &introspect.Conns{Conns: []introspect.ConnInfo{}}
	for _, c := range conns[:min(len(conns), maxConnInfos)] {
		info := c.conn.describe()
		info.Side, info.Addr, info.Peer, info.Agent, info.TLS = serverSide, c.peer.Addr.String(), text.Clip(c.peer.Name, wire.MaxCaller), text.Clip(c.peer.Agent, wire.MaxName), c.peer.TLS() != nil
		out.Conns = append(out.Conns, info)
	}
	out.Left = max(len(conns)-maxConnInfos, 0)
	if s.live != nil {
		s.live.dialled(out)
	}
	slices.SortFunc(out.Conns, func(a, b introspect.ConnInfo) int {
		return cmp.Or(strings.Compare(a.Side, b.Side), strings.Compare(a.Addr, b.Addr), a.Since.Compare(b.Since))
	})
	return out
}

// dialled adds the connections of clients.
func (l *liveServer) dialled(out *introspect.Conns) {
	l.mu.Lock()
	clients := slices.Collect(maps.Keys(l.clients))
	l.mu.Unlock()
	for _, c := range clients {
		for _, ep := range c.cluster.endpoints() {
			for _, d := range *ep.conns.Load() {
				if len(out.Conns) >= maxConnInfos {
					out.Left++
					continue
				}
				out.Conns = append(out.Conns, introspect.ConnInfo{
					Side: clientSide, Addr: ep.Addr(), Agent: d.agent, Protocol: ep.protocol, TLS: d.secure, Since: sinceOf(d.heard), Conn: d.stats(),
				})
			}
		}
	}
}

// sinceOf converts a reading of the clock to a time without a monotonic part.
func sinceOf(at time.Duration) time.Time { return mux.TimeOf(at).Round(0).UTC() }

// describe implements connection.
func (sc *serverConn) describe() introspect.ConnInfo {
	return introspect.ConnInfo{Protocol: native, Since: sinceOf(sc.began), Conn: diagnose.Conn(sc.peer.link)}
}

// describe implements connection.
func (ses *Session) describe() introspect.ConnInfo {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return introspect.ConnInfo{Protocol: ses.protocol, Since: sinceOf(ses.began), Conn: introspect.Conn{Open: len(ses.open)}}
}

// clientEvents holds the events of a client until handlers of a server with live data use it.
type clientEvents struct {
	mu    sync.Mutex
	early []introspect.Event
}

// maxEarlyEvents is how many events a client keeps that no server with live data knows.
const maxEarlyEvents = 64

// Note adds an event to the live data of the server whose handlers use the client. It is for
// plug-ins that change how the client calls, for example by a rule. A client that no server with
// ServerOptions.Diagnostics uses keeps the last 64 events for such a server. A zero At means the
// present. Note cuts texts that are too long. It may be called concurrently, and calls no user
// code.
func (c *Client) Note(e introspect.Event) {
	if s := c.server.Load(); s != nil {
		s.Note(e)
		return
	}
	clipEvent(&e)
	c.events.mu.Lock()
	defer c.events.mu.Unlock()
	if s := c.server.Load(); s != nil { // adopt has taken the earlier ones, or is about to
		defer s.Note(e)
		return
	}
	if len(c.events.early) == maxEarlyEvents {
		c.events.early = slices.Delete(c.events.early, 0, 1)
	}
	c.events.early = append(c.events.early, e)
}

// Note adds an event to the live data of the server, for plug-ins that change what the server does,
// for example by a rule. Without ServerOptions.Diagnostics, Note does nothing. It adds an event
// only once, so the server and its clients may all be told of it. A zero At means the present. Note
// cuts texts that are too long. It may be called concurrently.
func (s *Server) Note(e introspect.Event) {
	if s.live != nil {
		clipEvent(&e)
		s.live.events.Add(e)
	}
}

// clipEvent bounds the memory of an event.
func clipEvent(e *introspect.Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.At = e.At.Round(0).UTC()
	e.Kind, e.Object = text.Clip(e.Kind, maxReportShort), text.Clip(e.Object, wire.MaxName)
	e.What, e.By = text.Clip(e.What, maxReportText), text.Clip(e.By, maxReportShort)
}

// The kinds of events that the root package adds.
const (
	eventUp       = "instance up"
	eventDown     = "instance down"
	eventNotReady = "not ready"
	eventReady    = "ready"
	eventDrain    = "drain"
	eventStart    = "start"
)

// noteReady adds the event of an endpoint that becomes ready, or not ready, for the reason by.
func (ep *Endpoint) noteReady(by string, ready bool) {
	e := introspect.Event{Kind: eventNotReady, Object: ep.Addr(), What: "gets no calls while others are ready: " + by, By: by}
	if ready {
		e.Kind, e.What = eventReady, "no longer held back: "+by
	}
	ep.client.Note(e)
}

// noteInstances adds the events of instances that the resolver has added, or that have left. Many
// at once make one event.
func (cl *cluster) noteInstances(kind string, endpoints []*Endpoint) {
	const single, listed = 8, 3
	news := "the resolver names it"
	if kind == eventDown {
		news = "it has left"
	}
	of := ""
	if cl.service != "" {
		of = " of " + cl.service
	}
	if len(endpoints) <= single {
		for _, ep := range endpoints {
			cl.client.Note(introspect.Event{Kind: kind, Object: ep.Addr(), What: "an instance" + of + ": " + news, By: "resolver"})
		}
		return
	}
	var addrs []string
	for _, ep := range endpoints[:listed] {
		addrs = append(addrs, ep.Addr())
	}
	what := count(len(endpoints), "instance") + of + ": " + strings.Join(addrs, ", ") + " and others"
	cl.client.Note(introspect.Event{Kind: kind, Object: cl.service, What: what, By: "resolver"})
}

// programName returns the default of ClientOptions.Name.
func programName() string {
	if len(os.Args) == 0 {
		return ""
	}
	return callerName(filepath.Base(os.Args[0]))
}

// callerName returns a name in the form in which all protocols can carry it: as a product in the
// User-Agent of HTTP.
func callerName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) {
			return r
		}
		return '-'
	}, name[:min(len(name), wire.MaxCaller)])
	return name[:min(len(name), wire.MaxCaller)]
}

// Name returns the name under which the client calls: ClientOptions.Name or its default.
func (c *Client) Name() string { return c.opts.Name }
