// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"
	"syscall"
	"unsafe"
)

// unacknowledged returns how many bytes that were written to nc its peer has not acknowledged yet.
// It returns false when there is no socket below nc.
func unacknowledged(nc net.Conn) (n int, ok bool) {
	socket := socketBelow(nc)
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

// hungUp reports whether the peer has closed nc, although what it sent before has not been read.
func hungUp(nc net.Conn) (gone bool) {
	socket := socketBelow(nc)
	if socket == nil {
		return false
	}
	// it fails once this side has closed nc
	_ = socket.Control(func(fd uintptr) { gone = poll(fd, pollClosed|pollHungUp|pollError, 0) })
	return gone
}

// socketBelow returns the socket below a connection that may wrap one, as that of TLS does. It
// returns nil when there is none.
func socketBelow(nc net.Conn) syscall.RawConn {
	for {
		if socket := socketOf(nc); socket != nil {
			return socket
		}
		wrapper, wraps := nc.(interface{ NetConn() net.Conn })
		if !wraps {
			return nil
		}
		nc = wrapper.NetConn()
	}
}
