// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// vectored says that several pieces of memory can be written at once.
const vectored = true

// writev writes what the socket takes at once of parts, of the first ones when there are many. The
// standard library has this only in a form that blocks.
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

// A scatterer reads to several places at once. The standard library has nothing of the kind.
type scatterer struct {
	raw    syscall.RawConn
	try    func(fd uintptr) bool // made once: a closure for each read would be an allocation
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

// read waits until something comes. There is one caller at a time.
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
