// SPDX-License-Identifier: Apache-2.0

//go:build unix && !indirect

package socket

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// A directWriter writes to a socket without blocking. So a caller that also writes the frames of
// other callers can still return when its own context ends. On other systems, and on connections
// that are not sockets, a separate goroutine writes.
type directWriter struct {
	try   func(fd uintptr) bool // created once: a closure for each write would be an allocation
	buf   []byte
	parts net.Buffers // in place of buf
	n     int
	err   error
	count *atomic.Uint64 // incremented with each system call
}

var freeWriters = sync.Pool{New: func() any {
	w := new(directWriter)
	w.try = w.writeOn
	return w
}}

// writeOn writes until the socket takes no more.
func (w *directWriter) writeOn(fd uintptr) bool {
	for w.n < len(w.buf) || len(w.parts) > 0 {
		n, err := w.attempt(fd)
		w.count.Add(1)
		switch {
		case n > 0:
			w.n += n
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return true
		default:
			w.err = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}

func (c Conn) write(count *atomic.Uint64, buf []byte, parts net.Buffers) (n int, left net.Buffers, err error) {
	w := freeWriters.Get().(*directWriter) //nolint:forcetypeassert // the pool holds nothing else
	w.count, w.buf, w.parts, w.n, w.err = count, buf, parts, 0, nil
	if err := c.raw.Write(w.try); err != nil && w.err == nil {
		w.err = err
	}
	n, left, err = w.n, w.parts, w.err
	w.count, w.buf, w.parts, w.err = nil, nil, nil, nil
	freeWriters.Put(w)
	return n, left, err
}

// attempt makes one write of the rest.
func (w *directWriter) attempt(fd uintptr) (int, error) {
	if len(w.parts) == 0 {
		return write(fd, w.buf[w.n:])
	}
	n, err := writev(int(fd), w.parts)
	if n <= 0 {
		return n, err
	}
	taken := n
	for len(w.parts) > 0 && taken >= len(w.parts[0]) {
		taken -= len(w.parts[0])
		w.parts = w.parts[1:]
	}
	if taken > 0 {
		w.parts[0] = w.parts[0][taken:]
	}
	return n, err
}
