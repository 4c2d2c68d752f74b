// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// ServerOptions changes how a server works. The zero value is a good server.
type ServerOptions struct {
	// Codecs the server understands, beside JSON and Raw. It answers in the codec of the request.
	Codecs []Codec
	// Codec encodes messages of calls that the server makes of its peers and that name none.
	// Default JSON.
	Codec Codec
	// Compressors the server understands. It compresses a reply as the request's method says.
	// Default none.
	Compressors []Compressor
	// CompressAbove is the size from which replies are compressed, in bytes. Default 1024.
	CompressAbove int
	// Transport listens, for ListenAndServe. Default TCP.
	Transport Transport
	// Middleware sees each call, before its body is decoded; the first one is outermost. It sees
	// calls of methods that do not exist too. Default none.
	Middleware []Middleware
	// Keys remembers the outcomes of calls that have an idempotency key, below all Middleware: see
	// package once. Clients are told when they connect, and send such a call again only where its
	// key is remembered. Default none: each call with a key is executed.
	Keys KeyMemory
	// Observers watch calls, outside of all middleware. Default none.
	Observers []Observer
	// Accept decides about a connection before anything is read from it or written to it. An error
	// closes it. Nothing bypasses it. Default: all are let in.
	Accept func(net.Conn) error
	// Connect decides about a peer when it has said who it is, before any of its calls. The error's
	// code and message are the peer's answer. Nothing that the peer sends is read meanwhile, so
	// that the hook cannot wait for calls to it; they may be begun. Default: all may call.
	Connect func(ctx context.Context, peer *Peer) error
	// MaxConns is how many connections may be open at once. Default 65,536.
	MaxConns int
	// MaxOpen is how many requests may be open at once on all connections together, those being
	// executed and those waiting for that. Each connection is allowed its share, which follows what
	// it needs; callers beyond it wait, on the client. A sixteenth is the reserve for clients that
	// have less than an equal share. Each connection may have one request open in any case. These
	// come on top when there are more connections than the reserve has requests. One-way requests
	// are counted by themselves, up to as many. When a client has disconnected, its one-way
	// requests go on for 30 s without counting, up to a quarter of MaxOpen of all clients. Then
	// their contexts end. The contexts of others end after half a second, and these count until
	// their handlers return. Default 16,384.
	MaxOpen int
	// MaxMemory is how many bytes the peers of all connections together can make the server hold:
	// see Limits.MaxMemory, which is for each. A connection gets no more than what is left for all
	// others, so one that takes all it can has half at most. Half of it is for the bodies of open
	// requests, and divided among the connections as MaxOpen is. Default: half of GOMEMLIMIT if
	// that is set, else a quarter of the memory of the machine or of its control group, and at
	// least 64 MiB.
	MaxMemory int
	// DrainTimeout is how long ListenAndServe and Serve let calls finish after their context ended.
	// Default 10 s.
	DrainTimeout time.Duration
	// Registrars are where the server is announced when it listens, so that clients find it, each
	// service that it has methods of. It is withdrawn before it drains. Default none.
	Registrars []Registrar
	// Instance is what is announced. Its Addr is the listener's by default, with the first address
	// of the host if that listens on all of them. UpdateInstance changes it.
	Instance Instance
	// AnnounceEvery is how often the announcement is renewed. A registry forgets the server when it
	// was not for three times that. Default 10 s.
	AnnounceEvery time.Duration
	// SlowAfter is how long a call may take until there is a record of it although it succeeds: see
	// Server.Samples. It counts from when the request was read until its reply is there, and for a
	// stream until its method begins. It holds for calls to peers too, as ClientOptions.SlowAfter
	// does. Default 1 s; negative is for ever.
	SlowAfter time.Duration
	// Diagnostics lets callers read yodel.Stats and yodel.Samples, which name methods, peers and
	// tenants and have the texts of errors. Every caller that Middleware lets in may read them: put
	// authorization there, for example middleware/auth. Default false: both answer
	// permission_denied.
	Diagnostics bool
	// NoIntrospection leaves out the built-in methods yodel.Info, Stats, Health, Samples and Ping.
	// Default false.
	NoIntrospection bool
	// Limits bounds what a connection may cost.
	Limits Limits
	// OnConn is called with each connection event. It must return soon, and may shut the server
	// down. Default none.
	OnConn func(ConnEvent)
	// Protocols are what the server speaks besides yodel's own protocol, on the same ports. The
	// first bytes of a connection decide, in the order of the list. With Protocols a connection may
	// say nothing for five minutes before it is closed, because clients of other protocols connect
	// long before they call. Default none.
	Protocols []Protocol
	// OnRegister is called with the name of every method before it is registered: nobody can call
	// the method yet. An error refuses it and is what Register returns. Default none.
	OnRegister func(method string) error
	// Logger gets a line at level Info when the server listens, is announced in a registry and
	// withdrawn, drains, and has stopped, and lines at level Warn or Error when something goes
	// wrong. Lines that peers can cause at will are limited: ten of a kind in ten seconds, then the
	// number of those that were left out. Default slog.Default().
	Logger *slog.Logger
}

