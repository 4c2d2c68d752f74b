// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/body"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/load"
	"github.com/yodel-rpc/yodel/internal/loglimit"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/readiness"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/reuse"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/internal/schema"
	"github.com/yodel-rpc/yodel/internal/serve"
	"github.com/yodel-rpc/yodel/internal/session"
	"github.com/yodel-rpc/yodel/internal/shares"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// ServerOptions configures a Server. The zero value works.
type ServerOptions struct {
	// Codecs are the codecs that the server understands in addition to JSON and raw.Codec. The
	// server answers in the codec of the request. A codec with the name of one of these two
	// replaces it. NewServer panics if two elements have the same name.
	Codecs []Codec
	// Codec encodes the messages of calls that the server makes to its peers, if they have no codec
	// of their own. Default JSON.
	Codec Codec
	// Compressors are the compressors that the server understands. It compresses a reply with the
	// compressor that the client chose for the method. Default none. NewServer panics if two
	// elements have the same name.
	Compressors []compress.Compressor
	// CompressAbove is the size from which replies are compressed, in bytes. Default 1024.
	CompressAbove int
	// Transport is the transport that ListenAndServe listens with. If it has a method NewListener,
	// as in package transport/tls, Serve runs it over any listener. Default TCP.
	Transport Transport
	// Middleware wraps each call before the body of the call is decoded. The first Middleware is
	// outermost. Calls of methods that do not exist pass through it too. Default none.
	Middleware []Middleware
	// Keys remembers the outcomes of calls that have an idempotency key, below all Middleware: see
	// package once. Clients learn of Keys when they connect, and send such a call again only to
	// servers that remember its key. The methods of Keys are called concurrently. Default none:
	// each call with a key is executed.
	Keys interface {
		// Guard returns a handler that calls next once for each key, and answers later calls with
		// the same key with the outcome of the first. The server calls Guard once and puts the
		// handler below its middleware, so that it guards every method.
		Guard(next Handler) Handler
		// Scope returns the name of the memory, and how long the memory remembers a key after a
		// call with that key arrived. Servers that share a memory return the same name. Different
		// memories have different names. A name has at most 255 bytes. The server replaces a longer
		// name by a hash. The name of a memory that ends with its process begins with "process:".
		// If the name is empty, the memory is not ready, and the server tells clients that it
		// remembers nothing. The server calls Scope when it begins to serve and when each
		// connection begins. The connection waits until Scope returns.
		Scope() (name string, keep time.Duration)
	}
	// Observers watch calls, outside of all middleware. Default none.
	Observers []Observer
	// CountBytes makes the server count the bytes of the calls of each method, for Server.Stats.
	// Counting allocates nothing, and takes about 1 % of the processor time of the shortest calls.
	// Default false.
	CountBytes bool
	// PeerMiddleware wraps each call that this side makes to a Peer; the first one is outermost.
	// Default none.
	PeerMiddleware []Middleware
	// PeerObservers watch the calls to Peers, outside of PeerMiddleware. Default none.
	PeerObservers []Observer
	// Accept decides whether to accept a connection, before anything is read from it or written to
	// it. An error closes the connection. Accept is called for every connection for which there is
	// room within MaxConns, and the connection counts meanwhile. Default: accept all.
	Accept func(net.Conn) error
	// Connect decides whether a peer may call, after the handshake and before its first call. If it
	// returns an error, the peer gets the error's code and message, and the connection ends; in
	// another protocol than yodel's own, it ends when its calls have ended. Connect may begin calls
	// to the peer but must not wait for them, because the server reads nothing from the peer until
	// Connect returns. Default: all peers may call.
	Connect func(ctx context.Context, peer *Peer) error
	// MaxConns is how many connections may be open at once. Default 65,536.
	MaxConns int
	// MaxOpen is how many requests may be in flight on all connections together, executing or
	// queued. Each connection gets a share, which grows and shrinks with its needs. If a connection
	// has used up its share, further callers wait on the client. A sixteenth of MaxOpen is reserved
	// for clients that have less than an equal share.
	//
	// Each connection may have one request open in any case. If there are more connections than
	// requests in the reserve, these requests can exceed MaxOpen.
	//
	// One-way requests have a separate limit of the same size. When a client has disconnected, its
	// one-way requests no longer count. Their contexts end after 30 s. This applies to at most a
	// quarter of MaxOpen requests of all disconnected clients. Beyond that quarter, the contexts
	// end after half a second, and the requests count until their handlers return. Default 16,384.
	MaxOpen int
	// MaxMemory is how many bytes the peers of all connections together can make the server hold.
	// Limits.MaxMemory is the same for one connection. A connection gets at most as much memory as
	// remains free, so a single connection gets at most half of MaxMemory. Half of MaxMemory is for
	// the bodies of open requests, and is divided among the connections like MaxOpen. Default: half
	// of GOMEMLIMIT if that is set, and otherwise a quarter of the memory of the machine or of its
	// control group. The default is at least 64 MiB.
	MaxMemory int
	// DrainTimeout is how long ListenAndServe and Serve let calls finish after their context has
	// ended. Default 10 s.
	DrainTimeout time.Duration
	// Registrars announce the server in registries, so that clients find it: one record for each
	// service whose methods the server has. The records exist from the time at which the server
	// listens until it begins to drain. Default none.
	Registrars []discovery.Registrar
	// Instance is the record that is announced. Its Addr defaults to the listener's address. If
	// that is an unspecified address, Addr defaults to the first address of the host.
	// UpdateInstance changes the record.
	Instance discovery.Instance
	// AnnounceEvery is the interval at which the server renews its announcement. A registry drops
	// the record if it has not been renewed for three times AnnounceEvery. Default 10 s.
	AnnounceEvery time.Duration
	// Ready returns an error while this server should get no new calls although it runs, for
	// example before its cache is filled. It is called every 2 s, and fails if it takes longer than
	// that. After its first error, or two in a row later, the server is not ready: its health says
	// so, and its records are announced with the State "inactive", until Ready returns nil. Calls
	// that arrive are executed nevertheless. If Ready fails on all servers at once, clients have
	// none, so it should check what concerns this server alone. Default none: the server is ready
	// while it serves.
	Ready func(ctx context.Context) error
	// SlowAfter is the duration from which a successful call is slow, so that a record of it is
	// kept: see Server.Samples. For a unary call, the duration is the time from the moment the
	// server read the request until the reply is ready. For a stream it is the time until the
	// method begins. For calls to peers, SlowAfter means the same as ClientOptions.SlowAfter.
	// Default 1 s; if negative, no call is slow.
	SlowAfter time.Duration
	// Diagnostics lets callers read yodel.Stats, Samples, Live, Conns, Tap and Rules. These contain
	// the names and addresses of methods, peers and tenants, and the texts of errors. Middleware
	// must authorize the callers, for example middleware/auth. The server then measures calls over
	// time in at most 8 MiB, and also those of clients that its handlers use: see Server.Live.
	// Default false: the methods answer permission_denied, and nothing is measured over time.
	Diagnostics bool
	// HideErrors makes Protocols send only messages that were written for callers: see
	// Session.HideErrors. Protocol/http does so anyway, unless its own option says otherwise.
	// Clients in yodel's own protocol and callers of Server.Do get all texts. Default false.
	HideErrors bool
	// NoIntrospection turns off the built-in methods of package inspect. Default false.
	NoIntrospection bool
	// Limits limits the resources that one connection may use.
	Limits Limits
	// OnConn is called with each connection event. It must return soon, and may shut the server
	// down. Default none.
	OnConn func(introspect.ConnEvent)
	// Protocols are the protocols that the server speaks in addition to yodel's own, on the same
	// ports. The first bytes of a connection select the protocol, in the order of the list. If
	// Protocols is set, a client may wait five minutes before it sends its first byte, because
	// clients of other protocols connect long before they call. After Limits.Handshake its place
	// within MaxConns is free for another connection, if no other is. Default none.
	Protocols []Protocol
	// OnRegister is called with the name of every method before the method is registered and can be
	// called. If it returns an error, the method is not registered, and Register returns the error.
	// Default none.
	OnRegister func(method string) error
	// Logger gets a line at level Info when the server listens, is announced in a registry or
	// withdrawn, drains, and has stopped. It gets lines at level Warn or Error when something goes
	// wrong. Of the lines that peers can cause, at most ten of each kind are logged in ten seconds.
	// A further line says how many were dropped. Default slog.Default().
	Logger *slog.Logger
}

