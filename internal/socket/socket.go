// SPDX-License-Identifier: Apache-2.0

// Package socket reads and writes plain sockets without the Go scheduler where that saves time. It
// has what the standard library has not: writes that do not block, reads that poll or nap before
// the goroutine sleeps, and reads into several pieces of memory. It also says what a system knows
// of the other side.
//
// What a system cannot do is in the file for that system. On a system without direct access to
// sockets, Of finds no socket, and the caller uses Read and Write of its connection. The build tag
// indirect makes a system one of these, for tests.
package socket

import (
	"net"
	"sync/atomic"
	"syscall"
)

// MaxParts is how many parts one Read of a Scatterer fills at most.
const MaxParts = 10

// A Conn is a socket. The zero value has none. One goroutine at a time may read, and one may write.
type Conn struct{ raw syscall.RawConn }

// Exists reports whether there is a socket.
func (c Conn) Exists() bool { return c.raw != nil }

// ReadNow reads what has arrived. It returns 0 and no error if nothing has.
func (c Conn) ReadNow(buf []byte) (int, error) { return c.read(buf, 0, false) }

// Write writes the bytes that the socket takes at once. It increments count with each system call.
func (c Conn) Write(count *atomic.Uint64, buf []byte) (int, error) {
	n, _, err := c.write(count, buf, nil)
	return n, err
}

// WriteParts writes the bytes of parts that the socket takes at once, and returns the rest. It
// increments count with each system call.
func (c Conn) WriteParts(count *atomic.Uint64, parts net.Buffers) (n int, left net.Buffers, err error) {
	return c.write(count, nil, parts)
}

// Await calls f with the descriptor of the socket until f returns true. Before each further call it
// waits until data may have arrived. So f can read without a buffer while it waits, see Receive.
func (c Conn) Await(f func(fd uintptr) bool) error { return c.raw.Read(f) }

// Control calls f with the descriptor of the socket. It returns an error if the socket is closed.
func (c Conn) Control(f func(fd uintptr)) error { return c.raw.Control(f) }