// ErrServerClosed is what Serve returns after Shutdown.
var ErrServerClosed = failure("YDL4004", "the server has been shut down")

// A Server executes calls. Its methods may be called concurrently.
type Server struct {
	opts        ServerOptions
	limits      Limits
	handler     Handler // middleware, the method
	plain       bool    // nobody but handlers sees calls
	codecs      map[string]Codec
	compressors map[string]Compressor
	pool        *mux.Pool
	watch       *mux.Watch
	foreign     room // of all sessions together
	budget      *mux.Budget
	memory      *mux.Memory
	config      mux.Config // of all connections that were accepted
	started     time.Time
	guard       guard
	hooks       hooks
	slowAfter   time.Duration
	busy        serverLoad
	peerLines   peerLines
	scratch     sync.Pool // of *[]byte
	calls       requester // of the methods of peers

	methods     atomic.Pointer[map[string]*method]
	methodsMu   sync.Mutex
	reserved    map[string]bool // names that are being registered; guarded by methodsMu
	suggester   suggester
	samples     *sampler // of calls that it carries out, and that it and its handlers make
	serviceList atomic.Pointer[serviceList]

	mu        sync.Mutex
	instance  Instance      // as announced
	anew      chan struct{} // closed and replaced when there is something to announce
	listeners []net.Listener
	announced []*announcer
	withdrawn bool // nothing is announced any more
	conns     map[connection]struct{}
	local     *Session                 // of calls in this process; nil before the first
	locals    int                      // how many of them are open
	admitted  int                      // connections that may be open and are not in conns yet
	links     map[*serverConn]struct{} // the clients' connections over which this server serves, once the peer is known
	pools     map[*mux.Pool]struct{}   // of these clients
	updating  chan struct{}            // has the one UpdateInstance that runs
	arriving  int                      // accept loops, and connections that were accepted and are not in conns yet
	accepting int                      // accept loops
	stopped   chan struct{}            // closed once closing
	closing   bool
	closed    bool          // nothing is let in any more
	empty     chan struct{} // closed when the last connection has ended and none can come, once closing
}

// A connection is what a server knows of one that it has accepted, in whatever protocol.
type connection interface {
	drain()                // ends it when its calls have ended
	abort()                // ends it
	executing() []openCall // the calls that are executed now
	visible() *Peer        // nil until the peer has said who it is; called with Server.mu held
}

// A serverConn is one connection of a server.
type serverConn struct {
	server  *Server
	peer    *Peer         // whole when the peer has said who it is
	mux     *mux.Conn     // set under Server.mu; nil when a client dialled
	dialled bool          // by a client that has the server in its options
	refused atomic.Bool   // by Connect
	began   time.Duration // not later than the settings were sent, on the clock; 0 when a client dialled
	late    bool          // it began when the server had been shut down; the reader's own

	contexts []callContext // for the next requests; the reader's own

	repeated atomic.Pointer[repeatedMetadata] // nil before there was any
	unlike   atomic.Uint32                    // calls with other metadata
	told     toldLoad

	keys *keyScope // what the settings say of ServerOptions.Keys; nil without them

	known bool // the peer may be seen; guarded by Server.mu
	over  bool // the connection has ended; guarded by Server.mu
}

