// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/body"
	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/instanceevents"
	"github.com/yodel-rpc/yodel/internal/loglimit"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/internal/serve"
	"github.com/yodel-rpc/yodel/internal/shares"
	"github.com/yodel-rpc/yodel/internal/source"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file makes clients and servers. It uses all other files and is used by none of them.

// Dial returns a client for servers at the given addresses, with default options. Dial does not
// wait for a connection. Ready and the calls wait for one.
func Dial(addrs ...string) *Client { return NewClient(discovery.Static(addrs...), nil) }

// NewClient returns a client for the instances that r knows. O may be nil. NewClient waits neither
// for instances nor for a connection.
//
//nolint:contextcheck,nolintlint // a client outlives the caller of NewClient
func NewClient(r discovery.Resolver, o *ClientOptions) *Client {
	if o == nil {
		o = &ClientOptions{}
	}
	d := Description{}.Over(r)
	c := &Client{opts: *o.amended(d), refresh: d.Refresh, born: clock(), left: make(chan struct{})}
	opts := &c.opts
	opts.setDefaults()
	c.guard = guard.New(opts.Logger, interruption)
	c.codec, c.compressor, c.compressAbove = opts.Codec, opts.Compressor, opts.CompressAbove
	c.noWait, c.checksum, c.limits = opts.NoWait, opts.Checksum, opts.Limits.withDefaults()
	c.side, c.slowAfter, c.samples = clientSide, samples.SlowAfter(opts.SlowAfter), samples.New()
	c.client, c.proceed = c, c.balanceAfter
	c.memory = memory.NewLimit(opts.MaxMemory)
	if opts.CountCalls {
		c.counts = new(diagnose.MethodCounts)
	}
	c.setUp(opts.Idempotent)
	c.watchers = watchersOf(opts.Observers)
	c.watches = len(c.watchers.attempts) > 0
	c.wires = nameWires(opts.Wires)
	c.wraps = len(opts.Middleware) > 0
	c.direct = len(opts.Middleware) == 0 && len(opts.EndpointMiddleware) == 0
	c.handler = c.observe(&c.watchers, opts.CountCalls, chain(opts.Middleware, c.balance()))
	c.orders.Limit, c.orders.MaxResends, c.orders.Final, c.orders.Guard = max(c.limits.MaxOpen, minUntold), maxResends, c.direct, c.guard
	c.config = mux.Config{
		Limits: c.limits.mux(), Metadata: metadata.Append(nil, opts.ConnMetadata), Agent: agent, Caller: []byte(opts.Name),
		Learned: c.learned, Pool: mux.NewPool(), Watch: inline.NewWatch(), Memory: c.memory,
	}
	c.configure(&c.config)
	if opts.Server != nil {
		opts.Server.lend(&c.config)
		c.peers = c.pathToPeers(opts.Server)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.ctx, c.closing, c.cancel = ctx, ctx.Done(), cancel
	c.orders.Closing = c.closing
	c.cluster = newCluster(c, d)
	if opts.Server != nil {
		opts.Server.adopt(c)
	}
	switch s := r.(type) {
	case nil:
		c.cluster.update(nil)
		c.cluster.list.Fail(source.ErrNone)
	case discovery.Fixed: // without the goroutine of follow, which would only wait
		c.cluster.update(s)
		if len(s) == 0 {
			c.cluster.list.Fail(source.ErrNoAddress)
		}
	default:
		c.wg.Go(func() { c.cluster.follow(ctx, r) })
	}
	return c
}

// setDefaults replaces zero values with defaults.
func (opts *ClientOptions) setDefaults() {
	opts.Codec, opts.Transport = cmp.Or(opts.Codec, JSON), cmp.Or(opts.Transport, TCP)
	if opts.Balancer == nil {
		opts.Balancer = RoundRobin
	}
	opts.MaxMemory = memory.OrDefault(opts.MaxMemory)
	if opts.Name = text.Product(opts.Name, wire.MaxCaller); opts.Name == "" {
		opts.Name = programName()
	}
	refuseNil("ClientOptions.Middleware", opts.Middleware, func(m Middleware) bool { return m == nil })
	refuseNil("ClientOptions.Wires", opts.Wires, func(w Wire) bool { return w == nil })
	refuseNil("ClientOptions.EndpointMiddleware", opts.EndpointMiddleware, func(m EndpointMiddleware) bool { return m == nil })
	opts.CompressAbove = defaults.Positive(opts.CompressAbove, compressAbove)
	opts.Timeout, opts.StreamTimeout = min(opts.Timeout, defaults.Forever), min(opts.StreamTimeout, defaults.Forever)
	opts.DialTimeout = defaults.Positive(opts.DialTimeout, 3*time.Second)
	opts.ConnsPerEndpoint = defaults.Positive(opts.ConnsPerEndpoint, 1)
	opts.Logger = guard.Logger(opts.Logger)
}

// configure sets the callbacks of config, which all connections of the client share. The callbacks
// find the endpoint by the connection.
func (c *Client) configure(config *mux.Config) {
	config.Hello = func(conn *mux.Conn, l *wire.Limits) *mux.Refusal { return whose(conn).hello(conn, l) }
	config.Unusable = func(conn *mux.Conn) { whose(conn).ep.core.Remove(whose(conn)) }
	config.Ended = func(conn *mux.Conn, err error) { whose(conn).hasEnded(err) }
	if c.opts.Server != nil {
		config.Bind = func(conn *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) { return whose(conn).served.bind(conn, b) }
	}
}

func newCluster(c *Client, d Description) *cluster {
	cl := &cluster{client: c, service: d.Service}
	cl.source.SetUp(d.Name, d.Services, c.Background)
	cl.setUp()
	return cl
}

// setUp sets how the engine of the endpoints works with the client.
func (cl *cluster) setUp() {
	c, l := cl.client, &cl.list
	l.Timeout, l.Closing, l.Go, l.Background = c.opts.DialTimeout, c.closing, c.wg.Go, c.Background
	l.Connect = func(ctx context.Context, ep *Endpoint, spare bool, accepted func()) (*dialledConn, *reason.DialError) {
		conn, err := ep.connect(ctx, spare, accepted)
		if err == nil {
			ep.identity.Store(conn.server)
		}
		return conn, err
	}
	l.Ready, l.Beside, l.Changed = (*Endpoint).readyBeside, (*Endpoint).beside, (*Endpoint).noteReady
	l.Why = func(ep *Endpoint, err *reason.DialError) string { return c.dialReason(ep.Addr(), err) }
	l.Elsewhere = func(ep *Endpoint, waited time.Duration) error {
		return refusal("YDL1103", "%s: no connection within %v, while another instance is connected", ep.Addr(), waited)
	}
	l.Joined = func(of []*Endpoint) { cl.noteInstances(instanceevents.Up, of) }
	l.Left = func(of []*Endpoint) { cl.noteInstances(instanceevents.Down, of) }
	l.Build = cl.build
}

// nameWires returns the Wires with their names.
func nameWires(wires []Wire) []namedWire {
	named := make([]namedWire, 0, len(wires))
	for _, w := range wires {
		named = append(named, namedWire{w, w.Name()})
	}
	return named
}

// NewServer returns a server without methods. O may be nil.
func NewServer(o *ServerOptions) *Server {
	if o == nil {
		o = &ServerOptions{}
	}
	s := new(Server)
	o = o.amended(s)
	*s = Server{
		opts: *o, limits: o.Limits.withDefaults(), codecs: make(map[string]Codec), compressors: make(map[string]compress.Compressor),
		pool: mux.NewPool(), watch: inline.NewWatch(), started: time.Now(),
	}
	opts := &s.opts
	s.fillCodecs()
	refuseNil("ServerOptions.Protocols", opts.Protocols, func(p Protocol) bool { return p == nil })
	opts.Transport = cmp.Or(opts.Transport, TCP)
	opts.Logger = guard.Logger(opts.Logger)
	s.peerLines.Log = opts.Logger
	refuseNil("ServerOptions.Middleware", opts.Middleware, func(m Middleware) bool { return m == nil })
	s.guard = guard.New(opts.Logger, interruption)
	s.calls.guard = s.guard
	opts.CompressAbove = defaults.Positive(opts.CompressAbove, compressAbove)
	opts.MaxConns, opts.MaxOpen = defaults.Positive(opts.MaxConns, 1<<16), defaults.Positive(opts.MaxOpen, 16<<10)
	s.conns, s.local = newConns(s), sync.OnceValue(s.newLocal)
	s.ready = newProbe(s)
	opts.MaxMemory = memory.OrDefault(defaults.Positive(opts.MaxMemory, 0))
	s.memory, s.budget = memory.NewLimit(opts.MaxMemory), shares.New(opts.MaxOpen, opts.MaxMemory/2)
	s.foreign.Calls, s.foreign.Bytes, s.foreign.Reserve = opts.MaxOpen, opts.MaxMemory/2, 16
	s.sessions = sessionOptions(s)
	// registries get a multiple of AnnounceEvery
	opts.AnnounceEvery = min(defaults.Positive(opts.AnnounceEvery, 10*time.Second), defaults.Forever/10)
	s.setUpAnnouncing(describe(o.Registrars))
	opts.DrainTimeout = defaults.Positive(opts.DrainTimeout, 10*time.Second)
	s.setUpCalls()
	s.lent.AddPool(s.pool)
	s.watchers = watchersOf(opts.Observers)
	s.config = mux.Config{
		Limits: s.limits.mux(), Agent: agent, Learned: s.calls.learned, Pool: s.pool, Watch: s.watch, Budget: s.budget, Memory: s.memory,
		Bind:  func(c *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) { return served(c).bind(c, b) },
		Hello: func(c *mux.Conn, peer *wire.Limits) *mux.Refusal { return served(c).hello(c, peer) },
		Ended: func(c *mux.Conn, err error) { served(c).ended(c, err) },

		Incarnation: identity.NewIncarnation(), Services: s.methods.EncodedServices,
	}
	s.methods.BuiltIn, s.methods.Codecs, s.methods.Compressors = "yodel", names(s.codecs), names(s.compressors)
	inner := Handler(invoke)
	if opts.Keys != nil {
		inner = opts.Keys.Guard(invoke)
		s.config.Keys = func(c *mux.Conn) (string, time.Duration) { return served(c).keys.Name, served(c).keys.Keep }
	}
	s.handler = chain(opts.Middleware, inner)
	s.plain = len(opts.Middleware) == 0 && len(s.watchers.calls) == 0 && opts.Keys == nil
	if opts.Diagnostics {
		s.live, s.measuring.server = diagnose.NewMeasured[*Client](), s
	}
	if !opts.NoIntrospection {
		s.introspect()
	}
	return s
}

// fill puts the elements of an option into a map by their names. It panics if two have the same
// name, because one would silently replace the other.
func fill[T any](option string, all map[string]T, elements []T, nameOf func(T) string) {
	for i, e := range elements {
		name := nameOf(e)
		if _, found := all[name]; found {
			panic(fmt.Sprintf("yodel: element %d of %s has the name %q of an earlier element", i, option, name))
		}
		all[name] = e
	}
}

// fillCodecs adds the codecs and compressors of the options, and the codecs that every server has.
func (s *Server) fillCodecs() {
	fill("ServerOptions.Codecs", s.codecs, s.opts.Codecs, Codec.Name)
	for _, c := range []Codec{JSON, raw.Codec} {
		if s.codecs[c.Name()] == nil {
			s.codecs[c.Name()] = c
		}
	}
	fill("ServerOptions.Compressors", s.compressors, s.opts.Compressors, compress.Compressor.Name)
}

// setUpCalls prepares the calls to peers.
func (s *Server) setUpCalls() {
	q, opts := &s.calls, &s.opts
	s.slowAfter, s.samples = samples.SlowAfter(opts.SlowAfter), samples.New()
	q.slowAfter, q.samples, q.memory = s.slowAfter, s.samples, s.memory
	q.codec, q.compressAbove, q.limits, q.side = cmp.Or(opts.Codec, JSON), opts.CompressAbove, s.limits, serverSide
	q.setUp(nil)
	s.bodies = body.Side{Name: "the server", Serves: true, MaxMessage: s.limits.MaxMessage}
	q.peers = q.pathToPeers(s)
}

// newConns returns the listeners and the connections of s.
func newConns(s *Server) *serve.Conns[connection] {
	most := s.opts.MaxConns
	return serve.New(&serve.Options[connection]{
		Max: most, Patience: s.limits.Handshake, Closed: ErrServerClosed,
		Full:  func() error { return failure("YDL3003", "%d connections are open, the limit is %d", most, most) },
		Drain: connection.drain, Abort: connection.abort,
		Displace: func(c connection) {
			silent := c.(*Session) //nolint:forcetypeassert // only sessions are silent
			s.peerLines.Warn(loglimit.Silent, func() []any { return []any{"peer", silent.Peer.Addr.String(), "id", "YDL1102"} })
			c.abort()
		},
		Failed: func(l net.Listener, err error, again time.Duration) {
			addr := l.Addr().String()
			s.event(introspect.ConnEvent{Kind: introspect.ListenFailed, Addr: addr, Err: err})
			if again > 0 {
				s.opts.Logger.Warn("yodel: accept failed", "addr", addr, "err", err, "againIn", again)
			}
		},
	})
}

// pathToPeers returns the path of q's calls to the peers of s.
func (q *requester) pathToPeers(s *Server) peerPath {
	w, middleware := watchersOf(s.opts.PeerObservers), s.opts.PeerMiddleware
	p := peerPath{handler: q.observe(&w, false, chain(middleware, toPeer)), wraps: len(middleware) > 0, watchers: w}
	q.watches = q.watches || len(w.attempts) > 0
	return p
}

// lend makes connections with this config serve the methods of the server. A client calls it before
// it connects. The limits of the server apply to incoming calls, and the limits of the client apply
// to outgoing calls.
func (s *Server) lend(config *mux.Config) {
	config.OwnOpen, config.OwnOpenBytes = config.MaxOpen, config.MaxOpenBytes
	limits := s.limits.mux()
	config.MaxOpen, config.MaxOpenBytes, config.MaxMemory = limits.MaxOpen, limits.MaxOpenBytes, limits.MaxMemory
	config.Budget, config.Memory = s.budget, s.memory
	config.Incarnation, config.Services = s.config.Incarnation, s.config.Services
	if s.opts.Keys != nil {
		config.Keys = func(conn *mux.Conn) (string, time.Duration) {
			keys := whose(conn).served.keys
			return keys.Name, keys.Keep
		}
	}
	s.lent.AddPool(config.Pool)
}
