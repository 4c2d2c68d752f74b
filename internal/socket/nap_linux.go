// SPDX-License-Identifier: Apache-2.0

//go:build !indirect

package socket

import (
	"syscall"
	"time"
	"unsafe"
)

// napping says whether a thread can sleep until a socket has data to read.
const napping = true

// Events for ppoll.
const (
	pollReadable = 0x1
	pollError    = 0x8
	pollHungUp   = 0x10
	pollClosed   = 0x2000 // by the peer, although there may be data to read
)

// nap sleeps for at most limit until fd has data to read. It reports whether there is data.
func nap(fd uintptr, limit time.Duration) bool { return poll(fd, pollReadable, limit) != 0 }

// poll waits for at most limit until one of events has happened to fd. It returns those that have.
func poll(fd uintptr, events int16, limit time.Duration) (happened int16) {
	what := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: events} //nolint:gosec // descriptors are small
	until := syscall.NsecToTimespec(int64(limit))
	n, _, _ := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&what)), 1, uintptr(unsafe.Pointer(&until)), 0, 0, 0) //nolint:gosec // the kernel is done with both when it returns
	if int(n) <= 0 {
		return 0 // n is -1 when the system call was interrupted
	}
	return what.revents
}
