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

// A poller reads a socket without sleeping in the Go scheduler.
type poller struct {
	try func(fd uintptr) bool // created once: a closure for each read would be an allocation
	buf []byte
	max time.Duration
	nap bool // sleep in ppoll until data arrives, before the first read
	n   int
	err error
}

// freePollers holds pollers for all connections. If each connection had its own poller, it would
// take 100 bytes more, and most connections have nothing to read.
var freePollers = sync.Pool{New: func() any {
	p := new(poller)
	p.try = p.readOn
	return p
}}

// socketOf returns the socket of nc. It returns nil for connections without a socket, and for types
// that may wrap a socket and change Read and Write.
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

// readSocket polls for at most limit. It returns 0 and no error if nothing arrived. If limit is 0,
// it reads once, after a nap if mayNap is set. Only one goroutine at a time may call it for a
// socket.
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
	// readsPerYield is how many reads a poller makes before it yields to the process's other
	// goroutines. If there are no runnable goroutines, runtime.Gosched wakes a thread that searches
	// for some. With one yield for each read, the median time of a call was 49 µs in place of 23
	// µs.
	readsPerYield = 16
	// longYield is the least duration of a yield that shows that other goroutines have run
	// meanwhile.
	longYield = 10 * time.Microsecond
)

func (p *poller) readOn(fd uintptr) bool {
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
		// The peer's process may be waiting for this processor. Without the yield, no data arrived
		// in time on a busy machine.
		yieldProcessor()
		now := time.Since(start)
		if now > p.max {
			return true
		}
		if i%readsPerYield == 0 {
			runtime.Gosched()
			if time.Since(start)-now > longYield {
				return true
			}
		}
	}
}
