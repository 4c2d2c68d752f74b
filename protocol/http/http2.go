// SPDX-License-Identifier: Apache-2.0

package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	std "net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/h2"
	"github.com/yodel-rpc/yodel/protocol/internal/h2http"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// This file serves connections of HTTP/2 with package h2.

// ofSession is a connection of Session.AsConn: see internal/session.
type ofSession interface {
	net.Conn
	OnDrain(f func()) (stop func())
	Busy(n int)
	Shared() *sync.Map
	First() []byte
	Take(drain func()) (nc net.Conn, first []byte, ok bool)
	Ended(here bool, err error)
}

// A multiplexed is a connection of HTTP/2.
type multiplexed struct {
	router
	limits   yodel.Limits
	most     int // the size of the largest message of a request, in bytes
	conn     *h2.Conn
	requests h2http.Handler
	direct   bool // methods is used
	methods  *directs
	agent    sync.Once
	watches  watches       // calls of the health protocol
	begun    chan struct{} // closed when conn is set
	taken    ofSession
	err      error // of Protocol.Serve
}

// maxStreams is the largest number of requests that a client may have open on a connection.
const maxStreams = 1024

// The bytes of a request that nobody reads, because its handler does not or because it waits for
// memory, fill the window of its stream and as much of the window of the connection. No request of
// the connection proceeds while that window is full. With these windows it takes 31 requests. No
// budget counts unread bytes, so the window of the connection is small.
const (
	connWindow   = 4<<20 - streamWindow
	streamWindow = 128 << 10
)

// mostUnsent is how many bytes may wait for a client to read them. Replies beyond it wait in the
// memory of their calls.
const mostUnsent = 256 << 10

// multiplex returns the server of a connection, and what was read from it. It returns nil if the
// connection has ended.
func (p *Protocol) multiplex(ctx context.Context, s *yodel.Session, conn ofSession) (c *multiplexed, first []byte) {
	c = &multiplexed{router: router{protocol: p, session: s}, limits: s.Limits(), direct: p.takesDirect(), taken: conn, begun: make(chan struct{})}
	nc, first, ok := conn.Take(c.drain)
	if !ok {
		return nil, nil
	}
	limits := &c.limits
	c.most = limits.MaxMessage
	if n := p.opts.MaxRequest; n > 0 {
		c.most = min(c.most, n)
	}
	ctx = context.WithValue(ctx, std.LocalAddrContextKey, conn.LocalAddr())
	c.requests = h2http.Handler{
		Handler: c, Context: context.WithValue(ctx, std.ServerContextKey, &p.server), Remote: conn.RemoteAddr().String(), TLS: s.Peer.TLS(),
		Drain: func() { c.conn.Drain() }, Panicked: c.logPanic,
	}
	config := h2.Config{
		Handler: c, Watch: p.watch, Reserve: s.Reserve, Release: s.Release, Active: c.active,
		MaxStreams:    min(limits.MaxOpen, maxStreams),
		MaxHeaderList: limits.MaxMetadata + 8<<10, // and the headers of HTTP itself
		StreamWindow:  streamWindow,
		ConnWindow:    connWindow,
		MaxUnsent:     min(limits.MaxUnsent, mostUnsent),
		BodyTimeout:   2*limits.KeepAlive + mostDirect*time.Second/leastPace,
		Handshake:     limits.Handshake,
		KeepAlive:     max(limits.KeepAlive, time.Second),
		IdleTimeout:   limits.IdleTimeout,
	}
	if c.direct {
		known, _ := conn.Shared().LoadOrStore(p, &directs{media: make(map[string]*fieldUse), paths: make(map[string]*pathUse)})
		c.methods = known.(*directs) //nolint:forcetypeassert // p stores nothing else
		config.Meaning = c.meaning
	}
	c.conn = h2.New(nc, config)
	close(c.begun)
	p.clock.join(c.conn, limits.MaxAge)
	return c, first
}

