// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net"
	std "net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// A connection serves the requests of one session with an http.Server of its own. So a drain, which
// http.Server has only for all of its connections, is that of this session.
type connection struct {
	router
	server std.Server
	tls    *tls.ConnectionState
	agent  sync.Once

	conn     ofSession
	accepted bool          // Accept has returned conn; only the goroutine of serve uses it
	begun    chan struct{} // closed when net/http, which knows conn then, has its first bytes
	begin    sync.Once     // closes begun
	closed   chan struct{} // closed when net/http has closed the connection, or the code that hijacked it
	closing  sync.Once     // closes closed
	hijacked atomic.Bool   // Options.Handler owns the connection
	watches  watches       // calls of the health protocol
	draining atomic.Bool   // Close does nothing, because http.Server calls it for connections without requests

	occupying sync.Mutex
	occupied  bool // a request is open; guarded by occupying

	// The goroutines of net/http may use the connection, and begin handlers, after it has reported
	// StateClosed. Then the session may have ended.
	handling sync.RWMutex // held for reading by handlers
	ended    bool         // handlers return at once; guarded by handling
	using    sync.RWMutex // held for reading by Read and Write
	over     bool         // Read and Write fail; guarded by using
}

func newConnection(ctx context.Context, p *Protocol, s *yodel.Session, conn ofSession) *connection {
	c := &connection{router: router{protocol: p, session: s}, conn: conn, tls: s.Peer.TLS(), begun: make(chan struct{}), closed: make(chan struct{})}
	limits := s.Limits()
	var protocols std.Protocols
	protocols.SetHTTP1(true)
	c.server = std.Server{
		Handler:           c,
		Protocols:         &protocols,
		ReadHeaderTimeout: limits.Handshake,
		IdleTimeout:       -1,                         // none: the session has one
		MaxHeaderBytes:    limits.MaxMetadata + 8<<10, // and the headers of HTTP itself
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState:         func(_ net.Conn, state std.ConnState) { c.state(ctx, state) },
		ErrorLog:          log.New(errorLog{p.opts.Logger}, "", 0),
	}
	return c
}

// serve returns when the connection has ended and no handler runs any more. A drain waits until
// net/http has begun to read.
func (c *connection) serve() error {
	defer c.conn.OnDrain(func() {
		select {
		case <-c.begun:
			c.watches.wait()
			c.drain()
		case <-c.closed:
		}
	})()
	c.start()
	<-c.closed
	c.finish()
	return nil
}

// start starts the goroutine of net/http. It and finish are no parts of serve, because their frames
// would stay on the stack as long as the connection.
//
//go:noinline
func (c *connection) start() {
	_ = c.server.Serve(c) // it returns as soon as Accept fails
	if !c.accepted {
		c.end() // net/http has failed before it accepted the connection
	}
}

//go:noinline
func (c *connection) finish() {
	_ = c.conn.Close() // Close may have done nothing
	c.handling.Lock()
	c.ended = true
	c.handling.Unlock()
	c.using.Lock() // conn is closed, so that nothing holds it for long
	c.over = true
	c.using.Unlock()
}

// drain tells the client with the next reply that the connection will be closed. The session ends
// the connection when no request is open any more. Shutdown would make net/http drop the next
// request instead of answering it.
func (c *connection) drain() {
	c.draining.Store(true)
	defer c.draining.Store(false)
	c.server.SetKeepAlivesEnabled(false)
}

// sayClose makes a response say that the connection ends if the session drains. The goroutine that
// calls drain may not have done so yet.
func (c *connection) sayClose() {
	select {
	case <-c.session.Draining():
		c.server.SetKeepAlivesEnabled(false)
	default:
	}
}

// state is called by net/http.
func (c *connection) state(ctx context.Context, state std.ConnState) {
	switch state {
	case std.StateNew: // it is idle
	case std.StateActive:
		c.occupy()
	case std.StateIdle:
		c.vacate()
	case std.StateClosed:
		c.vacate()
		c.end()
	case std.StateHijacked:
		c.hijacked.Store(true)
		done := c.session.Busy()
		c.session.Go(func() { c.lend(ctx, done) })
		c.vacate()
	}
}

