// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"
	"syscall"
	"unsafe"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// unacknowledged returns how many of the bytes that were written to nc have not been acknowledged
// by the peer. It returns false if nc has no underlying socket.
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

// HungUp reports whether the peer has closed nc, although data from the peer may be unread.
func HungUp(nc net.Conn) (gone bool) {
	socket := socketBelow(nc)
	if socket == nil {
		return false
	}
	// Control fails once this side has closed nc.
	_ = socket.Control(func(fd uintptr) { gone = poll(fd, pollClosed|pollHungUp|pollError, 0) })
	return gone
}

// socketBelow returns the socket under nc, which may be a wrapper such as a TLS connection. It
// looks through at most seven wrappers, and returns nil if it finds no socket.
func socketBelow(nc net.Conn) syscall.RawConn {
	for range 8 { // because a wrapper could wrap itself
		if socket := socketOf(nc); socket != nil {
			return socket
		}
		wrapper, wraps := nc.(interface{ NetConn() net.Conn })
		if !wraps || isolate.Call(func() error { nc = wrapper.NetConn(); return nil }, broken) != nil {
			return nil
		}
	}
	return nil
}