// served returns what a connection that was accepted is to its server.
func served(c *mux.Conn) *serverConn { return c.Owner().(*serverConn) } //nolint:forcetypeassert // set by serve

// NewServer returns a server without methods.
func NewServer(o *ServerOptions) *Server {
	if o == nil {
		o = &ServerOptions{}
	}
	s := &Server{
		opts: *o, limits: o.Limits.withDefaults(), codecs: make(map[string]Codec), compressors: make(map[string]Compressor),
		pool: mux.NewPool(), watch: mux.NewWatch(), started: time.Now(),
		conns: make(map[connection]struct{}), links: make(map[*serverConn]struct{}),
		pools: make(map[*mux.Pool]struct{}), stopped: make(chan struct{}), empty: make(chan struct{}),
		instance: o.Instance, anew: make(chan struct{}), updating: make(chan struct{}, 1),
	}
	opts := &s.opts
	for _, c := range append([]Codec{JSON, Raw}, opts.Codecs...) {
		s.codecs[c.Name()] = c
	}
	for _, c := range opts.Compressors {
		s.compressors[c.Name()] = c
	}
	if opts.Transport == nil {
		opts.Transport = TCP
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	opts.Logger = guarded(opts.Logger)
	s.peerLines.log = opts.Logger
	refuseNil("ServerOptions.Middleware", opts.Middleware, func(m Middleware) bool { return m == nil })
	s.guard.log, s.calls.guard = opts.Logger, &s.guard
	opts.CompressAbove = orDefault(opts.CompressAbove, compressAbove)
	opts.MaxConns = orDefault(opts.MaxConns, 1<<16)
	opts.MaxOpen = orDefault(opts.MaxOpen, 16<<10)
	if opts.MaxMemory <= 0 {
		opts.MaxMemory = mux.DefaultMemory()
	}
	opts.MaxMemory = orDefault(opts.MaxMemory, 0)
	s.memory = mux.NewMemory(opts.MaxMemory)
	s.budget = mux.NewBudget(opts.MaxOpen, opts.MaxMemory/2)
	// a registry is given a multiple of it
	opts.AnnounceEvery = min(orDefault(opts.AnnounceEvery, 10*time.Second), forever/10)
	opts.DrainTimeout = orDefault(opts.DrainTimeout, 10*time.Second)
	s.slowAfter = slowAfter(opts.SlowAfter)
	s.samples = samples.New[CallReport]()
	s.calls.slowAfter, s.calls.samples = s.slowAfter, s.samples
	s.calls.codec, s.calls.compressAbove, s.calls.limits, s.calls.side = opts.Codec, opts.CompressAbove, s.limits, serverSide
	if opts.Codec == nil {
		s.calls.codec = JSON
	}
	s.calls.memory = s.memory
	s.calls.setUp(nil)
	s.config = mux.Config{
		Limits: s.limits.mux(), Agent: agent, Learned: s.calls.learned, Pool: s.pool, Watch: s.watch, Budget: s.budget, Memory: s.memory,
		Bind:  func(c *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) { return served(c).bind(c, b) },
		Hello: func(c *mux.Conn, peer *wire.Limits) *mux.Refusal { return served(c).hello(c, peer) },
		Ended: func(c *mux.Conn, err error) { served(c).ended(c, err) },

		Incarnation: newIncarnation(), Services: s.encodedServices,
	}
	s.scratch.New = func() any { return new([]byte) }
	s.methods.Store(&map[string]*method{})
	s.reserved = make(map[string]bool)
	inner := Handler(invoke)
	if opts.Keys != nil {
		inner = opts.Keys.Guard(invoke)
		s.config.Keys = func(c *mux.Conn) (string, time.Duration) { return served(c).keys.name, served(c).keys.keep }
	}
	s.handler = chain(opts.Middleware, inner)
	s.plain = len(opts.Middleware) == 0 && len(opts.Observers) == 0 && opts.Keys == nil
	if !opts.NoIntrospection {
		s.introspect()
	}
	return s
}

// ListenAndServe listens at addr and serves until ctx ends, then shuts the server down within
// DrainTimeout and returns nil. It returns an error when it could not listen or had to cut off
// calls.
//
// A program that ends with a signal gives Ctrl-C its usual effect back when the first one has come,
// so that a second Ctrl-C ends the process at once:
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	context.AfterFunc(ctx, stop)
//	err := s.ListenAndServe(ctx, addr)
func (s *Server) ListenAndServe(ctx context.Context, addr string) error {
	l, err := s.opts.Transport.Listen(addr)
	if err != nil {
		s.event(ConnEvent{Kind: introspect.ListenFailed, Addr: addr, Err: err})
		if e, ok := errors.AsType[*Error](err); ok {
			return e
		}
		e := failure("YDL4002", "listen at %s: %s", addr, plain(err))
		e.Cause = err
		return e
	}
	return s.Serve(ctx, l)
}

// Serve accepts connections from l until ctx ends, then shuts the server down and returns nil, or
// until Shutdown, and returns ErrServerClosed. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.opts.Keys != nil {
		s.opts.Keys.Scope() // it may have to ask its store
	}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		_ = l.Close() // it was never used
		return ErrServerClosed
	}
	s.listeners = append(s.listeners, l)
	s.arriving++
	s.accepting++
	s.mu.Unlock()
	s.logListening(l)
	here := s.announce(l.Addr())
	failed := make(chan error, 1)
	go func() {
		failed <- s.guard.apart("the listener", nil, func() error { return s.accept(l) })
		s.mu.Lock()
		s.accepting--
		s.arriving-- // with accepting, so that a loop that ends does not look like a connection
		s.emptyLocked()
		s.mu.Unlock()
	}()
	select {
	case err := <-failed:
		_ = l.Close() // unless Accept panicked, it is closed already
		if here != nil {
			here.withdraw()
		}
		return err
	case <-ctx.Done():
	}
	s.leave(context.Cause(ctx))
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.DrainTimeout)
	defer cancel()
	err := s.Shutdown(drain)
	<-failed //nolint:errcheck // it is ErrServerClosed
	return err
}

