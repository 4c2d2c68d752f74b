// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"crypto/tls"
	"io"
	"net"
	"time"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// Conn returns a connection that passes calls to nc, which may be code of a user's transport. A
// method of nc that panics, or whose error panics, fails. If Read, Write or setting a deadline
// ends its goroutine, that of the caller ends. So the caller unlocks with defer. An address with
// code of the user becomes one that has only its text.
func (g *Guard) Conn(nc net.Conn) net.Conn {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		return nc
	}
	c := conn{nc, g}
	if of, ok := nc.(secured); ok {
		return secureConn{c, of}
	}
	return c
}

type conn struct {
	nc    net.Conn
	guard *Guard
}

func (c conn) Read(b []byte) (n int, err error) {
	return isolate.Transfer(func(b []byte) (int, error) { return c.nc.Read(b) }, b, c.readFailed)
}

func (c conn) readFailed(value any) error  { return c.broken("a connection's Read", value) }
func (c conn) writeFailed(value any) error { return c.broken("a connection's Write", value) }

// broken closes the connection, because a later Read or Write might not fail: a TLS handshake that
// panicked would begin again, and wait.
func (c conn) broken(what string, value any) error {
	err := userCode{c.guard, what}.failed(value)
	_ = c.Close() // err says why
	return err
}

func (c conn) Write(b []byte) (n int, err error) {
	n, err = isolate.Transfer(func(b []byte) (int, error) { return c.nc.Write(b) }, b, c.writeFailed)
	if n < len(b) && err == nil {
		err = io.ErrShortWrite
	}
	return n, err
}

func (c conn) Close() error {
	return c.guard.Apart("a connection's Close", nil, func() error { return c.nc.Close() })
}

func (c conn) SetDeadline(t time.Time) error      { return c.limit(net.Conn.SetDeadline, t) }
func (c conn) SetReadDeadline(t time.Time) error  { return c.limit(net.Conn.SetReadDeadline, t) }
func (c conn) SetWriteDeadline(t time.Time) error { return c.limit(net.Conn.SetWriteDeadline, t) }

// limit sets a deadline. It is called for each message, so it starts no goroutine.
func (c conn) limit(set func(net.Conn, time.Time) error, t time.Time) (err error) {
	returned := false
	defer func() {
		if !returned {
			err = userCode{c.guard, "a deadline of a connection"}.failed(recover())
		}
	}()
	err = isolate.Tried(set(c.nc, t))
	returned = true
	return err
}

func (c conn) LocalAddr() net.Addr { return c.guard.addr(func() net.Addr { return c.nc.LocalAddr() }) }
func (c conn) RemoteAddr() net.Addr {
	return c.guard.addr(func() net.Addr { return c.nc.RemoteAddr() })
}

// A secured is a connection with TLS.
type secured interface{ ConnectionState() tls.ConnectionState }

type secureConn struct {
	conn
	of secured
}

func (c secureConn) ConnectionState() (state tls.ConnectionState) {
	_ = c.guard.Apart("a connection's ConnectionState", nil, func() error { // a failure is in the log
		state = c.of.ConnectionState()
		return nil
	})
	return state
}

// Listener returns a listener that passes calls to l. Its Close and Addr are as those of Conn. Its
// Accept is that of l.
func (g *Guard) Listener(l net.Listener) net.Listener {
	switch l.(type) {
	case *net.TCPListener, *net.UnixListener:
		return l
	}
	return listener{l, g}
}

type listener struct {
	net.Listener
	guard *Guard
}

func (l listener) Close() error {
	return l.guard.Apart("a listener's Close", nil, func() error { return l.Listener.Close() })
}

func (l listener) Addr() net.Addr {
	return l.guard.addr(func() net.Addr { return l.Listener.Addr() })
}

// addr returns the address that of returns, or one whose methods run no code of the user.
func (g *Guard) addr(of func() net.Addr) net.Addr {
	a := net.Addr(addr{"unknown", "unknown"})
	_ = g.Apart("the address of a connection", nil, func() error { // a failure is in the log
		switch known := of().(type) {
		case *net.TCPAddr, *net.UnixAddr:
			a = known
		default:
			a = addr{known.Network(), known.String()}
		}
		return nil
	})
	return a
}

// An addr is the text of an address.
type addr struct{ network, text string }

func (a addr) Network() string { return a.network }
func (a addr) String() string  { return a.text }
