// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"
	"syscall"
	"unsafe"
)

// unacknowledged returns how many bytes that were written to nc its peer has not acknowledged yet. It looks at the socket below a
// connection that wraps one, as that of TLS does. It returns false when there is no socket.
func unacknowledged(nc net.Conn) (n int, ok bool) {
	socket := socketOf(nc)
	for socket == nil {
		wrapper, wraps := nc.(interface{ NetConn() net.Conn })
		if !wraps {
			return 0, false
		}
		nc = wrapper.NetConn()
		socket = socketOf(nc)
	}
	var queued int32
	err := socket.Control(func(fd uintptr) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&queued))) //nolint:gosec // SIOCOUTQ, which is the same number
		ok = errno == 0
	})
	return int(queued), ok && err == nil
}
