// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bufio"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/iface"
	"github.com/yodel-rpc/yodel/internal/loglimit"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/recent"
	"github.com/yodel-rpc/yodel/internal/registered"
	"github.com/yodel-rpc/yodel/internal/session"
	"github.com/yodel-rpc/yodel/internal/socket"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file serves other protocols on the port of a server. It recognizes the protocol by the first
// bytes of each connection, and passes connections in other protocols to a Protocol.

// A Session is a server's connection to a client that speaks another protocol than yodel's. The
// Protocol that serves it owns it. A Protocol with one call at a time reads and answers in a loop:
//
//	for session.Next() == nil {
//		request := … // from session.Reader
//		v := session.Begin(method, codec, nil)
//		… // as the comment of Served shows
//		session.Write(reply)
//	}
//
// Reader, Next and a waiting Served.Admit are for one goroutine at a time. All other methods may be
// called concurrently until Serve and the functions that were passed to Go have returned. So may a
// waiting Admit after AsConn was called, because it does not read ahead then.
type Session struct {
	// Conn is the connection. A Protocol writes with Write and reads from Reader.
	Conn net.Conn
	// Reader reads the connection from its first byte, through a buffer of 32 KiB. When the server
	// drains, Reader returns io.EOF as soon as no call has been open for 50 ms, or no call is open
	// while Next pauses. In many protocols a server cannot tell a client that it drains. Without
	// this rule, such a client would wait for a reply to a request that the server never reads.
	Reader *bufio.Reader
	// Peer is the client. A Protocol may set Name, Agent and Metadata before it begins the first
	// call.
	Peer *Peer
	// HideErrors makes the session send only messages that were written for callers: those of Error
	// values that the program makes itself, for example by Errorf, of statuses of grpc-go, and of
	// the server. In place of any other error, such as that of a call which the handler has made,
	// the client gets the number of a line in the server's log. Default: ServerOptions.HideErrors.
	// A Protocol sets HideErrors before it begins a call.
	HideErrors bool

	server *Server
	conn   *session.Conn
	ctx    context.Context //nolint:containedctx // parent of all calls' contexts; ends with the session
	cancel context.CancelCauseFunc
	life   context.Context //nolint:containedctx // parent of ctx and of running one-way calls; ends session.OrphanTime later, or when Shutdown stops waiting
	end    context.CancelCauseFunc
	calls  sync.WaitGroup
	room   admission.Room // the limits of this connection

	began   time.Duration // on the clock
	known   atomic.Bool   // the peer may be seen
	refused atomic.Bool   // Connect has refused the peer
	greet   func() error

	bound    recent.Names[boundMethod]
	mu       sync.Mutex
	protocol string
}

// sessionOptions returns the options of the connections of all sessions of s.
func sessionOptions(s *Server) *session.Options {
	l := &s.limits
	return &session.Options{
		Handshake: l.Handshake, KeepAlive: l.KeepAlive, IdleTimeout: l.IdleTimeout, MaxMemory: l.MaxMemory, Memory: s.memory, HungUp: socket.HungUp, Guard: s.guard, Watch: s.watch,
	}
}

// newSession returns the state of a connection until its protocol is known.
func newSession(s *Server, nc net.Conn, peer *Peer) *Session {
	ses := &Session{Conn: nc, Peer: peer, server: s, HideErrors: s.opts.HideErrors, began: clock()}
	ses.room.Calls, ses.room.Bytes = s.limits.MaxOpen, s.limits.MaxMemory/2
	ses.life, ses.end = context.WithCancelCause(context.Background())
	ses.ctx, ses.cancel = context.WithCancelCause(ses.life)
	ses.conn = session.New(nc, s.sessions, func() { ses.cancel(mux.ErrCallerGone) }, ses.ctx.Done())
	ses.greet = sync.OnceValue(ses.connect)
	peer.ended = ses.ctx.Done()
	return ses
}

// newLocal returns the session of the calls of this process.
func (s *Server) newLocal() *Session {
	ses := newSession(s, nil, &Peer{Addr: &net.UnixAddr{Name: "local", Net: "local"}, requests: &s.calls})
	ses.greet, ses.HideErrors = func() error { return nil }, false
	return ses
}

// sniff reads until the protocol of the connection is known. It returns nil for yodel's own
// protocol. It also returns nil if no Protocol matches; package mux then reports the fault. First
// are the bytes that were read.
func (ses *Session) sniff() (p Protocol, first []byte) {
	first = ses.conn.Sniff(func(first []byte) (foreign, more bool) {
		ses.server.conns.Spoke(ses)
		p, more = ses.server.protocolOf(first)
		return p != nil, more
	})
	return p, first
}

