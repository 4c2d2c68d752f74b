// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"
	"syscall"
	"unsafe"
)

// vectored says that several pieces of memory can be written at once.
const vectored = true

// writev writes what the socket takes at once of parts, of the first ones when there are many. The standard library has this only in a
// form that blocks.
func writev(fd int, parts net.Buffers) (int, error) {
	var vector [4 * atOnce]syscall.Iovec
	n := 0
	for _, part := range parts {
		if len(part) > 0 && n < len(vector) {
			vector[n].Base = &part[0]
			vector[n].SetLen(len(part))
			n++
		}
	}
	wrote, _, errno := syscall.Syscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&vector)), uintptr(n)) //nolint:gosec // as package syscall does
	if errno != 0 {
		return 0, errno
	}
	return int(wrote), nil
}
