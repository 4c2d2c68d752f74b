// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"math"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/body"
	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/instanceevents"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/ordered"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/internal/serve"
	"github.com/yodel-rpc/yodel/internal/shares"
	"github.com/yodel-rpc/yodel/internal/source"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

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
	c.nameWires()
	c.wraps = len(opts.Middleware) > 0
	c.direct = len(opts.Middleware) == 0 && len(opts.EndpointMiddleware) == 0
	c.handler = c.observe(&c.watchers, opts.CountCalls, chain(opts.Middleware, c.balance()))
	c.orders.Limit, c.orders.MaxResends, c.orders.Final, c.orders.Guard = max(c.limits.MaxOpen, ordered.MinLimit), maxResends, c.direct, c.guard
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
	c.cluster = &cluster{client: c, service: d.Service}
	c.cluster.setUp(d)
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
		opts.Name = diagnose.Program()
	}
	defaults.RefuseNil("ClientOptions.Middleware", opts.Middleware, func(m Middleware) bool { return m == nil })
	defaults.RefuseNil("ClientOptions.Wires", opts.Wires, func(w Wire) bool { return w == nil })
	defaults.RefuseNil("ClientOptions.EndpointMiddleware", opts.EndpointMiddleware, func(m EndpointMiddleware) bool { return m == nil })
	opts.CompressAbove = defaults.Positive(opts.CompressAbove, compressAbove)
	opts.Timeout, opts.StreamTimeout = min(opts.Timeout, defaults.Forever), min(opts.StreamTimeout, defaults.Forever)
	opts.DialTimeout = defaults.Positive(opts.DialTimeout, 3*time.Second)
	opts.ConnsPerEndpoint = defaults.Positive(opts.ConnsPerEndpoint, 1)
	opts.Logger = guard.Logger(opts.Logger)
}

// configure sets the callbacks of config, which all connections of the client share. The callbacks
// find the endpoint by the connection.
func (c *Client) configure(config *mux.Config) {
	config.Hello = func(conn *mux.Conn, l *wire.Limits) *mux.Refusal { return ownerOf(whose(conn)).hello(conn, l) }
	config.Unusable = func(conn *mux.Conn) { whose(conn).Owner.Unusable(whose(conn)) }
	config.Ended = func(conn *mux.Conn, err error) { ownerOf(whose(conn)).over(conn, err) }
	if c.opts.Server != nil {
		config.Bind = func(conn *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) {
			return ownerOf(whose(conn)).served.bind(conn, b)
		}
	}
}

// setUp sets how the engine of the endpoints works with the client.
func (cl *cluster) setUp(d Description) {
	c, l := cl.client, &cl.list
	cl.source.SetUp(d.Name, d.Services, c.Background)
	cl.source.SetList(l, c.opts.DialTimeout)
	l.Timeout, l.Closing, l.Go, l.Background = c.opts.DialTimeout, c.closing, c.wg.Go, c.Background
	l.Connect = func(ctx context.Context, ep *Endpoint, spare bool, accepted func()) (*dialled.Conn, *reason.DialError) {
		conn, err := ep.connect(ctx, spare, accepted)
		if err == nil {
			ep.identity.Store(conn.Server)
		}
		return conn, err
	}
	l.Ready, l.Changed = (*Endpoint).readyBeside, (*Endpoint).noteReady
	l.Beside = func(ep *Endpoint) (*dialled.Conn, bool) { return dialled.Conns(ep.core.Conns()).Beside() }
	l.Why = func(ep *Endpoint, err *reason.DialError) string { return c.dialReason(ep.Addr(), err) }
	l.Elsewhere = func(ep *Endpoint, waited time.Duration) error {
		return refusal("YDL1103", "%s: no connection within %v, while another instance is connected", ep.Addr(), waited)
	}
	l.Joined = func(of []*Endpoint) { cl.noteInstances(instanceevents.Up, of) }
	l.Left = func(of []*Endpoint) { cl.noteInstances(instanceevents.Down, of) }
	l.Build = cl.build
}

// nameWires lists the protocols that the client speaks. It calls Name of the Wires only once, so
// that this code of a plug-in does not run under a lock.
func (c *Client) nameWires() {
	c.wires, c.speaks = append([]Wire{nil}, c.opts.Wires...), []string{native}
	for _, w := range c.opts.Wires {
		c.speaks = append(c.speaks, w.Name())
	}
}

