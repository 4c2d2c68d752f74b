// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// maxRefusals bounds how many connections are refused at the same time. Together with Options.Max
// it bounds the goroutines of connections.
const maxRefusals = 64

// The pauses after an Accept that failed.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// Listen adds a listener. Accept must follow. It fails if the server is shut down.
func (s *Conns[C]) Listen(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return s.o.Closed
	}
	s.listeners = append(s.listeners, l)
	s.arriving++
	s.accepting++
	return nil
}

// Accept accepts connections from l until Stop closes it, and then returns Options.Closed. It calls
// serve for each one on a goroutine of its own. If refused is nil, the connection is admitted, and
// serve calls Enter or Leave. Otherwise serve closes it. When too many connections are being
// refused, Accept waits.
func (s *Conns[C]) Accept(l net.Listener, serve func(nc net.Conn, refused error)) error {
	defer s.ended(true) // also if the listener panics
	pause := firstPause
	for {
		nc, err := l.Accept()
		if err == nil {
			pause = firstPause
			s.begin(nc, serve)
			continue
		}
		if s.Stopping() {
			return s.o.Closed
		}
		if errors.Is(err, net.ErrClosed) {
			s.o.Failed(l, err, 0)
			return fmt.Errorf("accept: %w", err)
		}
		s.o.Failed(l, err, pause)
		select {
		case <-time.After(pause):
		case <-s.stopped:
		}
		pause = min(2*pause, lastPause)
	}
}

// begin admits or refuses a connection and calls serve.
func (s *Conns[C]) begin(nc net.Conn, serve func(nc net.Conn, refused error)) {
	refused, token := s.Admit(), false
	if refused != nil {
		select {
		case s.refusals <- struct{}{}:
			token = true
		case <-s.stopped: // l is closed, so not many more will come
		}
	}
	s.mu.Lock()
	s.arriving++
	s.mu.Unlock()
	go func() {
		defer s.ended(false)
		if token {
			defer func() { <-s.refusals }()
		}
		serve(nc, refused)
	}()
}

// ended notes that a connection or an accept loop no longer counts as arriving.
func (s *Conns[C]) ended(loop bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arriving--; loop {
		s.accepting-- // together with arriving, so that a loop that ends does not count as a connection
	}
	s.emptyLocked()
}

// Transport names the transport of a listener for the log, for example "tcp+tls". Raw is the
// listener without the wrappers of the server.
func Transport(l, raw net.Listener) string {
	name := l.Addr().Network()
	if strings.HasPrefix(fmt.Sprintf("%T", raw), "*tls.") { // of package transport/tls or crypto/tls
		name += "+tls"
	}
	return name
}
