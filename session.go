// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bufio"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/iface"
	"github.com/yodel-rpc/yodel/internal/isolate"
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
// bytes of each connection, and passes it to a Protocol. It also executes calls without one.

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
	// Conn is the connection, and must not be changed. A Protocol writes with Write and reads from
	// Reader.
	Conn net.Conn
	// Reader reads the connection from its first byte, through a buffer of 32 KiB. When the server
	// drains, Reader returns io.EOF as soon as no call has been open for 200 ms, or no call is open
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
	bound  recent.Names[boundMethod]
}

// sessionOptions returns the options of the connections of all sessions of s.
func sessionOptions(s *Server) *session.Options {
	l := &s.limits
	return &session.Options{
		Handshake: l.Handshake, KeepAlive: l.KeepAlive, IdleTimeout: l.IdleTimeout, MaxMemory: l.MaxMemory, Memory: s.memory,
		MaxMessage: l.MaxMessage, MaxOpen: l.MaxOpen, Room: &s.foreign, Look: socket.Look, Guard: s.guard, Watch: s.watch,
	}
}

// newSession returns the state of a connection until its protocol is known.
func newSession(s *Server, nc net.Conn, peer *Peer) *Session {
	ses := &Session{Conn: nc, Peer: peer, server: s, HideErrors: s.opts.HideErrors, conn: session.New(nc, s.sessions)}
	ses.conn.Connect = ses.connect
	peer.ended = ses.conn.Context().Done()
	return ses
}

// newLocal returns the session of the calls of this process.
func (s *Server) newLocal() *Session {
	ses := newSession(s, nil, &Peer{Addr: &net.UnixAddr{Name: "local", Net: "local"}, requests: &s.calls})
	ses.conn.Connect, ses.HideErrors = nil, false
	return ses
}

// sniff reads until the protocol of the connection is known. It returns nil for yodel's own
// protocol. It also returns nil if no Protocol matches; package mux then reports the fault. First
// are the bytes that were read.
func (ses *Session) sniff() (p Protocol, first []byte) {
	first = ses.conn.Sniff(func(first []byte) (foreign, more bool) {
		ses.server.conns.Spoke(ses)
		p, foreign, more = firstbytes.Recognize(first, ses.server.opts.Protocols)
		return foreign, more
	})
	return p, first
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
// drains and no call was open for 200 ms, and when no call was open for Limits.IdleTimeout. Write
// is Session.Write. The other code may set deadlines, which apply in addition. Admit does not read
// ahead, so the other code has to notice that the client disconnects, and to call Cancel.
func (ses *Session) AsConn() net.Conn {
	ses.Reader = nil
	return ses.conn.AsConn(ses.Peer.Addr)
}

// serve runs the protocol until the connection ends.
func (ses *Session) serve(p Protocol, name string) {
	ses.Reader = ses.conn.Reader(name)
	ses.server.guard.Here("protocol "+name, func() error { return p.Serve(ses.conn.Context(), ses) }, ses.conn.Told, ses.served)
}

// served ends the session after its protocol has ended with err.
func (ses *Session) served(err error) {
	kind, breach, why := ses.conn.Finish(err)
	if ses.conn.Refused() {
		return // the event of its end was already sent
	}
	if breach {
		ses.server.peerLines.LogBreach(ses.Peer.Addr.String(), ses.conn.Describe().Protocol, err.Error())
	}
	ses.server.event(introspect.ConnEvent{Kind: kind, Addr: ses.Peer.Addr.String(), Err: why})
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
func (ses *Session) Go(f func()) { ses.conn.Go(f) }

// Loop calls Next and then next, in turn, until one of them fails, and returns the error. They run
// on other goroutines, one at a time. The function next reads a message and executes its call by
// Served.Go. If replies may be held back, see Served.More, Loop calls flush to write them before it
// waits for the client. Otherwise flush is nil. A Protocol calls Loop once.
func (ses *Session) Loop(next func() error, flush func()) error {
	return ses.conn.Loop(next, flush)
}

// Push makes the server's one-way calls to Session.Peer go through to, for protocols in which a
// server sends messages that the client has not asked for. All other calls to the peer fail. If
// Push is not called, all of them do. A Protocol calls it before it begins the first call.
//
// The Do of to sends a message, and may be called concurrently, also after Serve has returned. An
// Error with Unavailable, NotProcessed and a Cause says that the connection has ended.
func (ses *Session) Push(to Caller) { ses.Peer.push = to }

// connect calls ServerOptions.Connect for the peer.
func (ses *Session) connect() error {
	err := ses.server.connect(ses.Peer)
	if err != nil {
		ses.conn.Refuse()
		ses.server.event(introspect.ConnEvent{Kind: introspect.Refused, Addr: ses.Peer.Addr.String(), Err: err})
	}
	return err
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
		b := &boundMethod{server: s, format: s.format(codec, compressor), caller: of.caller, asked: name}
		if b.Positional = of.positional; codec == nil {
			b.Wrong = registered.WrongCodec
		}
		return b, b.SetMeant(&s.methods, name)
	})
}