// ErrServerClosed is the error that Serve returns after Shutdown.
var ErrServerClosed = failure("YDL4004", "the server has been shut down")

// A Server executes calls. Its methods may be called concurrently.
type Server struct {
	opts        ServerOptions
	limits      Limits
	handler     Handler // the chain: middleware, then the method
	plain       bool    // without middleware, Keys and observers of all calls
	codecs      map[string]Codec
	compressors map[string]compress.Compressor
	pool        *mux.Pool
	watch       *inline.Watch
	foreign     admission.Room // the limits of all sessions together
	sessions    *session.Options
	budget      *shares.Budget
	memory      *memory.Limit
	config      mux.Config // for all accepted connections
	started     time.Time
	guard       *guard.Guard
	hooks       guard.Hooks
	slowAfter   time.Duration
	busy        load.Server
	ready       *readiness.Probe            // nil without ServerOptions.Ready
	live        *diagnose.Measured[*Client] // nil without Diagnostics
	measuring   handlerState                // with live, inherited by the calls of handlers whose own call passes on nothing else
	peerLines   loglimit.Lines
	scratch     reuse.Pool // for replies of other protocols, and for compression and decompression
	freed       sync.Pool  // has *Served: see Free
	bodies      body.Side
	calls       requester // for calls to peers

	conns     *serve.Conns[connection]
	local     func() *Session // runs the calls of Do
	methods   registered.Methods
	functions registered.Functions[Values, Codec] // adds to methods
	schemas   schema.Book
	rules     []func() introspect.Rules // of the registrars that have any
	announced announcer.Group
	samples   *samples.Sampler // records of calls that it executes, and that it and its handlers make

	lent serve.Lent[*serverConn, *mux.Pool] // to clients that have the server in their options; also its own pool

	watchers watchers
}