// ended tells the session why the connection has ended.
func (c *multiplexed) ended(err error) {
	_, fault := errors.AsType[*h2.Fault](err)
	switch here := c.conn.Drained(); {
	case here || errors.Is(err, io.EOF):
		c.taken.Ended(here, nil)
		return
	case fault:
		c.taken.Ended(false, nil)
	default:
		c.taken.Ended(false, err) // an error of the network, which is no breach of the protocol
	}
	c.err = err
}

// drain ends the connection when its requests have ended. It gives clients of the health protocol
// time to learn of it first.
func (c *multiplexed) drain() {
	<-c.begun
	c.watches.wait()
	c.conn.Drain()
}

// ServeHTTP implements http.Handler for all requests of the connection.
func (c *multiplexed) ServeHTTP(w std.ResponseWriter, r *std.Request) {
	if r.URL.Path == "/"+watchMethod {
		defer c.watches.begin()()
	}
	c.know(r.UserAgent())
	c.route(w, r)
}

// know stores who the client is, before its first call begins.
func (c *multiplexed) know(agent string) {
	c.agent.Do(func() {
		peer := c.session.Peer
		peer.Agent, peer.Name = agent, httpwire.Caller(agent)
	})
}

// logPanic logs a panic of Options.Handler. The goroutine that has panicked calls it. The logger is
// code of users.
func (c *multiplexed) logPanic(value any) {
	stack := debug.Stack()
	guarded(c.session, func() {
		what := fmt.Sprintf("panic serving %v: %v\n%s", c.session.Peer.Addr, value, stack)
		cmp.Or(c.protocol.opts.Logger, slog.Default()).Error("yodel: a handler of HTTP requests panicked", "what", what)
	})
}

// active is the Active of the connection's h2.Config.
func (c *multiplexed) active() { c.protocol.clock.hurry(c.conn) }

// A clock calls Tick of the connections of HTTP/2, while there are any.
type clock struct {
	mu    sync.Mutex
	began time.Time
	conns map[*h2.Conn]ticking
	timer *time.Timer
}

// A ticking says when a connection needs its clock.
type ticking struct {
	until   int64 // it is drained then; 0 for never
	due     int64 // of the next Tick
	hurried bool  // hurry was called since the last Tick has begun
}

// tick is how often a clock ticks.
const tick = time.Second

// join makes a connection tick until the caller calls leave. The connection is drained after its
// age, with a jitter of a tenth, if the age is not zero.
func (c *clock) join(conn *h2.Conn, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) == 0 {
		c.began, c.conns = time.Now().Add(-tick), make(map[*h2.Conn]ticking)
		c.timer = time.AfterFunc(tick, c.tick)
	}
	until := int64(0)
	if age > 0 {
		until = int64(time.Since(c.began) + age - age/10 + rand.N(age/5+1)) // #nosec G404 -- a jitter is no secret
	}
	c.conns[conn] = ticking{until: until}
}

// hurry makes a connection tick next time.
func (c *clock) hurry(conn *h2.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok := c.conns[conn]; ok {
		t.due, t.hurried = 0, true
		c.conns[conn] = t
	}
}

func (c *clock) leave(conn *h2.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.conns, conn); len(c.conns) == 0 {
		c.timer.Stop()
	}
}

func (c *clock) tick() {
	c.mu.Lock()
	now := int64(time.Since(c.began))
	var due, old []*h2.Conn
	for conn, t := range c.conns {
		if t.until > 0 && now >= t.until {
			old = append(old, conn)
		}
		if now >= t.due {
			due = append(due, conn)
			t.hurried = false
			c.conns[conn] = t
		}
	}
	if len(c.conns) > 0 {
		c.timer.Reset(tick)
	}
	c.mu.Unlock()
	for _, conn := range old {
		conn.Drain()
	}
	for _, conn := range due { // without the lock: a connection may wait for that of its own
		next := conn.Tick(now)
		c.mu.Lock()
		if t, ok := c.conns[conn]; ok && !t.hurried && next > now+int64(tick) {
			t.due = next
			c.conns[conn] = t
		}
		c.mu.Unlock()
	}
}
