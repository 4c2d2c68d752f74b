// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// triesPerServer is how many times a session tries to connect to each of its servers.
const triesPerServer = 3

// A session is a session with the ZooKeeper servers. The library reconnects after a lost
// connection, and starts a new ZooKeeper session when the old one has expired. But a server that
// has lost its data refuses forever a client that has seen newer data. Also, the library does not
// report the changes that a watch has missed. In both cases the session is over, and the store
// begins another one.
type session struct {
	conn   *zk.Conn
	secure *tls.Config    // nil for none
	limit  time.Duration  // how long a new connection may take to get a session
	tries  int            // failed attempts to connect that end the session: the servers may have new addresses
	heard  func(zk.Event) // of a watch, whose session is over when its connection is lost; else nil
	isOver chan struct{}  // closed when the session can no longer be used

	mu      sync.Mutex
	line    *line // the current connection
	greeted bool  // whether the current connection has a session
	over    bool  // whether isOver is closed
	ended   bool  // whether end was called
	failed  int   // failed attempts to connect since the last success

	auth   sync.Mutex
	authed bool

	joined  int // how many watches have joined it; guarded by joining of the store
	sharing sync.Mutex
	watches map[string]map[*watch]bool // by node, of a session that watches share
}

// announcing returns the session that owns the records. If that session is over, it begins another
// one.
func (s *store) announcing() (*session, error) {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	if s.current != nil {
		if !s.current.isEnded() {
			return s.current, nil
		}
		s.end(s.current)
	}
	var err error
	s.current, err = s.begin(nil, false)
	return s.current, err
}

// maxJoined is how many watches join a session. The library keeps what a watch has asked for until
// the session ends, so a session does not live forever.
const maxJoined = 1000

// join returns a session in which the events of w's node and its children are passed to w.
// ZooKeeper takes 60 connections from a host by default (maxClientCnxns), and a console follows all
// services.
func (s *store) join(w *watch) (*session, error) {
	s.joining.Lock()
	defer s.joining.Unlock()
	x := s.joinable
	if x != nil && (x.joined == maxJoined || x.isEnded()) {
		x = nil
	}
	if x == nil {
		var err error
		if x, err = s.begin(nil, true); err != nil {
			return nil, err
		}
		s.joinable = x
	}
	x.joined++
	x.sharing.Lock()
	defer x.sharing.Unlock()
	if x.watches[w.node] == nil {
		x.watches[w.node] = make(map[*watch]bool)
	}
	x.watches[w.node][w] = true
	return x, nil
}

// leave ends what join has begun, and the session if no watch is left in it.
func (s *store) leave(x *session, w *watch) {
	s.joining.Lock()
	defer s.joining.Unlock()
	x.sharing.Lock()
	if delete(x.watches[w.node], w); len(x.watches[w.node]) == 0 {
		delete(x.watches, w.node)
	}
	left := len(x.watches)
	x.sharing.Unlock()
	if left > 0 {
		return
	}
	if s.joinable == x {
		s.joinable = nil
	}
	s.end(x)
}

// pass passes an event to the watches of its node, and of the node above.
func (x *session) pass(e zk.Event) {
	x.sharing.Lock()
	defer x.sharing.Unlock()
	for _, node := range []string{e.Path, path.Dir(e.Path)} {
		for w := range x.watches[node] {
			w.event(e)
		}
	}
}

func (x *session) isEnded() bool {
	select {
	case <-x.isOver:
		return true
	default:
		return false
	}
}

// begin begins a session without waiting for a connection. It resolves the names of the servers
// again each time.
func (s *store) begin(heard func(zk.Event), shared bool) (*session, error) {
	if s.wrong != nil {
		return nil, s.wrong
	}
	x := &session{secure: s.opts.TLS, limit: s.opts.Session, tries: triesPerServer * len(s.servers), heard: heard, isOver: make(chan struct{})}
	if shared {
		x.heard, x.watches = x.pass, make(map[string]map[*watch]bool)
	}
	conn, events, err := zk.Connect(s.servers, s.opts.Session, zk.WithLogger(silent{}), zk.WithLogInfo(false),
		zk.WithEventCallback(x.event), zk.WithDialer(x.dial))
	if err != nil {
		return nil, err
	}
	x.conn = conn
	drain := func() {
		for range events { // the callback has already handled them; events is closed when the library has ended
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

// endLocked ends a session on another goroutine, because the server may not answer.
func (s *store) endLocked(x *session) {
	if _, ok := s.sessions[x]; !ok {
		return
	}
	delete(s.sessions, x)
	s.wg.Go(x.end)
}

// end ends the session with the server. It does not wait for a server that does not answer.
func (x *session) end() {
	x.conn.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	x.overLocked()
	if x.line != nil {
		_ = x.line.Close() // otherwise the library would wait for the server's greeting
	}
}

// silent is the logger of the library. It discards all messages, because calls return the errors.
type silent struct{}

func (silent) Printf(string, ...any) {}

var errOver = errors.New("the session is over")

// dial opens a connection for the library.
func (x *session) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	x.mu.Lock()
	over := x.over || x.ended
	x.mu.Unlock()
	if over {
		return nil, errOver
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout) // the library has no context
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
		_ = x.line.Close() // the library does not close it when the session has expired
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

// A line is a connection on which the library may change deadlines only after the server has
// confirmed the session. Until then the session's own deadline applies, because the library would
// wait almost seven times the session timeout.
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

// event is the library's callback for all events.
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

// authenticate sends the credentials once. The library sends them again each time that it
// reconnects.
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