// accept lets connections in until l is closed.
func (s *Server) accept(l net.Listener) error {
	const first, last = 5 * time.Millisecond, time.Second
	backoff := first
	for {
		nc, err := l.Accept()
		if err == nil {
			backoff = first
			s.mu.Lock()
			s.arriving++
			s.mu.Unlock()
			go s.serve(nc)
			continue
		}
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return ErrServerClosed
		}
		s.event(ConnEvent{Kind: introspect.ListenFailed, Addr: l.Addr().String(), Err: err})
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept: %w", err)
		}
		s.opts.Logger.Warn("yodel: accept failed", "addr", l.Addr().String(), "err", err, "again in", backoff)
		select {
		case <-time.After(backoff):
		case <-s.stopped:
		}
		backoff = min(2*backoff, last)
	}
}

// arrived notes that what was arriving is in, or will not come.
func (s *Server) arrived() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arriving--
	s.emptyLocked()
}

// emptyLocked notes that there is nothing left, if so.
func (s *Server) emptyLocked() {
	if !s.closing || s.arriving > 0 || len(s.conns) > 0 {
		return
	}
	select {
	case <-s.empty:
	default:
		close(s.empty)
	}
}

// serve runs the protocol on a new connection. One that was accepted just before the server began
// to close is let in too, and told so: a reset would leave its calls in doubt.
func (s *Server) serve(nc net.Conn) {
	defer s.arrived()
	defer s.guard.rescue("a connection's own code")
	addr := nc.RemoteAddr().String()
	refuse := func(err error) {
		_ = nc.Close() // there is nothing more to say
		s.event(ConnEvent{Kind: introspect.Refused, Addr: addr, Err: err})
		if !errors.Is(err, ErrServerClosed) { // what comes late is no news
			s.peerLines.warn(lineRefused, func() []any { return []any{"peer", addr, "err", err} })
		}
	}
	if s.opts.Accept != nil {
		err := s.guard.apart("the Accept filter", nil, func() error { return s.opts.Accept(nc) })
		if err != nil {
			refuse(err)
			return
		}
	}
	if err := s.admit(); err != nil {
		refuse(err)
		return
	}
	s.event(ConnEvent{Kind: introspect.Accepted, Addr: addr})
	peer := &Peer{Addr: nc.RemoteAddr(), Conn: nc, requests: &s.calls}
	if len(s.opts.Protocols) == 0 {
		if err := s.serveNative(nc, nil, peer, nil); err != nil {
			refuse(err)
		}
		return
	}
	ses := newSession(s, nc, peer)
	closing, err := s.enter(ses, nil, nil)
	if err != nil {
		refuse(err)
		return
	}
	if closing {
		go ses.drain()
	}
	go s.serveSession(ses, refuse)
}

