// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// AsConn returns the connection for code that reads and writes it by itself, such as package
// net/http. The connection also has the methods OnDrain, Busy, Shared, First, Take and Ended.
// Reader and Next must not be used then, and no call reads ahead. Read begins with the first byte.
// It returns io.EOF when a drain has ended reading and when the connection is idle. Write is
// Conn.Write. The other code may set deadlines, which apply in addition. Remote is the address of
// the client.
func (c *Conn) AsConn(remote net.Addr) net.Conn {
	n := &netConn{conn: c, remote: remote}
	c.Release(BufferSize - connBuffer)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed, c.reader = true, nil
	return n
}

// Take returns the bare connection, for code that bounds its reads, writes and idle time by itself,
// and the bytes from which the server has recognized the protocol. The methods of c must not be
// used then. Drain is called once when the server drains, perhaps at once, on another goroutine.
// The code has to end the connection then, when its calls have ended. If the drain has ended
// reading already, ok is false.
func (c *netConn) Take(drain func()) (nc net.Conn, first []byte, ok bool) {
	conn := c.conn
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if conn.quiet.Load() {
		return nil, nil, false
	}
	conn.onDrain = drain
	conn.changedLocked()
	first, conn.first = conn.first, nil
	return conn.nc, first, true
}

// Ended stores why a connection that was taken has ended: because this side has drained it, or with
// an error of the connection, which may be nil. The goroutine of the protocol may end then.
func (c *netConn) Ended(here bool, err error) {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.conn.told, c.conn.idled, c.conn.readErr = true, here, err
}

// Told reports whether Ended was called.
func (c *Conn) Told() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// OnDrain makes the connection call f on another goroutine when the server drains, perhaps at once.
// The function stop prevents that, or waits until f has returned.
func (c *netConn) OnDrain(f func()) (stop func()) {
	conn, ended := c.conn, make(chan struct{})
	call := func() {
		defer close(ended)
		f()
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	select {
	case <-conn.draining:
		go call()
	default:
		conn.warn = call
	}
	return func() {
		if conn.takeWarn() == nil {
			<-ended
		}
	}
}

// takeWarn returns the function of OnDrain, once.
func (c *Conn) takeWarn() (warn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	warn, c.warn = c.warn, nil
	return warn
}

// Busy is Conn.Busy.
func (c *netConn) Busy(n int) { c.conn.Busy(n) }

// Shared returns what protocols keep for all connections of the server.
func (c *netConn) Shared() *sync.Map { return &c.conn.o.Shared }

// First returns the bytes from which the server has recognized the protocol, until Read is called.
func (c *netConn) First() []byte { return c.conn.first }

// connBuffer is the size of the buffer that the code which reads a netConn has, in bytes.
const connBuffer = 4 << 10

// A netConn is a Conn as a net.Conn.
type netConn struct {
	conn   *Conn
	remote net.Addr

	// Guarded by conn.mu.
	readBy time.Time // the deadline that the other code has set
}

// Read implements net.Conn.
func (c *netConn) Read(b []byte) (int, error) {
	conn := c.conn
	if n := conn.takeFirst(b); n > 0 {
		return n, nil
	}
	for {
		c.limit()
		n, err := conn.read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			conn.readFailed(err)
			return n, err
		}
		conn.mu.Lock()
		theirs := !c.readBy.IsZero() && !time.Now().Before(c.readBy)
		conn.mu.Unlock()
		switch {
		case theirs:
			return 0, err
		case conn.quiet.Load(), conn.idle():
			return 0, io.EOF
		}
	}
}

// limit applies the earlier deadline of reads: that of the Conn, or that of the other code.
func (c *netConn) limit() {
	at := c.conn.idleAt(time.Now())
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock() // also if the connection ends the goroutine
	if c.conn.quiet.Load() {
		return // wakeLocked has ended all reads
	}
	if !c.readBy.IsZero() && (at.IsZero() || c.readBy.Before(at)) {
		at = c.readBy
	}
	if !c.conn.servesLocked(at) {
		c.conn.deadline = at
		_ = c.conn.nc.SetReadDeadline(at) // without support for deadlines, the read waits for the peer
	}
}

// Write implements net.Conn.
func (c *netConn) Write(b []byte) (int, error) { return c.conn.Write(b) }

// Close implements net.Conn.
func (c *netConn) Close() error { return c.conn.nc.Close() }

// LocalAddr implements net.Conn.
func (c *netConn) LocalAddr() net.Addr { return c.conn.nc.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *netConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *netConn) SetDeadline(at time.Time) error {
	_ = c.SetWriteDeadline(at) // it never fails
	return c.SetReadDeadline(at)
}

// SetReadDeadline implements net.Conn.
func (c *netConn) SetReadDeadline(at time.Time) error {
	c.conn.mu.Lock()
	c.readBy = at
	c.conn.mu.Unlock()
	c.limit()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *netConn) SetWriteDeadline(at time.Time) error {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.conn.writeBy = at
	if !at.IsZero() {
		_ = c.conn.nc.SetWriteDeadline(at) // as above; a Write that begins later takes writeBy into account
	}
	return nil
}
