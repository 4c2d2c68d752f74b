// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A userConn is a connection of a user's listener that does harm in one method.
type userConn struct {
	net.Conn
	at   string
	harm func()
}

func (c *userConn) do(at string) {
	if c.at == at {
		c.harm()
	}
}

// A userAddr is the address of a userConn.
type userAddr struct{ c *userConn }

func (a userAddr) Network() string { a.c.do("Network"); return "user" }
func (a userAddr) String() string  { a.c.do("String"); return "user" }

// A userError is the error of a userConn.
type userError struct{ c *userConn }

func (e userError) Error() string        { e.c.do("Error"); return "harm" }
func (e userError) Unwrap() error        { e.c.do("Unwrap"); return nil }
func (e userError) Is(target error) bool { e.c.do("Is"); return false }
func (e userError) As(any) bool          { e.c.do("As"); return false }

func (c *userConn) Read(b []byte) (int, error) {
	c.do("Read")
	n, err := c.Conn.Read(b)
	if err != nil {
		err = userError{c}
	}
	return n, err
}

func (c *userConn) Write(b []byte) (int, error)   { c.do("Write"); return c.Conn.Write(b) }
func (c *userConn) LocalAddr() net.Addr           { c.do("LocalAddr"); return userAddr{c} }
func (c *userConn) RemoteAddr() net.Addr          { c.do("RemoteAddr"); return userAddr{c} }
func (c *userConn) SetDeadline(t time.Time) error { c.do("SetDeadline"); return c.Conn.SetDeadline(t) }
func (c *userConn) SetReadDeadline(t time.Time) error {
	c.do("SetReadDeadline")
	return c.Conn.SetReadDeadline(t)
}
func (c *userConn) SetWriteDeadline(t time.Time) error {
	c.do("SetWriteDeadline")
	return c.Conn.SetWriteDeadline(t)
}

func (c *userConn) Close() error {
	err := c.Conn.Close()
	c.do("Close")
	return err
}

// A userListener accepts userConns, and does harm in its own methods.
type userListener struct {
	net.Listener
	userConn
}

func (l *userListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &userConn{c, l.at, l.harm}, err
}

func (l *userListener) Addr() net.Addr { l.do("Addr"); return l.Listener.Addr() }

func (l *userListener) Close() error {
	err := l.Listener.Close()
	l.do("Close")
	return err
}

// A server survives each method of a user's listener, of its connections, and of their addresses
// and errors that panics or ends the goroutine, in yodel's own protocol and over HTTP. It shuts
// down with nothing left.
func TestMethodsOfConnectionsAreUserCode(t *testing.T) {
	t.Parallel()
	for _, at := range []string{
		"Addr", "Read", "Write", "Close", "LocalAddr", "RemoteAddr", "Network", "String", "Error", "Unwrap", "Is", "As",
		"SetDeadline", "SetReadDeadline", "SetWriteDeadline",
	} {
		for name, harm := range map[string]func(){"panics": func() { panic("harm") }, "exits": runtime.Goexit} {
			for _, protocols := range [][]yodel.Protocol{nil, {http.New(nil)}} {
				if at == "Write" && name == "exits" && protocols != nil {
					continue // package net/http then waits for the goroutine that wrote
				}
				t.Run(at+" "+name, func(t *testing.T) {
					t.Parallel()
					tcp, err := net.Listen("tcp", "127.0.0.1:0")
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					s := yodel.NewServer(&yodel.ServerOptions{Protocols: protocols, Logger: slog.New(slog.DiscardHandler)})
					served := make(chan error, 1)
					go func() { served <- s.Serve(ctx, &userListener{tcp, userConn{at: at, harm: harm}}) }()
					for range 2 {
						c := yodel.NewClient(discovery.Static(tcp.Addr().String()), &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler)})
						limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
						_ = c.Call(limited, "yodel.Ping", nil, nil) // it may fail
						cancel()
						c.Close()
						say(ctx, t, tcp.Addr().String(), "GET /yodel.Ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
						say(ctx, t, tcp.Addr().String(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
					}
					if err := s.Shutdown(ctx); err != nil {
						t.Errorf("Shutdown: %v", err)
					}
					if err := <-served; err != yodel.ErrServerClosed {
						t.Errorf("Serve: %v", err)
					}
				})
			}
		}
	}
}

// say sends text to a server and closes the connection when the server has answered or closed it.
func say(ctx context.Context, t *testing.T, addr, text string) {
	t.Helper()
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = io.WriteString(nc, text)
	_, _ = nc.Read(make([]byte, 100))
}