// protocolOf returns the Protocol of a connection that begins with first, or nil. More says that
// further bytes may decide it.
func (s *Server) protocolOf(first []byte) (p Protocol, more bool) {
	if n := min(len(first), len(wire.Magic)); string(first[:n]) == wire.Magic[:n] {
		return nil, n < len(wire.Magic)
	}
	for _, p := range s.opts.Protocols {
		ok, maybe := p.Match(first)
		if ok {
			return p, false
		}
		more = more || maybe
	}
	return nil, more
}

// Next waits for the first byte of the client's next message. A Protocol calls it before it reads
// each request. Next returns io.EOF if there will be no further message, because the client has
// closed the connection, the server drains, or no call was open for Limits.IdleTimeout. Requests of
// a busy client wait in Next during a drain from time to time, so that the open calls end.
//
// The message lasts until Next is called again. Until then a drain waits for the message. The rest
// of the message must arrive at 4 KiB per second or more, measured over twice Limits.KeepAlive of
// waiting. Otherwise Reader returns an error, so that a client cannot hold memory with half a
// request. These bounds do not apply to a Protocol that does not call Next.
func (ses *Session) Next() error { return ses.conn.Next() }

// Write writes all of b to the connection. It may be called concurrently, and the bytes of
// concurrent calls do not mix. If the client does not accept 64 KiB within twice Limits.KeepAlive,
// Write closes the connection and fails, so that a client that does not read cannot keep its calls
// open.
func (ses *Session) Write(b []byte) (n int, err error) { return ses.conn.Write(b) }

// Reserve counts n bytes that the Protocol holds for the client in addition to the requests of
// admitted calls, for example replies that wait to be sent. It returns false, and counts nothing,
// if Limits.MaxMemory or ServerOptions.MaxMemory has no room for them. Release ends the
// reservation. The end of the session releases the rest.
func (ses *Session) Reserve(n int) bool { return ses.conn.Reserve(n) }

// Release ends the reservation of n bytes, or of all reserved bytes if they are fewer than n.
func (ses *Session) Release(n int) { ses.conn.Release(n) }

// AsConn returns the connection for a Protocol that passes it to other code, for example to package
// net/http, instead of using Reader, which becomes nil, Next and Write. Read first returns the
// bytes from which the server has recognized the protocol. Read returns io.EOF when the server
// drains and no call was open for 50 ms, and when no call was open for Limits.IdleTimeout. Write is
// Session.Write. The other code may set deadlines, which apply in addition. Admit does not read
// ahead, so the other code has to notice that the client disconnects, and to call Cancel.
func (ses *Session) AsConn() net.Conn {
	ses.Reader = nil
	return ses.conn.AsConn(ses.Peer.Addr)
}

// serve runs the protocol until the connection ends.
func (ses *Session) serve(p Protocol, name string) {
	ses.mu.Lock()
	ses.protocol = name
	ses.mu.Unlock()
	ses.Reader = ses.conn.Reader()
	ses.server.guard.Here("protocol "+name, func() error { return p.Serve(ses.ctx, ses) }, ses.conn.Told, ses.served)
}

// served ends the session after its protocol has ended with err.
func (ses *Session) served(err error) {
	aborted := context.Cause(ses.ctx) == mux.ErrClosed //nolint:errorlint // it is set bare
	ses.cancel(mux.ErrCallerGone)
	_ = ses.Conn.Close() // there is nothing more to say
	ses.awaitCalls()
	if ses.refused.Load() {
		return // the event of its end was already sent
	}
	kind, breach, why := ses.conn.Ending(err, aborted)
	if breach {
		ses.server.peerLines.Warn(loglimit.Breach, func() []any {
			return []any{"peer", ses.Peer.Addr.String(), "protocol", ses.protocol, "what", err.Error(), "id", "YDL1106"}
		})
	}
	ses.server.event(introspect.ConnEvent{Kind: kind, Addr: ses.Peer.Addr.String(), Err: why})
}

// awaitCalls ends the calls of a client that has gone, and waits for them. One-way calls may take
// session.OrphanTime.
func (ses *Session) awaitCalls() {
	ses.cancel(mux.ErrCallerGone)
	orphans := time.AfterFunc(session.OrphanTime, func() { ses.end(mux.ErrCallerGone) })
	ses.calls.Wait()
	orphans.Stop()
	ses.conn.ReleaseAll()
}

// Busy makes a drain and Limits.IdleTimeout treat the session as one with an open call, for
// requests that are no calls, until the caller calls done.
func (ses *Session) Busy() (done func()) {
	ses.conn.Busy(1)
	return sync.OnceFunc(func() { ses.conn.Busy(-1) })
}

