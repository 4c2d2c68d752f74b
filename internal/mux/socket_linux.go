// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"
	"syscall"
	"unsafe"
)

// unacknowledged returns how many of the bytes that were written to c have not been acknowledged
// by the peer. It returns false if c has no underlying socket.
func unacknowledged(c *Conn) (n int, ok bool) {
	socket := c.socketBelow()
	if socket == nil {
		return 0, false
	}
	var queued int32
	err := socket.Control(func(fd uintptr) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&queued))) //nolint:gosec // SIOCOUTQ, which is the same number
		ok = errno == 0
	})
	return int(queued), ok && err == nil
}

// HungUp reports whether the peer has closed nc, although data from the peer may be unread.
func HungUp(nc net.Conn) bool { return closedByPeer(socketBelow(nc)) }

func hungUp(c *Conn) bool { return closedByPeer(c.socketBelow()) }

func closedByPeer(socket syscall.RawConn) (gone bool) {
	if socket == nil {
		return false
	}
	// Control fails once this side has closed the socket.
	_ = socket.Control(func(fd uintptr) { gone = poll(fd, pollClosed|pollHungUp|pollError, 0) })
	return gone
}

// socketBelow returns the socket under the underlying connection, or nil if there is none.
func (c *Conn) socketBelow() (socket syscall.RawConn) {
	_ = c.callBelow(func() error { // without a socket there is less to know
		socket = socketBelow(c.nc)
		return nil
	})
	return socket
}

// socketBelow returns the socket under nc, which may be a wrapper such as a TLS connection. It
// returns nil if there is no socket, or if too many wrappers are around it.
func socketBelow(nc net.Conn) syscall.RawConn {
	for range 8 { // because a wrapper could wrap itself
		if socket := socketOf(nc); socket != nil {
			return socket
		}
		wrapper, wraps := nc.(interface{ NetConn() net.Conn })
		if !wraps {
			return nil
		}
		nc = wrapper.NetConn()
	}
	return nil
}