// A connection is the server's view of an accepted connection, in any protocol.
type connection interface {
	drain(end time.Time)         // closes it when its calls have ended; they are cut off at end, if it is not zero
	abort()                      // closes it now
	executing() []opencalls.Call // the calls that are executing now
	visible() *Peer              // nil before the handshake is complete
	describe() introspect.ConnInfo
}

// A serverConn is the state of one native connection of a server.
type serverConn struct {
	server  *Server
	peer    *Peer         // complete after the handshake
	mux     *mux.Conn     // set before the server knows the connection; nil if a client dialled
	dialled bool          // dialled by a client that has the server in its options
	refused atomic.Bool   // refused by Connect
	began   time.Duration // a time before the settings were sent, on the clock; 0 if a client dialled
	late    bool          // began after the server was shut down; the reader goroutine's

	repeated metadata.Cache
	told     load.Told

	keys *keyscope.Scope // the scope of ServerOptions.Keys as sent in the settings; nil without Keys

	known atomic.Bool // the handshake is complete
	over  bool        // the connection has ended; of Server.lent
}

// served returns the serverConn of an accepted connection.
func served(c *mux.Conn) *serverConn { return c.Owner().(*serverConn) } //nolint:forcetypeassert // set by serve

// serve runs the protocol on a new connection. If a connection was accepted just before the server
// began to close, the server serves it too, and tells it to drain. A reset would leave the client
// in doubt whether its calls were executed.
func (s *Server) serve(nc net.Conn, refused error) {
	conn := s.guard.Conn(nc)
	peer := &Peer{Addr: conn.RemoteAddr(), Conn: nc, requests: &s.calls}
	addr := peer.Addr.String()
	refuse := func(err error) {
		_ = conn.Close() // there is nothing more to say
		s.event(introspect.ConnEvent{Kind: introspect.Refused, Addr: addr, Err: err})
		if !errors.Is(err, ErrServerClosed) { // a connection that comes after Shutdown is not logged
			s.peerLines.LogRefused(addr, err)
		}
	}
	err := refused
	if err == nil {
		if err = s.accepts(nc); err != nil {
			s.conns.Leave()
		}
	}
	if err != nil {
		refuse(err)
		return
	}
	s.event(introspect.ConnEvent{Kind: introspect.Accepted, Addr: addr})
	if len(s.opts.Protocols) == 0 {
		err = s.serveNative(nc, nil, peer, nil)
	} else {
		ses := newSession(s, conn, peer)
		if _, err = s.conns.Enter(ses, nil); err == nil {
			s.conns.Silent(ses)
			go s.serveSession(ses, refuse)
		}
	}
	if err != nil {
		refuse(err)
	}
}

