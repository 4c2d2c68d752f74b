// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// vectored says whether several pieces of memory can be written or read with one system call.
const vectored = true

// writev writes the first parts with one system call, and returns how many bytes the socket took.
// The standard library has only a function that blocks until all parts are written.
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

// A scatterer reads into several pieces of memory at once. The standard library has no such
// function.
type scatterer struct {
	raw    syscall.RawConn
	try    func(fd uintptr) bool // created once: a closure for each read would be an allocation
	vector [2*ahead + 2]syscall.Iovec
	parts  int // of vector
	n      int
	err    error
}

func newScatterer(socket syscall.RawConn) *scatterer {
	s := &scatterer{raw: socket}
	s.try = s.attempt
	return s
}

// read waits until data arrives. Only one goroutine at a time may call it.
func (s *scatterer) read(parts [][]byte) (int, error) {
	s.parts, s.n, s.err = len(parts), 0, nil
	for i, part := range parts {
		s.vector[i].Base = &part[0]
		s.vector[i].SetLen(len(part))
	}
	err := s.raw.Read(s.try)
	clear(s.vector[:len(parts)])
	if s.n > 0 || s.err != nil {
		err = s.err
	}
	return s.n, err
}

func (s *scatterer) attempt(fd uintptr) bool {
	for {
		n, _, errno := syscall.Syscall(syscall.SYS_READV, fd, uintptr(unsafe.Pointer(&s.vector)), uintptr(s.parts)) //nolint:gosec // as package syscall does
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			s.err = os.NewSyscallError("readv", errno)
		case n == 0:
			s.err = io.EOF
		}
		if errno == 0 {
			s.n = int(n)
		}
		return true
	}
}