// drain implements connection. It ends the session once no call has been open for 200 ms, or no
// call is open while reading pauses. A connection in yodel's own protocol drains by its serverConn.
func (ses *Session) drain(end time.Time) { ses.conn.Drain(end) }

// abort implements connection.
func (ses *Session) abort() { ses.conn.Abort() }

// executing implements connection.
func (ses *Session) executing() []opencalls.Call { return ses.conn.Executing(ses.Peer.Addr.String()) }

// visible implements connection.
func (ses *Session) visible() *Peer {
	if !ses.conn.Connected() {
		return nil
	}
	return ses.Peer
}

// Do executes call on this server, without a connection. A Server is a Caller so that tests,
// consoles and programs that are both client and server can call its methods like a client: the
// call passes through middleware and observers, is subject to the limits, and is counted and
// recorded. Arguments and reply are encoded in the call's codec, JSON by default, so that caller
// and handler share no memory. The context passes on its deadline and its cancellation, but no
// values. Do does not call ServerOptions.Connect. Streams fail with Unimplemented. Do may be called
// concurrently. Shutdown waits for the calls.
func (s *Server) Do(ctx context.Context, call *Call) error {
	if ctx == nil {
		return refusal("YDL2008", "%s: the context is nil", call.Method)
	}
	ctx = isolate.Context(ctx)
	if call.kind() != wire.Unary {
		return refusal("YDL2006", "%s: a server calls its own unary methods only, not streams", call.Method)
	}
	codec := call.Codec
	if codec == nil {
		codec = JSON
	}
	var body []byte
	as := &format{Codec: codec}
	_, f := as.Encode(&body, call.Method, call.Args, true)
	if f == nil {
		f = as.CheckReply(call.Method, call.Reply)
	}
	if f != nil {
		return faultError(f)
	}
	ses := s.local()
	if !s.conns.Use(ses) { // while such a call is open, the session counts as a connection
		return refusal("YDL3004", "%s: the server has been shut down", call.Method)
	}
	defer s.conns.Forget(ses)
	v := ses.Begin(call.Method, codec, nil)
	defer v.End()
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // the handler's context has the same deadline
			v.Cancel()
		}
	})
	defer stop()
	handOver(call, v.Call())
	v.Call().Deadline = expiry.Earliest(ctx, call.Deadline)
	if e := v.Admit(len(body), true); e != nil {
		return e
	}
	v.Body, v.Several, v.Owned = body, several(call.Args), true
	e := v.Run()
	if e == nil {
		e = v.replyTo(call, as)
	}
	call.Trailer, call.ReplyAttachment = v.Call().Trailer, v.Call().ReplyAttachment
	if md := v.Call().Header(); md != nil {
		call.SetHeader(md)
	}
	if e != nil {
		return causedAtEnd(ctx, e)
	}
	return nil
}

// handOver copies the fields that a caller sets to the call that the server executes.
func handOver(c, to *Call) {
	to.Metadata, to.Attachment, to.Deadline = c.Metadata, slices.Clone(c.Attachment), c.Deadline
	to.OneWay, to.Key, to.IdempotencyKey = c.OneWay, c.Key, c.IdempotencyKey
	to.Criticality, to.Tenant, to.Trace, to.Explain, to.Attempt = c.Criticality, c.Tenant, c.Trace, c.Explain, c.Attempt
}

// replyTo decodes the reply of a call that succeeded into c.Reply, which may be nil.
func (v *Served) replyTo(c *Call, as *format) *Error {
	if c.OneWay || c.Reply == nil {
		return nil
	}
	body, _, e := v.AppendReply(nil)
	if e != nil {
		return e
	}
	if err := as.Fill(body, v.in.as.Positional, c.Reply); err != nil {
		return unfit(c, as, err)
	}
	return nil
}

// ServeSession calls serve with a Session for requests that do not come from a connection of the
// server, for example those of an http.Server that other code runs. It returns when serve and the
// functions that serve passed to Session.Go have returned. Peer describes the client. Its Conn may
// be nil. The Session has no Conn and no Reader, and its methods Next, Write and AsConn must not be
// called. It counts as one of ServerOptions.MaxConns, and ServerOptions.Connect may refuse its
// first call.
//
// ServeSession fails, and does not call serve, after Shutdown was called, and while MaxConns
// connections are open. Shutdown closes Session.Draining and waits for serve. ServeSession may be
// called concurrently, and does not need Serve.
func (s *Server) ServeSession(peer *Peer, serve func(*Session)) error {
	if err := s.conns.Admit(); err != nil {
		return err
	}
	peer.requests = &s.calls
	ses := newSession(s, nil, peer)
	closing, err := s.conns.Enter(ses, nil)
	if err != nil {
		return err
	}
	defer s.conns.Forget(ses)
	defer ses.conn.Wait()
	if closing {
		return ErrServerClosed
	}
	serve(ses)
	return nil
}