// NewServer returns a server without methods. O may be nil.
func NewServer(o *ServerOptions) *Server {
	if o == nil {
		o = &ServerOptions{}
	}
	s := new(Server)
	o = o.amended(s)
	*s = Server{
		opts: *o, limits: o.Limits.withDefaults(), pool: mux.NewPool(), watch: inline.NewWatch(), started: time.Now(),
	}
	opts := &s.opts
	s.setUpMethods()
	defaults.RefuseNil("ServerOptions.Protocols", opts.Protocols, func(p Protocol) bool { return p == nil })
	opts.Transport = cmp.Or(opts.Transport, TCP)
	opts.Logger = guard.Logger(opts.Logger)
	s.peerLines.Log = opts.Logger
	defaults.RefuseNil("ServerOptions.Middleware", opts.Middleware, func(m Middleware) bool { return m == nil })
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
	s.setUpAnnouncing()
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

// setUpMethods prepares the table of methods.
func (s *Server) setUpMethods() {
	m, opts := &s.methods, &s.opts
	s.codecs, m.Codecs = defaults.ByName("ServerOptions.Codecs", opts.Codecs, JSON, Codec(raw.Codec))
	s.compressors, m.Compressors = defaults.ByName("ServerOptions.Compressors", opts.Compressors)
	m.BuiltIn, m.View, m.Accept, m.Changed = "yodel", reflect.TypeFor[raw.View](), opts.OnRegister, s.announced.Again
	s.functions = registered.Functions[Values, Codec]{In: m, Codecs: s.codecs, Param: streamParamOf}
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
			s.peerLines.LogSilent(silent.Peer.Addr.String())
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
			keys := ownerOf(whose(conn)).served.keys
			return keys.Name, keys.Keep
		}
	}
	s.lent.AddPool(config.Pool)
}

// Limits bounds the resources that one connection may use. Clients and servers use the same type. A
// field that is zero has the default given. A very large value, such as math.MaxInt64, lifts a
// limit.
type Limits struct {
	// MaxMessage is the largest message accepted, in bytes as sent, that is after compression.
	// Default 16 MiB.
	MaxMessage int
	// MaxDecompressed is the largest body accepted after decompression, in bytes. The default
	// depends on the size of the compressed body: 100 times that size, but at least 64 KiB and at
	// most 4 MiB. A sender does not compress a body that its own MaxDecompressed would refuse.
	// Raise MaxDecompressed on both sides for larger bodies, or for bodies that compress better.
	MaxDecompressed int
	// MaxMetadata is the largest metadata that is sent or accepted with a request, a reply or a
	// connection, in bytes including keys and lengths. Default and maximum 16 KiB.
	MaxMetadata int
	// MaxPairs is how many key and value pairs such metadata may have. MaxMetadata alone is not
	// enough: a pair of a few bytes takes about 100 bytes as a map entry, so a peer could make this
	// side use 26 times the memory that it sends. Default 128.
	MaxPairs int
	// MaxOpen is how many requests may be in flight on one connection, executing or waiting.
	// Callers beyond that wait. A server grants each connection a share of ServerOptions.MaxOpen,
	// which is less if there are many connections, and at most one for each 8 KiB of MaxMemory, for
	// the stacks of goroutines. Default 16,384.
	MaxOpen int
	// MaxMemory is how many bytes the peer of one connection can make this side hold. It covers:
	// requests with their fields, plus 1 KiB for each, without the stack of its handler; the
	// received part of incomplete messages, plus some spare room; replies that wait to be sent;
	// stream windows; metadata; decompressed bodies; and the names of methods. It does not cover
	// the values that a codec makes of a body, and memory that a handler allocates.
	//
	// Half of MaxMemory is for the bodies of open requests. The peer learns that limit, and its
	// callers wait. Beyond MaxMemory, this side refuses a request, which is then certainly not
	// executed, and the messages of a stream fail. A connection gets less than MaxMemory when the
	// memory of all connections is scarce: see ServerOptions.MaxMemory.
	//
	// Default 64 MiB, or eight times MaxMessage if MaxMessage is set and the product is larger. If
	// callers often send more than two messages of 16 MiB at once over one connection, raise
	// MaxMemory on the server. Otherwise the third message waits, and so do the calls behind it.
	MaxMemory int
	// MaxUnsent is how many bytes may wait to be written on one connection. While more bytes wait,
	// because the peer does not read its replies, this side reads no further requests from the
	// peer. While MaxUnsent further bytes of replies wait behind them, this side starts no further
	// handlers for the peer. A call waits until fewer bytes wait to be written, or fails if its
	// NoWait is set. Default 4 MiB.
	MaxUnsent int
	// StreamWindow is the initial flow-control window of a stream: how many bytes may arrive before
	// they are consumed. The window grows up to 4 MiB for a receiver that has to wait because of
	// it. It is 4 KiB while the streams of the connection hold half of MaxMemory. A message larger
	// than the window is accepted for a receiver that waits for it. Default 64 KiB, at least 4 KiB.
	StreamWindow int
	// MaxMethods is how many combinations of method, codec and compressor one connection may use.
	// Default 1024.
	MaxMethods int
	// KeepAlive is how long a connection may be silent before this side sends a ping, or 16 times
	// as long for one of HTTP/2 without requests. This side closes it after KeepAlive more. One
	// large message is not silence while its bytes move. If a peer sends less than 4 KiB per second
	// for twice KeepAlive, this side drops its incomplete requests and messages of streams. So it
	// cannot hold memory with pings alone. Default 15 s.
	KeepAlive time.Duration
	// Handshake is how long the peer may take to complete the protocol's handshake. Default 10 s.
	Handshake time.Duration
	// IdleTimeout is how long a connection may be without an open request. It is closed then, or up
	// to a quarter of that time later. No call is lost, and a client connects again for its next
	// call. Default never.
	IdleTimeout time.Duration
	// MaxAge is how long a connection is used, with a jitter of a tenth, so that connections made
	// together do not end together. Calls in flight finish on the old connection, and later calls
	// use a new one. Default never.
	MaxAge time.Duration
	// Polling is how long a side polls for the next message before it sleeps. It polls only while
	// single calls follow each other within that time, because waking up would take longer than the
	// call. An idle connection is not polled, and a process with a single processor never polls.
	// Default 50 µs; a negative value turns polling off.
	Polling time.Duration

	// ratio is how many times its size a body may have after decompression. It is 0 if the user has
	// set MaxDecompressed.
	ratio int
}