// accepts asks the Accept filter about an admitted connection.
func (s *Server) accepts(nc net.Conn) error {
	if s.opts.Accept == nil {
		return nil
	}
	if err := s.guard.Apart("the Accept filter", nil, func() error { return s.opts.Accept(nc) }); err != nil {
		return err
	}
	return s.conns.Check() // the filter may have taken its time
}

// serveSession detects the protocol of a connection and serves it.
func (s *Server) serveSession(ses *Session, refuse func(error)) {
	defer s.conns.Forget(ses)
	native := false
	defer func() {
		if !native {
			ses.abort()
		}
	}()
	defer s.guard.Rescue("a connection's own code")
	if p, name := ses.recognize(refuse, &native); p != nil {
		ses.serve(p, name)
	}
}

// recognize returns the protocol of a connection and its name. It serves one in yodel's own
// protocol, and returns nil for that and for a connection that has ended. It is not a part of
// serveSession, because the frame of that stays on the stack as long as the connection.
//
//go:noinline
func (ses *Session) recognize(refuse func(error), native *bool) (p Protocol, name string) {
	s := ses.server
	var first []byte
	err := s.guard.Apart("the code that recognizes a protocol", nil, func() error {
		if p, first = ses.sniff(); p != nil {
			name = p.Name()
		}
		return nil
	})
	switch {
	case err != nil:
		s.event(introspect.ConnEvent{Kind: introspect.ReadFailed, Addr: ses.Peer.Addr.String(), Err: err})
	case ses.conn.Context().Err() != nil: // Shutdown has cut it off
		s.event(introspect.ConnEvent{Kind: introspect.Closed, Addr: ses.Peer.Addr.String()})
	case p != nil && !ses.Reserve(session.BufferSize):
		refuse(failure("YDL3007", "the server has no memory left for a connection"))
	case p != nil:
		return p, name
	default:
		ses.Peer.ended = nil
		if err = s.serveNative(ses.Peer.Conn, first, ses.Peer, ses); err != nil {
			refuse(err)
		}
		*native = err == nil
	}
	return nil, ""
}

// serveNative runs yodel's own protocol on a connection from which first was already read. Old is
// the session of the connection, or nil.
func (s *Server) serveNative(nc net.Conn, first []byte, peer *Peer, old *Session) error {
	sc := &serverConn{server: s, began: clock(), peer: peer}
	sc.keys = s.keyScope()
	s.budget.Reserve()
	begin := func() { sc.mux = mux.NewOf(sc, nc, first, false, &s.config) }
	var err error
	if old == nil {
		_, err = s.conns.Enter(sc, begin)
	} else {
		_, err = s.conns.Replace(old, sc, begin)
	}
	if err != nil {
		s.budget.Unreserve()
	}
	return err
}

// drain implements connection.
func (sc *serverConn) drain(time.Time) { sc.mux.Drain() }

// abort implements connection.
func (sc *serverConn) abort() { sc.mux.Abort() }

// Refuse and CancelRequests are what serve.Lent needs of a connection of a client.
func (sc *serverConn) Refuse() <-chan struct{} { return sc.peer.link.Refuse() }

func (sc *serverConn) CancelRequests() { sc.peer.link.CancelRequests() }

// visible implements connection.
func (sc *serverConn) visible() *Peer {
	if !sc.known.Load() {
		return nil
	}
	return sc.peer
}

// event passes a connection event to the OnConn hook.
func (s *Server) event(e introspect.ConnEvent) {
	if s.opts.OnConn != nil {
		_ = s.hooks.Run(s.guard, "the OnConn hook", func() error { // a failure is in the log
			s.opts.OnConn(e)
			return nil
		})
	}
}

