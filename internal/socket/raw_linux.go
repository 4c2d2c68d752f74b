// SPDX-License-Identifier: Apache-2.0

//go:build !race && !386 && !s390x && !indirect

package socket

import (
	"syscall"
	"unsafe"
)

// These functions make system calls of which the Go scheduler knows nothing. So no thread is woken
// that watches for a slow system call: that takes half of the processor time of a server that waits
// between its calls. A call that moves more than mostRaw bytes may be slow, so the scheduler knows
// of it.
//
// A system call that waits here would stop the whole process. A socket can be made to block by
// anyone who calls File and Fd on its connection, so each call says that it does not wait.
const mostRaw = 64 << 10

func read(fd uintptr, p []byte) (int, error) {
	if len(p) > mostRaw {
		return syscall.Read(int(fd), p)
	}
	return raw(syscall.SYS_RECVFROM, fd, p, syscall.MSG_DONTWAIT)
}

func write(fd uintptr, p []byte) (int, error) {
	if len(p) > mostRaw {
		return syscall.Write(int(fd), p)
	}
	return raw(syscall.SYS_SENDTO, fd, p, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
}

func raw(trap, fd uintptr, p []byte, flags uintptr) (int, error) {
	n, _, errno := syscall.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0) //nolint:gosec // as package syscall does
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil //nolint:gosec // at most mostRaw
}
