// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// triesPerServer is how often a session tries to connect to each of its servers.
const triesPerServer = 3

// A session is one with the servers. The library connects again when the connection was lost, and
// takes a new session when the old one has ended. But a server that has lost its data refuses who
// has seen some of it, for ever, and what a watch has missed meanwhile is not told: a session is
// then over, and another one begun.
type session struct {
	conn   *zk.Conn
	secure *tls.Config    // nil for none
	limit  time.Duration  // of the greeting
	tries  int            // to connect, in vain, until it is over: the servers may have got other addresses
	heard  func(zk.Event) // of a watch, which ends with its connection; else nil
	isOver chan struct{}  // closed when it is of no use any more

	mu      sync.Mutex
	line    *line // the connection
	greeted bool  // by it
	over    bool  // as isOver says
	ended   bool  // by end
	failed  int   // tries to connect

	auth   sync.Mutex
	authed bool
}

// announcing returns the session that records belong to.
func (s *store) announcing() (*session, error) {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	if s.current != nil {
		select {
		case <-s.current.isOver:
			s.end(s.current)
		default:
			return s.current, nil
		}
	}
	var err error
	s.current, err = s.begin(nil)
	return s.current, err
}

// begin begins a session, without waiting for a connection. The names of the servers are looked up
// again each time.
func (s *store) begin(heard func(zk.Event)) (*session, error) {
	x := &session{secure: s.opts.TLS, limit: s.opts.Session, tries: triesPerServer * len(s.servers), heard: heard, isOver: make(chan struct{})}
	conn, events, err := zk.Connect(s.servers, s.opts.Session, zk.WithLogger(silent{}), zk.WithLogInfo(false),
		zk.WithEventCallback(x.event), zk.WithDialer(x.dial))
	if err != nil {
		return nil, err
	}
	x.conn = conn
	drain := func() {
		for range events { // the callback has heard them; they end when the library has
			continue
		}
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.sessions[x] = struct{}{}
		s.wg.Go(drain)
	}
	s.mu.Unlock()
	if closed {
		x.end()
		drain()
		return nil, errClosed
	}
	return x, nil
}

// end ends a session.
func (s *store) end(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(x)
}

// endLocked ends a session, in the background if the server does not answer.
func (s *store) endLocked(x *session) {
	if _, ok := s.sessions[x]; !ok {
		return
	}
	delete(s.sessions, x)
	s.wg.Go(x.end)
}

// end tells the server, if it answers, that the session has ended.
func (x *session) end() {
	x.conn.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	if x.line != nil {
		_ = x.line.Close() // which would wait for the greeting else
	}
}

// silent is the library's log: what goes wrong is the error of a call.
type silent struct{}

func (silent) Printf(string, ...any) {}

var errOver = errors.New("the session is over")

// dial connects, for the library.
func (x *session) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	x.mu.Lock()
	over := x.over || x.ended
	x.mu.Unlock()
	if over {
		return nil, errOver
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // the library has none
	defer cancel()
	conn, err := x.connect(ctx, network, addr)
	if err != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.failed++; x.failed >= x.tries {
			x.overLocked()
		}
		return nil, err
	}
	if err = conn.SetDeadline(time.Now().Add(x.limit)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil, errors.Join(errOver, conn.Close())
	}
	if x.line != nil {
		_ = x.line.Close() // the library leaves it open when the session has ended
	}
	x.line = &line{Conn: conn}
	return x.line, nil
}

func (x *session) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if x.secure != nil {
		return (&tls.Dialer{Config: x.secure}).DialContext(ctx, network, addr)
	}
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// A line is a connection whose deadlines the library may change when the server has greeted: it
// would wait for that almost seven times as long as a session lasts.
type line struct {
	net.Conn

	greeted atomic.Bool
}

// SetReadDeadline implements net.Conn.
func (l *line) SetReadDeadline(t time.Time) error {
	if !l.greeted.Load() {
		return nil
	}
	return l.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (l *line) SetWriteDeadline(t time.Time) error {
	if !l.greeted.Load() {
		return nil
	}
	return l.Conn.SetWriteDeadline(t)
}

// event is called by the library for everything that happens.
func (x *session) event(e zk.Event) {
	if e.Type == zk.EventSession {
		x.mu.Lock()
		switch e.State { //nolint:exhaustive // others say nothing new
		case zk.StateHasSession:
			x.greeted, x.failed = true, 0
			x.line.greeted.Store(true)
		case zk.StateExpired:
			x.greeted = true
		case zk.StateDisconnected:
			if !x.greeted || x.heard != nil {
				x.overLocked()
			}
			x.greeted = false
		}
		x.mu.Unlock()
	}
	if x.heard != nil {
		x.heard(e)
	}
}

func (x *session) overLocked() {
	if !x.over {
		x.over = true
		close(x.isOver)
	}
}

// authenticate says who this is, once: the library does it again when it has connected again.
func (x *session) authenticate(username, password string) error {
	if username == "" {
		return nil
	}
	x.auth.Lock()
	defer x.auth.Unlock()
	if x.authed {
		return nil
	}
	err := x.conn.AddAuth("digest", []byte(username+":"+password))
	x.authed = err == nil
	return err
}