// Codec returns the server's codec with this name, or nil.
func (ses *Session) Codec(name string) Codec { return ses.server.codecs[name] }

// Compressor returns the server's compressor with this name, or nil.
func (ses *Session) Compressor(name string) compress.Compressor { return ses.server.compressors[name] }

// HasService reports whether the server has a method of the service, for protocols that answer a
// call of an unknown method differently if the service is known.
func (ses *Session) HasService(service string) bool { return ses.server.methods.HasService(service) }

// Limits returns the limits of the server with their defaults. A field is zero only if zero means
// never.
func (ses *Session) Limits() Limits { return ses.server.limits }

// Draining returns a channel that is closed when the server begins to shut down, or when Connect
// has refused the peer: the session then ends when its calls have ended.
func (ses *Session) Draining() <-chan struct{} { return ses.conn.Draining() }

// Go calls f on a new goroutine. The server waits for f before it forgets the session. A panic of f
// is logged.
func (ses *Session) Go(f func()) {
	ses.calls.Go(func() {
		defer ses.server.guard.Rescue("protocol code")
		f()
	})
}

// Loop calls Next and then next, in turn, until one of them fails, and returns the error. They run
// on other goroutines, one at a time. The function next reads a message and executes its call by
// Served.Go. If replies may be held back, see Served.More, Loop calls flush to write them before it
// waits for the client. Otherwise flush is nil. A Protocol calls Loop once.
func (ses *Session) Loop(next func() error, flush func()) error {
	return ses.conn.Loop(next, flush, ses.Go)
}

// Push makes the server's one-way calls to Session.Peer go through to, for protocols in which a
// server sends messages that the client has not asked for. All other calls to the peer fail. If
// Push is not called, all of them do. A Protocol calls it before it begins the first call.
//
// The Do of to sends a message, and may be called concurrently, also after Serve has returned. An
// Error with Unavailable, NotProcessed and a Cause says that the connection has ended.
func (ses *Session) Push(to Caller) { ses.Peer.push = to }

// connect calls ServerOptions.Connect for the peer, once. If the peer is refused, its connection
// drains, so that the peer makes another one, about which Connect decides anew.
func (ses *Session) connect() error {
	if err := ses.server.connect(ses.Peer); err != nil {
		ses.refused.Store(true)
		go ses.drain(time.Time{})
		ses.server.event(introspect.ConnEvent{Kind: introspect.Refused, Addr: ses.Peer.Addr.String(), Err: err})
		return err
	}
	ses.known.Store(true)
	return nil
}

// A boundFor is the caller and the form of the requests of a boundMethod.
type boundFor struct {
	caller     string
	positional bool
}

// bind returns the binding of a method name with a codec and a compressor: the last one that was
// used, or the one for of, which Begin does not know yet. The session remembers the bindings of
// existing methods.
func (ses *Session) bind(name string, codec Codec, compressor compress.Compressor, of *boundFor) *boundMethod {
	if of != nil {
		of.caller = text.Clip(of.caller, wire.MaxCaller)
	}
	s := ses.server
	return ses.bound.Get(name, s.limits.MaxMethods, func(b *boundMethod) bool {
		return (of == nil || b.Positional == of.positional && b.caller == of.caller) && iface.Same(b.format.Codec, codec) && iface.Same(b.format.Pack.Compressor, compressor)
	}, func() (*boundMethod, bool) {
		if of == nil {
			of = &boundFor{caller: text.Clip(ses.Peer.Name, wire.MaxCaller)}
		}
		meant := s.methods.Meant(name)
		b := &boundMethod{server: s, format: s.format(codec, compressor), caller: of.caller, asked: name}
		b.In, b.Name, b.Positional, b.Kind = &s.methods, text.Clip(meant, wire.MaxName), of.positional, registered.AnyKind
		if codec == nil {
			b.Wrong = registered.WrongCodec
		}
		if b.Name != meant {
			b.Wrong = registered.WrongName
			return b, false
		}
		return b, b.Find() != nil
	})
}

// drain implements connection. It ends the session once no call has been open for 50 ms, or no call
// is open while reading pauses. A connection in yodel's own protocol drains by its serverConn.
func (ses *Session) drain(end time.Time) { ses.conn.Drain(end) }

// abort implements connection.
func (ses *Session) abort() {
	ses.end(mux.ErrClosed)
	if ses.Conn != nil {
		_ = ses.Conn.Close() // the server abandons the connection
	}
}

// executing implements connection.
func (ses *Session) executing() []opencalls.Call { return ses.conn.Executing(ses.Peer.Addr.String()) }

// visible implements connection.
func (ses *Session) visible() *Peer {
	if !ses.known.Load() {
		return nil
	}
	return ses.Peer
}
