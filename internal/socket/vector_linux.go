// SPDX-License-Identifier: Apache-2.0

//go:build !indirect

package socket

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// Vectored says whether several pieces of memory can be written or read with one system call.
const Vectored = true

// writev writes the first parts with one system call, and returns how many bytes the socket took.
// The standard library has only a function that blocks until all parts are written.
func writev(fd int, parts net.Buffers) (int, error) {
	var vector [16]syscall.Iovec
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

// A Scatterer reads into several pieces of memory at once. The standard library has no such
// function. Only one goroutine at a time may use it.
type Scatterer struct {
	raw    syscall.RawConn
	try    func(fd uintptr) bool // created once: a closure for each read would be an allocation
	vector [MaxParts]syscall.Iovec
	parts  int // of vector
	n      int
	err    error
}

// Scatterer returns a new Scatterer for the socket.
func (c Conn) Scatterer() *Scatterer {
	s := &Scatterer{raw: c.raw}
	s.try = s.attempt
	return s
}

// Read waits until data arrives, and fills at most MaxParts parts, none of which is empty.
func (s *Scatterer) Read(parts [][]byte) (int, error) {
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

func (s *Scatterer) attempt(fd uintptr) bool {
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
