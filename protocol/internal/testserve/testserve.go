// SPDX-License-Identifier: Apache-2.0

// Package testserve runs servers for the tests of protocols: a yodel server on a port of this
// machine, and a listener that answers with bytes of the test. All end with their test.
package testserve

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// Listen listens on a free TCP port of this machine.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	return listen(t, "127.0.0.1:0")
}

func listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Run serves s on l until the test ends or stop is called. Stop shuts the server down, and returns
// the error of Serve. It may be called again, and concurrently.
func Run(t testing.TB, s *yodel.Server, l net.Listener) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() }) // tests that care call it
	return stop
}

// A Listener calls a function for each connection to Addr.
type Listener struct {
	Addr string

	listener net.Listener
	all      sync.WaitGroup

	mu     sync.Mutex
	killed bool
	conns  []net.Conn
}

// Accept returns a Listener at addr, or at a free port for "". It calls f for each connection, each
// on a goroutine, and closes the connection when f has returned. The test waits for these
// goroutines at its end.
func Accept(t testing.TB, addr string, f func(net.Conn)) *Listener {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	s := &Listener{listener: listen(t, addr)}
	s.Addr = s.listener.Addr().String()
	s.all.Go(func() {
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			if s.killed {
				_ = conn.Close() // accepted at the last moment
			}
			s.mu.Unlock()
			s.all.Go(func() {
				defer conn.Close()
				f(conn)
			})
		}
	})
	t.Cleanup(s.Kill)
	return s
}

// Accepted returns how many connections were accepted.
func (s *Listener) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Cut closes the listener and cuts off all connections.
func (s *Listener) Cut() {
	_ = s.listener.Close() // it may be closed
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = true
	for _, conn := range s.conns {
		_ = conn.Close() // it may be closed
	}
}

// Kill is Cut, and waits until the function of the Listener has returned for all connections.
func (s *Listener) Kill() {
	s.Cut()
	s.all.Wait()
}

// A Log is the text of a log that several goroutines write.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String returns what was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