// serveSession finds out which protocol a connection speaks, and serves it.
func (s *Server) serveSession(ses *Session, refuse func(error)) {
	defer s.forget(ses)
	native := false
	defer func() {
		if !native {
			ses.abort()
		}
	}()
	defer s.guard.rescue("a connection's own code")
	if p := ses.sniff(); p != nil {
		ses.serve(p)
		return
	}
	ses.Peer.ended = nil
	if err := s.serveNative(ses.Conn, ses.first, ses.Peer, ses); err != nil {
		refuse(err)
		return
	}
	native = true
}

// enter lets a connection in that was admitted, or takes the place of old, and calls begin, which
// may be nil, with s.mu held. It reports whether the server is shutting down.
func (s *Server) enter(c, old connection, begin func()) (closing bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old == nil {
		s.admitted--
	} else {
		delete(s.conns, old)
	}
	if s.closed {
		return true, ErrServerClosed
	}
	s.conns[c] = struct{}{}
	if begin != nil {
		begin()
	}
	return s.closing, nil
}

// forget notes that a connection has ended.
func (s *Server) forget(c connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.emptyLocked()
}

// serveNative runs yodel's own protocol on a connection of which first was read already. The
// connection was known as old, which may be nil.
func (s *Server) serveNative(nc net.Conn, first []byte, peer *Peer, old connection) error {
	sc := &serverConn{server: s, began: clock(), peer: peer}
	sc.keys = s.keyScope()
	s.budget.Reserve()
	closing, err := s.enter(sc, old, func() { sc.mux = mux.NewOf(sc, nc, first, false, &s.config) })
	if err != nil {
		s.budget.Unreserve()
		return err
	}
	if closing {
		sc.mux.Drain()
	}
	return nil
}

// drain implements connection.
func (sc *serverConn) drain() { sc.mux.Drain() }

// abort implements connection.
func (sc *serverConn) abort() { sc.mux.Abort() }

// visible implements connection.
func (sc *serverConn) visible() *Peer {
	if !sc.known {
		return nil
	}
	return sc.peer
}

// executing implements connection.
func (sc *serverConn) executing() []openCall {
	conn := sc.mux
	if conn == nil { // a client dialled
		conn = sc.peer.link
	}
	return sc.server.openOf(conn.Executing())
}

// openOf returns those of targets that are this server's.
func (s *Server) openOf(targets []mux.Target) (open []openCall) {
	for _, t := range targets {
		if t, ok := t.(*target); ok && t.server == s {
			open = append(open, openCall{t.name, t.conn.peer.Addr.String()})
		}
	}
	return open
}

// admit reports why one more connection must not be open. Unless it fails, admitted counts the
// connection until it is in conns or is refused.
func (s *Server) admit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrServerClosed
	case len(s.conns)+s.admitted >= s.opts.MaxConns:
		return failure("YDL3003", "%d connections are open, the limit is %d", s.opts.MaxConns, s.opts.MaxConns)
	}
	s.admitted++
	return nil
}

// event tells the user of a connection event.
func (s *Server) event(e ConnEvent) {
	if s.opts.OnConn != nil {
		_ = s.hooks.run(&s.guard, "the OnConn hook", func() error { // that it failed is in the log
			s.opts.OnConn(e)
			return nil
		})
	}
}