// occupy makes the session busy, from the first bytes of a request until net/http has written the
// last response. A session that is not busy may be drained, and net/http does not write what is
// left of a response of HTTP/2 when it reads the end of the connection.
func (c *connection) occupy() {
	c.occupying.Lock()
	defer c.occupying.Unlock()
	if !c.occupied {
		c.occupied = true
		c.conn.Busy(1)
	}
}

// vacate ends occupy.
func (c *connection) vacate() {
	c.occupying.Lock()
	defer c.occupying.Unlock()
	if c.occupied {
		c.occupied = false
		c.conn.Busy(-1)
	}
}

// lend waits until the code that has hijacked the connection closes it. Until the server drains,
// Limits.IdleTimeout does not apply. When ctx ends, the code has lost the connection.
func (c *connection) lend(ctx context.Context, done func()) {
	select {
	case <-c.closed:
	case <-ctx.Done():
	case <-c.session.Draining():
	}
	done()
	select {
	case <-c.closed:
	case <-ctx.Done():
		c.end()
	}
}

func (c *connection) end() { c.closing.Do(func() { close(c.closed) }) }

// ServeHTTP implements http.Handler for all requests of the connection.
func (c *connection) ServeHTTP(w std.ResponseWriter, r *std.Request) {
	c.handling.RLock()
	defer c.handling.RUnlock()
	if c.ended {
		return
	}
	if r.URL.Path == "/"+watchMethod {
		defer c.watches.begin()()
	}
	c.agent.Do(func() {
		peer := c.session.Peer
		peer.Agent, peer.Name = r.UserAgent(), httpwire.Caller(r.UserAgent())
	})
	if r.TLS == nil {
		r.TLS = c.tls
	}
	c.route(w, r)
	c.sayClose()
}

// Accept implements net.Listener. It returns the connection of the session, once.
func (c *connection) Accept() (net.Conn, error) {
	if c.accepted {
		return nil, net.ErrClosed
	}
	c.accepted = true
	return (*closer)(c), nil
}

// Close implements net.Listener. It leaves the connection open.
func (c *connection) Close() error { return nil }

// Addr implements net.Listener.
func (c *connection) Addr() net.Addr { return c.conn.LocalAddr() }

// A closer is the connection that net/http uses.
type closer connection

func (c *closer) LocalAddr() net.Addr                 { return c.conn.LocalAddr() }
func (c *closer) RemoteAddr() net.Addr                { return c.conn.RemoteAddr() }
func (c *closer) SetDeadline(at time.Time) error      { return c.conn.SetDeadline(at) }
func (c *closer) SetReadDeadline(at time.Time) error  { return c.conn.SetReadDeadline(at) }
func (c *closer) SetWriteDeadline(at time.Time) error { return c.conn.SetWriteDeadline(at) }

// Read implements net.Conn.
func (c *closer) Read(b []byte) (int, error) {
	c.using.RLock()
	defer c.using.RUnlock()
	if c.over {
		return 0, net.ErrClosed
	}
	n, err := c.conn.Read(b)
	c.begin.Do(func() { // there are more bytes than three, or Match would not know the protocol
		close(c.begun)
	})
	return n, err
}

// Write implements net.Conn.
func (c *closer) Write(b []byte) (int, error) {
	c.using.RLock()
	defer c.using.RUnlock()
	if c.over {
		return 0, net.ErrClosed
	}
	return c.conn.Write(b)
}

// Close implements net.Conn.
func (c *closer) Close() error {
	if c.draining.Load() {
		return nil
	}
	if c.hijacked.Load() {
		(*connection)(c).end()
	}
	return c.conn.Close()
}

// An errorLog passes the panics of Options.Handler to a slog.Logger. It drops the other lines of
// net/http, which say what clients did wrong.
type errorLog struct{ *slog.Logger }

func (l errorLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic serving")) {
		cmp.Or(l.Logger, slog.Default()).Error("yodel: a handler of HTTP requests panicked", "what", string(line))
	}
	return len(line), nil
}
