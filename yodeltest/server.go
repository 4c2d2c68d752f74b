// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A Server is a yodel server that the clients of NewClient reach without a network. It works like
// any other server: it encodes messages and writes frames. In a testing/synctest bubble it runs in
// fake time.
type Server struct {
	*yodel.Server
	listener pipeListener
}

// NewServer returns a server without methods, which serves until the test ends. The server logs
// messages of level Warn and above to the test's output, unless o has a Logger. O may be nil. The
// Transport of o is not used.
//
// The test fails if a handler is still running at its end and does not return soon after its
// context is canceled.
func NewServer(t testing.TB, o *yodel.ServerOptions) *Server {
	t.Helper()
	opts := yodel.ServerOptions{}
	if o != nil {
		opts = *o
	}
	opts.Transport = nil // clients of NewClient use none
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	s := &Server{yodel.NewServer(&opts), pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, &s.listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, yodel.ErrServerClosed) {
			t.Errorf("the server ended with an error: %v", err)
		}
	})
	return s
}

// NewClient returns a client whose resolver reports the servers as the instances of one service. It
// closes the client when the test ends. O may be nil. The Transport of o is not used. The addresses
// in errors are server-1, server-2 and so on.
func NewClient(t testing.TB, o *yodel.ClientOptions, servers ...*Server) *yodel.Client {
	t.Helper()
	opts := yodel.ClientOptions{}
	if o != nil {
		opts = *o
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	named, addrs := make(pipeTransport), make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = fmt.Sprintf("server-%d", i+1)
		named[addrs[i]] = s
	}
	opts.Transport = named
	c := yodel.NewClient(discovery.Static(addrs...), &opts)
	t.Cleanup(c.Close)
	return c
}

// A pipeTransport connects to servers by their names.
type pipeTransport map[string]*Server

func (t pipeTransport) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return t[addr].listener.dial(ctx, addr)
}

func (pipeTransport) Listen(string) (net.Listener, error) {
	return nil, errors.New("servers are made with yodeltest.NewServer")
}

// A pipeListener accepts connections that are pipes within the process.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

var errRefused = errors.New("connection refused: the server has been shut down")

func (l *pipeListener) dial(ctx context.Context, addr string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- pipeConn{far, pipeAddr("client of " + addr)}:
		return pipeConn{near, pipeAddr(addr)}, nil
	case <-l.closed:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr("in memory") }

// A pipeConn is an end of a pipe with the name of its peer.
type pipeConn struct {
	net.Conn
	peer pipeAddr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.peer }

type pipeAddr string

func (pipeAddr) Network() string  { return "memory" }
func (a pipeAddr) String() string { return string(a) }
