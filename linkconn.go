// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// A linkConn is the connection that a Wire gets. It records the first bytes of both sides, by which
// the client recognizes a server that speaks another protocol than the Wire.
type linkConn struct {
	net.Conn
	full atomic.Bool // got needs no more bytes

	mu   sync.Mutex
	sent []byte // at most maxFirstSent bytes
	got  []byte // at most maxFirstGot bytes
}

// Limits of the recorded bytes.
const (
	maxFirstSent = 16
	maxFirstGot  = 64
)

// A secureLinkConn is a linkConn over TLS.
type secureLinkConn struct {
	*linkConn
	state func() tls.ConnectionState
}

// ConnectionState returns the state of TLS, as tls.Conn does.
func (c secureLinkConn) ConnectionState() tls.ConnectionState { return c.state() }

// recording returns the linkConn of nc, and the connection for the Wire.
func recording(nc net.Conn) (c *linkConn, forWire net.Conn) {
	c = &linkConn{Conn: nc}
	if secure, ok := nc.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c, secureLinkConn{c, secure.ConnectionState}
	}
	return c, c
}

// Read implements net.Conn.
func (c *linkConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.full.Load() {
		c.mu.Lock()
		c.got = append(c.got, b[:min(n, maxFirstGot-len(c.got))]...)
		c.full.Store(len(c.got) == maxFirstGot)
		c.mu.Unlock()
	}
	return n, err
}

// Write implements net.Conn. Only the bytes before the server's answer are recorded.
func (c *linkConn) Write(b []byte) (int, error) {
	if !c.full.Load() {
		c.mu.Lock()
		if len(c.got) == 0 {
			c.sent = append(c.sent, b[:min(len(b), maxFirstSent-len(c.sent))]...)
		}
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// foreign returns a *foreignError if the server certainly speaks another protocol. Then it has
// executed no call of this connection. Otherwise foreign returns nil.
func (c *linkConn) foreign(protocol string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !firstbytes.Foreign(c.sent, c.got) {
		return nil
	}
	return &foreignError{&mux.PrefaceError{Got: append([]byte(nil), c.got...)}, protocol}
}

// A foreignError says that the server does not speak the protocol of the Wire.
type foreignError struct {
	preface  *mux.PrefaceError
	protocol string
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("the server does not speak %s: %s", e.protocol, firstbytes.Describe(e.preface.Got))
}

func (e *foreignError) Unwrap() error { return e.preface }
