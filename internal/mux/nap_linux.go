// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"syscall"
	"time"
	"unsafe"
)

// napping says that a thread can sleep until a socket has something to read.
const napping = true

// What ppoll waits for.
const (
	pollReadable = 0x1
	pollError    = 0x8
	pollHungUp   = 0x10
	pollClosed   = 0x2000 // by the peer, although more may be read
)

// nap sleeps until fd has something to read, at most so long, and reports whether it has.
func nap(fd uintptr, limit time.Duration) bool { return poll(fd, pollReadable, limit) }

// poll waits until one of events has happened to fd, at most so long, and reports whether one has.
func poll(fd uintptr, events int16, limit time.Duration) bool {
	what := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: events} //nolint:gosec // descriptors are small
	until := syscall.NsecToTimespec(int64(limit))
	n, _, _ := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&what)), 1, uintptr(unsafe.Pointer(&until)), 0, 0, 0) //nolint:gosec // the kernel is done with both when it returns
	// -1 when interrupted
	return int(n) > 0
}
