// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// A directWriter writes to a socket without ever blocking, so that a caller can write on behalf of
// others and still end with its own context. Elsewhere, and on connections that are no sockets, a
// goroutine does the writing.
type directWriter struct {
	raw   syscall.RawConn
	try   func(fd uintptr) bool // made once: a closure for each write would be an allocation
	buf   []byte
	parts net.Buffers // instead of buf
	n     int
	err   error
	count *counters
}

func newDirectWriter(nc net.Conn, count *counters) *directWriter {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn: // not a type that may wrap them and do something of its own in Write
	default:
		return nil
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	w := &directWriter{raw: raw, count: count}
	w.try = func(fd uintptr) bool {
		for w.n < len(w.buf) || len(w.parts) > 0 {
			n, err := w.attempt(int(fd))
			w.count.writes.Add(1)
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
	return w
}

// write writes what the socket takes. There is one caller at a time.
func (w *directWriter) write(buf []byte) (int, error) {
	w.buf, w.n, w.err = buf, 0, nil
	if err := w.raw.Write(w.try); err != nil && w.err == nil {
		w.err = err
	}
	w.buf = nil
	return w.n, w.err
}

// writeAll writes what the socket takes of parts, and returns what is left.
func (w *directWriter) writeAll(parts net.Buffers) (n int, left net.Buffers, err error) {
	w.parts = parts
	n, err = w.write(nil)
	left, w.parts = w.parts, nil
	return n, left, err
}

// attempt is one write of what is left.
func (w *directWriter) attempt(fd int) (int, error) {
	if len(w.parts) == 0 {
		return syscall.Write(fd, w.buf[w.n:])
	}
	n, err := writev(fd, w.parts)
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