// hello handles the settings of a peer, which complete the handshake.
func (sc *serverConn) hello(conn *mux.Conn, l *wire.Limits) *mux.Refusal {
	s, peer := sc.server, sc.peer
	md, refused := s.limits.metadata().Accept(l.Metadata, conn)
	if refused != nil {
		return &mux.Refusal{Code: cmp.Or(catalogue.Of(refused.ID).Code, catalogue.InvalidArgument), ID: refused.ID, Message: refused.Text}
	}
	peer.Metadata, peer.Agent, peer.Name, peer.link = md, identity.Agent(l, agent), text.Clip(string(l.Caller), wire.MaxCaller), conn
	if err := s.connect(peer); err != nil {
		e := asError(err)
		sc.refused.Store(true)
		if !sc.dialled {
			s.event(introspect.ConnEvent{Kind: introspect.Refused, Addr: peer.Addr.String(), Err: err})
		}
		return &mux.Refusal{Code: uint16(e.Code), ID: e.ID, Message: e.Message}
	}
	sc.known.Store(true)
	if !sc.dialled {
		return nil
	}
	s.lent.Add(sc, &sc.over)
	sc.late = s.conns.Stopping() // if it is false, Shutdown will find sc
	return nil
}

// unlink removes the connection of a client when it has ended.
func (sc *serverConn) unlink() { sc.server.lent.Remove(sc, &sc.over) }

// ended logs and reports the end of a connection.
func (sc *serverConn) ended(_ *mux.Conn, err error) {
	s := sc.server
	addr := sc.peer.Addr.String()
	s.peerLines.LogEnded(addr, err, func(err error) (message, id string, ok bool) {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return "", "", false
		}
		return e.Message, e.ID, true
	})
	if !sc.refused.Load() {
		s.event(ending(addr, err))
	}
	s.conns.Forget(sc)
}

// asError returns err as an Error. If err wraps an Error, the result has its code, details and ID.
func asError(err error) *Error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // outermost only: the text of a wrapper would be lost
		if e == nil {
			return Errorf(Internal, "the handler returned a nil *yodel.Error as its error")
		}
		return e
	}
	e := &Error{Code: CodeOf(err), Message: err.Error(), Cause: err, foreign: true}
	if inner, own := within(err); inner != nil {
		e.Details, e.ID = inner.Details, inner.ID
		if own {
			e.Message = inner.Message
		}
	}
	return e
}

// leftOut counts and logs a pair of the reply's metadata that the caller does not get.
func (c *serverCall) leftOut(key, why string) {
	c.server.peerLines.LogLeftOut(c.call.Method, shorten(key, record.MaxName), why)
}

// panicked logs a handler's panic and returns the error for the caller, which contains no details
// of the panic.
func (s *Server) panicked(ctx context.Context, method string, value any) *Error {
	n := s.guard.Panicked(ctx, "yodel: handler panicked", value, "method", method)
	return failure("YDL5001", "%s: the handler panicked; see number %d in the server's log", method, n)
}

// A method is a function that a server executes under one or more names.
type method = registered.Method

// Addr returns the address at which the server listens, or nil before it listens. With several
// listeners it is the address of the first one. For a listen address such as "127.0.0.1:0", Addr
// has the port that the system chose. If ListenAndServe was started on another goroutine, Addr may
// still return nil. A program that needs the address at once should call net.Listen, or Listen of a
// Transport, and then Serve.
func (s *Server) Addr() net.Addr { return s.conns.Addr() }

// Ready returns nil if the server should get calls: it has not begun to drain, and
// ServerOptions.Ready has returned nil. The answer is at most some seconds old. Ready may wait 2 s
// for the first one. All health checks report it: yodel.Health, and those of package protocol/http.
func (s *Server) Ready() error {
	if s.conns.Stopping() {
		return ErrServerClosed
	}
	return s.ready.Ready()
}

