// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"os"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/socket"
)

// A direct is the socket of a connection. Its reads and writes cost less than those of a net.Conn.
// The deadlines of the net.Conn apply to them.
type direct struct {
	socket.Conn
	count atomic.Uint64         // of the system calls that write
	try   func(fd uintptr) bool // made once: a closure for each read would be an allocation

	// Of the running read.
	buf []byte
	n   int
	err error
}

// read is as Read of the net.Conn. One goroutine at a time may call it.
func (c *Conn) read(b []byte) (int, error) {
	d := &c.socket
	if !d.Exists() || len(b) == 0 {
		return c.nc.Read(b)
	}
	if d.try == nil {
		d.try = d.receive
	}
	d.buf, d.n, d.err = b, 0, nil
	err := d.Await(d.try)
	d.buf = nil
	if d.n > 0 || d.err != nil {
		err = d.err
	}
	return d.n, err
}

func (d *direct) receive(fd uintptr) (done bool) {
	d.n, d.err = socket.Receive(fd, d.buf)
	return d.n > 0 || d.err != nil
}

// writeNow writes what the socket takes at once.
func (c *Conn) writeNow(b []byte) (n int, err error) {
	if !c.socket.Exists() {
		return 0, nil
	}
	n, err = c.socket.Write(&c.socket.count, b)
	if errors.Is(err, os.ErrDeadlineExceeded) { // it may be the deadline of an earlier write
		err = nil
	}
	return n, err
}
