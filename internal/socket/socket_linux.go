// SPDX-License-Identifier: Apache-2.0

//go:build !indirect

package socket

import (
	"errors"
	"net"
	"syscall"
	"unsafe"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

// Unacknowledged returns how many of the bytes that were written to nc have not been acknowledged
// by the peer. It returns false if nc has no underlying socket.
func Unacknowledged(nc net.Conn) (n int, ok bool) {
	socket := socketBelow(nc)
	if !socket.Exists() {
		return 0, false
	}
	var queued int32
	err := socket.raw.Control(func(fd uintptr) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&queued))) //nolint:gosec // SIOCOUTQ, which is the same number
		ok = errno == 0
	})
	return int(queued), ok && err == nil
}

// Look reports whether there is something to read from nc, and whether the peer has closed it,
// although data from the peer may be unread. A wrapper may have data that it has read already.
func Look(nc net.Conn) (unread, gone bool) {
	socket := socketBelow(nc)
	if !socket.Exists() {
		return false, false
	}
	// Control fails once this side has closed nc.
	_ = socket.raw.Control(func(fd uintptr) {
		const ended = pollClosed | pollHungUp | pollError
		happened := poll(fd, pollReadable|ended, 0)
		unread, gone = happened&pollReadable != 0, happened&ended != 0
	})
	return unread, gone
}

// errBroken says that the code of a wrapper panicked, or ended its goroutine.
var errBroken = errors.New("the wrapper's own code is broken")

// socketBelow returns the socket under nc, which may be a wrapper such as a TLS connection. It
// looks through at most seven wrappers, which may be code of users.
func socketBelow(nc net.Conn) Conn {
	for range 8 { // because a wrapper could wrap itself
		if socket := Of(nc); socket.Exists() {
			return socket
		}
		wrapper, wraps := nc.(interface{ NetConn() net.Conn })
		if !wraps || isolate.Call(func() error { nc = wrapper.NetConn(); return nil }, func(any) error { return errBroken }) != nil {
			return Conn{}
		}
	}
	return Conn{}
}