// newProbe returns the probe that calls ServerOptions.Ready, or nil without Ready.
func newProbe(s *Server) *readiness.Probe {
	if s.opts.Ready == nil {
		return nil
	}
	return readiness.New(func(ctx context.Context) error {
		return s.guard.Apart("ServerOptions.Ready", nil, func() error { return s.opts.Ready(ctx) })
	}, s.opts.Logger, s.announced.Again, s.conns.Stopped())
}

// Shutdown shuts the server down gracefully. It withdraws the server from its registries and
// refuses new calls in a way that sends clients to other instances. It then waits for the accepted
// calls, and closes all connections. It returns nil when every accepted call has ended. If ctx ends
// first, it cuts off the remaining calls and returns an error that names them (YDL4006) and wraps
// the cause of ctx.
//
// Shutdown always returns when ctx ends. Withdrawing takes at most a quarter of the time that ctx
// allows, and at most 3 s. After that the server drains, even if a registry has not answered yet.
//
// A handler must not call Shutdown on its own goroutine, because Shutdown waits for that handler.
//
// If a client has the server in its options, the connections belong to the client. They remain open
// but serve no calls, and the client's own calls continue.
func (s *Server) Shutdown(ctx context.Context) error {
	s.hooks.Release()
	began := time.Now()
	serving := s.conns.Listening() || len(s.lent.Conns()) > 0
	first, withdrawn := s.announced.Withdraw(ctx)
	first = first && serving
	end, _ := ctx.Deadline()
	stopped := s.conns.Stop(end)
	d := s.lent.Drain(s.conns.Empty())
	if first {
		s.opts.Logger.Info("yodel: draining", opencalls.Draining(ctx, s.openCalls())...)
		s.Note(introspect.Event{Kind: "drain", What: "refuses new calls and waits for the others"})
	}
	cut, err := "", d.Wait(ctx)
	if err != nil {
		open, why := s.openCalls(), err
		d.CancelRequests()
		if cut, err = opencalls.CutOff(open, s.conns.CutOff()), nil; cut != "" { // not all has ended in the meantime
			err = failure("YDL4006", "shutdown after %v (%s) cut off %s", time.Since(began).Round(time.Millisecond), reason.Plain(why), cut).because(why)
		}
	}
	d.End()
	if stopped {
		s.pool.Close()
	}
	withdrawn()
	if first {
		s.peerLines.Flush()
		s.opts.Logger.Info("yodel: stopped", opencalls.Stopped(time.Since(began), cut)...)
	}
	return err
}

// openCalls returns the calls that the server is executing.
func (s *Server) openCalls() (open []opencalls.Call) {
	for _, c := range s.conns.All() {
		open = append(open, c.executing()...)
	}
	for _, sc := range s.lent.Conns() {
		open = append(open, sc.executing()...)
	}
	for _, pool := range s.lent.Pools() {
		open = append(open, s.openOf(pool.Executing())...)
	}
	return open
}

// ListenAndServe listens at addr and serves until ctx ends. It then shuts the server down within
// DrainTimeout and returns nil. It returns an error if it could not listen or had to cut off calls.
//
// A program that ends on a signal should restore the usual effect of Ctrl-C after the first signal,
// so that a second Ctrl-C ends the process at once:
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	context.AfterFunc(ctx, stop)
//	err := s.ListenAndServe(ctx, addr)
func (s *Server) ListenAndServe(ctx context.Context, addr string) error {
	if err := s.lacksCodec(); err != nil {
		return err
	}
	l, err := s.opts.Transport.Listen(addr)
	if err != nil {
		s.event(introspect.ConnEvent{Kind: introspect.ListenFailed, Addr: addr, Err: err})
		if e, ok := errors.AsType[*Error](err); ok {
			return e
		}
		return failure("YDL4002", "listen at %s: %s", addr, reason.Plain(err)).because(err)
	}
	return s.Serve(ctx, l)
}