// hello sees what a peer says of itself.
func (sc *serverConn) hello(conn *mux.Conn, l *wire.Limits) *mux.Refusal {
	s, peer := sc.server, sc.peer
	md, err := parseMetadata(&s.limits, l.Metadata)
	if what := tooMuch(err); what != "" {
		return &mux.Refusal{Code: uint16(ResourceExhausted), ID: "YDL2203", Message: "the connection's metadata " + what + " on the server"}
	} else if err != nil {
		return &mux.Refusal{Code: uint16(InvalidArgument), Message: "broken connection metadata"}
	}
	if len(md) > 0 && !conn.Keep(metadataCost(&s.limits, l.Metadata)) {
		return &mux.Refusal{Code: uint16(ResourceExhausted), ID: "YDL3007", Message: "the server has no memory left for the connection's metadata"}
	}
	peer.Metadata, peer.Agent, peer.link = md, agentOf(l), conn
	if err = s.connect(peer); err != nil {
		e := asError(err)
		sc.refused.Store(true)
		if !sc.dialled {
			s.event(ConnEvent{Kind: introspect.Refused, Addr: peer.Addr.String(), Err: err})
		}
		return &mux.Refusal{Code: uint16(e.Code), ID: e.ID, Message: e.Message}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sc.known = true
	if sc.dialled && !sc.over {
		s.links[sc] = struct{}{}
		sc.late = s.closing
	}
	return nil
}

// agentOf is what a peer says that it is. Most are like this side, and have a string less.
func agentOf(l *wire.Limits) string {
	if string(l.Agent) == agent {
		return agent
	}
	return text.Clip(string(l.Agent), wire.MaxName) // it is kept as long as the connection
}

// unlink takes note of the end of a client's connection.
func (sc *serverConn) unlink() {
	s := sc.server
	s.mu.Lock()
	defer s.mu.Unlock()
	sc.over = true
	delete(s.links, sc)
}

// ended takes note of a connection's end.
func (sc *serverConn) ended(_ *mux.Conn, err error) {
	s := sc.server
	addr := sc.peer.Addr.String()
	if preface, ok := errors.AsType[*mux.PrefaceError](err); ok {
		s.peerLines.warn(lineForeign, func() []any { return []any{"peer", addr, "sent", firstbytes.Describe(preface.Got), "id", "YDL1101"} })
	} else if breach, ok := errors.AsType[*mux.ProtocolError](err); ok {
		s.peerLines.warn(lineBreach, func() []any { return []any{"peer", addr, "what", breach.What, "id", "YDL1106"} })
	} else if errors.Is(err, mux.ErrHandshake) {
		s.peerLines.warn(lineSilent, func() []any { return []any{"peer", addr, "id", "YDL1102"} })
	} else if said, ok := errors.AsType[*Error](err); ok { // by the transport
		s.peerLines.warn(lineTransport, func() []any {
			return []any{"peer", addr, "reason", strings.TrimPrefix(said.Message, addr+": "), "id", said.ID}
		})
	}
	if !sc.refused.Load() {
		s.event(ending(addr, err))
	}
	s.forget(sc)
}

// asError returns err as an Error, with what it has.
func asError(err error) *Error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // the outermost one only: a wrapped one's text would be lost
		if e == nil {
			return Errorf(Internal, "the handler returned a nil *yodel.Error as its error")
		}
		return e
	}
	e := &Error{Code: CodeOf(err), Message: err.Error(), Cause: err}
	if inner, ok := errors.AsType[*Error](err); ok {
		e.Details, e.ID = inner.Details, inner.ID
	}
	return e
}

// panicked logs a handler's panic, and makes the error that the caller gets of it: nothing of the
// panic leaves the process.
func (s *Server) panicked(ctx context.Context, method string, value any) *Error {
	n := s.guard.panics.Add(1)
	s.guard.logPanic(ctx, "yodel: handler panicked", n, value, "method", method)
	return failure("YDL5001", "%s: the handler panicked; see number %d in the server's log", method, n)
}
