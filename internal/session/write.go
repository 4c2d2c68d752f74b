// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"time"
)

// writePiece is how many bytes must go out within twice KeepAlive.
const writePiece = 64 << 10

// errInterrupted is the error of a Write whose goroutine the connection has ended.
var errInterrupted = errors.New("the connection's own code ended the goroutine that wrote")

// Write writes all of b. The bytes of concurrent calls do not mix. If the client does not accept
// 64 KiB within twice KeepAlive, or the write fails in another way, Write closes the connection,
// because a part of a message may have been sent.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing <- struct{}{}
	err = errInterrupted // remains if the connection ends the goroutine
	defer func() {
		if err != nil {
			c.writeFailed(err)
		}
		<-c.writing
	}()
	n, failed := c.writeNow(b)
	for n < len(b) && failed == nil {
		c.limitWrite()
		var wrote int
		wrote, failed = c.nc.Write(b[n:min(n+writePiece, len(b))])
		n += wrote
	}
	err = failed
	return n, err
}

// limitWrite sets the deadline of the next write.
func (c *Conn) limitWrite() {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(2 * c.o.KeepAlive)
	if !c.writeBy.IsZero() && c.writeBy.Before(at) {
		at = c.writeBy
	}
	_ = c.nc.SetWriteDeadline(at) // without support for deadlines, the write waits for the peer
}

// writeFailed ends a connection to which only a part of the bytes was written.
func (c *Conn) writeFailed(err error) {
	c.mu.Lock()
	if c.writeErr == nil {
		c.writeErr = err
	}
	c.mu.Unlock()
	_ = c.nc.Close() // the Reader fails too
}