// Serve accepts connections from l until ctx ends or Shutdown is called. When ctx ends, it shuts
// the server down within DrainTimeout, and returns nil or the error of Shutdown. After Shutdown it
// returns ErrServerClosed. Serve closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	given, err := l, s.lacksCodec()
	if t, ok := s.opts.Transport.(interface {
		NewListener(l net.Listener) (net.Listener, error)
	}); ok && err == nil {
		l, err = t.NewListener(given)
	}
	if err != nil {
		_ = s.guard.Listener(given).Close() // it was never used
		return err
	}
	raw := l
	l = s.guard.Listener(raw)
	if s.opts.Keys != nil {
		s.opts.Keys.Scope() // Scope may have to ask its store
	}
	if err = s.announced.Check(l.Addr()); err == nil || s.conns.Stopping() {
		err = s.conns.Listen(l)
	}
	if err != nil {
		_ = l.Close() // it was never used
		return err
	}
	s.opts.Logger.Info("yodel: listening", "addr", l.Addr().String(), "transport", serve.Transport(l, raw))
	s.Note(introspect.Event{Kind: "start", Object: l.Addr().String(), What: "listening"})
	defer s.live.Follow()()
	defer s.ready.Follow()()
	withdraw := s.announced.Announce(l.Addr())
	failed := make(chan error, 1)
	go func() {
		failed <- s.guard.Apart("the listener", nil, func() error { return s.conns.Accept(l, s.serve) })
	}()
	select {
	case err := <-failed:
		_ = l.Close() // it is closed already, unless Accept panicked
		withdraw()
		return err
	case <-ctx.Done():
	}
	s.announced.Leave(context.Cause(ctx))
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.DrainTimeout)
	defer cancel()
	err = s.Shutdown(drain)
	<-failed //nolint:errcheck // it is ErrServerClosed
	return err
}

// lacksCodec returns an error if a Protocol can use none of the server's codecs.
func (s *Server) lacksCodec() error {
	for _, p := range s.opts.Protocols {
		needs, ok := p.(interface{ Codecs() []string })
		if !ok {
			continue
		}
		names := needs.Codecs()
		if !slices.ContainsFunc(names, func(name string) bool { return s.codecs[name] != nil }) {
			return failure("YDL2003", "the protocol %s needs the codec %s in ServerOptions.Codecs", p.Name(), strings.Join(names, " or "))
		}
	}
	return nil
}

// setUpAnnouncing prepares the announcements of the server in its registries.
func (s *Server) setUpAnnouncing() {
	a := &s.announced
	a.Every, a.Log, a.Guard, a.Note = s.opts.AnnounceEvery, s.opts.Logger, s.guard, s.Note
	a.Ready, a.Started, a.Incarnation = s.ready.Err, s.started, s.config.Incarnation
	for _, r := range s.opts.Registrars {
		d := Description{}.Over(r)
		if d.Rules != nil {
			s.rules = append(s.rules, d.Rules)
		}
		a.In = append(a.In, announcer.In{Registrar: r, Name: d.Name, Overrides: d.Overrides})
	}
	a.Services = func() []string { return slices.DeleteFunc(s.Services(), introspect.Infrastructure) }
	a.Load = func() (calls uint64, inflight int) {
		s.methods.Each(func(_ []string, m *method) {
			for code := range stats.Codes {
				calls += m.Stats.Calls(code)
			}
			inflight += int(m.Stats.Inflight())
		})
		return calls, max(inflight, 0)
	}
	in := s.opts.Instance
	if len(s.opts.Protocols) > 0 && in.Protocols == nil {
		in.Protocols = s.speaks()
	}
	a.SetUp(in)
}

// Services returns the names of the services whose methods the server has, sorted, except the
// built-in service. A method without a service name is a service of its own. Services may be called
// concurrently. The result belongs to the caller.
func (s *Server) Services() []string { return s.methods.Services() }

// UpdateInstance changes the record that the server announces in registries, for example its weight
// or its state. The change is announced at once. UpdateInstance may be called concurrently: changes
// run one after the other, each on a copy of the current record, so no change is lost. Change may
// call methods of the server except UpdateInstance, which would wait for itself.
func (s *Server) UpdateInstance(change func(*discovery.Instance)) {
	s.announced.Update(change)
}

// speaks returns the names of the protocols that the server speaks, without those whose Name
// panics.
func (s *Server) speaks() []string {
	names := []string{native}
	for _, p := range s.opts.Protocols {
		_ = s.guard.Apart("a Protocol's Name", nil, func() error { // a panic is in the log
			names = append(names, p.Name())
			return nil
		})
	}
	return names
}
