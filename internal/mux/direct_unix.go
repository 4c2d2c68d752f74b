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
	more  []byte // follows buf
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
		for w.n < len(w.buf)+len(w.more) {
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

// writeWith writes what the socket takes of buf and of more, as if they were one.
func (w *directWriter) writeWith(buf, more []byte) (int, error) {
	w.more = more
	defer func() { w.more = nil }()
	return w.write(buf)
}

// attempt is one write. It keeps the socket from sending the end of buf, which may be a header, by itself.
func (w *directWriter) attempt(fd int) (int, error) {
	switch at := w.n - len(w.buf); {
	case at >= 0:
		return syscall.Write(fd, w.more[at:])
	case len(w.more) > 0:
		return syscall.SendmsgN(fd, w.buf[w.n:], nil, nil, moreFollows)
	}
	return syscall.Write(fd, w.buf[w.n:])
}
