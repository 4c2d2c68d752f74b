// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// AsConn returns the connection for a Protocol that passes it to other code, for example to package
// net/http, instead of using Reader, which becomes nil, Next and Write. Read first returns the
// bytes from which the server has recognized the protocol. Read returns io.EOF when the server
// drains and no call was open for 50 ms, and when no call was open for Limits.IdleTimeout. Write is
// Session.Write. The other code may set deadlines, which apply in addition. Admit does not read
// ahead, so the other code has to notice that the client disconnects, and to call Cancel.
func (ses *Session) AsConn() net.Conn {
	c := &sessionConn{ses: ses}
	c.buffered = bufio.NewReaderSize(unbufferedConn{c}, connBuffer)
	ses.Reader = nil
	ses.Release(sessionBuffer - connBuffer)
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.passed = true
	return c
}

// connBuffer is the size of the buffer of a sessionConn, in bytes.
const connBuffer = 4 << 10

// A sessionConn is a Session as a net.Conn. Its reads are buffered, because net/http reads each
// frame of HTTP/2 in two parts.
type sessionConn struct {
	ses      *Session
	buffered *bufio.Reader // of an unbufferedConn

	// Guarded by ses.mu.
	readBy time.Time // the deadline that the other code has set
}

// Read implements net.Conn.
func (c *sessionConn) Read(b []byte) (int, error) { return c.buffered.Read(b) }

// An unbufferedConn reads what a sessionConn buffers.
type unbufferedConn struct{ *sessionConn }

// Read implements io.Reader.
func (c unbufferedConn) Read(b []byte) (int, error) {
	ses := c.ses
	if len(ses.first) > 0 {
		n := copy(b, ses.first)
		ses.first = ses.first[n:]
		return n, nil
	}
	for {
		c.limit()
		n, err := ses.Conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			ses.readFailed(err)
			return n, err
		}
		ses.mu.Lock()
		theirs := !c.readBy.IsZero() && !time.Now().Before(c.readBy)
		ses.mu.Unlock()
		switch {
		case theirs:
			return 0, err
		case ses.quiet.Load():
			return 0, io.EOF
		case ses.idle():
			ses.mu.Lock()
			ses.idled = true
			ses.mu.Unlock()
			return 0, io.EOF
		}
	}
}

// limit applies the earlier deadline of reads: that of the session, or that of the other code.
func (c *sessionConn) limit() {
	at := c.ses.idleAt(time.Now())
	c.ses.mu.Lock()
	defer c.ses.mu.Unlock() // also if the connection ends the goroutine
	if c.ses.quiet.Load() {
		return // wakeLocked has ended all reads
	}
	if !c.readBy.IsZero() && (at.IsZero() || c.readBy.Before(at)) {
		at = c.readBy
	}
	_ = c.ses.Conn.SetReadDeadline(at) // without support for deadlines, the read waits for the peer
}

// Write implements net.Conn.
func (c *sessionConn) Write(b []byte) (int, error) { return c.ses.Write(b) }

// Close implements net.Conn.
func (c *sessionConn) Close() error { return c.ses.Conn.Close() }

// LocalAddr implements net.Conn.
func (c *sessionConn) LocalAddr() net.Addr { return c.ses.Conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *sessionConn) RemoteAddr() net.Addr { return c.ses.Peer.Addr }

// SetDeadline implements net.Conn.
func (c *sessionConn) SetDeadline(at time.Time) error {
	_ = c.SetWriteDeadline(at) // it never fails
	return c.SetReadDeadline(at)
}

// SetReadDeadline implements net.Conn.
func (c *sessionConn) SetReadDeadline(at time.Time) error {
	c.ses.mu.Lock()
	c.readBy = at
	c.ses.mu.Unlock()
	c.limit()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *sessionConn) SetWriteDeadline(at time.Time) error {
	c.ses.mu.Lock()
	defer c.ses.mu.Unlock()
	c.ses.writeBy = at
	if !at.IsZero() {
		_ = c.ses.Conn.SetWriteDeadline(at) // as above; a Write that begins later takes writeBy into account
	}
	return nil
}