const maxMetadata = 16 << 10

// The default of Limits.MaxDecompressed. Text and JSON of clients compress 5 to 30 times, and gzip
// at most 1032 times.
const (
	maxDecompressed = 4 << 20
	maxRatio        = 100
)

func (l *Limits) decompressed() unpack.Limits {
	return unpack.Limits{Most: l.MaxDecompressed, Ratio: l.ratio}
}

// withDefaults returns l with defaults for zero values.
func (l *Limits) withDefaults() Limits {
	filled := Limits{
		MaxMessage:      defaults.Positive(l.MaxMessage, 16<<20),
		MaxDecompressed: defaults.Positive(l.MaxDecompressed, maxDecompressed),
		MaxMetadata:     min(defaults.Positive(l.MaxMetadata, maxMetadata), maxMetadata),
		MaxPairs:        defaults.Positive(l.MaxPairs, 128),
		MaxOpen:         min(defaults.Positive(l.MaxOpen, 16<<10), wire.MaxSlots),
		MaxMemory:       defaults.Positive(l.MaxMemory, max(64<<20, 8*min(l.MaxMessage, math.MaxInt/64))),
		MaxUnsent:       defaults.Positive(l.MaxUnsent, 4<<20),
		StreamWindow:    defaults.Positive(l.StreamWindow, 64<<10),
		MaxMethods:      defaults.Positive(l.MaxMethods, 1024),
		KeepAlive:       defaults.Positive(l.KeepAlive, 15*time.Second),
		Handshake:       defaults.Positive(l.Handshake, 10*time.Second),
		IdleTimeout:     min(max(l.IdleTimeout, 0), defaults.Forever),
		MaxAge:          min(max(l.MaxAge, 0), defaults.Forever),
		Polling:         cmp.Or(l.Polling, 50*time.Microsecond), // negative: none
	}
	if l.MaxDecompressed <= 0 {
		filled.ratio = maxRatio
	}
	nesting.AllowBytes(max(filled.MaxMessage, filled.MaxDecompressed))
	return filled
}

func (l *Limits) mux() mux.Limits {
	return mux.Limits{
		MaxMessage: l.MaxMessage, MaxOpen: l.MaxOpen, MaxOpenBytes: max(l.MaxMemory/2, 1), MaxMemory: l.MaxMemory, MaxMethods: l.MaxMethods,
		MaxUnsent: l.MaxUnsent, StreamWindow: l.StreamWindow, KeepAlive: l.KeepAlive, Handshake: l.Handshake, IdleTimeout: l.IdleTimeout, MaxAge: l.MaxAge,
		Polling: max(l.Polling, 0),
	}
}

func (l *Limits) metadata() metadata.Limits {
	return metadata.Limits{Bytes: l.MaxMetadata, Pairs: l.MaxPairs}
}

// compressAbove is the default size from which bodies are compressed, in bytes.
const compressAbove = 1024
