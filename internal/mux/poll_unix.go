// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A poller reads a socket without sleeping.
type poller struct {
	try func(fd uintptr) bool // made once: a closure for each read would be an allocation
	buf []byte
	max time.Duration
	nap bool // sleep until something comes, before looking
	n   int
	err error
}

// freePollers is shared: a poller of its own would cost each connection 100 bytes, and most have
// nothing to read most of the time.
var freePollers = sync.Pool{New: func() any {
	p := new(poller)
	p.try = p.look
	return p
}}

// socketOf returns nil for what is no socket, and for types that may wrap one and do something of
// their own in Read and Write.
func socketOf(nc net.Conn) syscall.RawConn {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	raw, err := nc.(syscall.Conn).SyscallConn() //nolint:forcetypeassert // both are
	if err != nil {
		return nil
	}
	return raw
}

// readSocket returns 0 and no error when nothing came in time; with no time it looks once, after a
// nap if it may. There is one caller at a time for a socket.
func readSocket(socket syscall.RawConn, buf []byte, limit time.Duration, mayNap bool) (n int, err error) {
	p := freePollers.Get().(*poller) //nolint:forcetypeassert // the pool holds nothing else
	p.buf, p.max, p.nap, p.n, p.err = buf, limit, mayNap, 0, nil
	if err := socket.Read(p.try); err != nil && p.n == 0 && p.err == nil {
		p.err = err
	}
	n, err = p.n, p.err
	p.buf = nil
	freePollers.Put(p)
	return n, err
}

const (
	// looksPerTurn is how often is looked until the process's other goroutines get their turn. When
	// there are none, runtime.Gosched wakes up a thread that looks for some: with one for each
	// look, the median time of a call was 49 µs instead of 23.
	looksPerTurn = 16
	// longTurn is so long that others were at work.
	longTurn = 10 * time.Microsecond
)

func (p *poller) look(fd uintptr) bool {
	if p.nap && !nap(fd, napTime) {
		return true
	}
	var start time.Time
	for i := 1; ; i++ {
		n, err := syscall.Read(int(fd), p.buf)
		switch {
		case n > 0:
			p.n = n
			return true
		case n == 0 && err == nil:
			p.err = io.EOF
			return true
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EAGAIN):
			p.err = os.NewSyscallError("read", err)
			return true
		}
		if p.max == 0 {
			return true
		}
		if i == 1 {
			start = time.Now()
		}
		yieldProcessor() // the peer may wait for this very processor: without, nothing came in time on a busy machine
		now := time.Since(start)
		if now > p.max {
			return true
		}
		if i%looksPerTurn == 0 {
			runtime.Gosched()
			if time.Since(start)-now > longTurn {
				return true
			}
		}
	}
}
